"""The command line: fit, predict and compare on good tables and on bad ones."""

import csv
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'mixtura[cli]'")
pytest.importorskip("typer", reason="typer is not installed: pip install 'mixtura[cli]'")

from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification  # noqa: E402

import mixtura  # noqa: E402
from conftest import ROOT  # noqa: E402
from mixtura.cli import commands, comparing, fitting, main  # noqa: E402
from mixtura.cli.output import Answer  # noqa: E402
from mixtura.cli.tables import read_problem, read_table  # noqa: E402
from mixtura.estimators.table_classifier import TableClassifier, TableColumn  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def iris():
    frame = load_iris(as_frame=True).frame.rename(columns=lambda name: name.replace(" (cm)", ""))
    frame["kind"] = np.array(["setosa", "versicolor", "virginica"])[frame.pop("target")]
    return frame.iloc[::3].reset_index(drop=True)


def passengers(n_rows=120, seed=0):
    """A table with an identifier, text, few integers, categories, missing values and a constant column."""
    rng = np.random.default_rng(seed)
    sex, age = rng.choice(["male", "female"], n_rows), rng.normal(30, 10, n_rows).round(1)
    survived = np.where(rng.random(n_rows) < np.where(sex == "female", 0.9, 0.1), "yes", "no")
    frame = pd.DataFrame(
        {
            "id": np.arange(n_rows) + 1000,
            "name": [f"Person {number}" for number in range(n_rows)],
            "class": rng.choice([1, 2, 3], n_rows),
            "sex": sex,
            "age": age,
            "fare": rng.exponential(30, n_rows).round(2),
            "deck": None,
            "survived": survived,
        }
    )
    frame.loc[::5, "age"] = np.nan
    frame.loc[::11, "sex"] = None
    return frame


def run(capsys, *arguments):
    """Exit code, what was printed, and the errors."""
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# ---- fit and predict ---------------------------------------------------------------------------------------------


def test_fit_then_predict(iris, capsys):
    iris.to_csv("iris.csv", index=False)
    code, out, _ = run(capsys, "fit", "iris.csv", "--target", "kind", "--out", "iris.mixtura", "--budget", "2s")
    assert code == 0
    assert "50 rows, 4 numeric and 0 categorical columns" in out
    assert "setosa (17), versicolor (17), virginica (16)" in out
    code, out, _ = run(capsys, "predict", "iris.mixtura", "iris.csv", "--out", "out.csv")
    assert code == 0
    result = pd.read_csv("out.csv")
    assert (result["class"] == iris["kind"]).mean() > 0.9
    probabilities = result[["p(setosa)", "p(versicolor)", "p(virginica)"]]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(probabilities.max(axis=1), result["confidence"])
    assert result["outlier"].sum() <= 3


def test_groups_of_rows_are_held_out_together(capsys):
    rng = np.random.default_rng(0)
    centres, kinds = rng.normal(size=(60, 3)), rng.choice(["ill", "well"], 60)
    patients = np.repeat(np.arange(60), 4)
    frame = pd.DataFrame(centres[patients] + 0.01 * rng.normal(size=(240, 3)), columns=["x", "y", "z"])
    frame.assign(patient=patients, kind=kinds[patients]).to_csv("visits.csv", index=False)
    errors = []
    for options in (["--drop", "patient"], ["--groups", "patient"]):
        code, out, _ = run(capsys, "fit", "visits.csv", "--target", "kind", "--budget", "20s", *options, "--json")
        assert code == 0
        errors.append(json.loads(out)["held_out_log_loss"])
    assert errors[0] < errors[1] - 0.05  # copies of a patient's rows tell the class
    model = mixtura.load("model.mixtura")
    assert model.about_["group"] == "patient"
    assert [column.name for column in model.features] == ["x", "y", "z"]
    assert run(capsys, "report", "model.mixtura", "visits.csv")[0] == 0


