"""The fused GPU kernels against plain torch: on a card with `--device cuda`, elsewhere in Triton's interpreter."""

import copy
import functools
import math
from types import SimpleNamespace

import pytest
import torch

from cases import assert_same_mixture
from mixtura import GaussianMixture, MixtureClassifier
from mixtura.covariances import COVARIANCES
from mixtura.engine import fused as fused_module
from mixtura.engine import passes, tuning
from mixtura.engine.evaluator import Buffers, Evaluator, LoadedChunk, computing_dtype, evaluator_for
from mixtura.engine.fused import FusedPass
from mixtura.engine.passes import map_rows, summarise
from mixtura.engine.recorded import Recording
from mixtura.engine.sources import TensorSource, locate
from mixtura.model.mixture import Mixture
from mixtura.numerics import gpu
from mixtura.objectives import Conditional, Hybrid, Joint, Margin, Marginal, class_log_joint, likelihood, posteriors
from mixtura.objectives.likelihood import component_posteriors
from mixtura.values.extents import extents_of
from mixtura.values.features import QUADRATICS, triangle

kernels = pytest.importorskip("mixtura.numerics.kernels", reason="Triton is not installed")


@pytest.fixture(autouse=True)
def runs_here(device, monkeypatch):
    if device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton compiles for the GPU of this machine: run with --device cuda")
    monkeypatch.setattr(fused_module, "FEW_PRODUCTS", 0)  # whole passes over few rows, too


