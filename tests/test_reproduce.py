"""The published tables: pages equal what the results render to, results are not older than the code, scripts run."""

import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from conftest import ROOT
from mixtura.covariances import FullCovariance, LowRankCovariance
from mixtura.model.mixture import Mixture

sys.path.insert(0, str(ROOT))

from reproduce import comparison, discriminative, few_labels_published, hybrid, hybrid_tables, overview, readme, stamps
from reproduce.__main__ import main
from reproduce.registry import TABLES

FILES = sorted(path.name for path in stamps.RESULTS.glob("*.json"))
with_results = pytest.mark.skipif(not FILES, reason="a source distribution has no result files")


@with_results
@pytest.mark.parametrize("name", TABLES)
def test_pages_equal_what_the_results_render_to(name):
    for file, text in TABLES[name].pages(stamps.RESULTS).items():
        assert (stamps.RESULTS / file).read_text() == text, f"{file} is not what its JSON renders to: reproduce render"


@with_results
def test_every_result_belongs_to_a_table():
    assert {file for table in TABLES.values() for file in table.results} >= set(FILES)


@with_results
@pytest.mark.parametrize("name", TABLES)
def test_results_older_than_the_code_have_a_note(name):
    table = TABLES[name]
    for file in table.results:
        if (stamps.RESULTS / file).exists():
            codes = {stamp["code"] for stamp in stamps.stamps_of(stamps.RESULTS / file)}
            noted = set(stamps.notes().get(file, {}))
            older = codes - noted - {stamps.digest(table.sources)}
            assert not older, (
                f"{file} was computed with code {', '.join(older)} of {', '.join(table.sources)}, which has changed. "
                f"Run python -m reproduce {name} --fresh, or python -m reproduce note {name} and words on why not."
            )


@with_results
def test_notes_are_of_stamps_that_exist():
    for file, codes in stamps.notes().items():
        known = {stamp["code"] for stamp in stamps.stamps_of(stamps.RESULTS / file)}
        assert set(codes) <= known, f"notes.json has a note on {file} for code that computed none of it"


def test_a_digest_ignores_docstrings_and_comments():
    text = '"""Words."""\n# why\ndef f():\n    """More words."""\n\n    return 1  # kept\n'
    assert stamps.code_lines(text) == ["def f():", "    return 1  # kept"]


