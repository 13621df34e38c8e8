"""Dask collections: the model of their rows, lazy predictions, partitions that stay where they are, lost workers."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    GaussianMixture,
    MixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.checks import SourceError
from mixtura.datasets import make_ripley, remove_values
from mixtura.engine import distributed

pd = pytest.importorskip("pandas")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
key_split = pytest.importorskip("dask.utils").key_split


@pytest.fixture(autouse=True)
def threads_of_this_process():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture(scope="module")
def data():
    X, y = make_ripley(150, random_state=0)
    return remove_values(X, 0.1, random_state=0), np.where(y, "one", "two"), np.linspace(0.5, 2, len(y))


def arrays(data, n_rows=110):
    return [da.from_array(part, chunks=(n_rows, *part.shape[1:])) for part in data]


def frames(data):
    X, y, weights = data
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]).assign(y=y, w=weights), npartitions=3, sort=False)
    return frame[["a", "b"]], frame["y"], frame["w"]


def assert_same(model, other, X):
    assert np.allclose(model.predict_proba(X), other.predict_proba(X), atol=1e-9)
    assert model.n_iter_ == other.n_iter_


# ---- the same model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "low_rank"])
def test_a_classifier_of_arrays_is_that_of_the_rows(covariance_type, data):
    options = {"covariance_type": covariance_type, "random_state": 0}
    model = MixtureClassifier(2, **options).fit(*arrays(data))
    assert_same(model, MixtureClassifier(2, **options).fit(*data), data[0])


@pytest.mark.parametrize(
    "options", [{"objective": "conditional"}, {"warp": "johnson"}, {"n_components": "auto"}, {"init": "k-means++"}]
)
def test_every_part_of_a_fit_is_that_of_the_rows(options, data):
    X, y, _ = data
    options = {"n_components": 2, "random_state": 0, **options}
    model = MixtureClassifier(**options).fit(*arrays((X, y)))
    assert np.allclose(model.predict_proba(X), MixtureClassifier(**options).fit(X, y).predict_proba(X), atol=1e-7)


def test_frames_keep_their_names(data):
    X, y, weights = frames(data)
    model = MixtureClassifier(2, random_state=0).fit(X, y, weights)
    inside = pd.DataFrame(data[0], columns=["a", "b"])
    assert_same(model, MixtureClassifier(2, random_state=0).fit(inside, *data[1:]), inside)
    assert model.feature_names_in_.tolist() == ["a", "b"]


def test_a_density_is_that_of_the_rows(data):
    X, _, weights = data
    model = GaussianMixture(3, random_state=0).fit(arrays(data)[0], sample_weight=arrays(data)[2])
    assert_same(model, GaussianMixture(3, random_state=0).fit(X, sample_weight=weights), X)


def test_chunks_of_columns_labels_in_memory_and_other_cuts(data):
    X, y, _ = data
    model = MixtureClassifier(2, random_state=0).fit(da.from_array(X, chunks=(70, 1)), y)
    other = MixtureClassifier(2, random_state=0).fit(arrays(data)[0], da.from_array(y, chunks=33))
    assert_same(model, other, X)


@pytest.mark.parametrize("warp", [None, "johnson"])
def test_tasks_have_names_on_the_dashboard(warp, data, monkeypatch):
    names, compute = set(), distributed.compute_delayed
    monkeypatch.setattr(
        distributed,
        "compute_delayed",
        lambda value: names.update(map(key_split, value.__dask_graph__())) or compute(value),
    )
    MixtureClassifier(1, warp=warp, random_state=0).fit(*arrays(data))
    expected = {"mixtura_scan", "mixtura_describe", "mixtura_transformed" if warp else "mixtura_summarise"}
    assert expected <= names


def test_unlabeled_rows(data):
    X, y, _ = data
    some = np.where(np.arange(len(y)) % 3, y, "none")
    model = MixtureClassifier(2, unlabeled="none", random_state=0).fit(*arrays((X, some)))
    assert_same(model, MixtureClassifier(2, unlabeled="none", random_state=0).fit(X, some), X)


# ---- predictions ---------------------------------------------------------------------------------------------------

METHODS = ["predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "impute"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("collection", [arrays, frames])
def test_predictions_are_lazy_and_those_of_the_rows(method, collection, data):
    X, y, _ = data
    columns = ["a", "b"] if collection is frames else None
    model = MixtureClassifier(2, random_state=0).fit(X if columns is None else pd.DataFrame(X, columns=columns), y)
    inside = X if columns is None else pd.DataFrame(X, columns=columns)
    lazy, whole = getattr(model, method)(collection(data)[0]), getattr(model, method)(inside)
    if isinstance(whole, pd.DataFrame):
        assert isinstance(lazy, dd.DataFrame)
        assert lazy.divisions == collection(data)[0].divisions
        pd.testing.assert_frame_equal(lazy._meta, whole.iloc[:0])
        pd.testing.assert_frame_equal(lazy.compute(), whole, atol=1e-9)
        return
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == whole.dtype
    assert lazy.shape[1:] == whole.shape[1:]
    assert len(lazy.chunks[0]) == len(collection(data)[0].to_delayed())
    values = lazy.compute()
    assert (values == whole).all() if method == "predict" else np.allclose(values, whole, atol=1e-9)


@pytest.mark.parametrize("collection", [arrays, frames])
def test_the_accuracy_is_that_of_the_rows(collection, data):
    X, y, weights = data
    some = np.where(np.arange(len(y)) % 3, y, "none")
    given = collection((X, some, weights))
    model = MixtureClassifier(1, unlabeled="none", random_state=0).fit(*given[:2])
    inside = X if collection is arrays else pd.DataFrame(X, columns=["a", "b"])
    assert np.isclose(model.score(*given), model.score(inside, some, weights))


def test_nothing_is_computed_before_it_is_requested(data):
    model = MixtureClassifier(1, random_state=0).fit(*data[:2])
    never = da.map_blocks(lambda block: 1 / 0, arrays(data)[0], dtype=float, meta=np.empty((0, 2)))
    lazy = model.predict_proba(never)
    with pytest.raises(ZeroDivisionError):
        lazy.compute()


def test_frames_of_imputed_values_may_have_empty_partitions(data):
    X = pd.DataFrame(data[0], columns=["a", "b"])
    model = GaussianMixture(2, random_state=0).fit(X)
    frame = dd.concat([dd.from_pandas(part, npartitions=1) for part in (X.iloc[:0], X)])
    pd.testing.assert_frame_equal(model.impute(frame).compute(), model.impute(X))


def test_densities_score_collections(data):
    model = GaussianMixture(2, random_state=0).fit(data[0])
    assert np.isclose(model.score(arrays(data)[0]), model.score(data[0]))


# ---- bad input -----------------------------------------------------------------------------------------------------


def blocks(*parts):
    """An array of blocks that may differ from what their meta says."""
    return da.concatenate([da.from_delayed(dask.delayed(part), shape=(len(part), 2), dtype=float) for part in parts])


def refused(call, text, kind=ValueError):
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


def test_a_partition_with_other_columns_is_named(data):
    X = blocks(data[0][:100], data[0][100:200, :1])
    refused(lambda: GaussianMixture().fit(X), "Partition 1 could not be used: X has 1 features, but", SourceError)


def test_a_partition_of_another_type_is_named(data):
    X = blocks(data[0][:100], np.full((100, 2), "text"))
    refused(lambda: GaussianMixture().fit(X), "Partition 1 could not be used: ", SourceError)


def test_a_partition_with_infinite_values_is_named(data):
    X = blocks(data[0][:100], np.full((10, 2), np.inf))
    refused(lambda: GaussianMixture().fit(X), "Partition 1 could not be used: Input X contains infinity", SourceError)
    model = GaussianMixture().fit(data[0])
    refused(lambda: model.score_samples(X).compute(), "Partition 1 could not be used: Input X", SourceError)


def test_a_partition_that_cannot_be_read_any_more_is_named_and_the_last_model_is_kept(data):
    n_reads = [0]

    def failing(block):
        n_reads[0] += 1
        if n_reads[0] > 20:
            raise OSError("No such file")
        return block

    X, y, _ = data
    rows = blocks(X).map_blocks(failing, dtype=float, meta=np.empty((0, 2)))
    model = MixtureClassifier(2, tol=0, random_state=0)
    text = "A partition could not be used: No such file"
    refused(lambda: model.fit(rows, da.from_array(y, chunks=-1)), text, SourceError)
    assert np.isfinite(model.predict_proba(X)).all()


def test_partitions_without_rows_values_or_a_class_are_no_error(data):
    X, y, _ = data
    one = y == "one"
    parts = [(X[:0], y[:0]), (X[:50] * np.nan, y[:50]), (X[one], y[one]), (X[50:], y[50:])]
    rows, labels = blocks(*(part for part, _ in parts)), da.concatenate([da.from_array(part) for _, part in parts])
    whole = np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])
    model = MixtureClassifier(2, random_state=0).fit(rows, labels)
    assert_same(model, MixtureClassifier(2, random_state=0).fit(*whole), X)
    assert model.predict(rows).compute().shape == whole[1].shape


def test_labels_that_are_cut_otherwise(data):
    X, y, _ = frames(data)
    text = "X has 3 partitions and y has 2; both must be divided at the same rows"
    refused(lambda: MixtureClassifier(1).fit(X, y.repartition(npartitions=2)), text)
    refused(lambda: MixtureClassifier(1).fit(X, data[1]), "y must be a Dask collection, divided at the same rows as X")
    refused(lambda: MixtureClassifier(1).fit(arrays(data)[0], arrays(data)[1][:50]), "X has 300 rows, but y has 50.")
    refused(lambda: MixtureClassifier(1).fit(X), "MixtureClassifier requires y to be passed")


def test_categories_of_all_partitions(data):
    kinds = np.array(["x", "y", "z"])[np.arange(300) // 7 % 3]
    kinds[:200][kinds[:200] == "z"] = "x"  # the last one is in the second partition alone
    frame = pd.DataFrame(data[0], columns=["a", "b"]).assign(kind=kinds)
    X, y = dd.from_pandas(frame, npartitions=2), dd.from_pandas(pd.Series(data[1]), npartitions=2)
    model, expected = MixtureClassifier(1).fit(X, y), MixtureClassifier(1).fit(frame, data[1])
    assert model.encoding_.categories[0].tolist() == ["x", "y", "z"]
    assert np.allclose(model.predict_proba(X).compute(), expected.predict_proba(frame), atol=1e-9)
    named = MixtureClassifier(1, categorical_features=["kind"]).fit(X, y)
    assert np.allclose(named.predict_proba(frame), expected.predict_proba(frame), atol=1e-9)


def test_other_collections(data):
    text = "X must be a Dask array or data frame; got a Delayed"
    refused(lambda: GaussianMixture().fit(dask.delayed(data[0])), text)


def test_learners_that_need_all_rows_say_so(data):
    X, y, _ = arrays(data)
    text = "SparseMixtureClassifier needs all rows in memory here; got a dask.array"
    refused(lambda: SparseMixtureClassifier().fit(X, y), text)
    refused(lambda: AveragedMixtureClassifier().fit(X, y), "AveragedMixtureClassifier needs all rows in memory")
    refused(lambda: AveragedMixture().fit(X), "AveragedMixture needs all rows in memory")
    refused(lambda: GaussianMixture().partial_fit(X), "partial_fit takes one batch, as an array or a data frame")


def test_a_whole_pass_without_dask_installed():
    """`is_dask` asks for the module only where someone has imported it."""
    from mixtura.estimators.frames import is_dask

    assert not is_dask(np.zeros((2, 2)))
    assert is_dask(da.zeros((2, 2)))


# ---- clusters of processes -----------------------------------------------------------------------------------------


# Clusters that lose a part close their sockets when they are collected.
lossy = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "10s"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        dask.config.set(scheduler=client),
    ):
        yield client


def slowly(block):
    time.sleep(0.05)
    return block


@lossy
@pytest.mark.slow
def test_a_worker_that_is_killed_costs_time_alone(cluster, data):
    X, y, _ = data
    rows, labels = arrays((X, y), 50)
    slow = rows.map_blocks(slowly, dtype=rows.dtype, meta=np.empty((0, 2)))
    pids = list(cluster.run(os.getpid).values())
    thread = threading.Timer(1.5, lambda: os.kill(pids[0], signal.SIGKILL))
    thread.start()
    model = MixtureClassifier(2, tol=0, max_iter=30, random_state=0)
    with pytest.warns(Warning, match="max_iter"):
        model.fit(slow, labels)
    assert not thread.is_alive()
    with pytest.warns(Warning, match="max_iter"):
        other = MixtureClassifier(2, tol=0, max_iter=30, random_state=0).fit(X, y)
    assert_same(model, other, X)


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler and a worker in processes of their own: the process of the scheduler, and a client."""
    distributed = pytest.importorskip("distributed")
    file, options = str(tmp_path / "scheduler"), {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    local = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", file]
    parts = {"scheduler": ["--port", "0", "--no-show"], "worker": ["--nthreads", "1", "--no-nanny"]}
    processes = [
        subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{name}", *local, *more], **options)
        for name, more in parts.items()
    ]
    try:
        with dask.config.set({"distributed.comm.timeouts.connect": "3s"}):
            client = distributed.Client(scheduler_file=file, set_as_default=False, timeout=60)
            client.wait_for_workers(1, timeout=60)
            with dask.config.set(scheduler=client):
                yield processes[0]
            client.close(timeout=1)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@lossy
@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_named_and_the_last_model_is_kept(scheduler, data, monkeypatch):
    X, y, _ = data
    n_passes, add = [0], distributed.add_partitions

    def killing(partitions, compute, name):
        n_passes[0] += name == "summarise"
        if n_passes[0] == 4:
            scheduler.kill()
        return add(partitions, compute, name)

    monkeypatch.setattr(distributed, "add_partitions", killing)
    model = MixtureClassifier(2, tol=0, max_iter=30, random_state=0)
    with pytest.raises(SourceError, match=r"^The Dask scheduler or its workers were lost during a pass"):
        model.fit(*arrays((X, y)))
    assert len(model.history_) == 3
    with pytest.warns(Warning, match="max_iter"):
        expected = MixtureClassifier(2, tol=0, max_iter=3, random_state=0).fit(X, y)
    assert_same(model, expected, X)
