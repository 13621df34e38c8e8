"""Threads that share out tasks: who does what, what happens to errors, and where passes meet each other."""

import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

from mixtura.workers import share_out


@dataclass(frozen=True)
class Numbered:
    number: int
    work: int = 1


@pytest.fixture(autouse=True)
def number_of_threads():
    """As before: after a pass torch has as many threads as shared it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


TASKS = [Numbered(i) for i in range(11)]


def shared(n_threads: int) -> list[list[int]]:
    """The numbers that each thread was given."""
    taken: list[list[int]] = [[] for _ in range(n_threads)]
    share_out(TASKS, lambda task, own: own.append(task.number), taken)
    return taken


@pytest.mark.parametrize("n_threads", [1, 2, 3, 20])
def test_every_thread_has_its_own_tasks_in_their_order(n_threads):
    assert shared(n_threads) == [list(range(11))[t::n_threads] for t in range(n_threads)]


def test_passes_of_several_threads_do_not_meet():
    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(shared, [3] * 20)) == [shared(3)] * 20


def test_threads_are_used_again():
    shared(3)
    before = threading.active_count()
    for _ in range(5):
        shared(3)
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_process_that_forks_off_has_threads_of_its_own():
    shared(3)
    child = multiprocessing.get_context("fork").Process(target=shared, args=(3,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_an_error_ends_all_shares_and_is_raised():
    done = []

    def work(task, state):
        if task.number == 0:
            raise ValueError("the first task")
        done.append(task.number)

    with pytest.raises(ValueError, match="the first task"):
        share_out(TASKS, work, [None, None])
    assert set(done) <= {1, 3, 5, 7, 9}  # those of the other thread, which is not waiting for anything any more
    assert shared(2) == [list(range(0, 11, 2)), list(range(1, 11, 2))]
