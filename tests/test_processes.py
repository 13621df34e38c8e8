"""Fits in other processes: forked, spawned, by joblib; and what a fit leaves of the environment."""

import os
import subprocess
import sys
import textwrap

import joblib
import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

from mixtura import MixtureClassifier
from mixtura.datasets import make_ripley

ROWS, LABELS = make_ripley(60, random_state=0)
MODEL = MixtureClassifier(2, random_state=0)


def run_alone(program: str, seconds: float = 120) -> str:
    """The output of a program in an interpreter of its own, which must end in time and without an error."""
    finished = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("TORCHINDUCTOR")}, "OMP_NUM_THREADS": "2"},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


FORKED = """
import os
import numpy as np
import torch
from sklearn.cluster import KMeans
from mixtura import *
from mixtura.engine import threads

threads.SMALL_PASS = threads.SMALL_OPERATION = 0.0  # whatever can use threads does
torch.set_num_threads(2)
rng = np.random.default_rng(0)
X = np.abs(rng.normal(size=(3000, 4)))
y = (X[:, 0] + 0.5 * rng.normal(size=3000) > 0.7).astype(int)
MODELS = [
    MixtureClassifier(2, random_state=0, max_iter=3, tol=10.0),
    MixtureClassifier(1, objective="conditional", solver="gradient", random_state=0, max_iter=1, tol=10.0),
    GaussianMixture(2, random_state=0, max_iter=3, tol=10.0),
    NonnegativeMixtureClassifier(2, random_state=0, max_iter=3),
    SparseMixtureClassifier(1, random_state=0, tol=1e6),
]
big = torch.randn(1000, 1000)
(big @ big).exp_().sum()  # torch's threads start
KMeans(3, n_init=1, random_state=0).fit(X)  # and those of scikit-learn
expected = [model.fit(X[:500], y[:500]).predict_proba(X) for model in MODELS]
child = os.fork()
if child == 0:
    code = 1
    try:
        found = [model.fit(X[:500], y[:500]).predict_proba(X) for model in MODELS]
        MODELS[0].sample(5000)
        code = 0 if all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(expected, found)) else 2
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.get_num_threads())
"""


@pytest.mark.skipif(os.name != "posix", reason="there is no fork")
def test_a_process_that_was_forked_after_threads_have_started():
    assert run_alone(FORKED).split() == ["0", "2"]


BACKENDS = [pytest.param("loky", marks=pytest.mark.slow), "threading", "multiprocessing"]  # loky imports torch again


@pytest.mark.parametrize("backend", BACKENDS)
def test_cross_validation_by_joblib(backend):
    alone = cross_val_score(MODEL, ROWS, LABELS, cv=3, scoring="neg_log_loss")
    with joblib.parallel_config(backend, n_jobs=2):
        assert np.array_equal(cross_val_score(MODEL, ROWS, LABELS, cv=3, scoring="neg_log_loss"), alone)


SPAWNED = """
import multiprocessing
import sys
import numpy as np
from mixtura import MixtureClassifier
from mixtura.datasets import make_ripley
X, y = make_ripley(60, random_state=0)
model = MixtureClassifier(2, random_state=0).fit(X, y)
with multiprocessing.get_context("spawn").Pool(1) as pool:
    found = pool.apply(model.predict_proba, (X,))
    again = pool.apply(model.fit, (X, y)).predict_proba(X)
print(np.array_equal(found, model.predict_proba(X)), np.array_equal(again, found))
"""


@pytest.mark.slow
def test_a_process_that_was_spawned():
    assert run_alone(SPAWNED).split() == ["True", "True"]


UNTOUCHED = """
import os
import sys
import numpy as np
import torch
import mixtura
from mixtura.datasets import make_ripley
from mixtura.solvers import Gradient
before, generators = dict(os.environ), (torch.get_rng_state(), np.random.get_state()[1].copy())
X, y = make_ripley(30, random_state=0)
for solver in (Gradient("lbfgs"), Gradient("adam")):
    mixtura.MixtureClassifier(1, solver=solver, random_state=0, max_iter=1, tol=10.0).fit(X, y).predict_proba(X)
mixtura.HybridMixtureClassifier(1, n_epochs=1, random_state=0).fit(X, y).sample(3)
mixtura.SparseMixtureClassifier(1, tol=1e6, random_state=0).fit(X, y)
assert torch.equal(torch.get_rng_state(), generators[0]) and np.array_equal(np.random.get_state()[1], generators[1])
assert "torch._dynamo" not in sys.modules  # the compiler takes seconds to import
given = Gradient(lambda leaves: torch.optim.SGD(leaves, lr=1e-3))  # imports it
mixtura.MixtureClassifier(1, solver=given, random_state=0, max_iter=1, tol=10.0).fit(X, y)
print({name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)})
"""


def test_the_environment_and_the_global_generators_stay_as_they_were():
    assert run_alone(UNTOUCHED).strip() == "set()"