def test_copies_of_a_model_weigh_missing_values_as_it_does(capsys, folder):
    rng = np.random.default_rng(0)
    kinds = rng.choice(["ill", "well"], 300)
    ill = kinds == "ill"
    X = rng.normal(size=(300, 4)) + 0.7 * ill[:, None]
    X[np.ix_(rng.random(300) < np.where(ill, 0.6, 0.2), [0, 1])] = np.nan  # two columns that are missing together
    X[rng.random(300) < np.where(ill, 0.6, 0.2), 2] = np.nan
    pd.DataFrame(X, columns=list("abcd")).assign(kind=kinds).to_csv("tests.csv", index=False)
    assert run(capsys, "fit", "tests.csv", "--target", "kind", "--budget", "20s")[0] == 0
    strength = mixtura.load("model.mixtura").estimator_.missingness_.strength
    assert strength < 1
    assert run(capsys, "report", "model.mixtura", "tests.csv")[0] == 0
    page = (folder / "model.html").read_text("utf-8")
    assert f"part.estimator_.missingness_ = part.estimator_.missingness_.scaled({strength})" in page
    program = html.unescape(re.findall("<pre>(.*?)</pre>", page, re.S)[-1])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert f"prints {float(done.stdout):.3f}" in page


def test_a_loaded_model_predicts_as_the_command_does(capsys):
    frame = passengers()
    frame.to_parquet("table.parquet")
    assert run(capsys, "fit", "table.parquet", "--target", "survived", "--budget", "1s")[0] == 0
    assert run(capsys, "predict", "model.mixtura", "table.parquet")[0] == 0
    model = mixtura.load("model.mixtura")
    assert isinstance(model, TableClassifier)
    result = pd.read_csv("predictions.csv")
    assert result["class"].tolist() == model.predict(frame).tolist()
    assert model.score(frame, frame["survived"]) > 0.8
    assert model.about_["target"] == "survived"


def test_json_has_the_facts(capsys):
    passengers().to_csv("table.csv", index=False)
    code, out, _ = run(capsys, "fit", "table.csv", "--target", "survived", "--budget", "1s", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["rows"], facts["numeric_columns"], facts["categorical_columns"]) == (120, 2, 2)
    assert sum(facts["classes"].values()) == 120
    assert 0 <= facts["held_out_error"] <= 0.3
    assert re.findall(r"Column '(\w+)'", " ".join(facts["notes"])) == ["id", "name", "deck"]


