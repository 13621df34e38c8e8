"""The benchmark of the defaults: division of the sets, removal of values, statistics."""

import json
import re
import sys

import numpy as np
import pytest

from conftest import ROOT

pd = pytest.importorskip("pandas")

sys.path.insert(0, str(ROOT))
from benchmarks import average, defaults, defaults_page, embeddings, few_labels, gpu, missingness, readme  # noqa: E402
from benchmarks.data_sets import CATEGORY, division, load, names_of, remove  # noqa: E402


def frame(n_rows: int = 4000) -> "pd.DataFrame":
    rng = np.random.default_rng(0)
    letters = pd.Series(rng.choice(["a", "b", "c"], n_rows, p=[0.6, 0.3, 0.1]), dtype="category")
    return pd.DataFrame({"wide": rng.normal(size=n_rows), "few": rng.integers(3, size=n_rows) * 1.0, "text": letters})


def test_no_set_and_no_source_is_in_both_parts():
    parts = division()
    for key in ("name", "source"):
        values = [entry[key] for part in ("development", "evaluation") for entry in parts[part]]
        assert len(set(values)) == len(values) >= 80
    assert {entry["history"] for entry in parts["development"]} == {"splits", "strengths", "losses", "looked", "new"}
    assert set(parts["quick"]) <= {entry["name"] for entry in parts["development"]}


def test_sets_are_read_from_files(tmp_path, monkeypatch):
    monkeypatch.setenv("MIXTURA_BENCHMARKS", str(tmp_path))
    table = pd.DataFrame(
        {"size": [1.5, None] * 15, f"color{CATEGORY}": ["NA", "", "1"] * 10, "class": [1] * 24 + [2] * 6}
    )
    table.to_csv(tmp_path / "iris.csv", index=False)
    assert names_of("development")[0] == ["iris"]
    assert "wine" in names_of("development")[1]
    data = load("iris")
    assert data.X.shape == (24, 2)  # the class of 6 rows is too rare
    assert data.categories == ["color"]
    assert set(data.X["color"].dropna()) == {"NA", "1"}
    assert data.X["color"].isna().sum() == 8
    assert not data.y.any()


def test_sets_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MIXTURA_BENCHMARKS", str(tmp_path))
    with pytest.raises(SystemExit, match=r"No set is there; MIXTURA_BENCHMARKS must name the folder of benchmarks"):
        defaults.main(["--out", str(tmp_path / "results.jsonl")])


def test_a_run_continues_and_measures_other_code_again(tmp_path, monkeypatch):
    def guess(X, y, folds):
        return lambda X: np.full((len(X), 2), 0.5)

    monkeypatch.setenv("MIXTURA_BENCHMARKS", str(tmp_path))
    monkeypatch.setattr(defaults.torch, "set_num_threads", lambda n_threads: None)  # other tests have their own
    frame(40).assign(**{"class": [1, 2] * 20}).rename(columns={"text": f"text{CATEGORY}"}).to_csv(
        tmp_path / "wine.csv", index=False
    )
    monkeypatch.setitem(defaults.CLASSIFIERS, defaults.OURS, guess)
    monkeypatch.setitem(defaults.CLASSIFIERS, "LightGBM", guess)
    out = tmp_path / "results.jsonl"
    command = ["--folds", "2", "--classifiers", defaults.OURS, "LightGBM", "--out", str(out)]
    for code, n_rows in (("first", 8), ("first", 8), ("second", 12)):  # two folds, two conditions; ours alone again
        monkeypatch.setattr(defaults, "version", lambda code=code: code)
        defaults.main(command)
        assert len(defaults.read(out)) == n_rows
    first = defaults.read(out)[0]
    assert (first["samples"], first["features"], first["categories"]) == (32, 3, 1)
    defaults.main([*command, "--conditions", "random 10", "--minutes", "0"])  # no time at all
    assert len(defaults.read(out)) == 12
    lines = defaults_page.compare_versions(defaults.read(out), defaults.read(out)[:8], "second")
    assert lines[0] == "complete: new minus old"
    assert "+0.0000" in lines[1]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("mechanism", ["random", "at random", "informative"])
