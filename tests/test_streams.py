"""Rows in batches and files: the same model as from memory, predictions batch by batch, and clear errors."""

import contextlib
import os
import re
import resource
import shutil
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.utils.data import DataLoader, TensorDataset

from mixtura import DiscriminativeMixtureClassifier, GaussianMixture, MixtureClassifier, RejectOption
from mixtura.checks import SourceError
from mixtura.datasets import make_ripley, remove_values
from mixtura.engine.sources import ArraySource

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")

from mixtura.streams.files import FileBatches  # noqa: E402 - it needs pyarrow

N_FILES = 3


@pytest.fixture(scope="module")
def frame():
    X, y = make_ripley(120, random_state=0)
    frame = pd.DataFrame(remove_values(X, 0.1, random_state=0), columns=["a", "b"])
    return frame.assign(weight=np.linspace(0.5, 2, len(y)), y=np.where(y, "one", "two"))


def write(frame, folder, ending="parquet"):
    """The frame in several files, cut in order."""
    for number, index in enumerate(np.array_split(np.arange(len(frame)), N_FILES)):
        part, path = frame.iloc[index], folder / f"{number}.{ending}"
        if ending == "csv":
            part.to_csv(path, index=False)
        elif ending == "parquet":
            part.to_parquet(path, row_group_size=20, index=False)
        else:
            table = pa.Table.from_pandas(part, preserve_index=False)
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
    return folder


@pytest.fixture
def folder(frame, tmp_path):
    return write(frame, tmp_path)


def assert_same(model, other, frame):
    rows = frame[["a", "b"]]
    assert np.allclose(model.predict_proba(rows), other.predict_proba(rows), atol=1e-9)
    assert model.n_iter_ == other.n_iter_


# ---- the same model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_files_give_the_model_of_their_rows(ending, batch_size, frame, tmp_path):
    batches = FileBatches(write(frame, tmp_path, ending), label="y", sample_weight="weight", batch_size=batch_size)
    model = MixtureClassifier(2, random_state=0).fit(batches)
    other = MixtureClassifier(2, random_state=0).fit(frame[["a", "b"]], frame["y"], frame["weight"])
    assert_same(model, other, frame)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.classes_.tolist() == ["one", "two"]


def test_density_from_files_is_that_of_their_rows(folder, frame):
    model = GaussianMixture(3, random_state=0).fit(FileBatches(folder, features=["a", "b"]))
    other = GaussianMixture(3, random_state=0).fit(frame[["a", "b"]])
    assert_same(model, other, frame)


def test_discriminative_training_and_selection_from_files(folder, frame):
    batches = FileBatches(folder, ["b", "a"], label="y", batch_size=50)
    for estimator in (
        MixtureClassifier(2, objective="conditional", random_state=0),
        MixtureClassifier("auto", average=1, random_state=0),
        DiscriminativeMixtureClassifier(2, cv=2, tol=0.01, random_state=0),
    ):
        model = estimator.fit(batches)
        streamed = model.predict_proba(frame[["b", "a"]])
        inside = estimator.fit(frame[["b", "a"]], frame["y"]).predict_proba(frame[["b", "a"]])
        assert np.allclose(streamed, inside, atol=1e-6)


def test_a_pyarrow_dataset_and_a_list_of_files(folder, frame):
    paths = [str(folder / f"{number}.parquet") for number in range(N_FILES)]
    models = [
        MixtureClassifier(1, random_state=0).fit(FileBatches(data, ["a", "b"], "y"))
        for data in (folder, paths, ds.dataset(folder), pa_table_dataset(frame))
    ]
    for model in models[1:]:
        assert_same(model, models[0], frame)


def test_a_pyarrow_dataset_itself_is_refused(folder):
    text = "X is a data set of pyarrow; pass mixtura.streams.files.FileBatches(X)."
    refused(lambda: GaussianMixture().fit(ds.dataset(folder)), text)


def pa_table_dataset(frame):
    return ds.InMemoryDataset(pa.Table.from_pandas(frame, preserve_index=False))


