"""Tables as people have them: numbers in text, codes, dates, leaks, the same from every kind of file."""

import gzip
import io
import json
import re
import sys
from datetime import date

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'mixtura[cli]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mixtura import MixtureClassifier, load  # noqa: E402
from mixtura.cli.commands import run  # noqa: E402
from mixtura.cli.fitting import train_on_file  # noqa: E402
from mixtura.cli.tables import read_problem, read_table  # noqa: E402
from mixtura.datasets import load_penguins  # noqa: E402
from mixtura.estimators import TableClassifier, TableColumn  # noqa: E402
from mixtura.estimators.table_columns import dates_of, find_columns, numbers_of, parse_number  # noqa: E402

ONE = MixtureClassifier(1, random_state=0)


def grouped(value, decimal=".", thousand=","):
    """1234.5 as 1,234.50, without its sign."""
    return f"{abs(value):,.2f}".replace(",", "T").replace(".", decimal).replace("T", thousand)


def signed(value, *marks):
    return ("-" if value < 0 else "") + grouped(value, *marks)


WRITTEN = {
    "plain": repr,
    "dollars": lambda v: ("-$" if v < 0 else "$") + grouped(v),
    "euros": lambda v: f"{signed(v, ',', '.')} \u20ac",
    "currency": lambda v: f"USD {signed(v)}",
    "percent": lambda v: f"{v!r} %",
    "percent, comma": lambda v: f"{v!r}%".replace(".", ","),
    "unit": lambda v: f"{v!r} kg",
    "speed": lambda v: f"{v!r}km/h",
    "parentheses": lambda v: f"({grouped(v)})" if v < 0 else grouped(v),
    "spaces": lambda v: signed(v, ",", "\u202f"),
    "Swiss": lambda v: signed(v, ".", "'"),
    "scientific": lambda v: f"{v:.17e}",
    "sign behind": lambda v: grouped(v) + ("-" if v < 0 else ""),
    "minus of print": lambda v: signed(v).replace("-", "\u2212"),
}
NOTHING = ("n/a", "-", "?", "", "NULL", "none", "NA", "#N/A")


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(WRITTEN)), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1000.0, 1e6]))
def test_numbers_come_back_however_they_are_written(form, seed, scale):
    rng = np.random.default_rng(seed)
    values, holes = np.round(rng.normal(size=100) * scale, 2), rng.random(100) < 0.05
    texts = [NOTHING[i % 8] if holes[i] else WRITTEN[form](value) for i, value in enumerate(values.tolist())]
    (column,), notes = find_columns(pd.DataFrame({"a": texts}))
    assert column.categories is None
    np.testing.assert_allclose(column.read(texts), np.where(holes, np.nan, values), rtol=1e-12)
    np.testing.assert_array_equal(column.read(texts[:3]), column.read(texts)[:3])  # the same at prediction
    assert len(notes) == any(np.isnan(pd.to_numeric(text, errors="coerce")) for text in set(texts) - set(NOTHING))


@pytest.mark.parametrize(
    ("text", "decimal", "number"),
    [
        ("< 5", ".", (5.0, "")),
        ("90+", ".", (90.0, "")),
        ("$(1,234.5)", ".", (-1234.5, "$")),
        ("3 years", ".", (3.0, "year")),
        ("1 year", ".", (1.0, "year")),
        ("1,5", ".", None),
        ("1.5", ",", None),
        ("1,2345", ".", None),
        ("+49 301 234 567", ".", None),
        ("(555) 123-4567", ".", None),
        ("A-12", ".", None),
        ("12-20", ".", None),
        ("192.168.1.7", ".", None),
        ("2020-01-05", ".", None),
    ],
)
def test_what_a_text_says(text, decimal, number):
    assert parse_number(text, decimal) == number


CODES = {
    "part": [f"A-{number % 7}00" for number in range(60)],
    "postcode": [f"{number % 5:05d}" for number in range(60)],
    "town": ["SW1A 1AA", "EC1 2BB"] * 30,
    "phone": [f"+49 30 {123456 + number % 9}" for number in range(60)],
    "zip": [10115 + number % 4 for number in range(60)],
    "range": ["10-20", "20-30", "30-40"] * 20,
}