def test_a_resumed_result_keeps_its_stamps(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text('{"runs": {}}')
    before = stamps.stamps_of(path)
    stamps.add_stamp(path, before, ["nonnegative"])
    codes = [stamp["code"] for stamp in stamps.stamps_of(path)]
    assert codes == [stamps.UNSTAMPED, stamps.digest(["nonnegative"])]
    stamps.add_stamp(path, [], ["nonnegative"])  # a fresh run
    assert [stamp["code"] for stamp in stamps.stamps_of(path)] == codes[1:]


# ---- every script on generated data ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_data(tmp_path_factory):
    """Files with the names and shapes of the published sets, of a few hundred samples."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = images[order] / 16, labels[order]
    large = np.pad(np.kron(images.reshape(-1, 8, 8) * 255, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)

    def save(name, X, y, n_train=None, **others):
        if n_train is None:
            np.savez(folder / f"{name}.npz", X=X, y=y, **others)
            return
        parts = {"X_train": X[:n_train], "y_train": y[:n_train], "X_test": X[n_train:], "y_test": y[n_train:]}
        np.savez(folder / f"{name}.npz", **parts, **others)

    for name in ("mnist", "fashion_mnist"):
        save(name, large, labels.astype(np.uint8), 1500)
    save("usps", np.kron(images.reshape(-1, 8, 8), np.ones((2, 2))).reshape(-1, 256) * 2 - 1, labels, 400)
    faces = rng.integers(0, 255, (300, 19, 19), dtype=np.uint8)
    faces[:120, 5:14] //= 2
    np.savez(folder / "cbcl_faces.npz", X_train=faces, y_train=np.repeat([1, 0], [120, 180]).astype(np.uint8))
    y = rng.integers(0, 2, 400)
    X = rng.normal(size=(400, 2)) + 2 * y[:, None] * [1, -1]
    save("ripley", X, y, 150, feature_names=np.array(["xs", "ys"]))
    save("bupa", rng.normal(size=(345, 6)) + (rng.integers(0, 2, 345) * 0)[:, None], rng.integers(1, 3, 345),
         feature_names=np.array(list("abcdef")))  # fmt: skip
    return folder


LONG = ("ot95-table1", "ot95-table2", "kjo03", "lzz06-table1", "lzz06-table2", "rptp18-table2", "rptp18-figure3",
        "hu21-table1")  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in TABLES]
)
def test_every_script_runs_from_data_to_page(name, small_data, tmp_path, monkeypatch):
    monkeypatch.setenv("MIXTURA_DATA", str(small_data))
    monkeypatch.setattr(discriminative, "N_FOLDS", 2)
    monkeypatch.setattr(discriminative, "N_DIVISIONS", 1)
    monkeypatch.setattr(discriminative, "WIDTHS", (0.3,))
    main([name, "--quick", "--device", "cpu", "--out", str(tmp_path)])
    files = [file for file in TABLES[name].results if (tmp_path / file).exists()]
    assert files
    for file in files:
        assert stamps.stamps_of(tmp_path / file)[-1]["code"] == stamps.digest(TABLES[name].sources)
    for file, text in TABLES[name].pages(tmp_path).items():
        assert (tmp_path / file).read_text() == text
        assert "nan" not in text, text


# ---- what is said about the tables -----------------------------------------------------------------------------------


@with_results
def test_the_readme_and_the_page_of_all_tables_are_rendered():
    assert readme.PAGE.read_text() == readme.text(), "run python -m reproduce render"
    assert overview.PAGE.read_text() == overview.page(), "run python -m reproduce render"


@pytest.mark.parametrize(
    ("published", "error", "own", "verdict"),
    [
        (5.0, 0.2, (4.0, 4.2), "better"),
        (5.0, 0.2, (4.8, 5.0), "equal"),
        (5.0, 0.0, (5.0,), "equal"),
        (5.0, 0.2, (6.0, 6.2), "worse"),
        (5.0, 0.2, (), "absent"),
    ],
)
def test_a_figure_is_equal_within_the_standard_error_of_the_difference(published, error, own, verdict):
    assert comparison.judged("row", "column", published, error, own, other=False, lower=True).verdict == verdict
    opposite = {"better": "worse", "worse": "better"}
    actual = comparison.judged("row", "column", published, error, own, other=False, lower=False).verdict
    assert actual == opposite.get(verdict, verdict)


def test_published_errors_are_printed_or_binomial():
    table = comparison.published()["RPTP18 table 2"]
    assert comparison.published_error(table, "SSL (LM)", "100", 5.08) == pytest.approx(0.22, abs=0.005)
    table = comparison.published()["OT95 table 1"]
    assert comparison.published_error(table, "beta 0.02", "accuracy", 84.4) == 1.41


def test_a_sentence_counts_every_published_figure(tmp_path):
    for block in comparison.BLOCKS:
        cells = comparison.counted(block, tmp_path)
        text = comparison.sentence(block, tmp_path)
        assert text.startswith(f"Of {len(cells)} published figures {len(cells)} absent ("), text
        assert cells


def test_absent_figures_have_a_reason(tmp_path):
    blocks = {block.name: block for block in comparison.BLOCKS}
    reasons = {(cell.row, cell.column): cell.reason for cell in comparison.compared(blocks["our recipe"], tmp_path)}
    assert reasons["SDGM", "MNIST, D = 2"] == comparison.NOT_COMPUTED
    assert reasons["SDGM", "ImageNet"] == "the images are not at hand"
    cells = comparison.compared(blocks["label spreading (ours)"], tmp_path)
    assert {cell.reason for cell in cells if cell.row == "SV (LM)"} == {comparison.NOT_HERE}
    assert len(comparison.counted(blocks["label spreading (ours)"], tmp_path)) == 8


@with_results
def test_a_note_is_of_older_code_only(tmp_path, monkeypatch):
    monkeypatch.setattr(stamps, "NOTES", tmp_path / "notes.json")
    monkeypatch.setattr(stamps, "RESULTS", tmp_path)
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "cbcl.json").write_text('{"rows": []}')
    stamps.add_stamp(tmp_path / "cbcl.json", [{"code": "older"}], TABLES["lzz06-table1"].sources)
    main(["note", "lzz06-table1", "Computed", "before", "an", "edit."])
    assert stamps.notes() == {"cbcl.json": {"older": "Computed before an edit."}}


def test_fetch_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    def failing(path):
        raise OSError("no network")

    monkeypatch.setenv("MIXTURA_DATA", "")  # main sets it; restored afterwards
    monkeypatch.setattr("reproduce.__main__.download_into", failing)
    (tmp_path / "bupa.npz").write_bytes(b"")
    main(["fetch", "--data", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert "bupa: there already" in lines
    assert "mnist: not fetched: no network" in lines
    assert "ratsch_banana: not fetched: no network" in lines


# ---- ingredients of RPTP18 -------------------------------------------------------------------------------------------


def test_plain_columns_are_the_same_model_with_a_parameter_for_every_entry():
    torch.manual_seed(0)
    covariance = hybrid.PlainColumns(torch.rand(3, 6).double() + 0.2, torch.randn(3, 6, 2).double(), smallest=0.1)
    free = covariance.unconstrained()
    assert free["columns"].shape == (3, 2, 6)
    torch.testing.assert_close(covariance.constrained(free).dense(), covariance.dense())
    rotated = LowRankCovariance(covariance.diagonals, covariance.columns, smallest=0.1)
    quadratics = covariance.quadratic(free), rotated.quadratic(rotated.unconstrained())
    torch.testing.assert_close(quadratics[0].log_determinants, quadratics[1].log_determinants)


def test_a_plain_start_has_no_column_of_zeros():
    """Covariances of few samples have few directions beyond epsilon I; a column of zeros would never be learned."""
    torch.manual_seed(0)
    spread = torch.randn(2, 8, 2).double()
    full = FullCovariance(spread @ spread.mT + 0.1 * torch.eye(8).double())
    mixture = Mixture(torch.full((2,), 0.5).double().log(), torch.zeros(2, 8).double(), full, torch.arange(2))
    start = hybrid.plain(mixture, rank=5, epsilon=0.1).covariance
    assert (start.columns.square().sum(1) > 0.05).all()
    assert (start.diagonals >= 0.1).all()


def test_the_labeled_samples_of_the_paper_are_those_of_its_program():
    labels = torch.arange(1000)
    actual = few_labels_published.subset_of({"train": (None, labels)}, 50, few_labels_published.PAPER)
    expected = np.random.RandomState(1).permutation(np.arange(1000))[:50]
    assert sorted(actual[actual >= 0].tolist()) == sorted(expected.tolist())


def test_rows_are_compared_by_as_many_trials():
    runs = {"2001": {"validation": 1.0}, "0": {"validation": 3.0}, "7": {"validation": 2.0}, "7/5": {"validation": 0.5}}
    assert hybrid_tables.first_trials(runs, 2) == 2.0