def test_a_budget_that_is_too_short_is_said(capsys, monkeypatch):
    monkeypatch.setattr(fitting, "SHORTEST", 1e-9)  # in the usual one a fast machine compares two candidates
    passengers().to_csv("table.csv", index=False)
    code, out, _ = run(capsys, "fit", "table.csv", "--target", "survived", "--budget", "0.001s", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["candidates"] == 1
    assert facts["held_out_rows"] == 24  # one fold of five
    assert facts["notes"][-1] == (
        "Reading the table and fitting the simplest model took longer than the budget of 0.001 s."
    )


def test_rows_below_the_confidence_get_no_class_and_odd_rows_are_outliers(iris, capsys):
    iris.to_csv("iris.csv", index=False)
    run(capsys, "fit", "iris.csv", "--target", "kind", "--budget", "1s")
    odd = iris.copy()
    odd.loc[0, odd.columns[:4]] = 1000.0
    odd.to_csv("odd.csv", index=False)
    code, _, _ = run(capsys, "predict", "model.mixtura", "odd.csv", "--confidence", "0.99", "--json")
    result = pd.read_csv("predictions.csv")
    assert code == 0
    assert (result["class"].isna() == (result["confidence"] < 0.99)).all()
    assert result["outlier"][0]


def test_columns_are_found_by_name_and_unknown_categories_are_missing(capsys):
    frame = passengers()
    frame.to_csv("table.csv", index=False)
    run(capsys, "fit", "table.csv", "--target", "survived", "--budget", "1s")
    other = frame[["fare", "sex", "class", "age"]].head(3).assign(extra=1)
    other.loc[0, "sex"] = "unknown"
    other.to_csv("other.csv", index=False)
    code, out, _ = run(capsys, "predict", "model.mixtura", "other.csv")
    assert code == 0
    assert "Column 'sex' has unknown categories in 1 of 3 rows, such as 'unknown'; they count as missing." in out
    other.drop(columns="age").to_csv("other.csv", index=False)
    code, _, err = run(capsys, "predict", "model.mixtura", "other.csv")
    assert (code, err) == (0, "Warning: The table lacks the columns 'age'; their values count as missing.\n")
    other[["extra"]].to_csv("other.csv", index=False)
    code, _, err = run(capsys, "predict", "model.mixtura", "other.csv")
    text = "mixtura: The table lacks the columns 'class', 'sex', 'age', 'fare'; it has 'extra'.\n"
    assert (code, err) == (2, text)


def test_scores_of_a_rival(iris):
    X, y = iris.iloc[:, :4], iris["kind"].to_numpy()
    model = comparing.RIVALS["QDA"](0)
    scores = comparing.scores_of("QDA", model, (X[::2], X[1::2], y[::2], y[1::2]))
    assert scores["error"] < 0.1
    assert 0 < scores["log_loss"] < 0.3
    failed = comparing.scores_of("QDA", model, (X[:20], X[20:], y[:0], y[20:]))
    assert list(failed) == ["method", "failed"]
    table = comparing.score_table("Table", [scores, failed])
    assert [str(list(column.cells)[1]) for column in table.columns[1:]] == ["failed"] * 5
    assert all(str(next(iter(column.cells))).endswith("*") for column in table.columns[1:])


@pytest.mark.slow
def test_compare_scores_every_method_with_and_without_missing_values(iris, capsys):
    iris.to_csv("iris.csv", index=False)
    code, out, _ = run(capsys, "compare", "iris.csv", "--target", "kind", "--budget", "1s", "--json")
    results = json.loads(out)["results"]
    assert code == 0
    assert list(results) == ["as it is", "with 30 % of the values removed"]
    for lines in results.values():
        assert lines[0]["method"] == "MixtureClassifier"
        assert [line["method"] for line in lines][-6:] == list(comparing.RIVALS)
        assert len(lines) >= 8
        for line in lines:
            assert 0 <= line["error"] < 0.7, line
            assert line["log_loss"] > 0
            assert line["seconds"] > 0
            assert line["kilobytes"] > 0


def generated():
    X, y = make_classification(100_000, 20, n_informative=10, n_redundant=4, n_classes=3, random_state=0)
    return pd.DataFrame(X.round(5)).add_prefix("x").assign(target=y)


KNOWN = {  # error at most
    "breast cancer": (lambda: load_breast_cancer(as_frame=True).frame, 0.06),
    "wine": (lambda: load_wine(as_frame=True).frame, 0.04),
    "digits": (lambda: load_digits(as_frame=True).frame, 0.05),
    "generated": (generated, 0.08),
    "passengers": (lambda: passengers(1000).rename(columns={"survived": "target"}), 0.15),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_known_tables_are_fitted_within_the_budget_and_reported(name, capsys):
    make, largest_error = KNOWN[name]
    make().to_csv("t.csv", index=False)
    code, out, err = run(capsys, "fit", "t.csv", "--target", "target", "--budget", "60s", "--json")
    facts = json.loads(out)
    assert code == 0, err
    assert facts["held_out_error"] <= largest_error
    assert facts["seconds"] < 72
    assert run(capsys, "report", "model.mixtura", "t.csv")[0] == 0


# ---- tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "delimiter", "decimal"),
    [
        ("utf-8", ",", "."),
        ("utf-8-sig", ",", "."),
        ("utf-8", ";", ","),
        ("utf-8-sig", ";", "."),
        ("utf-16", "\t", "."),
        ("cp1252", "|", "."),
    ],
)
def test_encoding_delimiter_and_decimal_comma_are_detected(encoding, delimiter, decimal, folder):
    frame = pd.DataFrame({"größe": [1.5, 2.25, None], "name, full": ["ä", "b", "c"], "label": ["x", "y", "x"]})
    frame.to_csv("t.csv", index=False, encoding=encoding, sep=delimiter, decimal=decimal)
    pd.testing.assert_frame_equal(read_table(folder / "t.csv"), frame)


def test_names_with_line_breaks_and_long_headers(folder):
    name = 'weight\n"in kg", net'
    frame = pd.DataFrame({name: [1.0, 2.0], "x" * 100_000: [3.0, 4.0], "label": ["two\nlines", "y"]})
    frame.to_csv("t.csv", index=False)
    pd.testing.assert_frame_equal(read_table(folder / "t.csv"), frame)


def test_parquet_files_are_known_by_their_content(folder):
    frame = pd.DataFrame({"a": [1.0, 2.0], "nested": [[1], [2, 3]], "label": ["x", "y"]}, index=[7, 9])
    frame.to_parquet("t.csv")
    pd.testing.assert_frame_equal(read_table(folder / "t.csv"), frame.reset_index(drop=True))
    frame = pd.concat([frame] * 5, ignore_index=True)
    problem = read_problem(frame, "label")
    assert [column.name for column in problem.columns] == ["a"]
    assert problem.notes == ["Column 'nested' holds lists or records, not values, and was left out."]


def test_kinds_of_columns():
    problem = read_problem(passengers(), "survived")
    assert problem.columns == [
        TableColumn("class", problem.columns[0].categories),
        TableColumn("sex", problem.columns[1].categories),
        TableColumn("age"),
        TableColumn("fare"),
    ]
    assert set(problem.columns[0].categories) == {"1", "2", "3"}
    assert set(problem.columns[1].categories) == {"male", "female"}


def test_text_among_numbers_is_missing_and_said(folder):
    frame = pd.DataFrame({"a": ["1.5", "2", "unknown", *map(str, range(27))], "label": ["x", "y"] * 15})
    problem = read_problem(frame, "label")
    assert problem.columns == [TableColumn("a")]
    assert problem.notes == ["Column 'a' holds numbers; 1 other values, such as 'unknown', count as missing."]
    assert np.isnan(TableClassifier(columns=problem.columns).read(frame)["a"]).tolist().index(True) == 2


def test_numbers_with_a_text_for_missing_ones_stay_numbers():
    values = ["withheld" if number % 3 == 0 else str(0.1 * number) for number in range(90)]
    problem = read_problem(pd.DataFrame({"a": values, "label": ["x", "y"] * 45}), "label")
    assert problem.columns == [TableColumn("a")]
    assert problem.notes == ["Column 'a' holds numbers; 30 other values, such as 'withheld', count as missing."]


def test_tables_of_integers_stay_numeric():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 4, (40, 6))).add_prefix("pixel").assign(label=["x", "y"] * 20)
    assert all(column.categories is None for column in read_problem(frame, "label").columns)