@pytest.mark.parametrize("name", CODES)
def test_codes_stay_categories(name):
    (column,), _ = find_columns(pd.DataFrame({name: CODES[name]}))
    assert column.categories is not None
    assert len(column.categories) == len(set(CODES[name]))


def test_values_of_another_unit_count_as_missing_and_are_named():
    texts = [f"{number} kg" for number in range(58)] + ["12 stone", "heavy"]
    (column,), notes = find_columns(pd.DataFrame({"w": texts}))
    assert notes == [
        "Column 'w' holds numbers; '0 kg' is read as 0; 2 other values, such as '12 stone', count as missing."
    ]
    np.testing.assert_array_equal(np.isnan(column.read(texts)), [False] * 58 + [True] * 2)


def mixed(n_rows=60):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "flag": rng.random(n_rows) < 0.5,
            "code": rng.integers(1, 4, n_rows),
            "size": rng.normal(size=n_rows).round(3),
            "kind": rng.choice(["red", "blue"], n_rows),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 400, n_rows), "D"),
            "t": rng.choice(["x", "y"], n_rows),
        }
    )


def forms_of(frame, folder):
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "t.tsv", index=False, sep="\t")
    frame.to_csv(folder / "bars.csv", index=False, sep="|", decimal=",")
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    frame.to_parquet(folder / "t.parquet")
    kinds = {"flag": "boolean", "code": "category", "kind": "category", "size": "Float64"}
    names = ("t.csv", "t.tsv", "bars.csv", "t.csv.gz", "t.parquet")
    return [frame, frame.astype(kinds), frame.astype(object), *(read_table(folder / name) for name in names)]


def test_a_table_means_the_same_from_every_file_and_library(tmp_path):
    frame = mixed()
    frame.loc[::7, ["size", "kind"]] = None
    first, *others = (read_problem(form, "t") for form in forms_of(frame, tmp_path))
    assert [(column.feature, column.categories) for column in first.columns][:4] == [
        ("flag", ("True", "False") if frame["flag"].mean() >= 0.5 else ("False", "True")),
        ("code", first.columns[1].categories),
        ("size", None),
        ("kind", first.columns[3].categories),
    ]
    read = TableClassifier(columns=first.columns).read
    for other in others:
        assert [(c.feature, c.categories, c.origin) for c in other.columns] == [
            (c.feature, c.categories, c.origin) for c in first.columns
        ]
        pd.testing.assert_frame_equal(TableClassifier(columns=other.columns).read(other.frame), read(first.frame))


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_frames_of_other_libraries(library):
    other = pytest.importorskip(library)
    frame = mixed()
    X, y = frame.drop(columns="t"), frame["t"]
    if library == "polars":
        table = other.DataFrame({name: X[name].to_list() for name in X}).with_columns(
            other.col("kind").cast(other.Enum(["blue", "red"])),
            other.col("code").cast(other.String).cast(other.Categorical),
        )
    else:
        table = other.Table.from_pandas(X, preserve_index=False)
    np.testing.assert_array_equal(
        TableClassifier(ONE).fit(table, y).predict_proba(table), TableClassifier(ONE).fit(X, y).predict_proba(X)
    )


DATES = ["03.02.2021", "2021-02-03", "2/28/2021", "3 Feb 2021", "Feb 3, 2021", "2021-02-03T10:30:00"]


@pytest.mark.parametrize("text", DATES)
def test_dates_become_features(text):
    texts = [text.replace("2021", str(2015 + number % 9)) for number in range(40)]
    columns, (note,) = find_columns(pd.DataFrame({"when": texts}))
    assert [column.part for column in columns][:2] == ["days", "year"]
    assert note.startswith("Column 'when' holds dates, from which these features are computed: days, year")
    years = columns[1].read(texts)
    np.testing.assert_array_equal(years, [2015 + number % 9 for number in range(40)])
    assert columns[0].read(texts).min() == 0
    assert np.isnan(columns[0].read(["soon"])).all()


