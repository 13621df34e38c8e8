"""Numbers from outside the project: mclust, mda and lavaan (fixtures/README.md), and scikit-learn."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.decomposition import FactorAnalysis
from sklearn.mixture import GaussianMixture

import reference
from cases import COVARIANCES, Data, assert_close, problem_of, random_data, random_mixture, tensor
from cases import KINDS as DATA_KINDS
from mixtura.covariances import Diagonal, Full, LowRank, Spherical, Tied
from mixtura.engine.passes import map_rows, summarise
from mixtura.engine.sources import locate
from mixtura.model.mixture import Mixture
from mixtura.objectives import Joint
from mixtura.solvers import EM, run

pytestmark = pytest.mark.usefixtures("one_thread")

FIXTURES = Path(__file__).parent / "fixtures"
# mclust's names of the structures
MODELS = {
    "VVV": Full(),
    "VVI": Diagonal(),
    "VII": Spherical(),
    "EEE": Tied(Full()),
    "EEI": Tied(Diagonal()),
    "EII": Tied(Spherical()),
}
every_model = pytest.mark.parametrize("model", MODELS)
RESTS = {"tol": 1e-14, "max_iter": 20_000}  # a change of the mean that is below rounding: a fixed point


def fixture(name: str) -> dict:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def iris() -> np.ndarray:
    return load_iris().data


def numbers(table) -> np.ndarray:
    """null is a missing value."""
    return np.array(table, dtype=float)


def start(structure, data: Data, components, class_of, device) -> Mixture:
    """One M-step from the components of the rows: labels (N,), or shares (N, K)."""
    n_components, components = len(class_of), np.asarray(components)
    own = torch.arange(n_components, device=device)
    known = {"labels": components} if components.ndim == 1 else {"shares": components}
    given = Data(data.rows, weights=data.weights, **known).source(device)
    mean, variances = np.nanmean(data.rows, 0), np.nanvar(data.rows, 0)
    means = tensor(np.tile(mean, (n_components, 1)), device)
    deviations = tensor(np.nan_to_num(data.rows - mean), device)
    assignments = tensor(components if components.ndim == 1 else components.argmax(1), device)
    first = structure.start(tensor(np.tile(variances, (n_components, 1)), device), deviations, assignments, own)
    log_weights = torch.full((n_components,), -np.log(n_components), dtype=torch.float64, device=device)
    rough = Mixture(log_weights, means, first, own)
    frame = locate(given)
    updated = EM().m_step(problem_of(given, frame=frame), rough, summarise(rough, given, Joint(), frame).moments)
    return Mixture(updated.log_weights, updated.means, updated.covariance, tensor(np.asarray(class_of), device))


def fitted(mixture: Mixture, data: Data, device, **limits):
    """The result of EM, and the total of its objective at every iteration."""
    source = data.source(device)
    result = run(EM(), problem_of(source), mixture, **{**RESTS, **limits})
    weight = len(data.rows) if data.weights is None else data.weights.sum()
    return result.mixture, np.array([record.objective for record in result.history]) * weight


def class_posteriors(mixture: Mixture, rows, device) -> np.ndarray:
    source = Data(rows).source(device)

    def posteriors(log_joint):
        return torch.stack([log_joint[part].logsumexp(0) for part in mixture.class_slices], 1).softmax(1)

    return map_rows(mixture, source, posteriors).cpu().numpy()


def assert_parameters(mixture: Mixture, expected: dict, tolerance: float) -> None:
    for name in ("weights", "means", "covariances"):
        scale = 1 + abs(numbers(expected[name])).max()
        assert_close(getattr(mixture, name), numbers(expected[name]), tolerance, scale)


# ---- mclust ------------------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("split", ["balanced", "uneven"])
def test_one_gaussian_per_class_is_mclusts(model, split, device):
    case = fixture("mclust_edda")[split]
    expected, labels = case["models"][model], load_iris().target[case["train_rows"]]
    data = Data(iris()[case["train_rows"]], labels=labels)
    mixture = start(MODELS[model], data, labels, [0, 1, 2], device)
    assert_parameters(mixture, expected, 1e-9)
    _, trace = fitted(mixture, data, device, max_iter=2)
    assert_close(trace, [expected["loglik_joint"]] * 2, 1e-11)
    _, trace = fitted(mixture, data.changed(labels=None), device, max_iter=1)
    assert_close(trace, [expected["loglik_marginal"]], 1e-11)
    assert_close(class_posteriors(mixture, iris()[case["query_rows"]], device), expected["posteriors"], 1e-9)
    assert mixture.n_parameters == expected["n_parameters"]


def test_iris_has_the_likelihood_that_mclust_prints(device):
    labels = load_iris().target
    mixture = start(Full(), Data(iris()), labels, [0, 1, 2], device)
    _, trace = fitted(mixture, Data(iris()), device, max_iter=1)
    assert round(trace[0], 4) == -182.9208


@every_model
@pytest.mark.parametrize("name", ["faithful", "iris"])
def test_every_iteration_of_em_has_the_likelihood_of_mclusts(model, name, device):
    case = fixture("mclust_em")[name]
    data = Data(numbers(case["X"]) if "X" in case else iris())
    mixture = start(MODELS[model], data, case["start_labels"], [0, 0, 0], device)
    expected = case["models"][model]
    _, trace = fitted(mixture, data, device, max_iter=10)
    assert_close(trace, expected["loglik_of_first_iterations"], 1e-10)
    assert mixture.n_parameters == expected["n_parameters"]


@every_model
@pytest.mark.parametrize("name", ["faithful", "faithful_weighted", "iris"])
def test_em_rests_where_mclust_rests(model, name, device):
    cases = fixture("mclust_em")
    case = cases[name]
    rows = iris() if name == "iris" else numbers(cases["faithful"]["X"])
    weights = numbers(case["row_weights"]) if "row_weights" in case else None
    data = Data(rows, weights=weights)
    mixture, trace = fitted(start(MODELS[model], data, case["start_labels"], [0, 0, 0], device), data, device)
    expected = case["models"][model]
    assert_close(trace[-1], expected["loglik"], 1e-10)
    assert_parameters(mixture, expected, 1e-5)


@every_model
def test_two_components_per_class_fitted_at_once_are_mclusts_fitted_class_by_class(model, device):
    case = fixture("mclust_discriminant")
    expected = case["models"][model]
    labels = np.repeat([0, 1], 50)
    data = Data(iris()[case["train_rows"]], labels=labels)
    components = np.concatenate([np.array(c["start_labels"]) + 2 * i for i, c in enumerate(expected["classes"])])
    structure = MODELS[model]
    if isinstance(structure, Tied):
        structure = Tied(structure.inner, per_class=True)
    begin = start_by_class(structure, data, components, device)
    mixture, trace = fitted(begin, data, device)
    assert_close(trace[-1], expected["loglik_joint"], 1e-9)
    assert mixture.n_parameters == expected["n_parameters"]
    assert_close(class_posteriors(mixture, iris()[expected["query_rows"]], device), expected["posteriors"], 1e-4)


def start_by_class(structure, data, components, device) -> Mixture:
    """As `start`, with covariances shared within a class where the structure asks for it."""
    if not isinstance(structure, Tied):
        return start(structure, data, components, [0, 0, 1, 1], device)
    separate = start(structure.inner, data, components, [0, 0, 1, 1], device)
    groups = separate.class_of
    shares = tensor(np.bincount(components) / np.bincount(components // 2)[[0, 0, 1, 1]], device)
    pooled = {}
    for name, part in separate.covariance.tensors().items():
        weighted = part * shares.reshape(-1, *(1,) * (part.ndim - 1))
        pooled[name] = torch.zeros_like(part[:2]).index_add_(0, groups, weighted)
    covariance = structure.from_tensors({**pooled, "groups": groups})
    return Mixture(separate.log_weights, separate.means, covariance, groups)


@every_model
def test_unlabeled_rows_are_used_as_by_mclust(model, device):
    case = fixture("mclust_semisupervised")
    expected = case["models"][model]
    labels = np.full(150, -1)
    labels[case["labeled_rows"]] = load_iris().target[case["labeled_rows"]]
    data = Data(iris(), labels=labels)
    mixture, trace = fitted(start(MODELS[model], data, load_iris().target, [0, 1, 2], device), data, device)
    assert_close(trace[-1], expected["loglik"], 1e-10)
    assert_parameters(mixture, expected, 1e-5)


# ---- mda ---------------------------------------------------------------------------------------------------------


def test_one_covariance_for_two_components_per_class_is_mdas(device):
    expected, labels = fixture("mda"), load_iris().target
    shares = np.zeros((150, 6))
    for row, (label, share) in enumerate(zip(labels, expected["start_responsibilities"], strict=True)):
        shares[row, 2 * label : 2 * label + 2] = share
    data = Data(iris(), labels=labels)
    mixture, trace = fitted(start(Tied(Full()), data, shares, expected["class_of"], device), data, device)
    assert_close(trace[-1], expected["loglik_joint"], 1e-10)
    assert_parameters(mixture, {**expected, "covariances": [expected["covariance"]] * 6}, 1e-5)
    assert_close(class_posteriors(mixture, iris(), device), expected["posteriors"], 1e-5)
    log_joint = reference.log_joint(iris(), reference.twin_of(mixture))
    marginal = np.logaddexp.reduce(log_joint, axis=1).sum()
    assert_close(marginal, expected["loglik_marginal"], 1e-7)
    assert_close(trace[-1] - marginal, expected["loglik_conditional"], 1e-5)


# ---- lavaan: missing values ---------------------------------------------------------------------------------------

GENERATED = {
    "full": Full(),
    "diag": Diagonal(),
    "spherical": Spherical(),
    "low_rank_1": LowRank(1),
    "low_rank_2": LowRank(2),
}


@pytest.mark.parametrize("name", GENERATED)
def test_missing_values_are_marginalised_as_by_lavaan(name, device):
    case = fixture("lavaan_missing")["generated"]
    data, expected = Data(numbers(case["X"])), case[name]
    begin = start(GENERATED[name], data, np.zeros(len(data.rows), dtype=int), [0], device)
    mixture, trace = fitted(begin, data, device, tol=1e-11)
    assert_close(trace[-1], expected["loglik"], 1e-8)
    assert_close(mixture.means[0], expected["mean"], 1e-3)
    variances = expected.get("variances") or np.diag(expected["covariance"])
    assert_close(mixture.covariance.variances()[0], variances, 1e-3)
    assert "n_parameters" not in expected or mixture.n_parameters == expected["n_parameters"]


@pytest.mark.parametrize(("name", "structure"), [("full", Full()), ("tied", Tied(Full()))])
def test_classes_with_missing_values_are_lavaans(name, structure, device):
    case = fixture("lavaan_missing")["iris"]
    expected, labels = case[name], np.array(case["y"])
    data = Data(numbers(case["X"]), labels=labels)
    mixture, trace = fitted(start(structure, data, labels, [0, 1, 2], device), data, device)
    assert_close(trace[-1], expected["loglik_joint"], 1e-9)
    if name == "full":
        assert_close(mixture.means, [c["mean"] for c in expected["classes"]], 1e-5)
        assert_close(mixture.covariances, [c["covariance"] for c in expected["classes"]], 1e-5)
        rows = data.rows[expected["query_rows"]]
        assert_close(class_posteriors(mixture, rows, device), expected["posteriors"], 1e-5)
    else:
        assert_close(mixture.covariances[0], expected["covariance"], 1e-4)


# ---- scikit-learn ------------------------------------------------------------------------------------------------

SKLEARN = {"full": "full", "diag": "diag", "spherical": "spherical", "tied_full": "tied"}


def precisions_of(kind, mixture):
    inverse = np.linalg.inv(mixture.covariances.cpu().numpy())
    if kind == "tied":
        return inverse[0]
    return {"full": inverse, "diag": np.diagonal(inverse, axis1=1, axis2=2), "spherical": inverse[:, 0, 0]}[kind]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", SKLEARN)
@pytest.mark.parametrize("ridge", [1e-6, 0.1])
def test_every_iteration_of_em_has_the_bound_of_scikit_learns(name, ridge, rng, device):
    data = random_data(DATA_KINDS["complete"], rng, n_rows=200)
    mixture = random_mixture(COVARIANCES[name], rng, device, class_of=np.zeros(3, dtype=int))
    source, kind = data.source(device), SKLEARN[name]
    ours = run(EM(), problem_of(source, ridge=ridge), mixture, max_iter=8, tol=0.0)
    twin = reference.twin_of(mixture)
    for n_iterations in (1, 2, 5, 8):
        rival = GaussianMixture(
            3, covariance_type=kind, weights_init=twin.weights, means_init=twin.means, reg_covar=ridge, tol=0.0,
            precisions_init=precisions_of(kind, mixture), max_iter=n_iterations,
        ).fit(data.rows)  # fmt: skip
        assert_close(ours.history[n_iterations - 1].objective, rival.lower_bound_, 1e-8)
    assert_close(ours.mixture.means, rival.means_, 1e-8)
    assert_close(ours.mixture.weights, rival.weights_, 1e-8)


@pytest.mark.parametrize("rank", [1, 2])
def test_one_component_of_low_rank_reaches_the_likelihood_of_factor_analysis(rank, rng, device):
    rows = (
        rng.normal(size=(300, 3)) @ rng.normal(size=(3, 7)) + rng.normal(size=(300, 7)) * rng.uniform(0.5, 1.5, 7) + 5
    )
    rival = FactorAnalysis(rank, tol=1e-7, max_iter=20_000, svd_method="lapack").fit(rows)
    data = Data(rows)
    begin = start(LowRank(rank), data, np.zeros(300, dtype=int), [0], device)
    mixture, trace = fitted(begin, data, device, tol=1e-11)
    assert_close(trace[-1] / 300, rival.score(rows), 1e-6)
    assert_close(mixture.covariances[0], rival.get_covariance(), 1e-2)