def test_columns_as_numbers_and_categories():
    column = TableColumn("colour", ("red", "green", "blue"))
    values = np.array(["red", "blue", None, "pink", "green"], dtype=object)
    assert column.read(values).tolist() == ["red", "blue", None, None, "green"]
    assert TableColumn("n", ("1", "2")).read(np.array([1.0, 2.0, np.nan])).tolist() == ["1", "2", None]
    np.testing.assert_array_equal(TableColumn("x").read(np.array(["1", "a", None], dtype=object)), [1, np.nan, np.nan])


def test_a_table_of_categories_alone(capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(["x", "y", "z"], 90), "b": rng.choice(["u", "v"], 90)})
    frame.assign(t=np.where((frame["a"] == "x") ^ (frame["b"] == "u"), "p", "q")).to_csv("t.csv", index=False)
    code, out, _ = run(capsys, "fit", "t.csv", "--target", "t", "--budget", "2s", "--json")
    assert code == 0
    assert json.loads(out)["held_out_error"] < 0.2
    assert run(capsys, "predict", "model.mixtura", "t.csv")[0] == 0


# ---- tables that are odd, but can be classified --------------------------------------------------------------------


def many_missing():
    frame = passengers()
    hidden = np.random.default_rng(0).random(frame.shape) < 0.4
    hidden[:, -1] = False
    return frame.mask(hidden), "survived"


