"""Several processes of torch.distributed: the model of all rows, the same in every process; errors reach all."""

import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from mixtura import GaussianMixture, MixtureClassifier
from mixtura.datasets import make_ripley, remove_values
from mixtura.streams import Sharded

N_PROCESSES = 2
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


def data():
    X, y = make_ripley(150, random_state=0)
    return remove_values(X, 0.1, random_state=0), np.where(y, "one", "two"), np.linspace(0.5, 2, len(y))


WIDE = ("wide", "wide, tied")  # of closed forms: samples are held out of the sums of all rows (class-moments)


def wide():
    """Three classes with covariances of their own, in more features than rows of a class are held out."""
    rng, y = np.random.default_rng(0), np.arange(300) % 3
    return rng.normal(size=(300, 104)) * np.array([1.0, 0.7, 1.5])[y, None] + 0.2 * rng.normal(size=(3, 104))[y], y


def fit_wide(name, rows):
    """The closed forms of rows of which 60 at most are held out; the tied ones where matrices are too many."""
    changes = {"comparison.SELECTION_SAMPLES": 60, "automatic.SELECTION_SAMPLES": 60}
    changes |= {"automatic.MOST_SCATTERED": 104**2} if name == "wide, tied" else {}
    with pytest.MonkeyPatch.context() as patches:
        for place, value in changes.items():
            patches.setattr(f"mixtura.selection.{place}", value)
        return MixtureClassifier(random_state=0, average=1).fit(*rows)


def options(**others):
    return {"n_components": 2, "random_state": 0, "tol": 1e-3, **others}


FITS = {
    "classifier": lambda: MixtureClassifier(**options()),
    "low rank": lambda: MixtureClassifier(**options(covariance_type="low_rank")),
    "conditional": lambda: MixtureClassifier(**options(objective="conditional")),
    "warped": lambda: MixtureClassifier(**options(warp="johnson")),
    "chosen": lambda: MixtureClassifier(**options(n_components="auto")),
    "density": lambda: GaussianMixture(**options()),
}


def cut(rank):
    """Where the rows of a process lie: unequal parts."""
    n_rows = len(data()[0])
    return slice(0, 100) if rank == 0 else slice(100, n_rows)


def parameters(model):
    covariances = {name: part.numpy() for name, part in model.mixture_.covariance.tensors().items()}
    return {"weights": model.mixture_.weights.numpy(), "means": model.mixture_.means.numpy(), **covariances}


def fitted_parts(rank):
    """All fits of one process: arrays, batches, and what it says of bad input."""
    own = tuple(part[cut(rank)] for part in data())
    answers = {}
    for name, make in FITS.items():
        known = (own[0], None, own[2]) if name == "density" else own
        answers[name] = parameters(make().fit(Sharded(*known)))
    X, y = wide()
    part = slice(0, 120) if rank == 0 else slice(120, 300)
    for name in WIDE:
        model = fit_wide(name, [Sharded(X[part], y[part])])
        answers[name] = parameters(model) | {"chosen": [str(trial.what) for trial in model.search_]}
    batches = [tuple(part[index] for part in own) for index in np.array_split(np.arange(len(own[1])), 3)]
    answers["batches"] = parameters(FITS["classifier"]().fit(Sharded(batches)))
    bad = (np.full((5, 2), np.inf) if rank == 1 else own[0], np.array(["one"] * 5) if rank == 1 else own[1])
    for name, call in {
        "bad rows": lambda: MixtureClassifier(**options()).fit(Sharded(*bad)),
        "unlike columns": lambda: GaussianMixture(**options()).fit(Sharded(own[0][:, : 2 - rank])),
        "no seed": lambda: MixtureClassifier(2).fit(Sharded(*own)),
        "gradient": lambda: MixtureClassifier(**options(solver="gradient")).fit(Sharded(*own)),
    }.items():
        try:
            call()
        except ValueError as error:
            answers[name] = str(error)
    return answers


def main(rank, port, folder):
    """The program of each process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=N_PROCESSES)
    answers = fitted_parts(rank)
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.pickle").write_bytes(pickle.dumps(answers))


@functools.cache
def free_port():
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    here = Path(__file__).resolve().parent
    environment = {**os.environ, "PYTHONPATH": f"{here.parent / 'src'}:{here}", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", f"import test_distributed as t; t.main({rank}, {free_port()}, {str(folder)!r})"],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for rank in range(N_PROCESSES)
    ]
    try:
        for process in running:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors.decode()
    finally:
        for process in running:
            process.kill()
    return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(N_PROCESSES)]


@pytest.mark.parametrize("name", [*FITS, "batches"])
def test_processes_find_the_model_of_all_rows(name, answers):
    X, y, weights = data()
    make = FITS.get(name, FITS["classifier"])
    whole = make().fit(X, sample_weight=weights) if name == "density" else make().fit(X, y, weights)
    for key, value in parameters(whole).items():
        # The rows of low rank and of signed moments are summed about other references: rounding grows over the steps.
        np.testing.assert_allclose(answers[0][name][key], value, rtol=1e-10, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("name", WIDE)
def test_processes_add_up_the_scatters_of_the_classes(name, answers):
    model = fit_wide(name, wide())
    assert answers[0][name]["chosen"] == answers[1][name]["chosen"] == [str(trial.what) for trial in model.search_]
    assert len(model.search_) == (2 if name == "wide, tied" else 3)
    for key, value in parameters(model).items():
        np.testing.assert_allclose(answers[0][name][key], value, rtol=1e-9, atol=1e-9, err_msg=key)
        np.testing.assert_array_equal(answers[1][name][key], answers[0][name][key])


@pytest.mark.parametrize("name", [*FITS, "batches"])
def test_all_processes_have_the_same_model_to_the_bit(name, answers):
    for key, value in answers[0][name].items():
        assert np.array_equal(answers[1][name][key], value)


def test_an_error_in_one_process_reaches_all(answers):
    assert answers[1]["bad rows"].startswith("The part of this process could not be used: Input X contains infinity")
    text = (
        "Process 1 of 2 could not use its rows: The part of this process could not be used: Input X contains infinity"
    )
    assert answers[0]["bad rows"].startswith(text)


def test_what_processes_cannot_do(answers):
    for part in answers:
        assert part["unlike columns"] == (
            "Process 1 has rows of 1 features, but process 0 has rows of 2. Pass the same features in all processes."
        )
        assert part["no seed"] == (
            "random_state must be an integer and the same in all processes if X is Sharded; got None."
        )
        assert part["gradient"].startswith("The rows are distributed over 2 processes, but this solver needs them in")


def test_without_a_process_group():
    with pytest.raises(ValueError, match=r"X is Sharded, but there is no process group; call torch.distributed"):
        GaussianMixture(random_state=0).fit(Sharded(data()[0]))
