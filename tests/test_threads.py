"""Threads without side effects: nobody else's are changed, answers repeat to the bit, and fits may run side by side."""

import threading

import numpy as np
import pytest
import torch

from mixtura import HybridMixtureClassifier, MixtureClassifier, NonnegativeMixtureClassifier, SparseMixtureClassifier
from mixtura.engine import threads, tuning
from mixtura.engine.threads import available_threads, computing, one_thread, own_threads, share_out
from mixtura.objectives import Joint


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_a_thread(work):
    """The result of work in a thread of its own."""
    actual = []
    thread = threading.Thread(target=lambda: actual.append(work()))
    thread.start()
    thread.join()
    return actual[0]


def classes(n_rows: int, size: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, size))
    return X, (X[:, 0] + 0.5 * rng.normal(size=n_rows) > 0).astype(int)


@pytest.mark.usefixtures("two_threads")
class TestOneThread:
    def test_it_is_the_calling_thread_that_is_limited(self):
        with one_thread():
            assert torch.get_num_threads() == 1
            assert available_threads() == 2
            assert in_a_thread(torch.get_num_threads) == 2
        assert torch.get_num_threads() == 2

    def test_it_may_be_entered_twice(self):
        with one_thread(), one_thread():
            assert available_threads() == 2
        assert torch.get_num_threads() == 2

    def test_an_error_leaves_nothing_behind(self):
        with pytest.raises(ValueError, match="inside"), computing():
            raise ValueError("inside")
        assert torch.get_num_threads() == 2
        assert torch.is_grad_enabled()

    def test_a_large_operation_has_all_threads(self):
        with one_thread():
            with threads.threads_for(2 * tuning.SMALL_OPERATION):
                assert torch.get_num_threads() == 2
            with threads.threads_for(0.5 * tuning.SMALL_OPERATION):
                assert torch.get_num_threads() == 1

    def test_a_number_of_its_own_is_given_back(self):
        with own_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2


class Watching(Joint):
    """Notes how many threads operations have, and what a thread that starts meanwhile begins with."""

    seen: set = set()  # noqa: RUF012 - shared on purpose

    def evaluate(self, log_joint, targets):
        self.seen.add((torch.get_num_threads(), in_a_thread(torch.get_num_threads)))
        return super().evaluate(log_joint, targets)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("n_rows", [300, 40_000], ids=["small", "large"])
def test_a_fit_limits_its_own_operations_and_nobody_elses(n_rows):
    Watching.seen.clear()
    MixtureClassifier(2, objective=Watching(), random_state=0, max_iter=2, tol=1e3).fit(*classes(n_rows, 10))
    assert Watching.seen == {(1, 2)}
    assert torch.get_num_threads() == 2


FITS = {
    "classifier": (lambda: MixtureClassifier(3, random_state=0, max_iter=8, tol=0.0), classes(30_000, 12)),
    "hybrid": (lambda: HybridMixtureClassifier(1, random_state=0, n_epochs=1), classes(400, 3)),
    "sparse": (lambda: SparseMixtureClassifier(1, random_state=0, n_init=1, max_iter=20), classes(100, 2)),
    "nonnegative": (lambda: NonnegativeMixtureClassifier(2, random_state=0, max_iter=20, tol=0.1), classes(200, 4)),
}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", FITS)
def test_fits_side_by_side_give_the_bits_of_one_alone(name):
    make, (X, y) = FITS[name]
    X = X - X.min(0)
    alone = make().fit(X, y).predict_proba(X)
    actual = []
    workers = [threading.Thread(target=lambda: actual.append(make().fit(X, y).predict_proba(X))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(actual) == 3
    assert all(np.array_equal(other, alone) for other in actual)


@pytest.mark.usefixtures("two_threads")
def test_one_model_may_predict_in_several_threads():
    X, y = classes(40_000, 10)
    model = MixtureClassifier(2, random_state=0).fit(X[:500], y[:500])
    alone, actual = model.predict_proba(X), []
    workers = [threading.Thread(target=lambda: actual.append(model.predict_proba(X))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(actual) == 4
    assert all(np.array_equal(other, alone) for other in actual)


LARGE = 1e9  # multiplications


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("in_order", [True, False])
def test_tasks_are_done_once_and_in_order_if_requested(in_order):
    tasks, done = [object() for _ in range(7)], [[], []]
    share_out(tasks, LARGE, lambda task, thread: done[thread].append(task), 2, in_order)
    assert sorted(map(id, done[0] + done[1])) == sorted(map(id, tasks))
    if in_order:
        assert done == [tasks[0::2], tasks[1::2]]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_in_every_task_is_raised(n_threads, in_order):
    with pytest.raises(ZeroDivisionError):
        share_out(range(20), LARGE, lambda task, thread: 1 / 0, n_threads, in_order)


def test_a_slow_task_holds_up_no_other():
    tasks, others_done, done = [object() for _ in range(6)], threading.Event(), []

    def work(task, thread):
        if task is tasks[0]:
            assert others_done.wait(30)
        done.append(task)
        if len(done) == 5:
            others_done.set()

    share_out(tasks, LARGE, work, 2, in_order=False)
    assert done == [*tasks[1:], tasks[0]]


def test_few_tasks_and_small_ones_start_no_threads():
    caller, seen = threading.get_ident(), set()
    for n_tasks, size in ((1, LARGE), (20, 20.0)):
        share_out(
            range(n_tasks), size, lambda task, thread: seen.add((threading.get_ident(), thread)), 3, in_order=True
        )
    assert seen == {(caller, 0)}


@pytest.mark.usefixtures("two_threads")
def test_rows_on_another_device_are_not_shared_out():
    with one_thread():
        assert available_threads(torch.device("cpu")) == 2
        assert available_threads(torch.device("meta")) == 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("before", [True, False])
def test_computing_records_no_gradients(before):
    with torch.set_grad_enabled(before):
        with computing():
            assert (torch.is_grad_enabled(), torch.get_num_threads()) == (False, 1)
        assert (torch.is_grad_enabled(), torch.get_num_threads()) == (before, 2)


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_thread_is_raised_and_ends_the_others():
    done = []

    def work(task, thread):
        if thread == 1:
            raise ArithmeticError("here")
        done.append(task)

    with pytest.raises(ArithmeticError, match="here"):
        share_out(range(1000), LARGE, work, 2, in_order=True)
    assert torch.get_num_threads() == 2