def test_parts_of_dates_are_those_of_the_calendar():
    days = pd.date_range("2023-12-25", periods=40, freq="19h")
    columns, _ = find_columns(pd.DataFrame({"t": days}))
    parts = {column.part: column.read(days) for column in columns}
    assert parts["weekday"].tolist() == days.day_name().tolist()
    np.testing.assert_allclose(
        np.arctan2(parts["hour (sin)"], parts["hour (cos)"]) % (2 * np.pi), 2 * np.pi * days.hour / 24
    )
    np.testing.assert_allclose(parts["days"], (days - days[0]) / pd.Timedelta("1D"))
    np.testing.assert_array_equal(parts["year"], days.year)
    assert dates_of([date(1970, 1, 2), None], "ISO8601").tolist()[0] == 1.0


def test_dates_help_a_classifier_and_stay_in_its_file(tmp_path):
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, 300), "D")
    X, y = pd.DataFrame({"when": days.strftime("%d.%m.%Y")}), np.where(days.dayofweek >= 5, "rest", "work")
    model = TableClassifier(ONE).fit(X, y)
    assert model.score(X, y) == 1.0
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict_proba(X), model.predict_proba(X))


def test_identifiers_constants_copies_and_leaks_are_named():
    y = np.array(["a", "b", "c"] * 20)
    frame = pd.DataFrame(
        {
            "id": np.arange(60),
            "user": [f"user{number}" for number in range(60)],
            "same": 1.0,
            "copy": y,
            "paid": np.where(y == "a", "never", np.where(y == "b", "late", "soon")),
            "x": np.random.default_rng(0).normal(size=60),
        }
    )
    columns, notes = find_columns(frame, y)
    assert [column.name for column in columns] == ["paid", "x"]
    assert notes == [
        "Column 'copy' is a copy of the target and was left out.",
        "Column 'paid' predicts the target perfectly (a leak?); leave it out if it is not known beforehand.",
        "Column 'id' looks like an identifier (a different integer in every row) and was left out.",
        "Column 'user' has a different text in nearly every row (an identifier) and was left out.",
        "Column 'same' always has the same value and was left out.",
    ]


def test_useless_columns_are_dropped_on_request():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    X = pd.DataFrame(rng.normal(size=(300, 6))).add_prefix("noise").assign(good=y + 0.5 * rng.normal(size=300))
    model = TableClassifier(ONE, select=True).fit(X, y)
    assert [column.name for column in model.features] == ["good"]
    assert model.notes_[-1].startswith("Held-out rows are predicted as well without 'noise0', 'noise1'")
    assert model.score(X, y) > 0.8


def test_a_class_of_one_row_is_said():
    frame = pd.DataFrame({"x": np.arange(40) ** 0.5, "t": ["a", "b"] * 19 + ["a", "odd"]})
    assert read_problem(frame, "t").notes == ["Classes with a single row cannot be judged on held-out rows: 'odd'."]


def test_the_methods_of_a_table_model():
    frame = mixed()
    X, y = frame.drop(columns="t"), frame["t"]
    model = TableClassifier(ONE).fit(X, y)
    assert model.explain(X.head(3)).feature_names == [column.feature for column in model.features]
    assert list(model.feature_importances(X, y).index) == [column.feature for column in model.features]
    np.testing.assert_array_equal(model.explain(X.iloc[2]).values, model.explain(X.iloc[2:3]).values)
    assert "size" in str(model.summary())
    assert model.outlier_score(X).shape == (60,)
    with pytest.warns(UserWarning, match="The table lacks the columns 'size'; their values count as missing"):
        model.predict(X.drop(columns="size"))
    with pytest.raises(ValueError, match=r"No column of the table can be used. Column 'a' always has the same value"):
        TableClassifier(ONE).fit(pd.DataFrame({"a": [1] * 4}), [0, 1, 0, 1])


