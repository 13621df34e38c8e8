"""Fits that are killed, interrupted and continued."""

import contextlib
import copy
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import KFold

from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
    NonnegativeMixtureClassifier,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
)
from mixtura.datasets import make_ripley
from mixtura.files import checkpoints
from mixtura.priors import Shrinkage
from mixtura.selection.clusters import ComponentPath
from mixtura.selection.comparison import Comparison
from mixtura.selection.search import Search
from mixtura.solvers import batched_em, loop

ROWS, LABELS = make_ripley(60, random_state=0)
ROWS = ROWS - ROWS.min(0)
FEW = {"max_iter": 12, "random_state": 0}
MODELS = {
    "em": MixtureClassifier(3, n_init=2, tol=0.0, **FEW),
    "missing": MixtureClassifier(2, covariance_type="low_rank", tol=0.0, **FEW),
    "baum_welch": MixtureClassifier(2, objective="conditional", tol=0.0, **FEW),
    "lbfgs": MixtureClassifier(2, objective="conditional", solver="gradient", tol=0.0, max_iter=7, random_state=0),
    "search": MixtureClassifier("auto", prior="auto", covariance_type="diag", random_state=0),
    "density": GaussianMixture(3, n_init=2, tol=0.0, **FEW),
    "discriminative": DiscriminativeMixtureClassifier(1, cv=2, early_stopping=True, **FEW),
    "hybrid": HybridMixtureClassifier(2, n_epochs=7, random_state=0),
    "averaged": AveragedMixtureClassifier(MixtureClassifier(2, max_iter=12, tol=1e-4), 4, random_state=0),
    "averaged density": AveragedMixture(GaussianMixture(2, prior="default", max_iter=12), 4, random_state=0),
    "sparse": SparseMixtureClassifier(2, n_init=2, **FEW),
    "working set": SparseMixtureClassifier(2, n_init=1, working_set=True, **FEW),
    "relevance": RelevanceVectorClassifier(**FEW),
    "nonnegative": NonnegativeMixtureClassifier(2, rows="counts", cv=2, n_init=2, max_iter=60, random_state=0),
    "accelerated": NonnegativeMixtureClassifier(2, solver="accelerated", early_stopping=False, **FEW),
}
LONG = ("search", "discriminative")
every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in MODELS]
)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Killed(BaseException):
    """Ends a fit as a kill would, at a place of our choice."""


def rows_of(name):
    holed = ROWS.copy()
    holed[::7, 0] = np.nan
    return holed if name == "missing" else ROWS


def fitted(name, checkpoint=None):
    return clone(MODELS[name]).set_params(checkpoint=checkpoint).fit(rows_of(name), LABELS)


def answers(model):
    return model.predict_proba(ROWS) if hasattr(model, "predict_proba") else model.score_samples(ROWS)


@every_model
def test_a_fit_that_is_killed_repeatedly_ends_with_the_same_model(name, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "LARGEST_SHARE", 1e9)  # every state is written
    whole, (left, flush) = fitted(name, tmp_path / "whole"), ([0], checkpoints.CheckpointFile.flush)

    def count_down(self):
        flush(self)
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    monkeypatch.setattr(checkpoints.CheckpointFile, "flush", count_down)
    rng, n_killed, model = np.random.default_rng(0), 0, None
    while model is None:
        left[0] = 2 if n_killed == 0 else int(rng.integers(2, 60 if name in LONG else 6))
        try:
            model = fitted(name, tmp_path / "killed")
        except Killed:
            n_killed += 1
    np.testing.assert_allclose(answers(model), answers(whole), rtol=0, atol=1e-9)
    assert n_killed > 0
    objectives, expected = ([record.objective for record in part.history_] for part in (model, whole))
    np.testing.assert_allclose(objectives, expected, rtol=1e-9)
    assert np.array_equal(answers(whole), answers(fitted(name)))  # the file does not change a fit


@every_model
def test_a_finished_fit_is_not_computed_again(name, tmp_path, monkeypatch):
    first = fitted(name, tmp_path / "fit")
    monkeypatch.setattr(loop.RunRecords, "add", lambda *arguments: pytest.fail("a step was taken"))
    assert np.array_equal(answers(fitted(name, tmp_path / "fit")), answers(first))


PROGRAM = """
import sys, warnings
import numpy as np, torch
torch.set_num_threads(1)
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from test_checkpoints import answers, fitted
np.save(sys.argv[4], answers(fitted(sys.argv[2], sys.argv[3])))
"""