def many_classes():
    rng = np.random.default_rng(0)
    numbers = np.repeat(np.arange(200), 4)
    return pd.DataFrame({"a": numbers % 20 + 0.1 * rng.normal(size=800), "b": numbers // 20, "t": numbers}), "t"


def many_columns():
    rng = np.random.default_rng(0)
    y = np.arange(30) % 2
    return pd.DataFrame(rng.normal(size=(30, 2000)) + y[:, None]).add_prefix("x").assign(t=y), "t"


def fractional_classes():
    y = np.arange(60) % 2
    return pd.DataFrame({"a": y + 0.1 * np.random.default_rng(0).normal(size=60), "t": y + 0.5}), "t"


@pytest.mark.parametrize(
    "make", [many_missing, many_columns, fractional_classes, pytest.param(many_classes, marks=pytest.mark.slow)]
)
def test_odd_tables_get_a_model(make, capsys):
    frame, target = make()
    frame.to_csv("t.csv", index=False)
    code, out, err = run(capsys, "fit", "t.csv", "--target", target, "--budget", "2s", "--json")
    assert code == 0, err
    assert json.loads(out)["held_out_error"] < 0.35
    assert run(capsys, "predict", "model.mixtura", "t.csv")[0] == 0
    if make is not many_columns:  # half a minute
        assert run(capsys, "report", "model.mixtura", "t.csv")[0] == 0


# ---- wrong input -------------------------------------------------------------------------------------------------


def write(text):
    with open("t.csv", "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
        file.write(text)


def rows(label=lambda number: "xy"[number % 2], value=lambda number: 0.1 * number):
    return "a,t\n" + "".join(f"{value(number)},{label(number)}\n" for number in range(40))


WRONG = {
    "wrong target": (rows().replace("a,t", "a,label"), "There is no column 't'; the columns are 'a', 'label'."),
    "one class": (rows(lambda n: "x"), "The target 't' has a single class, 'x'; a classifier needs two or more."),
    "empty file": ("", "The file 't.csv' is empty."),
    "header only": ("a,t\n", "The file 't.csv' has a header and no rows."),
    "no target values": (rows(lambda n: ""), "The target 't' has no values."),
    "same names": ("a,a,t\n1,2,x\n3,4,y\n", "The file 't.csv' has more than one column named 'a'; rename one of them."),
    "regression": (
        rows(lambda n: 0.37 * n),
        "The target 't' holds 40 different fractional numbers, not classes; mixtura classifies. Cut it into classes "
        "first.",
    ),
    "infinite classes": (
        rows(lambda n: "inf" if n == 3 else n % 2),
        "The target 't' holds infinite values, which are not classes. Remove those rows.",
    ),
    "identifier as target": (
        rows(lambda n: f"name{n}"),
        "The target 't' has 40 different values in 40 rows; it looks like an identifier or a number, not like classes.",
    ),
    "nothing to learn from": (
        rows(value=lambda n: 1),
        "No column besides the target 't' can be used. Column 'a' always has the same value and was left out.",
    ),
    "binary": ("a,t\n\0\0\0", "'t.csv' is not a text file; pass a CSV or Parquet file."),
    "quote without end": (
        '"a,t\n' + "1,x\n" * 50_000,
        "The header of 't.csv' cannot be read: field larger than field limit (131072).",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tables_get_one_sentence(case, capsys, folder):
    text, message = WRONG[case]
    write(text)
    for command in (["fit", "t.csv", "--target", "t"], ["compare", "t.csv", "--target", "t"]):
        assert run(capsys, *command) == (2, "", f"mixtura: {message}\n")
    assert os.listdir(folder) == ["t.csv"]  # noqa: PTH208


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "a,t\n1,x\n2,y,3,4\n",
            "table of 2 columns: Error tokenizing data. C error: Expected 2 fields in line 3, saw 4.",
        ),
        ("a,t\n1,x,5\n2,y,6\n", "table of 2 columns: Length of header"),
        ("a#t\n1#x,5\n2#y\n", "Name its delimiter with --sep."),
    ],
)
def test_ragged_rows_are_named(text, place, capsys):
    write(text)
    code, out, err = run(capsys, "fit", "t.csv", "--target", "t")
    assert (code, out) == (2, "")
    assert place in err
    assert err.count("\n") == 1


def test_folders_and_absent_files(capsys, folder):
    (folder / "inner").mkdir()
    write(rows())
    cases = [
        (["fit", "inner", "--target", "t"], "'inner' is a folder; pass a CSV or Parquet file."),
        (["fit", "none.csv", "--target", "t"], "There is no file 'none.csv'."),
        (
            ["fit", "t.csv", "--target", "t", "--groups", "patient"],
            "There is no column 'patient'; the columns are",
        ),
        (
            ["fit", "t.csv", "--target", "t", "--drop", "t"],
            "The target 't' cannot be left out; name another column with --drop.",
        ),
        (
            ["fit", "t.csv", "--target", "t", "--out", "inner"],
            "'inner' is a folder; pass the name of a file with --out.",
        ),
        (
            ["fit", "t.csv", "--target", "t", "--out", "none/m"],
            "There is no folder 'none' to write 'm' to; create it first.",
        ),
        (["predict", "t.csv", "t.csv"], "'t.csv' is not a model file of mixtura, or it is damaged"),
        (["predict", "none.mixtura", "t.csv"], "No model file at 'none.mixtura'"),
    ]
    for arguments, message in cases:
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith(f"mixtura: {message}")
        assert err.count("\n") == 1
    assert sorted(os.listdir(folder)) == ["inner", "t.csv"]  # noqa: PTH208


def test_inputs_are_not_overwritten(capsys, folder):
    write(rows())
    assert run(capsys, "fit", "t.csv", "--target", "t", "--budget", "1s", "--out", "m")[0] == 0
    (folder / "linked.html").symlink_to("t.csv")
    before = [(folder / name).read_bytes() for name in ("t.csv", "m")]
    for arguments, name in [
        (["fit", "t.csv", "--target", "t", "--out", "./t.csv"], "t.csv"),
        (["predict", "m", "t.csv", "--out", "t.csv"], "t.csv"),
        (["predict", "m", "t.csv", "--out", "m"], "m"),
        (["report", "m", "t.csv", "--out", "linked.html"], "linked.html"),
    ]:
        code, out, err = run(capsys, *arguments)
        message = f"mixtura: {name!r} is an input and would be overwritten; choose another file with --out.\n"
        assert (code, out, err) == (2, "", message)
    assert [(folder / name).read_bytes() for name in ("t.csv", "m")] == before


def test_no_permission_to_write(capsys, folder, monkeypatch):
    write(rows())
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    code, _, err = run(capsys, "fit", "t.csv", "--target", "t", "--out", "m.mixtura")
    assert (code, err) == (
        2,
        "mixtura: There is no permission to write 'm.mixtura'; choose another place with --out.\n",
    )


def test_models_of_other_kinds_are_refused(capsys, iris):
    mixtura.GaussianMixture().fit(iris.iloc[:, :4]).save("density.mixtura")
    iris.to_csv("t.csv", index=False)
    code, _, err = run(capsys, "predict", "density.mixtura", "t.csv")
    assert (code, err) == (
        2,
        "mixtura: 'density.mixtura' holds a GaussianMixture; pass a model file of `mixtura fit`.\n",
    )


def test_reports_need_two_classes_with_two_rows(capsys, folder):
    write(rows(lambda number: "x" if number else "y"))
    assert run(capsys, "fit", "t.csv", "--target", "t", "--budget", "1s")[0] == 0
    code, _, err = run(capsys, "report", "model.mixtura", "t.csv")
    assert (code, err) == (2, "mixtura: A report needs two classes of 't' with at least two rows each.\n")
    assert sorted(os.listdir(folder)) == ["model.mixtura", "t.csv"]  # noqa: PTH208


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("stream", "code", "message"),
    [
        (None, 0, ""),
        (FullDisk(), 1, "mixtura: The output cannot be printed: [Errno 28] No space left on device.\n"),
    ],
)
def test_output_that_cannot_be_printed(stream, code, message, capsys, monkeypatch):
    monkeypatch.setattr(fitting, "run_predict", lambda *arguments: Answer(["done"], {}))
    write(rows())
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["predict", "t.csv", "t.csv"]) == code
    monkeypatch.undo()
    assert capsys.readouterr().err == message