def test_single_precision_and_integers(tmp_path, rng):
    rows = rng.normal(size=(50, 2)).astype(np.float32)
    pd.DataFrame(rows, columns=["a", "b"]).to_parquet(tmp_path / "single.parquet")
    assert FileBatches(tmp_path / "single.parquet").dtype == np.float32
    pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [True, False, True]}).to_parquet(
        tmp_path / "whole.parquet"
    )
    (batch,) = FileBatches(tmp_path / "whole.parquet")
    assert np.array_equal(batch.X.to_numpy(), [[1, 1], [np.nan, 0], [3, 1]], equal_nan=True)


def test_columns_of_csv_files_that_begin_with_integers_or_without_values(tmp_path):
    """Arrow infers types from the first megabyte."""
    lines = ["a,b,y", *(f"{number % 7},,1" for number in range(200_000)), "0.5,2,0"]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    batches = list(FileBatches(tmp_path / "rows.csv", label="y"))
    rows = np.concatenate([np.asarray(batch.X) for batch in batches])
    assert rows.shape == (200_001, 2)
    assert rows[-1].tolist() == [0.5, 2]
    assert np.isnan(rows[:-1, 1]).all()
    assert batches[-1].y[-1] == 0


def test_a_data_loader_gives_the_model_of_its_rows():
    X, y = make_ripley(60, random_state=0)
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(y)), 16)
    model = MixtureClassifier(2, random_state=0).fit(loader)
    other = MixtureClassifier(2, random_state=0).fit(X, y)
    assert np.allclose(model.predict_proba(X), other.predict_proba(X), atol=1e-9)


def test_the_index_of_a_data_frame_is_no_feature(tmp_path, frame):
    frame[["a", "b"]].iloc[[5, 3, 8]].to_parquet(tmp_path / "rows.parquet")
    assert "__index_level_0__" in ds.dataset(tmp_path / "rows.parquet").schema.names
    assert FileBatches(tmp_path / "rows.parquet").features == ["a", "b"]


# ---- predictions ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(frame):
    return MixtureClassifier(2, random_state=0).fit(frame[["a", "b"]], frame["y"])