def draw(generator, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=generator, device=generator.device, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", ["components first", "rows first", "with gaps", "rows first, with gaps"])
def test_posteriors(generator, layout, dtype):
    if layout.startswith("rows first"):
        log_joint = (5 * draw(generator, 70, 16, dtype=dtype))[:, : 11 if layout.endswith("gaps") else 16].T
    else:
        log_joint = 5 * draw(generator, 11, 90, dtype=dtype)[:, : 70 if layout == "with gaps" else 90]
    log_joint[:, 3] = -torch.inf  # a row that no component can have made
    log_joint[2, 4] = -torch.inf
    before = log_joint.clone()
    values, shares = kernels.posteriors(log_joint)
    with gpu.plain_torch():
        expected_values, expected = posteriors(log_joint)
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(values, expected_values, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(shares, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(log_joint, before, rtol=0, atol=0)


def test_products(generator):
    phi = draw(generator, 35, 320)[:, :300]
    x, out = phi[:7], phi[7:]
    first, second, _ = triangle(7, x.device)
    kernels.products(x, first, second, out)
    torch.testing.assert_close(out, QUADRATICS.products(x), rtol=0, atol=0)


def mixture_of(generator, name, n_components=5, size=4, n_classes=2):
    means = 2 * draw(generator, n_components, size)
    variances = draw(generator, n_components, size).square() + 0.3
    if name == "spherical":
        variances = variances[:, :1].expand(-1, size).contiguous()
    class_of = torch.arange(n_components, device=means.device) * n_classes // n_components
    covariance = COVARIANCES[name](None).start(variances, means[:0], class_of[:0], class_of)
    log_weights = draw(generator, n_components).log_softmax(0)
    return Mixture(log_weights, means, covariance, class_of)


OBJECTIVES = {
    "marginal": Marginal(),
    "joint": Joint(),
    "conditional": Conditional(),
    "hybrid": Hybrid(0.3, Conditional()),
}


def count_passes(monkeypatch, calls):
    """Note the calls of the kernels for whole passes."""
    for name in ("pass_by_squares", "pass_by_pairs"):
        run = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *args, run=run: calls.append(1) or run(*args))


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("name", "n_components"),
    [("diag", 5), ("spherical", 5), ("full", 5), ("tied", 20), ("diag", 70), ("full", 140), ("diag", 140)],
)
def test_whole_pass(generator, monkeypatch, name, n_components, objective, weighted):
    """Value, moments and counts of the denominator are those of the plain pass, also in part of the rows."""
    mixture = mixture_of(generator, name, n_components)
    rows = (2.5 * draw(generator, 150, 4) + 1e4).float()
    labels = torch.arange(150, device=rows.device) % 3 - 1  # a third unlabeled
    weights = draw(generator, 150).square() if weighted else None
    rows[5, 2] = torch.nan  # takes the plain way
    source = TensorSource(rows, labels, weights=weights)
    log_weights = mixture.log_weights.index_fill(0, torch.tensor([1], device=rows.device), -torch.inf)  # without weight
    mixture = Mixture(log_weights, mixture.means + 1e4, mixture.covariance, mixture.class_of)
    calls = []
    monkeypatch.setattr(fused_module, "kernels_for", lambda values: None)
    plain = summarise(mixture, source, OBJECTIVES[objective], locate(source))
    monkeypatch.setattr(fused_module, "kernels_for", lambda values: kernels)
    count_passes(monkeypatch, calls)
    monkeypatch.setattr(FusedPass, "keeps_digits", lambda *args: True)  # 150 rows are few for 140 covariances
    fused = summarise(mixture, source, OBJECTIVES[objective], locate(source))
    assert len(calls) == (3 if objective == "joint" else 1)
    assert math.isclose(fused.value, plain.value, rel_tol=1e-6)
    assert math.isclose(fused.weight, plain.weight, rel_tol=1e-12)
    about = plain.moments.about(mixture.means), fused.moments.about(mixture.means)
    for expected, actual in zip(*((m.counts, m.firsts, *m.seconds) for m in about), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    torch.testing.assert_close(fused.denominator_counts, plain.denominator_counts, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["full", "diag", "tied"])
@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_a_component_that_becomes_narrow_is_computed_in_double_precision(generator, monkeypatch, name, narrow):
    """One row alone has no variance, and the rounding errors of its square must not look like one."""
    rows = draw(generator, 300, 3)
    rows[0] = torch.tensor([12.0, 12.0, 12.0])
    rows = rows.float()
    means = torch.stack((torch.zeros(3), torch.full((3,), 12.3 if narrow else 3.0))).to(rows.device, torch.float64)
    class_of = torch.zeros(2, dtype=torch.int64, device=rows.device)
    covariance = COVARIANCES[name](None).start(torch.ones_like(means), means[:0], class_of[:0], class_of)
    mixture = Mixture(torch.full_like(means[:, 0], 0.5).log(), means, covariance, class_of)
    source, calls = TensorSource(rows), []
    with gpu.plain_torch():
        plain = summarise(mixture, source, Marginal(), locate(source)).about(means)
    monkeypatch.setattr(fused_module, "kernels_for", lambda values: kernels)
    count_passes(monkeypatch, calls)
    actual = summarise(mixture, source, Marginal(), locate(source)).about(means)
    assert calls
    same = all(torch.equal(part, other) for part, other in zip(actual.tensors(), plain.tensors(), strict=True))
    assert same == (narrow and name != "tied")  # a shared covariance has the other rows, too


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["full", "tied", "low_rank"])
def test_responsibilities_in_one_kernel(generator, monkeypatch, name, objective, weighted):
    """The kernel that replaces log joints by signed responsibilities gives the same pass as plain torch."""
    mixture = mixture_of(generator, name)
    rows, labels = 2.5 * draw(generator, 150, 4), torch.arange(150, device=generator.device) % 3 - 1
    rows[5, 2] = torch.nan
    source = TensorSource(rows, labels, weights=draw(generator, 150).square() if weighted else None)
    with gpu.plain_torch():
        plain = summarise(mixture, source, OBJECTIVES[objective], locate(source)).about(mixture.means)
    calls = []
    monkeypatch.setattr(fused_module, "kernels_for", lambda values: kernels)
    run = kernels.responsibilities
    monkeypatch.setattr(kernels, "responsibilities", lambda *args: calls.append(1) or run(*args))
    fused = summarise(mixture, source, OBJECTIVES[objective], locate(source)).about(mixture.means)
    assert calls
    for expected, part in zip(plain.tensors(), fused.tensors(), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-10, atol=1e-10 * (1 + float(expected.abs().max())))


@pytest.mark.parametrize("name", ["spherical", "diag", "full", "tied"])
def test_forward_alone(generator, name):
    """Posteriors and log densities of rows, as predictions use the kernel."""
    mixture, rows = mixture_of(generator, name), 2.5 * draw(generator, 150, 4)
    rows[5, 2] = torch.nan
    for finish in (lambda values, shares: shares.T, lambda values, shares: values):
        with gpu.plain_torch():
            expected = map_rows(mixture, TensorSource(rows), lambda a, finish=finish: finish(*posteriors(a)))
        actual = map_rows(mixture, TensorSource(rows), lambda a, finish=finish: finish(*kernels.posteriors(a)))
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # far rows overflow before they are replaced
@pytest.mark.parametrize("layout", ["all near", "far rows", "columns first"])
@pytest.mark.parametrize(
    ("name", "n_components"),
    [("diag", 5), ("spherical", 20), ("full", 5), ("tied", 20), ("diag", 70), ("full", 140), ("diag", 140)],
)
def test_forward_alone_by_split_products(generator, monkeypatch, name, n_components, layout):
    """Posteriors, log densities and class scores of float32 rows; far rows take the exact way, one by one."""
    mixture, rows = mixture_of(generator, name, n_components), (2.5 * draw(generator, 150, 4)).float()
    rows[5, 2] = torch.nan
    if layout == "far rows":
        rows[7] *= 1e6
    if layout == "columns first":
        rows = rows.T.contiguous().T
    monkeypatch.setattr(Evaluator, "loaded_dtype", None)  # as on a GPU: rows reach the kernels as they are
    calls = []
    for kernel in ("scores_by_pairs", "posteriors_by_pairs", "posteriors_by_squares"):
        run = getattr(kernels, kernel)
        monkeypatch.setattr(kernels, kernel, lambda *args, kernel=kernel, run=run: calls.append(kernel) or run(*args))
    answers = (
        component_posteriors,
        lambda a: posteriors(a)[0],
        lambda a: class_log_joint(a, mixture.class_sizes).T,
    )
    for compute in answers:
        monkeypatch.setattr(fused_module, "kernels_for", lambda values: None)
        expected = map_rows(mixture, TensorSource(rows.double()), compute)
        monkeypatch.setattr(fused_module, "kernels_for", lambda values: kernels)
        monkeypatch.setattr(likelihood, "kernels_for", lambda values: kernels)
        actual = map_rows(mixture, TensorSource(rows), compute, dtype=torch.float32)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)
    in_one = name in ("diag", "spherical") and n_components <= kernels.MOST_SQUARES[0]
    assert calls == [f"posteriors_by_{'squares' if in_one else 'pairs'}", *2 * ["scores_by_pairs"]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the far row overflows before it is replaced
@pytest.mark.parametrize(("name", "n_components"), [("diag", 5), ("full", 5), ("diag", 140)])
def test_posteriors_that_are_written_in_place_do_not_depend_on_the_other_rows(
    generator, monkeypatch, name, n_components
):
    """Also beside far rows and rows with missing values."""
    mixture, rows = mixture_of(generator, name, n_components), (2.5 * draw(generator, 150, 4)).float()
    monkeypatch.setattr(fused_module, "kernels_for", lambda values: kernels)
    answers = map_rows(mixture, TensorSource(rows, extents=extents_of(rows)), component_posteriors, dtype=torch.float32)
    others = rows.clone()
    others[5, 2], others[7] = torch.nan, 1e6
    among = map_rows(mixture, TensorSource(others), component_posteriors, dtype=torch.float32)
    same = (others == rows).all(1)
    assert same.sum() == 148
    # The interpreter's products depend on the place of a row by their rounding errors, those of a card do not.
    tolerance = 1e-5 if rows.device.type == "cpu" else 0.0
    torch.testing.assert_close(among[same], answers[same], rtol=tolerance, atol=tolerance)
    assert answers.is_contiguous()


def as_on_a_gpu(monkeypatch):
    """Passes over few rows by homogeneous products."""

    def homogeneous(*args):
        evaluator = evaluator_for(*args)
        evaluator.homogeneous = not evaluator.exact
        return evaluator

    monkeypatch.setattr(passes, "evaluator_for", homogeneous)
    monkeypatch.setattr(fused_module, "FEW_PRODUCTS", 2**28)
    monkeypatch.setattr(fused_module, "kernels_for", lambda values: kernels)


class Replayed:
    """A recording that runs its operations again, as a graph does."""

    def __init__(self, run, device):
        self.replay = run


class Stale:
    """A recording that does not read its coefficients again."""

    def __init__(self, run, device):
        self.replay = functools.partial(copy.deepcopy, run())


def noted(monkeypatch, record):
    """One for each recording that is made, and one for each replay."""
    recordings, replayed = [], []

    def noting(*args):
        recording = record(*args)
        recordings.append(1)
        replay = recording.replay
        recording.replay = lambda: replayed.append(1) or replay()
        return recording

    monkeypatch.setattr(passes, "Recording", noting)
    return recordings, replayed


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_passes_over_the_same_rows_are_recorded(generator, monkeypatch, objective):
    """From the eighth on a pass is a replay with its own coefficients; other rows or classes begin again."""
    recorded, replayed = noted(monkeypatch, Recording if generator.device.type == "cuda" else Replayed)
    as_on_a_gpu(monkeypatch)
    rows, labels = 2.5 * draw(generator, 90, 4), torch.arange(90, device=generator.device) % 3 - 1
    source, first, buffers = TensorSource(rows, labels), mixture_of(generator, "full").to("cpu"), Buffers()
    others = TensorSource(rows[:80] + 1, labels[:80], weights=draw(generator, 80).square())
    two = Mixture(first.log_weights, first.means, first.covariance, first.class_of.clone())
    steps = [(first, source)] * 10 + [(two, source)] * 2 + [(two, others)] * 9 + [(first, source)]
    frames, n_recorded = {id(place): locate(place).to("cpu") for place in (source, others)}, []
    for number, (start, place) in enumerate(steps):
        means, frame = start.means + 0.01 * number, frames[id(place)]
        mixture = Mixture(start.log_weights, means, start.covariance, start.class_of)
        expected = summarise(mixture, place, OBJECTIVES[objective], frame)
        actual = summarise(mixture, place, OBJECTIVES[objective], frame, buffers=buffers)
        n_recorded.append(len(recorded))
        assert math.isclose(actual.value, expected.value, rel_tol=1e-13)
        assert actual.weight == expected.weight
        for part, other in zip(actual.about(means).tensors(), expected.about(means).tensors(), strict=True):
            torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-12)
    assert n_recorded == [0] * 7 + [1] * 12 + [2] * 3
    assert len(replayed) == 5


