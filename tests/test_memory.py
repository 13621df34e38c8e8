"""Peak memory of predictions and fits, measured."""

from pathlib import Path

import numpy as np
import pytest

from mixtura import GaussianMixture, MixtureClassifier, NonnegativeMixtureClassifier

MB = 2**20
RESET, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
pytestmark = pytest.mark.skipif(not RESET.exists(), reason="the peak is measured by Linux")


def peak_of(work) -> float:
    """Megabytes that the process held at most while it worked, beyond what it held before."""

    def held(name):
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024

    RESET.write_text("5")  # resets the peak
    before = held("VmRSS")
    result = work()
    peak = held("VmHWM") - before
    del result
    return peak


@pytest.fixture
def memory_map(tmp_path):
    """A million rows on disk, 15 MB."""
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float32, (10**6, 4))
    rows[:] = np.random.default_rng(0).normal(size=rows.shape)
    rows.flush()
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def test_predictions_of_a_memory_map_take_their_answer_once(memory_map):
    rng = np.random.default_rng(1)
    model = MixtureClassifier(1, covariance_type="diag", memory_limit="16 MB").fit(
        rng.normal(size=(500, 4)), np.arange(500) % 20
    )
    model.predict_proba(memory_map[:1000])
    answer = 10**6 * 20 * 8 / MB  # 153
    # 16 of scratch, two blocks of 16 that are read ahead, 15 of the file itself.
    assert peak_of(lambda: model.predict_proba(memory_map)) < answer + 70


def test_imputed_values_of_a_memory_map_take_their_memory_once(memory_map):
    model = GaussianMixture(1, covariance_type="diag", memory_limit="16 MB").fit(np.array(memory_map[:1000]))
    assert peak_of(lambda: model.impute(memory_map)) < 10**6 * 4 * 8 / MB + 15


def test_a_fit_of_a_memory_map_holds_a_few_blocks(memory_map):
    model = GaussianMixture(2, covariance_type="full", max_iter=2, tol=10.0, memory_limit="16 MB", random_state=0)
    model.fit(np.array(memory_map[:1000]))
    assert peak_of(lambda: model.fit(memory_map)) < 60


def test_parts_are_answered_in_place():
    X = np.random.default_rng(0).poisson(1.0, (400_000, 2)).astype(float)
    y = np.arange(len(X)) % 20
    model = NonnegativeMixtureClassifier(1, max_iter=2, memory_limit="16 MB", early_stopping=False, tol=1e3)
    model.fit(X[:400], y[:400])
    answer = 400_000 * 20 * 8 / MB  # 61
    assert peak_of(lambda: model.predict_proba(X)) < answer + 30  # 16 of scratch, and copies of X