def test_the_share_of_removed_values(mechanism, share):
    X = frame()
    missing = remove(X, mechanism, share, seed=3).isna()
    columns = ["few", "text"] if mechanism == "at random" else list(X)
    assert not missing["wide"].any() or mechanism != "at random"  # the other columns depend on it
    np.testing.assert_allclose(missing[columns].mean(), share, atol=0.03)


def test_what_removal_depends_on():
    X = frame()
    at_random, informative = (remove(X, mechanism, 0.3, seed=3) for mechanism in ("at random", "informative"))
    assert abs(np.corrcoef(at_random["few"].isna(), X["wide"])[0, 1]) > 0.4
    assert abs(np.corrcoef(informative["wide"].isna(), X["wide"])[0, 1]) > 0.4
    y = np.arange(len(X)) % 2
    rates = remove(X, "by class", 0.3, seed=3, y=y).isna().groupby(y).mean()
    assert float((rates.loc[0] - rates.loc[1]).abs().max()) > 0.1
    assert 0 <= float(rates.min().min()) < float(rates.max().max()) < 0.65
    assert abs(np.corrcoef(remove(X, "random", 0.3, seed=3)["few"].isna(), X["wide"])[0, 1]) < 0.05


def test_other_classifiers_see_thinned_copies_in_deployment():
    X, y = frame(40), np.arange(40) % 2
    parts = (X.iloc[:30], y[:30], X.iloc[30:], y[30:])
    (rows, labels, test, _), numbers = defaults.thin(parts, "deployment 30", 0, copies=True)
    assert len(rows) == len(labels) == len(numbers) == 30 * (1 + defaults.N_COPIES)
    assert not rows[:30].isna().any(axis=None)
    assert rows[30:].isna().any(axis=None)
    assert test.isna().any(axis=None)
    for train, held_out in defaults.inner_folds(labels, numbers):
        assert not set(numbers[train]) & set(numbers[held_out])
    own, _ = defaults.thin(parts, "deployment 30", 0, copies=False)
    assert len(own[0]) == 30
    pd.testing.assert_frame_equal(own[2], test)


def test_scores():
    y = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.5, 0.5]])
    scores = defaults.scores(probabilities, y)
    assert scores["error"] == 0.5
    assert scores["AUC"] == 0.75
    np.testing.assert_allclose(scores["log-loss"], -np.log([0.9, 0.4, 0.7, 0.5]).mean(), atol=1e-6)
    np.testing.assert_allclose(scores["Brier"], 2 * np.mean([0.01, 0.36, 0.09, 0.25]), atol=1e-6)


