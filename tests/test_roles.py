"""A part that is registered is reachable from an estimator, by name and as an object, and really runs."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

import mixtura
from mixtura import MixtureClassifier
from mixtura.covariances import Full
from mixtura.datasets import make_ripley
from mixtura.engine.sources import TensorSource
from mixtura.files.registry import storable
from mixtura.objectives import OBJECTIVES, Conditional, Hybrid, Joint, Margin, Marginal
from mixtura.priors import PRIORS
from mixtura.roles import is_smooth
from mixtura.solvers import EM, SOLVERS, BaumWelch
from mixtura.values.targets import Evaluation

pytestmark = pytest.mark.usefixtures("registries", "one_thread")


@pytest.fixture(scope="module")
def ripley():
    return make_ripley(50, random_state=0)


@dataclass(frozen=True)
class StochasticEM:
    """EM in which every step sees a random half of the samples."""

    name = "stochastic_em"
    needs_fit = False
    seen: list = field(default_factory=list, compare=False)  # a trace that it ran

    def refusal(self, objective, prior, structure):
        return EM().refusal(objective, prior, structure)

    def init(self, problem, start):
        return start, 0

    def step(self, problem, state):
        mixture, n_steps = state
        (block,) = problem.source.blocks()
        half = torch.randperm(len(block.rows), generator=torch.Generator().manual_seed(problem.seed + n_steps))
        half = half[: len(half) // 2]
        self.seen.append(len(half))
        updated, info = EM().step(
            replace(problem, source=TensorSource(block.rows[half], labels=block.labels[half])), mixture
        )
        return (updated, n_steps + 1), info

    def result(self, state):
        return state[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_reached_by_name(name, ripley):
    """The model is that of the object, for all that are registered."""
    X, y = ripley
    options = {"max_iter": 5, "tol": 0.0, "random_state": 0}
    with pytest.warns(ConvergenceWarning):
        by_name = MixtureClassifier(1, objective=name, **options).fit(X, y)
    with pytest.warns(ConvergenceWarning):
        as_object = MixtureClassifier(1, objective=OBJECTIVES[name], **options).fit(X, y)
    probabilities = by_name.predict_proba(X)
    np.testing.assert_array_equal(probabilities, as_object.predict_proba(X))
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_registered_solver_runs(by_name, ripley):
    solver = StochasticEM()
    SOLVERS["stochastic_em"] = solver
    asked = "stochastic_em" if by_name else solver
    model = MixtureClassifier(2, solver=asked, random_state=0, tol=0.05).fit(*ripley)
    assert solver.seen == [50] * model.n_iter_
    assert model.score(*ripley) > 0.8
    usual = MixtureClassifier(2, random_state=0).fit(*ripley)
    assert not np.allclose(model.predict_proba(ripley[0]), usual.predict_proba(ripley[0]))


@storable("tests.horseshoe")
@dataclass(frozen=True)
class Horseshoe:
    """A horseshoe-like prior on means: most near zero, a few far away. It has no pseudo-moments."""

    scale: float = 1.0
    strength: float = 1.0

    def log_density(self, parameters):
        odds = 2 * self.scale**2 / (parameters.means.square() + 0.01)
        return self.strength * odds.log1p().log().sum()


@pytest.mark.parametrize("solver", ["gradient", "auto"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_registered_prior_runs(by_name, solver, rng, tmp_path):
    X, y = rng.normal(size=(60, 3)), np.repeat([0, 1], 30)
    X[y == 1, 1] += 9.0
    PRIORS["horseshoe"] = lambda scales: Horseshoe(0.3, 10.0)
    settings = {"solver": solver, "random_state": 0, "max_iter": 30, "tol": 1e-6}
    model = MixtureClassifier(1, prior="horseshoe" if by_name else Horseshoe(0.3, 10.0), **settings).fit(X, y)
    free = MixtureClassifier(1, random_state=0).fit(X, y)
    means, others = model.mixture_.means.abs().numpy(), free.mixture_.means.abs().numpy()
    small = others < 0.5
    assert means[small].mean() < 0.5 * others[small].mean()  # small means are pulled to zero
    assert means[1, 1] > 0.95 * others[1, 1]  # and the large one is left alone
    model.save(tmp_path / "model")
    assert (mixtura.load(tmp_path / "model").predict_proba(X) == model.predict_proba(X)).all()
    with pytest.raises(ValueError, match="it needs a prior with pseudo-moments"):
        MixtureClassifier(1, prior=Horseshoe(), solver="em").fit(X, y)


@dataclass(frozen=True)
class Blend:
    """log p(x, c) - (1 - share) log p(x)."""

    share: float = 0.5
    name = "blend"
    own_class_only = False
    needs_denominator = True
    has_density = True

    def evaluate(self, log_joint, targets):
        own, every = Joint().evaluate(log_joint, targets), Marginal().evaluate(log_joint, targets)
        rest = 1 - self.share
        return Evaluation(own.values - rest * every.values, own.numerator, rest * every.numerator)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_registered_objective_runs(by_name, ripley):
    OBJECTIVES["blend"] = Blend(0.01)
    model = MixtureClassifier(2, objective="blend" if by_name else Blend(0.01), random_state=0).fit(*ripley)
    twin = mixtura.objectives.Hybrid(0.01, mixtura.objectives.Conditional())
    same = MixtureClassifier(2, objective=twin, random_state=0).fit(*ripley)
    np.testing.assert_allclose(model.predict_proba(ripley[0]), same.predict_proba(ripley[0]), atol=1e-9)
    usual = MixtureClassifier(2, random_state=0).fit(*ripley)
    assert not np.allclose(model.predict_proba(ripley[0]), usual.predict_proba(ripley[0]), atol=1e-3)


@dataclass(frozen=True)
class Kinked(Blend):
    """A blend that says it is not differentiable everywhere."""

    is_smooth = False


@pytest.mark.parametrize(
    ("objective", "smooth"),
    [
        (Blend(), True),
        (Kinked(), False),
        (Margin(), False),
        (Conditional(), True),
        (Hybrid(0.5), False),
        (Hybrid(1.0), True),
        (Hybrid(0.5, Conditional()), True),
        (Hybrid(0.5, Kinked()), False),
    ],
)
def test_baum_welch_takes_smooth_objectives_alone(objective, smooth):
    assert is_smooth(objective) == smooth
    assert (BaumWelch().refusal(objective, None, Full()) is None) == smooth


def test_a_hybrid_has_the_log_sums_of_its_parts():
    assert Hybrid(0.1, Conditional()).log_sums == (1.0, 0.1 - 1.0)
    assert Hybrid(0.25, Hybrid(0.5, Conditional())).log_sums == (1.0, 0.75 * -0.5)
    assert Hybrid(0.5, Margin()).log_sums is None
    assert Hybrid(0.5, Conditional(), unlabeled_weight=2.0).log_sums is None