@pytest.mark.slow
@every_model
def test_kill_9_at_any_moment(name, tmp_path, request):
    def start(checkpoint, answer):
        arguments = [str(request.path.parent), name, str(tmp_path / checkpoint), str(tmp_path / answer)]
        return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])

    assert start("whole", "whole.npy").wait(120) == 0
    rng = np.random.default_rng(1)
    for number in range(40):
        process = start("fit", "answer.npy")
        end = time.monotonic() + 60
        while not (tmp_path / "fit").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        try:
            process.wait(rng.uniform(0.0, 0.3) if number < 3 else 60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if (tmp_path / "answer.npy").exists():
            break
    np.testing.assert_allclose(np.load(tmp_path / "answer.npy"), np.load(tmp_path / "whole.npy"), rtol=0, atol=1e-9)


# ---- files of another fit --------------------------------------------------------------------------------------------

OTHERS = {
    "n_components": lambda model: model.set_params(n_components=3).fit(ROWS, LABELS),
    "prior": lambda model: model.set_params(prior=Shrinkage(2.0)).fit(ROWS, LABELS),
    "init": lambda model: model.set_params(init=MixtureClassifier(2).fit(ROWS, LABELS).mixture_).fit(ROWS, LABELS),
    "random_state": lambda model: model.set_params(random_state=1).fit(ROWS, LABELS),
    "samples": lambda model: model.fit(ROWS + 1e-12, LABELS),
    "labels": lambda model: model.fit(ROWS, 1 - LABELS),
    "sample weights": lambda model: model.fit(ROWS, LABELS, np.linspace(1, 2, len(ROWS))),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_another_fit_is_refused_and_kept(what, tmp_path):
    path = tmp_path / "fit"
    model = MixtureClassifier(2, random_state=0, checkpoint=path).fit(ROWS, LABELS)
    before = path.read_bytes()
    text = f"The checkpoint '{path}' belongs to another fit (other {what}); choose another file for `checkpoint`, or"
    with pytest.raises(ValueError, match=re.escape(text)):
        OTHERS[what](clone(model))
    assert path.read_bytes() == before


def one_kernel(rows, others):
    return rows @ others.T


def another_kernel(rows, others):
    return (rows @ others.T) ** 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (KFold(2), KFold(3)),
        (KFold(2, shuffle=True, random_state=0), KFold(2, shuffle=True, random_state=1)),
        ([KFold(2), 1], [KFold(3), 1]),
        ({"a": one_kernel}, {"a": another_kernel}),
        (one_kernel, another_kernel),
    ],
)
def test_objects_that_files_cannot_hold_are_told_apart(first, second):
    assert checkpoints.digest(first) == checkpoints.digest(copy.deepcopy(first))
    assert checkpoints.digest(first) != checkpoints.digest(second)


def test_a_file_of_a_fit_with_another_splitter_is_refused(tmp_path):
    model = DiscriminativeMixtureClassifier(1, cv=KFold(2), max_iter=2, random_state=0, checkpoint=tmp_path / "fit")
    model.fit(ROWS, LABELS)
    clone(model).fit(ROWS, LABELS)
    with pytest.raises(ValueError, match="belongs to another fit \\(other cv\\)"):
        clone(model).set_params(cv=KFold(3)).fit(ROWS, LABELS)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "fit"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="is not a checkpoint of mixtura, or it is damaged"):
        MixtureClassifier(2, random_state=0, checkpoint=path).fit(ROWS, LABELS)
    assert path.read_bytes() == b"nothing of the kind"


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(0)])
def test_random_numbers_must_repeat(random_state, tmp_path):
    with pytest.raises(ValueError, match="checkpoint needs a random_state that is an integer, so that"):
        MixtureClassifier(random_state=random_state, checkpoint=tmp_path / "fit").fit(ROWS, LABELS)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such folder")
def test_a_folder_that_takes_no_files():
    with pytest.raises(ValueError, match=r"The checkpoint '/proc/fit' cannot be written \(.*\); use another file\."):
        MixtureClassifier(random_state=0, checkpoint="/proc/fit").fit(ROWS, LABELS)


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


