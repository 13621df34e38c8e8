"""Laws of feature maps: scores equal loops, pullbacks equal gradients, and sums of features are moments (scores)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from cases import assert_close, image, tensor
from mixtura.values.features import LINEAR, QUADRATICS, SQUARES, Coefficients, gather, project, triangle, weigh
from mixtura.values.sparse_rows import from_scipy, transposed

N_FEATURES, N_COMPONENTS, N_ROWS, RANK = 4, 3, 9, 2
MAPS = {"linear": LINEAR, "squares": SQUARES, "quadratics": QUADRATICS}
every_map = pytest.mark.parametrize("name", MAPS)

# The shared map, whether there are projections, whether these have offsets, and their sign.
MODELS = {
    "linear": ("linear", False, False, 1.0),
    "squares": ("squares", False, False, 1.0),
    "quadratics": ("quadratics", False, False, 1.0),
    "projections": (None, True, False, 1.0),
    "projections with offsets": (None, True, True, 1.0),
    "projections that raise scores": (None, True, True, -1.0),
    "linear and projections": ("linear", True, True, -1.0),
    "squares and projections": ("squares", True, False, 1.0),
    "squares and offsets": ("squares", True, True, 1.0),
    "squares and offsets that raise scores": ("squares", True, True, -1.0),
    "quadratics and offsets": ("quadratics", True, True, 1.0),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
# More components than features of any map, too: sums then lie the other way round in memory.
every_count = pytest.mark.parametrize("n_components", [N_COMPONENTS, 20])


def make_coefficients(model, rng, device, n_components=N_COMPONENTS) -> Coefficients:
    name, projected, moved, sign = model
    shared = None if name is None else MAPS[name]

    def draw(wanted, *shape):
        return tensor(rng.normal(size=(n_components, *shape)), device) if wanted else None

    n_columns = 0 if shared is None else shared.n_columns(N_FEATURES)
    return Coefficients(
        shared,
        tensor(rng.normal(size=n_components), device),
        draw(shared is not None, n_columns),
        draw(projected, RANK, N_FEATURES),
        draw(moved, RANK),
        sign,
    )


def features_by_loops(name, x) -> np.ndarray:
    """phi of one row."""
    size = len(x)
    products = {
        "linear": [],
        "squares": [x[i] * x[i] for i in range(size)],
        "quadratics": [x[i] * x[j] for i in range(size) for j in range(i, size)],
    }
    return np.array([*x, *products[name]])


def score_by_loops(model, coefficients, k, x) -> float:
    """(scores) of one row and component."""
    name, projected, moved, sign = model
    total = float(coefficients.bias[k])
    if name is not None:
        total += float(coefficients.weights[k].cpu().numpy() @ features_by_loops(name, x))
    for r in range(RANK if projected else 0):
        along = float(coefficients.projections[k, r].cpu().numpy() @ x)
        total -= 0.5 * sign * (along - (float(coefficients.offsets[k, r]) if moved else 0.0)) ** 2
    return total


@pytest.fixture
def rows(rng, device) -> torch.Tensor:
    """Rows as columns, (D, n)."""
    return tensor(rng.normal(size=(N_FEATURES, N_ROWS)), device)


# ---- forward ---------------------------------------------------------------------------------------------------------


@every_map
def test_features_are_the_row_and_its_products_in_one_order(name, rows, rng, device):
    expected = np.array([features_by_loops(name, x) for x in rows.T.cpu().numpy()]).T
    actual = make_coefficients((name, False, False, 1.0), rng, device).phi(rows)
    assert_close(actual, expected, 1e-15)
    assert len(actual) == MAPS[name].n_columns(N_FEATURES)


@every_model
@every_count
def test_scores_equal_loops(model, n_components, rows, rng, device):
    coefficients = make_coefficients(model, rng, device, n_components)
    scores, features = coefficients.forward(coefficients.phi(rows))
    points = rows.T.cpu().numpy()
    expected = [[score_by_loops(model, coefficients, k, x) for x in points] for k in range(n_components)]
    assert_close(scores, expected, 1e-12)
    assert (features[1] is None) == (coefficients.projections is None)


@every_model
def test_scores_can_be_written_to_memory_that_is_given(model, rows, rng, device):
    coefficients = make_coefficients(model, rng, device)
    phi = coefficients.phi(rows)
    out = torch.full((N_COMPONENTS, N_ROWS), torch.nan, dtype=torch.float64, device=device)
    assert_close(coefficients.forward(phi, out)[0], coefficients.forward(phi)[0], 1e-15)


@every_map
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_factors_in_place_are_the_products(name, size, rng, device):
    shared = MAPS[name]
    for n_rows in (7, 1, 30):
        x = tensor(rng.normal(size=(size, n_rows)), device)
        phi = torch.full((shared.n_columns(size), n_rows), torch.nan, dtype=torch.float64, device=device)
        phi[:size] = x
        for target, left, right in shared.factors(phi[:size], phi[size:]):
            torch.mul(left, right, out=target)
        assert torch.equal(phi[size:], shared.products(x))
        assert torch.equal(phi[:size], x)


@every_map
def test_products_can_be_differentiated(name, rng, device):
    x = tensor(rng.normal(size=(N_FEATURES, 3)), device).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: (values.sum(), MAPS[name].products(values)), x)


# ---- pullback --------------------------------------------------------------------------------------------------------


def gradients(coefficients, rows, weights) -> tuple[torch.Tensor, ...]:
    """Of sum A a with respect to the parts, by autograd."""
    parts = {
        name: None if part is None else part.clone().requires_grad_()
        for name, part in vars(coefficients).items()
        if name in ("bias", "weights", "projections", "offsets")
    }
    recorded = replace(coefficients, **parts)
    scores, _ = recorded.forward(recorded.phi(rows))
    return torch.autograd.grad((weights * scores).sum(), recorded.parts)


@every_model
@every_count
def test_the_pullback_is_the_gradient(model, n_components, rows, rng, device):
    coefficients = make_coefficients(model, rng, device, n_components)
    weights = tensor(rng.normal(size=(n_components, N_ROWS)), device)
    sums = coefficients.zeros()
    coefficients.pullback(sums, coefficients.forward(coefficients.phi(rows))[1], weights, slice(0, n_components))
    expected = gradients(coefficients, rows, weights)
    assert len(sums) == len(expected) == len(coefficients.parts)
    for actual, gradient in zip(sums, expected, strict=True):
        assert_close(actual, gradient, 1e-12)


@every_model
def test_pullbacks_of_parts_add(model, rows, rng, device):
    """Parts of the rows, and of the components."""
    coefficients = make_coefficients(model, rng, device, 5)
    weights = tensor(rng.normal(size=(5, N_ROWS)), device)
    sums = coefficients.zeros()
    for components in (slice(0, 2), slice(2, 5)):
        some = coefficients.select(components)
        for part in (slice(0, 4), slice(4, N_ROWS)):
            _, features = some.forward(some.phi(rows[:, part]))
            some.pullback(sums, features, weights[components, part], components)
    for actual, gradient in zip(sums, gradients(coefficients, rows, weights), strict=True):
        assert_close(actual, gradient, 1e-12)


@every_model
def test_weights_in_single_precision_are_added_to_sums_in_double(model, rows, rng, device):
    coefficients = make_coefficients(model, rng, device)
    weights = tensor(rng.normal(size=(N_COMPONENTS, N_ROWS)), device)
    single = coefficients.select(slice(None), torch.float32)
    sums = coefficients.zeros()
    single.pullback(sums, single.forward(single.phi(rows.float()))[1], weights.float(), slice(0, N_COMPONENTS))
    for actual, gradient in zip(sums, gradients(coefficients, rows, weights), strict=True):
        assert actual.dtype == torch.float64
        assert_close(actual, gradient, 1e-4)


# ---- shared features, dense and sparse -------------------------------------------------------------------------------


def with_zeros(rng, n_rows=N_ROWS) -> np.ndarray:
    """Rows (n, D) most of whose values are zero, one of them throughout."""
    rows = np.where(rng.random((n_rows, N_FEATURES)) < 0.6, 0.0, rng.normal(size=(n_rows, N_FEATURES)))
    rows[0] = 0.0
    return rows


LAYOUTS = {
    "dense": lambda rows: torch.from_numpy(rows).T,
    "by features": lambda rows: transposed(from_scipy(sparse.csr_matrix(rows))),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@every_layout
def test_weighing_equals_loops(layout, rng):
    rows, weights, bias = with_zeros(rng), rng.normal(size=(N_COMPONENTS, N_FEATURES)), rng.normal(size=N_COMPONENTS)
    expected = [[b + sum(w * x) for x in rows] for w, b in zip(weights, bias, strict=True)]
    assert_close(weigh(layout(rows), tensor(weights), tensor(bias)), expected, 1e-14)


@every_layout
def test_gathering_equals_loops(layout, rng):
    rows, signed = with_zeros(rng), rng.normal(size=(N_COMPONENTS, N_ROWS))
    expected = [sum(a * x for a, x in zip(of_component, rows, strict=True)) for of_component in signed]
    assert_close(gather(layout(rows), tensor(signed)), expected, 1e-14)


@every_layout
def test_gathering_is_the_gradient_of_weighing(layout, rng):
    features, signed = layout(with_zeros(rng)), tensor(rng.normal(size=(N_COMPONENTS, N_ROWS)))
    weights = tensor(rng.normal(size=(N_COMPONENTS, N_FEATURES))).requires_grad_()
    bias = tensor(rng.normal(size=N_COMPONENTS)).requires_grad_()
    by_weights, by_bias = torch.autograd.grad((signed * weigh(features, weights, bias)).sum(), (weights, bias))
    assert_close(gather(features, signed), by_weights, 1e-13)
    assert_close(signed.sum(1), by_bias, 1e-13)


@every_layout
def test_linear_coefficients_take_every_layout(layout, rng):
    rows, signed = with_zeros(rng), tensor(rng.normal(size=(N_COMPONENTS, N_ROWS)))
    coefficients = make_coefficients(("linear", False, False, 1.0), rng, "cpu")
    scores, features = coefficients.forward(layout(rows))
    sums = coefficients.zeros()
    coefficients.pullback(sums, features, signed, slice(0, N_COMPONENTS))
    assert_close(scores, coefficients.weights @ tensor(rows).T + coefficients.bias.unsqueeze(1), 1e-14)
    assert_close(sums[0], signed.sum(1), 1e-14)
    assert_close(sums[1], signed @ tensor(rows), 1e-14)


def test_projections_equal_loops(rows, rng, device):
    projections, offsets = rng.normal(size=(N_COMPONENTS, RANK, N_FEATURES)), rng.normal(size=(N_COMPONENTS, RANK))
    along = np.einsum("krd,dn->krn", projections, rows.cpu().numpy())
    assert_close(project(rows, tensor(projections, device), None), along, 1e-14)
    assert_close(project(rows, tensor(projections, device), tensor(offsets, device)), along - offsets[..., None], 1e-14)


# ---- moments, matrices, errors ---------------------------------------------------------------------------------------


OF_COVARIANCES = {name: MODELS[name] for name in MODELS if name.startswith("squares") or name == "quadratics"}


@pytest.mark.parametrize("model", OF_COVARIANCES.values(), ids=OF_COVARIANCES)
def test_sums_are_moments_about_the_centre(model, rows, rng, device):
    coefficients = make_coefficients(model, rng, device)
    weights, centre = rng.normal(size=(N_COMPONENTS, N_ROWS)), tensor(rng.normal(size=N_FEATURES), device)
    sums = coefficients.zeros()
    _, features = coefficients.forward(coefficients.phi(rows))
    coefficients.pullback(sums, features, tensor(weights, device), slice(0, N_COMPONENTS))
    actual, x = coefficients.moments(sums, centre), rows.T.cpu().numpy()
    assert actual.reference is centre
    assert_close(actual.counts, weights.sum(1), 1e-12)
    assert_close(actual.firsts, weights @ x, 1e-12)
    seconds = tensor(np.einsum("kn,ni,nj->kij", weights, x, x), device)
    for part, expected in zip(actual.seconds, image(actual.form, seconds), strict=True):
        assert_close(part, expected, 1e-12)


def test_a_linear_map_has_no_second_moments():
    with pytest.raises(NotImplementedError, match="a linear map has no second moments"):
        LINEAR.seconds(torch.zeros(1, 0), 2)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_packed_matrices_are_quadratic_forms(size, rng, device):
    roots, x = (tensor(rng.normal(size=shape), device) for shape in ((2, size, size), (size, 5)))
    matrices = roots @ roots.mT
    expected = -0.5 * torch.einsum("in,kij,jn->kn", x, matrices, x)
    assert_close(QUADRATICS.pack(matrices) @ QUADRATICS.products(x), expected, 1e-12)
    assert_close(QUADRATICS.seconds(QUADRATICS.products(x).sum(1).unsqueeze(0), size)[0], x @ x.T, 1e-12)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_triangle_numbers_every_place_of_a_matrix(size, device):
    first, second, places = triangle(size, device)
    expected = [(i, j) for i in range(size) for j in range(i, size)]
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == expected
    table = places.reshape(size, size).tolist()
    assert all(expected[table[i][j]] == (min(i, j), max(i, j)) for i in range(size) for j in range(size))


@pytest.mark.parametrize("model", OF_COVARIANCES.values(), ids=OF_COVARIANCES)
def test_magnitudes_bound_the_terms_of_every_score_within_the_radii(model, rng, device):
    """Those of projections, too, unless these are taken away from squares that are larger (product-error)."""
    coefficients, radii = make_coefficients(model, rng, device), tensor(rng.uniform(0.5, 2.0, N_FEATURES), device)
    corners = tensor(rng.choice([-1.0, 1.0], size=(N_FEATURES, 200)), device) * radii.unsqueeze(1)
    inside = corners * tensor(rng.random((N_FEATURES, 200)), device)
    largest = coefficients.magnitudes(radii)
    for points in (corners, inside):
        terms = coefficients.weights.abs() @ coefficients.phi(points).abs()
        if model[1] and model[3] > 0:
            terms = terms + 0.5 * project(points, coefficients.projections, None).square().sum(1)
        assert (terms <= largest.unsqueeze(1) * (1 + 1e-12)).all()
    if not model[1]:
        assert_close(coefficients.weights.abs() @ coefficients.phi(corners).abs(), largest.unsqueeze(1).expand(-1, 200))


@every_model
@pytest.mark.parametrize("components", [slice(1, 3), torch.tensor([2, 0])], ids=["slice", "index"])
def test_selected_components_keep_their_scores(model, components, rows, rng, device):
    coefficients = make_coefficients(model, rng, device)
    chosen = components if isinstance(components, slice) else components.to(device)
    some = coefficients.select(chosen)
    assert_close(some.forward(some.phi(rows))[0], coefficients.forward(coefficients.phi(rows))[0][chosen], 1e-14)
    assert {part.dtype for part in coefficients.select(chosen, torch.float32).parts} == {torch.float32}


@every_model
def test_detached_coefficients_record_nothing(model, rows, rng, device):
    coefficients = make_coefficients(model, rng, device)
    for part in coefficients.parts:
        part.requires_grad_()
    alone = coefficients.detached()
    assert coefficients.forward(coefficients.phi(rows))[0].requires_grad
    assert not alone.forward(alone.phi(rows))[0].requires_grad
    assert_close(alone.forward(alone.phi(rows))[0], coefficients.forward(coefficients.phi(rows))[0], 1e-15)