METHODS = ["predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "impute"]


@pytest.mark.parametrize("method", METHODS)
def test_predictions_of_batches_are_those_of_the_rows(method, model, folder, frame):
    batches = FileBatches(folder, ["a", "b"], batch_size=30)
    predictions = getattr(model, method)(batches)
    for _ in range(2):
        parts = list(predictions)
        assert len(parts) > N_FILES
        joined, whole = np.concatenate(parts), np.asarray(getattr(model, method)(frame[["a", "b"]]))
        assert joined.dtype == whole.dtype
        assert (joined == whole).all() if method == "predict" else np.allclose(joined, whole, atol=1e-9)


@pytest.mark.parametrize("ending", ["parquet", "csv", "npy"])
def test_predictions_are_written_batch_by_batch(ending, model, folder, frame):
    batches, path = FileBatches(folder, ["a", "b"], batch_size=30), folder / "out" / f"predictions.{ending}"
    path.parent.mkdir()
    model.predict_proba(batches).write(path)
    if ending == "npy":
        values = np.load(path)
    else:
        table = pd.read_parquet(path) if ending == "parquet" else pd.read_csv(path)
        assert table.columns.tolist() == ["predict_proba_one", "predict_proba_two"]
        values = table.to_numpy()
    assert np.allclose(values, model.predict_proba(frame[["a", "b"]]), atol=1e-12)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_labels_and_single_columns_are_written(model, folder, frame):
    batches = FileBatches(folder, ["a", "b"])
    model.predict(batches).write(folder / "labels.csv")
    assert (pd.read_csv(folder / "labels.csv")["predict"] == model.predict(frame[["a", "b"]])).all()
    model.impute(batches).write(folder / "complete.csv")
    assert pd.read_csv(folder / "complete.csv").columns.tolist() == ["impute_a", "impute_b"]
    text = "Labels of this kind cannot be written to a .npy file; use .parquet or .csv."
    with pytest.raises(ValueError, match=text):
        model.predict(batches).write(folder / "labels.npy")


def test_predictions_from_batches_of_arrays(rng):
    X = rng.normal(size=(40, 2))
    model = GaussianMixture(2, random_state=0).fit(X)
    parts = list(model.predict_proba([(X[:10], None), (X[10:], None)]))
    assert [len(part) for part in parts] == [10, 30]
    assert np.allclose(np.concatenate(parts), model.predict_proba(X))
    assert np.isclose(model.score([X[:10], X[10:]]), model.score(X))


def test_outliers_and_rejected_samples_of_batches(frame):
    X, y = frame[["a", "b"]], frame["y"]
    model = RejectOption(MixtureClassifier(1, random_state=0)).fit(X, y)
    batches = [X.iloc[:100], X.iloc[100:]]
    for method in ("predict", "abstains", "outlier_score"):
        assert np.array_equal(getattr(model, method)(batches).joined(), getattr(model, method)(X))


def test_the_accuracy_of_batches_is_that_of_their_rows(folder, frame):
    X, y, weights = frame[["a", "b"]], frame["y"].copy(), frame["weight"]
    y.iloc[::3] = "none"
    model = MixtureClassifier(1, unlabeled="none", random_state=0).fit(X, y)
    batches = [(X.iloc[part], y.iloc[part], weights.iloc[part]) for part in (slice(0, 0), slice(70), slice(70, None))]
    assert np.isclose(model.score(batches), model.score(X, y, weights))
    assert np.isclose(model.score(FileBatches(folder, ["a", "b"], "y")), model.score(X, frame["y"]))
    refused(lambda: model.score([(X, None)]), "Batch 0: MixtureClassifier requires y to be passed")
    refused(lambda: model.score([(X, y.where(y == "none", "none"))]), "y holds no labeled sample to score.")
    refused(lambda: model.score(X), "MixtureClassifier requires y to be passed, but the target y is None.")


def test_methods_that_need_all_samples_say_so(frame):
    X, y = frame[["a", "b"]], frame["y"]
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    text = "MixtureClassifier got an X of batches (list) where it needs all samples at once"
    refused(lambda: model.explain([X, X]), text)
    refused(lambda: model.bic([X, X]), text)
    refused(lambda: model.fit([X, X], y), text)


def test_empty_batches_have_no_predictions(rng, tmp_path):
    X = rng.normal(size=(40, 2))
    model = GaussianMixture(2, random_state=0).fit(X)
    batches = [X[:0], X[:10], X[:0], X[10:]]
    assert np.array_equal(model.predict(batches).joined(), model.predict(X))
    assert np.isclose(model.score(batches), model.score(X))
    for ending in ("npy", "csv", "parquet"):
        refused(lambda end=ending: model.predict([X[:0]]).write(tmp_path / f"none.{end}"), "X has no rows: it has no")
    assert not list(tmp_path.iterdir())


# ---- bad input -----------------------------------------------------------------------------------------------------


def refused(call, text, kind=ValueError):
    with pytest.raises(kind) as caught:
        call()
    for part in text.split("..."):
        assert part in str(caught.value)


def test_a_file_that_changes_between_passes(folder, frame):
    class Touching(FileBatches):
        n_passes = 0

        def __iter__(self):
            self.n_passes += 1
            if self.n_passes == 6:
                frame.iloc[:50].to_parquet(folder / "1.parquet")
            yield from super().__iter__()

    model = MixtureClassifier(3, tol=0.0, random_state=0)
    refused(
        lambda: model.fit(Touching(folder, ["a", "b"], "y")),
        "1.parquet' has changed since it was first read; a fit reads its rows many times...Write new rows to a new",
    )
    assert model.n_iter_ >= 2
    assert np.isfinite(model.predict_proba(frame[["a", "b"]])).all()


def test_a_file_that_vanishes(folder):
    batches = FileBatches(folder, ["a", "b"])
    (folder / "1.parquet").unlink()
    refused(lambda: GaussianMixture().fit(batches), "1.parquet' has changed", SourceError)


def test_a_broken_file_is_named(folder):
    content = (folder / "1.parquet").read_bytes()
    middle = len(content) // 3
    (folder / "1.parquet").write_bytes(content[:100] + b"\xff" * (middle - 100) + content[middle:])
    refused(lambda: GaussianMixture().fit(FileBatches(folder, ["a", "b"])), "1.parquet' could not be used", SourceError)


def test_files_with_other_columns(folder, frame):
    frame.drop(columns="b").to_parquet(folder / "1.parquet")
    text = "1.parquet' has no column 'b'; its columns are ['a', 'weight', 'y']. All files must have the same columns."
    refused(lambda: GaussianMixture().fit(FileBatches(folder, ["a", "b"])), text)
    refused(lambda: FileBatches(folder, ["a", "c"]), "The data set has no column 'c'")


def test_files_with_other_types(folder, frame):
    frame.assign(b="text").to_parquet(folder / "1.parquet")
    text = "1.parquet' has values of type ...string in column 'b', but features must be numeric; leave the column out"
    refused(lambda: GaussianMixture().fit(FileBatches(folder, ["a", "b"])), text)
    frame.assign(b=pd.Timestamp("2020-01-01")).to_parquet(folder / "0.parquet")
    text = "The data set has values of type timestamp...in column 'b', but features must be numeric; leave the column"
    refused(lambda: FileBatches(folder, ["a", "b"]), text)
    frame.assign(b="text").to_parquet(folder / "0.parquet")
    frame.to_parquet(folder / "1.parquet")
    text = "1.parquet' has values of type double in column 'b', but features must be text as in the first file"
    refused(lambda: MixtureClassifier(1).fit(FileBatches(folder, ["a", "b"], "y")), text)


def test_a_file_with_infinite_values_is_named(folder, frame):
    frame.assign(b=np.inf).to_parquet(folder / "1.parquet")
    refused(lambda: GaussianMixture().fit(FileBatches(folder, ["a", "b"])), "1.parquet' could not be used: Input X")


def test_empty_files_and_files_without_a_value_or_a_class(folder, frame):
    """None of them is an error: there is nothing in them to contradict the others."""
    parts = [frame.iloc[:0], frame.iloc[:100].assign(a=np.nan, b=np.nan), frame.iloc[100:]]
    parts = [*parts, frame[frame["y"] == "one"]]
    for number, part in enumerate(parts):
        part.to_parquet(folder / f"{number}.parquet")
    model = MixtureClassifier(1, random_state=0).fit(FileBatches(folder, ["a", "b"], "y", batch_size=64))
    whole = pd.concat(parts)
    assert_same(model, MixtureClassifier(1, random_state=0).fit(whole[["a", "b"]], whole["y"]), frame)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("nothing.parquet", "nothing.parquet' does not exist."),
        ([], "data has no files; pass at least one."),
        ("rows.txt", "rows.txt' cannot be inferred from its name; set file_format."),
    ],
)
def test_no_such_files(data, text, tmp_path):
    (tmp_path / "rows.txt").write_text("a,b\n1,2\n")
    data = str(tmp_path / data) if isinstance(data, str) else data
    refused(lambda: FileBatches(data), text, FileNotFoundError if "exist" in text else ValueError)