def interrupt_at(monkeypatch, step: int) -> None:
    """Ctrl-C at one of the steps of a fit, whatever loop takes it."""
    n_steps, add = [0], loop.RunRecords.add

    def interrupting(self, *arguments):
        n_steps[0] += 1
        if n_steps[0] == step:
            raise KeyboardInterrupt
        return add(self, *arguments)

    monkeypatch.setattr(loop.RunRecords, "add", interrupting)


@every_model
def test_ctrl_c_keeps_a_usable_model_or_none(name, monkeypatch, tmp_path):
    for step in (1, 3, 10, 40):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            interrupt_at(patch, step)
            model = clone(MODELS[name])
            with contextlib.suppress(KeyboardInterrupt):
                model.fit(rows_of(name), LABELS)
        try:
            actual = answers(model)
        except NotFittedError:
            continue
        assert np.isfinite(actual).all()
        model.save(tmp_path / "model")  # checks that it is complete


SEARCHES = {
    "classifier": MixtureClassifier(warp=None, random_state=0),
    "discriminative": DiscriminativeMixtureClassifier(1, prior="auto", cv=2, max_iter=5, random_state=0),
    "hybrid": HybridMixtureClassifier(
        1, discriminative="conditional", validation_fraction=0.3, n_epochs=3, random_state=0
    ),
    "density": GaussianMixture("auto", random_state=0),
}


def interrupt_after(monkeypatch, n_candidates: int) -> None:
    """Ctrl-C while the next candidate of a search is fitted."""
    tried, n_tried = Search.try_together, [0]

    def interrupting(self, evaluate):
        if n_tried[0] >= n_candidates:
            raise KeyboardInterrupt
        trials = tried(self, evaluate)
        n_tried[0] += len(trials)
        return trials

    monkeypatch.setattr(Search, "try_together", interrupting)


@pytest.mark.parametrize("name", SEARCHES)
def test_ctrl_c_in_a_search_keeps_the_best_candidate_so_far(name, monkeypatch):
    model = clone(SEARCHES[name])
    interrupt_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(ROWS, LABELS)
    scores, best = [candidate.score for candidate in model.search_], model.search_.best
    assert 2 <= len(scores) < 10
    assert best.score <= min(scores) + 2 * np.nan_to_num(best.standard_error)  # the simplest one within the noise
    assert np.isfinite(answers(model)).all()
    if name == "density":
        assert len(model.weights_) == best.what["n_components"]
    if name == "hybrid":
        assert model.tradeoff_ == best.what["tradeoff"]


@pytest.mark.parametrize(
    ("name", "place", "changes"),
    [  # so that the best has several components, and samples are held out
        ("classifier", Comparison, {"covariance_type": "spherical", "average": 1}),
        ("density", ComponentPath, {"prior": "auto"}),
    ],
)
def test_ctrl_c_after_the_candidates_keeps_the_best(name, place, changes, monkeypatch):
    """While the best one is fitted again without the held-out samples, for outlier scores."""
    model, folds = clone(SEARCHES[name]).set_params(**changes), place.folds

    def interrupting(self, best):
        with monkeypatch.context() as patch:
            interrupt_at(patch, 2)
            return folds(self, best)

    monkeypatch.setattr(place, "folds", interrupting)
    with pytest.raises(KeyboardInterrupt):
        model.fit(ROWS, LABELS)
    assert len(model.search_) > 2
    assert np.isfinite(answers(model)).all()


@pytest.mark.parametrize("name", SEARCHES)
def test_ctrl_c_before_the_first_candidate_leaves_no_model(name, monkeypatch):
    model = clone(SEARCHES[name])
    interrupt_after(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(ROWS, LABELS)
    with pytest.raises(NotFittedError):
        answers(model)


# ---- progress on the screen ------------------------------------------------------------------------------------------


@every_model
def test_verbose_counts_the_iterations_of_all_loops(name, monkeypatch, capsys):
    n_steps, next_loop = [0], loop.next_loop

    def counting(*arguments):
        journal = next_loop(*arguments)
        show = journal.show
        monkeypatch.setattr(journal, "show", lambda *values: (n_steps.__setitem__(0, n_steps[0] + 1), show(*values)))
        return journal

    for module in (loop, batched_em):
        monkeypatch.setattr(module, "next_loop", counting)
    clone(MODELS[name]).set_params(verbose=1).fit(rows_of(name), LABELS)
    if name == "density":  # prints what scikit-learn prints
        assert "Initialization 0" in capsys.readouterr().out
    else:
        assert f"{n_steps[0]} iterations" in capsys.readouterr().err