FITS = {
    "full": (GaussianMixture(3), False, False),
    "diag": (GaussianMixture(3, covariance_type="diag"), False, False),
    "full, weights": (GaussianMixture(3), False, True),
    "diag, weights": (GaussianMixture(3, covariance_type="diag"), False, True),
    "joint": (MixtureClassifier(2, prior=None), True, False),
    "conditional": (MixtureClassifier(2, objective="conditional", covariance_type="diag"), True, False),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("record", [Replayed, Stale])
@pytest.mark.parametrize("name", FITS)
def test_a_fit_by_recorded_passes(generator, monkeypatch, name, record):
    """It has the parameters of one without; a recording whose first new sums are wrong is not used again."""
    if generator.device.type == "cuda":
        pytest.skip("test_gpu.py compares fits by real recordings")
    estimator, labeled, weighted = FITS[name]
    rows, labels = draw(generator, 150, 4), torch.arange(150) % 3
    rows += 2 * draw(generator, 3, 4)[labels]
    given = (rows, labels % 2) if labeled else (rows,)
    weights = {"sample_weight": draw(generator, 150).square()} if weighted else {}
    settings = {**estimator.get_params(), "tol": 0.0, "max_iter": 16, "random_state": 0}
    expected = type(estimator)(**settings).fit(*given, **weights).mixture_
    recordings, replayed = noted(monkeypatch, record)
    as_on_a_gpu(monkeypatch)
    actual = type(estimator)(**settings).fit(*given, **weights)
    assert len(actual.history_) >= 15
    assert len(recordings) == (2 if name == "conditional" else 1)  # beside the start of discriminative training
    if record is Stale:
        assert len(replayed) == 2 * len(recordings)
    else:
        assert len(replayed) >= len(actual.history_) - 7
    assert_same_mixture(actual.mixture_, expected, 1e-8)


@pytest.mark.parametrize("why", ["missing", "soft labels", "large", "another objective"])
def test_passes_that_may_wait_for_the_device_are_not_recorded(generator, monkeypatch, why):
    monkeypatch.setattr(passes, "Recording", lambda *args: pytest.fail("recorded"))
    as_on_a_gpu(monkeypatch)
    if why == "large":
        monkeypatch.setattr(fused_module, "FEW_PRODUCTS", 0)
    rows, shares = 2.5 * draw(generator, 90, 4), None
    if why == "missing":
        rows[3, 1] = torch.nan
    if why == "soft labels":
        shares = torch.full((90, 2), 0.5, dtype=torch.float64, device=rows.device)
    labels = torch.arange(90, device=rows.device) % 2 if shares is None else None
    source, objective = TensorSource(rows, labels, shares), Margin() if why == "another objective" else Conditional()
    frame, buffers, mixture = locate(source).to("cpu"), Buffers(), mixture_of(generator, "full").to("cpu")
    values = {summarise(mixture, source, objective, frame, buffers=buffers).value for _ in range(12)}
    assert len(values) == 1 or why == "large"


def refuses(monkeypatch, mixture, source, objective) -> bool:
    """Whether the kernel leaves the rows to the plain pass."""
    calls = []
    monkeypatch.setattr(fused_module, "kernels_for", lambda values: kernels)
    count_passes(monkeypatch, calls)
    summarise(mixture, source, objective, locate(source))
    return not calls


def test_pass_in_one_kernel_leaves_the_rest_to_the_plain_pass(generator, monkeypatch):
    mixture, rows = mixture_of(generator, "diag"), draw(generator, 20, 4).float()
    shares = torch.full((20, 2), 0.5, device=rows.device)
    assert refuses(monkeypatch, mixture, TensorSource(rows.double()), Marginal())
    assert refuses(monkeypatch, mixture, TensorSource(1e3 * rows), Marginal())  # too far for single precision
    assert refuses(monkeypatch, mixture, TensorSource(rows, shares=shares), Conditional())
    assert refuses(monkeypatch, mixture, TensorSource(rows), Conditional())
    assert refuses(monkeypatch, mixture, TensorSource(rows, labels=shares[:, 0].long()), Margin())
    assert refuses(monkeypatch, mixture_of(generator, "low_rank"), TensorSource(rows), Marginal())
    assert not refuses(monkeypatch, mixture, TensorSource(rows), Marginal())


@pytest.mark.parametrize("n_components", [5, 150])
@pytest.mark.parametrize("name", ["full", "diag"])
def test_homogeneous_products(generator, name, n_components):
    """Bias and counts as a feature that is one, the way of GPUs, against the way of the CPU."""
    mixture, rows = mixture_of(generator, name, n_components), draw(generator, 40, 4)
    evaluator = Evaluator(mixture, locate(TensorSource(rows)), torch.float64)
    chunk = LoadedChunk(rows, slice(0, 40), slice(1, n_components - 1), missing=False)
    answers = []
    for homogeneous in (False, True):
        evaluator.homogeneous = homogeneous
        scores, accumulate = evaluator.evaluate(chunk, Buffers())
        sums = evaluator.no_sums()
        accumulate(sums, scores.softmax(0))
        answers.append((scores, *sums.products))
    for expected, actual in zip(*answers, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_table_of_compute_capabilities_switches_the_precision(monkeypatch, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    source = SimpleNamespace(device=torch.device("cuda"), dtype=dtype)
    assert computing_dtype(source) == torch.float64
    tuning.FAST_DOUBLE.discard((9, 0))
    try:
        assert computing_dtype(source) == dtype
    finally:
        tuning.FAST_DOUBLE.add((9, 0))


def no_triton(name):
    raise ImportError("No module named 'triton'")


def no_compiler(name):
    class Broken:
        def posteriors(self, log_joint):
            raise RuntimeError("Failed to find C compiler.\nSet CC.")

    return Broken()


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (no_triton, r"ImportError: No module named 'triton'"),
        (no_compiler, r"RuntimeError: Failed to find C compiler\."),
    ],
)
def test_kernels_that_do_not_work_are_left_in_words(monkeypatch, load, reason):
    monkeypatch.setattr(gpu, "import_module", load)
    gpu.working_kernels.cache_clear()
    with pytest.warns(RuntimeWarning, match=rf"cannot be used \({reason}\); plain torch"):
        assert gpu.working_kernels(torch.device("cpu")) is None
    gpu.working_kernels.cache_clear()