def test_batches_with_other_columns_are_named():
    batches = [np.zeros((4, 2)), np.zeros((4, 3))]
    refused(lambda: GaussianMixture().fit(batches), "Batch 1 could not be used: X has 3 features")


class Failing:
    """Batches whose fifth pass ends with an error."""

    def __init__(self, batches, error):
        self.batches, self.error, self.n_passes = batches, error, 0

    def __iter__(self):
        self.n_passes += 1
        yield self.batches[0]
        if self.n_passes == 5:
            raise self.error
        yield from self.batches[1:]


@pytest.mark.parametrize("error", [OSError("the disk is gone"), RuntimeError("the disk is gone")])
def test_batches_that_cannot_be_read_any_more_are_named_and_the_last_model_is_kept(error):
    X, y = make_ripley(60, random_state=0)
    model = MixtureClassifier(2, tol=0, random_state=0)
    batches = Failing([(X[:50], y[:50]), (X[50:], y[50:])], error)
    refused(lambda: model.fit(batches), "Batch 1 could not be used: the disk is gone", SourceError)
    assert np.isfinite(model.predict_proba(X)).all()


class Once:
    """Batches whose __iter__ does not start again."""

    def __init__(self, batches):
        self.iterator = iter(batches)

    def __iter__(self):
        return self.iterator