def test_errors_are_json_too(capsys):
    code, out, _ = run(capsys, "fit", "none.csv", "--target", "t", "--json")
    assert json.loads(out) == {"error": "There is no file 'none.csv'.", "exit_code": 2}
    assert code == 2


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "Interrupted; no file was written."),
        (RuntimeError("strange"), 1, "Unexpected error (strange); --traceback shows where it came from."),
    ],
)
def test_interrupted_and_failed_fits_leave_no_file(error, code, message, capsys, folder, monkeypatch):
    def fail(*arguments, **settings):
        raise error

    write(rows())
    monkeypatch.setattr(mixtura.MixtureClassifier, "fit", fail)
    assert run(capsys, "fit", "t.csv", "--target", "t") == (code, "", f"mixtura: {message}\n")
    assert os.listdir(folder) == ["t.csv"]  # noqa: PTH208


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "t.csv"], "Missing option '--target'."),
        (["fit", "t.csv", "--target"], "Option '--target' requires an argument."),
        (["guess"], "No such command 'guess'."),
        (
            ["fit", "t.csv", "--target", "t", "--budget", "soon"],
            "must be a positive time such as 60s, 5m or 1h; got 'soon'",
        ),
        (
            ["predict", "m", "t.csv", "--confidence", "2"],
            "Invalid value for '--confidence': Input should be less than or equal to 1",
        ),
    ],
)
def test_wrong_options_get_a_message(arguments, message, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mixtura: ")
    assert message in err
    assert err.count("\n") == 1


def test_the_command_line_without_typer_says_so(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "mixtura.cli.commands", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["fit"]) == 2
    text = "mixtura: The command line needs typer; install it with: pip install 'mixtura[cli]'.\n"
    assert capsys.readouterr().err == text


def test_times():
    assert [commands._seconds(text) for text in ("60s", "5m", "1.5 h", "10")] == [60, 300, 5400, 10]


def test_hostile_names_stay_text(capsys):
    frame = passengers().rename(columns={"age": "<script>alert(1)</script>", "fare": '=cmd|"/c calc"!A1'})
    frame.to_csv("t.csv", index=False, quoting=csv.QUOTE_ALL)
    assert run(capsys, "fit", "t.csv", "--target", "survived", "--budget", "1s")[0] == 0
    assert run(capsys, "predict", "model.mixtura", "t.csv")[0] == 0


def test_a_model_file_is_read_where_the_command_line_was_not_used(capsys):
    passengers().to_csv("t.csv", index=False)
    run(capsys, "fit", "t.csv", "--target", "survived", "--budget", "1s")
    code = "import mixtura; print(type(mixtura.load('model.mixtura')).__name__)"
    known = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=known).stdout
    assert shown == "TableClassifier\n"