def test_the_standard_input_and_a_given_delimiter(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a~b\n1~x\n2~y\n")))
    table = read_table(tmp_path.__class__("-"), sep="~")
    assert (list(table), table["a"].tolist()) == (["a", "b"], [1.0, 2.0])


def test_a_large_table_is_a_sample_of_its_rows(tmp_path):
    frame = pd.DataFrame({"a": np.arange(5000.0), "b": 1})
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = read_table(tmp_path / "t.csv", most_values=1000)
    assert 200 < len(table) <= 500
    np.testing.assert_array_equal(table.index, table["a"])
    assert 2000 < table["a"].mean() < 3000


@pytest.mark.parametrize("categorical", [False, True])
def test_a_table_larger_than_memory_trains_the_model_that_its_sample_chose(categorical, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 4000)
    frame = pd.DataFrame(rng.normal(size=(4000, 2)) + y[:, None], columns=["a", "b"]).mask(rng.random((4000, 2)) < 0.1)
    if categorical:
        frame["colour"] = np.where(rng.random(4000) < 0.7, np.array(["red", "blue", "grey"])[y], None)
    path, labels = tmp_path / "t.csv.gz", np.where(rng.random(4000) < 0.01, "rare", y.astype(str))
    frame.assign(y=np.where(rng.random(4000) < 0.1, None, labels)).to_csv(path, index=False)
    monkeypatch.setattr("mixtura.cli.tables.PART_VALUES", 1000)
    known = pd.read_csv(path, dtype={"y": str})
    rows = known["y"].isin(["0", "1", "2"]).to_numpy()
    X, y = known[rows].drop(columns="y"), known["y"][rows].to_numpy().astype(int)
    base = MixtureClassifier(random_state=0)
    model = TableClassifier(base).fit(X[:500], y[:500])
    assert any("categories" in member.what for member in model.estimator_.search_.members) == categorical
    twin = TableClassifier(base, model.columns_).fit(X[:500], y[:500])
    twin.estimator_.set_params(warm_start=True).fit(twin.read(X), y)
    assert train_on_file(model, path, "y", None, tmp_path) == rows.sum()
    np.testing.assert_allclose(model.estimator_.means_, twin.estimator_.means_, atol=1e-9)
    # Further members of rows outside of memory make as many iterations as the first one.
    np.testing.assert_allclose(model.predict_proba(X), twin.predict_proba(X), atol=1e-4)
    assert model.estimator_.training_weight_ == rows.sum()
    assert not model.estimator_.warm_start
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv.gz"]


def test_a_large_file_is_streamed_by_the_command(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 3000)
    frame = pd.DataFrame({"a": y + rng.normal(size=3000), "b": np.where(y, "u", "v"), "y": y})
    frame.loc[rng.random(3000) < 0.3, "b"] = "w"
    frame.to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr("mixtura.cli.fitting.MOST_VALUES", 2000)
    fit = [
        "fit",
        str(tmp_path / "t.parquet"),
        "--target",
        "y",
        "--out",
        str(tmp_path / "m"),
        "--budget",
        "5s",
        "--json",
    ]
    assert run(fit) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert re.fullmatch(
        r"\d+ random rows chose and judged the model, which was then trained with 3000 rows.", notes[-1]
    )
    assert run([*fit, "--method", "AveragedMixture"]) == 0
    assert "The table has 3000 rows; a random sample of" in json.loads(capsys.readouterr().out)["notes"][-1]
    assert load(tmp_path / "m").predict(frame).shape == (3000,)


def test_numbers_of_any_kind():
    values = [1, 2.5, True, "3", None, pd.NA, "x"]
    np.testing.assert_array_equal(numbers_of(np.array(values, dtype=object)), [1, 2.5, 1, 3, np.nan, np.nan, np.nan])
    assert TableColumn("a").read(["1.5"]).tolist() == [1.5]


def test_a_single_row_is_explained():
    X, y = load_penguins()
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    for row in (0, 3):  # the second has missing values
        np.testing.assert_allclose(model.explain(X.iloc[row]).values, model.explain(X.iloc[[row]]).values, atol=1e-12)