@pytest.mark.parametrize("n_batches", [1, 3])
def test_batches_that_do_not_start_again(n_batches):
    X, y = make_ripley(60, random_state=0)
    batches = [(X, y)] * n_batches
    for model, given in ((MixtureClassifier(1), batches), (GaussianMixture(2), [X for X, _ in batches])):
        text = "X is a generator, which can be iterated only once"
        refused(lambda model=model, given=given: model.fit(batch for batch in given), text)
        refused(lambda model=model, given=given: model.fit(Once(given)), "can be iterated only once")


def test_a_memory_map_that_changes_during_a_fit(tmp_path):
    X, y = make_ripley(60, random_state=0)
    np.save(tmp_path / "rows.npy", X)
    model = MixtureClassifier(2, tol=0, random_state=0)
    n_passes, read = [0], ArraySource._read

    def changing(source):
        n_passes[0] += 1
        if n_passes[0] == 5:
            os.utime(tmp_path / "rows.npy", ns=(1, 1))
        return read(source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArraySource, "_read", changing)
        rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
        refused(lambda: model.fit(rows, y), "rows.npy' has changed since it was first read", SourceError)
    assert np.isfinite(model.predict_proba(X)).all()


def test_labels_of_unlike_kinds():
    X = np.arange(8.0).reshape(4, 2)
    batches = [(X, np.array([0, 1, 0, 1])), (X, np.array(["0", "1", "0", "1"]))]
    refused(lambda: MixtureClassifier(1).fit(batches), "y")