def test_a_failure_counts_as_the_class_frequencies(monkeypatch):
    def fail(X, y, folds):
        raise ValueError("no model")

    parts = (frame(30), np.arange(30) % 3 // 2, frame(6), np.arange(6) % 2)
    monkeypatch.setitem(defaults.CLASSIFIERS, "failing", fail)
    monkeypatch.setattr(defaults, "split", lambda *arguments: parts)
    monkeypatch.setattr(defaults, "groups_of", lambda *arguments: None)
    row = defaults.measure("development", "", 0, "complete", "failing")
    assert row["failure"] == "ValueError: no model"
    np.testing.assert_allclose(row["log-loss"], -np.log([2 / 3, 1 / 3]).mean(), atol=1e-6)

    def absent(X, y, folds):
        raise ModuleNotFoundError("No module named 'boosting'")

    monkeypatch.setitem(defaults.CLASSIFIERS, "failing", absent)
    with pytest.raises(ModuleNotFoundError, match="boosting"):  # no failure of the classifier
        defaults.measure("development", "", 0, "complete", "failing")


def row(name: str, classifier: str, loss: float, fold: int = 0) -> dict:
    condition = {"part": "development", "condition": "complete", "code": "c"}
    return {"set": name, "classifier": classifier, "fold": fold, "log-loss": loss, **condition}


def test_sizes_of_a_generator_are_one_set_and_folds_are_paired():
    rows = [row("moons 50", "a", 1.0), row("moons 200", "a", 0.5), row("iris", "a", 0.2), row("iris", "a", 9.0, 1)]
    rows += [row("moons 50", "b", 2.0), row("moons 200", "b", 1.0), row("iris", "b", 0.1)]
    assert defaults_page.pair(rows, "a", "b", "log-loss") == ({"iris": 0.2, "moons": 0.75}, {"iris": 0.1, "moons": 1.5})


def test_numbers_of_folds_are_those_that_both_have():
    rows = [row("iris", "a", 0.1, fold) for fold in range(3)] + [row("iris", "b", 0.1, fold) for fold in (1, 2, 4)]
    assert defaults_page.folds_of(rows, "a", "b") == "2"
    rows += [row("zoo", name, 0.1) for name in "ab"]
    assert defaults_page.folds_of(rows, "a", "b") == "1 to 2"
    assert defaults_page.folds_of(rows, "a", "c") == "0"


def test_seconds_are_compared_on_one_machine():
    """The one with the most fits that both have, never the one that nobody knows."""
    rows = [row("iris", "a", 0.1), row("iris", "b", 0.1) | {"machine": "second"}]
    assert defaults_page.pair(defaults_page.on_one_machine(rows, "a", ["b"])[1], "a", "b", "log-loss") == ({}, {})
    rows += [row(name, c, 0.2, 1) | {"machine": "second"} for name in ("iris", "zoo") for c in "ab"]
    rows += [row(name, c, 0.3, 2) | {"machine": "unknown"} for name in ("iris", "zoo", "wine") for c in "ab"]
    machine, own = defaults_page.on_one_machine(rows, "a", ["b"])
    assert machine == "second"
    assert defaults_page.pair(own, "a", "b", "log-loss") == ({"iris": 0.2, "zoo": 0.2}, {"iris": 0.2, "zoo": 0.2})
    rows += [row(name, c, 0.4) for name in ("soy", "oils", "glass") for c in "ab"]
    assert defaults_page.on_one_machine(rows, "a", ["b"])[0] == "first"


def test_tables_by_set_compare_equal_folds():
    """A classifier with fewer folds has a table of its own, with ours on its folds."""
    ours, other, few = defaults.OURS, "LightGBM", "TabM"
    rows = [row("iris", ours, 0.1 * fold, fold) for fold in range(3)]
    rows += [row("iris", other, 0.5, fold) for fold in range(3)] + [row("iris", few, 0.7, 1)]
    rows = [r | {"error": 0.0, "samples": 9, "features": 2, "categories": 0} for r in rows]
    assert defaults_page.by_folds(rows) == {"3": [other], "1": [few]}
    assert defaults_page.by_set(rows, [other])[-1] == "| iris | 9 x 2 | 0.0%, 0.100 | 0.0%, 0.500 |"
    rows[0] |= {"log-loss": 100.0}
    assert defaults_page.by_set(rows, [few])[-1] == "| iris | 9 x 2 | 0.0%, 0.100 | 0.0%, 0.700 |"
    table = defaults_page.extent(rows)
    assert f"| {few} | 1 x 1 |" in table
    uneven = [*rows, row("zoo", other, 0.1)]
    assert f"| {other} | 4 fits |" in defaults_page.extent(uneven)


def test_classifiers_without_some_sets_are_named():
    names = [f"set {i}" for i in range(12)]
    rows = [row(name, defaults.OURS, 0.1) for name in names]
    rows += [row(name, classifier, 0.2) for name in names for classifier in ("LightGBM", "CatBoost")]
    assert readme.incomplete(rows) == ""
    assert readme.incomplete(rows[:-1]).endswith(" CatBoost on set 11. ")


def test_verdicts_are_at_two_standard_errors():
    noise = np.array([1.0, -1.0] * 8)  # the standard error of its mean is 1 / sqrt(15)
    below, beyond = 1.9 / 15**0.5, 2.1 / 15**0.5
    words = [readme.verdict(noise + shift) for shift in (-beyond, -below, 0, below, beyond)]
    assert words == ["better", *["not distinguishable"] * 3, "worse"]


def test_signs_name_folds_that_differ():
    names = [f"set {i}" for i in range(12)]
    rows = [row(name, defaults.OURS, 0.1 + i / 1000, fold) for i, name in enumerate(names) for fold in (0, 1)]
    rows += [row(name, "LightGBM", 0.3, fold) for name in names for fold in (0, 1)]
    rows += [row(name, "CatBoost", 0.05) for name in names]
    rows = [each | {"error": each["log-loss"]} for each in rows]
    assert readme.signs(rows, "LightGBM", "2") == "+ +"
    assert readme.signs(rows, "CatBoost", "2") == "- - (1)"
    assert readme.signs(rows, "TabM", "2") == ""


def test_measurements_of_others_are_appended_once(tmp_path):
    out, more = tmp_path / "out.jsonl", tmp_path / "more.jsonl"
    out.write_text(json.dumps(row("iris", "a", 0.1)) + "\n", "utf-8")
    new = [row("iris", "a", 0.9), row("iris", "a", 0.2, 1) | {"machine": "second"}]
    more.write_text("".join(json.dumps(each) + "\n" for each in new), "utf-8")
    for n_rows in (1, 0):
        assert defaults.merge([more, more], out) == n_rows
        assert defaults.read(out) == [row("iris", "a", 0.1), new[1]]


def test_signed_ranks():
    better = defaults_page.signed_rank(np.full(20, -0.1), equal=0.01)
    assert better[0] > 0.99
    assert sum(better) == pytest.approx(1)
    assert defaults_page.signed_rank(np.zeros(20), equal=0.01)[1] > 0.99
    mixed = defaults_page.signed_rank(np.array([-0.1, 0.1] * 10), equal=0.01)
    assert abs(mixed[0] - mixed[2]) < 0.02
    assert defaults_page.count(np.array([-0.1, 0.0, 0.02, 0.05]), 0.01) == (1, 1, 2)


def test_results_in_the_readme_are_those_of_the_files():
    assert readme.section_of(readme.README.read_text("utf-8")) == readme.render(), "run python -m benchmarks.readme"
    page = readme.DECISIONS.read_text("utf-8")
    assert page == readme.with_decisions(page), "run python -m benchmarks.readme"
    part = defaults_page.part_of(defaults.results())
    assert f"The sets of the first two rows are {part} sets" in page


def test_sets_are_told_apart_by_their_features():
    rows = [row("iris", "a", 0.1) | {"categories": 0}, row("zoo", "a", 0.2) | {"categories": 15}]
    parts = defaults_page.by_kind(rows)
    assert [[own["set"] for own in part] for part in parts.values()] == [["zoo"], ["iris"]]


def test_the_page_of_the_defaults_is_that_of_its_file():
    page = (defaults.RESULTS / "defaults.md").read_text("utf-8")
    assert page == defaults_page.page(defaults.results()) + "\n", "run python -m benchmarks defaults"


def test_the_page_of_averages_is_that_of_its_files():
    page = (average.RESULTS / "average.md").read_text("utf-8")
    assert page == average.page(average.read()), "run python -m benchmarks defaults, or benchmarks.average.write"


def test_the_page_of_missingness_is_that_of_its_file():
    """The bold figures of docs/missing.md are the smallest of their rows."""
    results = json.loads((missingness.RESULTS / "missingness.json").read_text("utf-8"))
    assert missingness.as_markdown(results) == (missingness.RESULTS / "missingness.md").read_text("utf-8")
    averages = missingness.means(results["rows"])
    best = [min(missingness.METHODS, key=lambda method: averages[reason, method]) for reason in missingness.REASONS]
    assert best == ['missing="auto"', 'missing="ignorable"', 'missing="ignorable"']


def test_the_guide_and_the_page_have_the_figures_of_embeddings():
    results = json.loads((embeddings.RESULTS / "embeddings.json").read_text("utf-8"))
    guide = embeddings.GUIDE.read_text("utf-8")
    assert embeddings.into_guide(guide, results) == guide
    assert embeddings.as_markdown(results) == (embeddings.RESULTS / "embeddings.md").read_text("utf-8")
    changed = {part: measured | {"machine": "another"} for part, measured in results.items()}
    assert embeddings.as_markdown(changed) != embeddings.as_markdown(results)


def test_the_page_of_gpus_has_the_figures_of_its_file():
    results = json.loads((embeddings.RESULTS / "gpu.json").read_text("utf-8"))
    assert gpu.table(results) == (embeddings.RESULTS / "gpu.md").read_text("utf-8")
    page = (ROOT / "docs" / "gpu.md").read_text("utf-8")

    def agree(cell: str, value: float | None) -> bool:
        text = re.split(r"[, ]", cell)[0]
        if value is None:
            return cell == ""
        return float(text) == round(value, len(text.partition(".")[2]))

    passes = re.findall(r"^\| \w+, [\d,]+ x \d+, \d+(?:, known centres)? \| (.*?) \| (.*?) \| (.*?) ?\|", page, re.M)
    fits = re.findall(r"^\| .* \| [\d,]+ x \d+ \| (.*?) \| (.*?) \|$", page, re.M)
    assert (len(passes), len(fits)) == (len(results["passes"]), len(results["fits"]))
    for cells, run in zip(passes, results["passes"], strict=True):
        assert all(map(agree, cells, (run["pass"], run["signed pass"], run["predict_proba"]))), (cells, run)
    for cells, run in zip(fits, results["fits"], strict=True):
        assert all(map(agree, cells, (run["cuda"], run["cpu"]))), (cells, run)


def test_the_guide_and_the_page_have_the_figures_of_few_labels():
    results = json.loads((few_labels.RESULTS / "few_labels.json").read_text("utf-8"))
    guide = few_labels.GUIDE.read_text("utf-8")
    assert few_labels.into_guide(guide, results) == guide
    assert few_labels.as_markdown(results) == (few_labels.RESULTS / "few_labels.md").read_text("utf-8")
    assert all(
        len(row["errors"][rival]) == few_labels.N_DRAWS for row in results["rows"] for rival in few_labels.RIVALS
    )


def test_labels_are_drawn_class_by_class():
    y = np.repeat([0, 1, 2], [50, 30, 5])
    labels = few_labels.few(y, 4, 0)
    assert [(labels == c).sum() for c in (0, 1, 2)] == [4, 4, 4]
    assert (labels[labels >= 0] == y[labels >= 0]).all()
    assert (labels != few_labels.few(y, 4, 1)).any()


@pytest.mark.parametrize("kind", embeddings.KINDS)
def test_features_have_their_spectrum_and_their_labels(kind):
    X, y = embeddings.Features(kind, 60, 4, "cpu").draw(20_000)
    spectrum = np.linalg.eigvalsh(np.cov(X.T.numpy()))[::-1]
    assert 0.7 < spectrum[31] / spectrum[3] / (4 / 32) < 1.4  # falls as 1 / j
    assert sorted(y.unique().tolist()) == [0, 1, 2, 3]
    own = np.stack([np.cov(X[y == c].T.numpy()).diagonal() for c in range(4)])
    differ = own.std(0).mean() / own.mean()
    assert differ > 0.02 if kind == "own covariances" else differ < 0.1


def test_logistic_regression_learns_a_linear_rule():
    X, y = embeddings.Features("linear teacher", 20, 3, "cpu").draw(3000)
    model = embeddings.Logistic(40).fit(X[:2000], y[:2000])
    assert float((model.predict_proba(X[2000:]).argmax(1) == y[2000:]).double().mean()) > 0.6