# ---- deciding ----------------------------------------------------------------------------------------------------


def rare(n_rows=600):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n_rows) < 0.08, "fraud", "fine")
    amount = np.exp(rng.normal(3 + 1.5 * (y == "fraud"), 1))
    return pd.DataFrame({"id": np.arange(n_rows), "amount": [f"${v:,.2f}" for v in amount], "t": y})


def test_thresholds_of_a_rare_class(capsys):
    rare().to_csv("t.csv", index=False)
    shown = run(capsys, "fit", "t.csv", "--target", "t", "--metric", "cost:10", "--budget", "5s")[1]
    assert re.search(r"Threshold +0\.0909 for --metric cost:10: precision \d+ %, recall \d+ %", shown)
    assert run(capsys, "predict", "model.mixtura", "t.csv", "--keep", "id,amount", "--explain", "--no-outliers")[0] == 0
    result = pd.read_csv("predictions.csv")
    assert list(result)[:4] == ["id", "amount", "class", "confidence"]
    assert list(result)[4:] == ["p(fine)", "p(fraud)", "reason 1"]
    assert ((result["class"] == "fraud") == (result["p(fraud)"] >= 1 / 11)).all()
    assert result["reason 1"].str.fullmatch(r"amount \([+-]\d+\.\d\d\)").all()
    assert run(capsys, "predict", "model.mixtura", "t.csv", "--threshold", "0.5", "--no-proba")[0] == 0
    other = pd.read_csv("predictions.csv")
    assert list(other) == ["class", "confidence", "outlier"]
    assert (other["class"] == "fraud").sum() < (result["class"] == "fraud").sum()
    for metric in ("f1", "balanced-error", "precision:0.3"):
        arguments = ("fit", "t.csv", "--target", "t", "--method", "MixtureClassifier(1)", "--metric", metric, "--json")
        facts = json.loads(run(capsys, *arguments)[1])
        assert facts["method"] == "MixtureClassifier"
        assert facts["precision"] >= 0.3 or metric != "precision:0.3"
        assert facts["recall"] > 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "speed"], "--metric must be log-loss, error, balanced-error, f1, cost:10 or precision:0.9; got"),
        (["--metric", "cost"], "--metric must be log-loss, error, balanced-error, f1, cost:10 or precision:0.9; got"),
        (["--positive", "maybe"], "--positive must be one of the classes 'fine', 'fraud'; got 'maybe'."),
        (["--method", "random forest"], "--method must be one of MixtureClassifier, MixtureClassifier(1), "),
    ],
)
def test_wrong_decisions_are_refused(arguments, message, capsys):
    rare(60).to_csv("t.csv", index=False)
    code, out, err = run(capsys, "fit", "t.csv", "--target", "t", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"mixtura: {message}")


