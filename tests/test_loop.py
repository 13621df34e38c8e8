"""The one loop: how a fit ends, what it records, and what it says when numbers go wrong."""

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from cases import COVARIANCES, KINDS, Data, assert_same_mixture, problem_of, random_data, random_mixture
from mixtura.engine.sources import TensorSource
from mixtura.objectives import Conditional, Joint, class_log_joint
from mixtura.priors import Conjugate
from mixtura.roles import Info
from mixtura.solvers import EM, EarlyStopping, Gradient, Outcome, Problem, Units, run, score_classes

pytestmark = pytest.mark.usefixtures("one_thread")


class Scripted:
    """A solver that returns the given values; a value that is an exception is raised."""

    name = "scripted"

    def __init__(self, *values, repairs=()):
        self.values, self.repairs, self.n_steps = values, repairs, 0

    def init(self, problem, start):
        return start

    def step(self, problem, state):
        value = self.values[self.n_steps]
        self.n_steps += 1
        if isinstance(value, BaseException):
            raise value
        return f"mixture {self.n_steps}", Info(value, self.repairs)

    def result(self, state):
        return state


def test_a_small_change_converges():
    result = run(Scripted(-3.0, -2.0, -1.5, -1.45, 0.0), None, "start", max_iter=10, tol=0.1)
    assert result.outcome is Outcome.CONVERGED
    assert result.mixture == "mixture 4"
    assert [record.iteration for record in result.history] == [1, 2, 3, 4]
    assert [record.objective for record in result.history] == [-3.0, -2.0, -1.5, -1.45]
    np.testing.assert_allclose([record.change for record in result.history], [np.inf, 1.0, 0.5, 0.05])
    assert result.objective == -1.45


def test_the_limit_ends_a_fit():
    result = run(Scripted(-3.0, -2.0, -1.0), None, "start", max_iter=2, tol=0.1)
    assert (result.outcome, result.mixture, len(result.history)) == (Outcome.LIMIT, "mixture 2", 2)


def test_no_iterations_leave_the_start():
    result = run(Scripted(), None, "start", max_iter=0, tol=0.1)
    assert (result.outcome, result.mixture, result.objective) == (Outcome.LIMIT, "start", -np.inf)


def test_a_fit_can_go_on_from_a_previous_objective():
    result = run(Scripted(-3.0, -2.0), None, "start", max_iter=5, tol=0.1, previous=-3.05)
    assert (result.outcome, len(result.history)) == (Outcome.CONVERGED, 1)


def test_repairs_are_kept_once():
    result = run(Scripted(-3.0, -2.0, -1.0, repairs=("repaired",)), None, "start", max_iter=3, tol=0.0)
    assert result.repairs == ("repaired",)


def test_every_record_is_shown_to_the_watcher():
    seen = []
    result = run(Scripted(-3.0, -2.0), None, "start", max_iter=2, tol=0.0, watch=seen.append)
    assert tuple(seen) == result.history


def test_the_model_of_the_best_held_out_score_is_returned():
    scores = iter([0.0, 3.0, 1.0, 2.0, 2.0, 9.0])
    held_out = EarlyStopping(lambda mixture: next(scores), interval=2, patience=3)
    result = run(Scripted(*range(20)), None, "start", max_iter=20, tol=0.0, held_out=held_out)
    assert (result.outcome, result.mixture, result.best_iteration) == (Outcome.HELD_OUT, "mixture 2", 2)
    assert result.scores == ((0, 0.0), (2, 3.0), (4, 1.0), (6, 2.0), (8, 2.0))