@contextlib.contextmanager
def largest_file(n_bytes):
    """Files may not grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of POSIX")
@pytest.mark.parametrize("ending", ["parquet", "csv", "npy"])
def test_a_full_disk_leaves_nothing_half_written(ending, model, tmp_path, rng):
    path = tmp_path / f"out.{ending}"
    path.write_text("what was there before")
    rows = pd.DataFrame(rng.normal(size=(5000, 2)), columns=["a", "b"])
    with largest_file(20_000), pytest.raises(OSError, match=r"Predictions could not be written to .*out") as caught:
        model.predict_proba([rows] * 3).write(path)
    assert caught.value.errno is not None
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "what was there before"


def test_an_error_in_the_middle_leaves_nothing_half_written(model, tmp_path, frame):
    rows = frame[["a", "b"]]
    refused(
        lambda: model.predict_proba([rows, rows[["b", "a"]]]).write(tmp_path / "out.csv"),
        "Batch 1 could not be used: The feature names should match",
    )
    assert not list(tmp_path.iterdir())
    refused(lambda: model.predict([rows]).write("out.txt"), "the ending of path must be one of")


@pytest.mark.parametrize("model", [MixtureClassifier(2, random_state=0), GaussianMixture(2, random_state=0)])
def test_progress_shows_rows_per_second(model, folder, capsys):
    label = "y" if isinstance(model, MixtureClassifier) else None
    clone(model).set_params(verbose=1).fit(FileBatches(folder, ["a", "b"], label))
    shown = capsys.readouterr().err
    assert float(re.findall(r"rows_per_second=([\d.e+]+)", shown)[-1]) > 0
    assert "iterations" in shown


def test_no_rows_in_memory_are_needed_elsewhere(folder, frame):
    """A source is closed when a fit ends: files can be removed."""
    MixtureClassifier(1).fit(FileBatches(folder, ["a", "b"], "y"))
    shutil.rmtree(folder)
    assert not os.path.exists(folder)  # noqa: PTH110


# ---- categories -------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(rng):
    """Numbers and categories with missing values; one category is in the last batch alone."""
    y = rng.integers(0, 2, 300)
    towns = np.array(["u", "v"], dtype=object)[(rng.random(300) < 0.3 + 0.4 * y).astype(int)]
    towns[290:], towns[::9] = "w", None
    size = pd.Categorical(rng.choice(["small", "large"], 300), categories=["small", "large", "huge"], ordered=True)
    X = pd.DataFrame({"a": rng.normal(size=300) + y, "town": towns, "size": size, "b": rng.normal(size=300)})
    X.loc[rng.random(300) < 0.2 + 0.4 * y, "a"] = np.nan
    return X, y, rng.integers(0, 3, 300)


class Parts:
    """Batches of some columns of samples and what belongs to them."""

    def __init__(self, *values):
        self.values = values

    def __iter__(self):
        for rows in np.array_split(np.arange(len(self.values[0])), 6):
            parts = tuple(v.iloc[rows] if isinstance(v, pd.DataFrame) else v[rows] for v in self.values)
            yield parts if len(parts) > 1 else parts[0]


@pytest.mark.parametrize(
    "model",
    [
        MixtureClassifier(2, random_state=0),
        MixtureClassifier(average=1, random_state=0),
        MixtureClassifier(1, missing="informative"),
        MixtureClassifier(1, unlabeled=0),
        DiscriminativeMixtureClassifier(1, random_state=0),
    ],
    ids=["given", "selected", "informative", "unlabeled", "discriminative"],
)
def test_categories_in_batches(model, mixed):
    X, y, weights = mixed
    y = y + (np.arange(300) % 3 == 0) if model.unlabeled == 0 else y
    expected, streamed = clone(model).fit(X, y, sample_weight=weights), clone(model).fit(Parts(X, y, weights))
    assert [v.tolist() for v in streamed.encoding_.categories] == [["u", "v", "w"], ["small", "large"]]
    assert streamed.encoding_.ordered == expected.encoding_.ordered == (1,)
    assert np.allclose(streamed.predict_proba(X), expected.predict_proba(X), atol=1e-6)
    assert np.allclose(np.concatenate(list(streamed.predict_proba(Parts(X)))), streamed.predict_proba(X), atol=1e-12)


def test_categories_in_batches_of_a_density_and_of_arrays(mixed):
    X, y, _ = mixed
    arguments = {"n_components": 2, "prior": "default", "categorical_features": "from_dtype", "random_state": 0}
    model = GaussianMixture(**arguments).fit(Parts(X))
    assert np.isclose(model.score(X), GaussianMixture(**arguments).fit(X).score(X), rtol=1e-6)
    values, arguments = X[["a", "town"]].to_numpy(dtype=object), {"categorical_features": [1]}
    expected = MixtureClassifier(1, **arguments).fit(values, y).predict_proba(values)
    assert np.allclose(MixtureClassifier(1, **arguments).fit(Parts(values, y)).predict_proba(values), expected)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_categories_in_files(suffix, mixed, tmp_path):
    X, y, _ = mixed
    X = X.drop(columns="size")
    for number, part in enumerate(np.array_split(np.arange(300), 3)):
        frame = X.iloc[part].assign(y=y[part])
        path = tmp_path / f"{number}.{suffix}"
        frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    model = MixtureClassifier(1).fit(FileBatches(tmp_path, label="y", batch_size=40))
    assert model.feature_names_in_.tolist() == ["a", "town", "b"]
    assert np.allclose(model.predict_proba(X), MixtureClassifier(1).fit(X, y).predict_proba(X), atol=1e-9)


def test_a_feature_that_is_not_the_same_in_all_batches(mixed):
    X, y, _ = mixed
    other = X.astype({"town": object}).assign(town=1.0)
    text = (
        "Feature 1 holds text or categories in some batches and numbers in others. Name it in categorical_features, or "
        "give it the same type in every batch."
    )
    refused(lambda: MixtureClassifier(1).fit([(X, y), (other, y)]), text)
    absent = X.assign(town=pd.Series([None] * 300, dtype=object))
    assert MixtureClassifier(1).fit([(X, y), (absent, y)]).encoding_.sizes == (3, 2)