def two_blobs():
    x = np.arange(40) / 40
    return pd.DataFrame(
        {"x": np.sin(7 * x), "z": x + (np.arange(40) % 2), "t": np.array(["a", "b"])[np.arange(40) % 2]}
    )


@pytest.mark.parametrize("method", [name for name in fitting.METHODS if name != "MixtureClassifier"])
def test_every_mixture_of_the_comparison_is_fitted_used_and_reported(method, capsys):
    frame = two_blobs() if method == "SparseMixture" else passengers()
    target = "t" if method == "SparseMixture" else "survived"
    frame.to_csv("t.csv", index=False)
    assert run(capsys, "fit", "t.csv", "--target", target, "--method", method)[0] == 0
    explain = [] if method == "SparseMixture" else ["--explain"]
    code, out, _ = run(capsys, "predict", "model.mixtura", "t.csv", "--out", "-", *explain)
    assert code == 0
    assert (pd.read_csv(io.StringIO(out))["class"] == frame[target]).mean() > 0.8
    assert run(capsys, "report", "model.mixtura", "t.csv")[0] == 0


def test_sparse_learning_says_which_columns_it_cannot_take(capsys):
    for frame, fault in (
        (passengers(), "there are categories in 'class', 'sex'; use"),
        (passengers()[["age", "survived"]], "there are missing values in 'age'; use"),
    ):
        frame.to_csv("t.csv", index=False)
        code, _, err = run(capsys, "fit", "t.csv", "--target", "survived", "--method", "SparseMixture")
        assert code == 2
        assert f"--method SparseMixture takes complete tables of numbers, and {fault} --method Discr" in err


def test_leaks_are_said_first_in_a_table_of_many_notes(capsys):
    frame = passengers().assign(**{f"same{number}": 1 for number in range(12)})
    frame["copy"] = frame["survived"]
    frame.to_csv("t.csv", index=False)
    fit = ("fit", "t.csv", "--target", "survived", "--method", "MixtureClassifier(1)", "--json")
    notes = json.loads(run(capsys, *fit)[1])["notes"]
    assert notes[0] == "Column 'copy' is a copy of the target and was left out."
    assert notes[-1] == "... and 6 more notes on columns."


@pytest.mark.slow
def test_compare_ends_with_the_command_to_run(capsys):
    rare(200).to_csv("t.csv", index=False)
    code, out, _ = run(capsys, "compare", "t.csv", "--target", "t", "--budget", "2s", "--out", "scores.csv")
    assert code == 0
    (command,) = re.findall(r"mixtura (fit t\.csv --target t.*)", out)
    assert run(capsys, *shlex.split(command), "--budget", "2s")[0] == 0
    assert {"method", "log_loss", "table"} <= set(pd.read_csv("scores.csv"))


def shell(*arguments, **options):
    """Run the command line as a process."""
    known = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mixtura", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=known, **options)


def test_a_pipe_of_commands(folder):
    frame = passengers()
    frame.to_csv("t.csv", index=False)
    text = (folder / "t.csv").read_text("utf-8")
    result = shell("fit", "-", "--target", "survived", "--method", "MixtureClassifier(1)", input=text)
    assert (result.returncode, result.stderr) == (0, "")
    assert "120 rows, 2 numeric and 2 categorical columns" in result.stdout
    result = shell("predict", "model.mixtura", "-", "--out", "-", "--keep", "id", input=text)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "id,class,confidence,outlier,p(no),p(yes)"
    assert len(lines) == 121
    assert sorted(os.listdir(folder)) == ["model.mixtura", "t.csv"]  # noqa: PTH208


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--help"], None),
        (["fit"], "mixtura: Missing argument 'data'.\n"),
        (["fit", "none.csv", "--target", "t"], "mixtura: There is no file 'none.csv'.\n"),
        (["predict", "m", "none.csv"], "mixtura: There is no file 'none.csv'.\n"),
    ],
)
def test_help_and_wrong_arguments_do_not_wait_for_torch(arguments, message):
    code = f"import sys; from mixtura.cli import main; main({arguments!r}); assert 'torch' not in sys.modules"
    known = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=known)
    assert result.returncode == 0, result.stderr
    assert message is None or result.stderr == message