def test_the_last_model_is_scored_too():
    held_out = EarlyStopping(lambda mixture: 0.0 if mixture == "start" else float(mixture.split()[1]), interval=3)
    result = run(Scripted(*map(float, range(20))), None, "start", max_iter=7, tol=0.0, held_out=held_out)
    assert (result.outcome, result.mixture, len(result.history)) == (Outcome.LIMIT, "mixture 7", 7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_objective_that_is_not_finite_raises_and_names_the_iteration(value):
    message = (
        f"^the objective became {value} at iteration 3 of solver 'scripted'; the input may hold values "
        "too large to square, or a component may have collapsed$"
    )
    with pytest.raises(FloatingPointError, match=message):
        run(Scripted(-3.0, -2.0, value), None, "start", max_iter=10, tol=0.0)


def test_interruption_keeps_the_last_complete_mixture():
    result = run(Scripted(-3.0, -2.0, KeyboardInterrupt()), None, "start", max_iter=10, tol=0.0)
    assert (result.outcome, result.mixture, result.objective) == (Outcome.INTERRUPTED, "mixture 2", -2.0)
    assert result.outcome.value == "interrupted; the best parameters so far are kept"


def test_interruption_of_the_first_step_keeps_the_start():
    result = run(Scripted(KeyboardInterrupt()), None, "start", max_iter=10, tol=0.0)
    assert (result.outcome, result.mixture, result.history) == (Outcome.INTERRUPTED, "start", ())


def test_interruption_by_the_watcher_keeps_the_step_it_saw():
    def watch(record):
        if record.iteration == 2:
            raise KeyboardInterrupt

    result = run(Scripted(-3.0, -2.0, -1.0), None, "start", max_iter=10, tol=0.0, watch=watch)
    assert (result.outcome, result.mixture) == (Outcome.INTERRUPTED, "mixture 2")


class InterruptedSource(TensorSource):
    """Gets Ctrl-C in the middle of its third pass."""

    n_passes = 0

    def blocks(self):
        self.n_passes += 1
        yield from super().blocks()
        if self.n_passes == 3:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def control_c():
    """Python's own answer to the signal: a shell ignores it in what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("control_c")
def test_control_c_inside_a_pass_leaves_the_mixture_of_the_step_before(rng, device):
    mixture, data = random_mixture(COVARIANCES["full"], rng, device), random_data(KINDS["complete"], rng)
    source = data.source(device)
    problem = problem_of(source, memory_limit=1)
    expected = run(EM(), problem, mixture, max_iter=2, tol=0.0)
    interrupted = replace(problem, source=InterruptedSource(next(source.blocks()).rows))
    result = run(EM(), interrupted, mixture, max_iter=10, tol=0.0)
    assert result.outcome is Outcome.INTERRUPTED
    assert len(result.history) == 2
    assert_same_mixture(result.mixture, expected.mixture, 1e-12)


class Failing(Joint):
    """An objective that raises inside a worker after some chunks."""

    n_chunks = 0
    log_sums = None  # no kernel stands for it

    def evaluate(self, log_joint, targets):
        type(self).n_chunks += 1
        if type(self).n_chunks > 5:
            raise KeyboardInterrupt
        return super().evaluate(log_joint, targets)


def test_an_interrupted_worker_interrupts_the_fit(rng, device):
    mixture, source = (
        random_mixture(COVARIANCES["full"], rng, device),
        random_data(KINDS["complete"], rng).source(device),
    )
    problem = problem_of(source, objective=Failing(), memory_limit=1)
    result = run(EM(), problem, mixture, max_iter=10, tol=0.0)
    assert (result.outcome, result.history) == (Outcome.INTERRUPTED, ())
    assert_same_mixture(result.mixture, mixture, 0)


def test_rows_too_large_to_square_raise_and_name_the_iteration(rng, device):
    mixture = random_mixture(COVARIANCES["diag"], rng, device)
    source = Data(np.array([[1e200] * 4, [-1e200] * 4])).source(device)
    with pytest.raises(FloatingPointError, match="at iteration 1 of solver 'em'"):
        run(EM(), problem_of(source), mixture, max_iter=10, tol=0.0)


def test_em_converges_to_a_fixed_point(rng, device):
    mixture, source = random_mixture(COVARIANCES["diag"], rng, device), random_data(KINDS["labels"], rng).source(device)
    result = run(EM(), problem_of(source), mixture, max_iter=2000, tol=1e-13)
    assert result.outcome is Outcome.CONVERGED
    again, info = EM().step(problem_of(source), result.mixture)
    assert_same_mixture(again, result.mixture, 1e-4)
    assert abs(info.value - result.objective) < 1e-12
    assert torch.isfinite(result.mixture.log_weights).all()


def test_a_problem_is_made_and_scored_with_public_names_alone():
    """Samples in memory, a fit from a given start, and log p(x, c) of the result: no source, pass or frame by hand."""
    torch.manual_seed(0)
    start = random_mixture(COVARIANCES["full"], np.random.default_rng(0))
    labels = torch.arange(300) % start.n_classes
    rows = torch.randn(300, start.n_features, dtype=torch.float64) + 1.5 * labels.unsqueeze(1)
    prior = Conjugate(4.0, torch.ones_like(rows[0]))
    joint = run(EM(), Problem.from_samples(rows, labels, Joint(), prior=prior), start, 20, 0.0)
    assert joint.history[-1].objective > joint.history[0].objective
    units = Units(rows.mean(0), rows.std(0))
    problem = Problem.from_samples(rows, labels, Conditional(), seed=1)
    trained = run(Gradient("adam", 1e-2, units=units), problem, joint.mixture, 5, 0.0).mixture
    scores = score_classes(trained, rows)
    expected = class_log_joint(trained.log_joint(rows).T, trained.class_sizes).T
    torch.testing.assert_close(scores, expected)

    def posterior(mixture):
        return float(score_classes(mixture, rows).log_softmax(1).gather(1, labels.unsqueeze(1)).mean())

    assert posterior(trained) > posterior(joint.mixture)


def test_units_go_there_and_back():
    mixture = random_mixture(COVARIANCES["full"], np.random.default_rng(0))
    scales = torch.linspace(0.5, 4, mixture.n_features, dtype=torch.float64)
    units = Units(-scales, scales)
    back = units.back(units.of(mixture))
    torch.testing.assert_close(back.means, mixture.means)
    torch.testing.assert_close(back.covariances, mixture.covariances)
