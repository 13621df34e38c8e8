"""Fits and passes on a GPU, with `--device cuda` alone: samples stay there, small problems go to the host."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cases import COVARIANCES, assert_close, assert_same_mixture, random_mixture
from mixtura import (
    AveragedMixture,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MixtureClassifier,
)
from mixtura.covariances import COVARIANCES as PARTS
from mixtura.engine import fused, passes
from mixtura.engine.evaluator import move_for_passes
from mixtura.engine.passes import summarise
from mixtura.engine.recorded import Recording
from mixtura.engine.sources import TensorSource, locate
from mixtura.engine.tuning import FEW_VALUES
from mixtura.estimators.labels import FEW_LABELS, read_labels
from mixtura.model.mixture import Mixture
from mixtura.nn import MixtureHead
from mixtura.numerics.gpu import plain_torch
from mixtura.objectives import Conditional, Joint, Marginal
from mixtura.solvers import Gradient

N_FEATURES = 4
MANY = FEW_VALUES // N_FEATURES + 1000


@pytest.fixture(autouse=True)
def on_a_gpu(device):
    if device.type != "cuda":
        pytest.skip("run with --device cuda")


def samples(device, n_rows, size=N_FEATURES):
    """Two classes of two components each."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.arange(n_rows, device=device) % 4
    centres = 4 * torch.randn(4, size, generator=generator, device=device)
    return centres[labels] + torch.randn(n_rows, size, generator=generator, device=device), labels // 2


class Copies(TorchDispatchMode):
    """The numbers of values in copies from a GPU to the host."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        source = args[1] if func is torch.ops.aten.copy_.default else args[0] if args else None
        tensors = isinstance(source, torch.Tensor) and isinstance(result, torch.Tensor)
        if tensors and source.is_cuda and result.device.type == "cpu":
            self.sizes.append(source.numel())
        return result


def with_missing(rows):
    return rows.masked_fill(torch.rand(rows.shape, device=rows.device) < 0.02, torch.nan)


def in_batches(rows, labels):
    model = GaussianMixture(4, random_state=0)
    for part in rows.split(MANY):
        model.partial_fit(part)


def classes_in_batches(rows, labels):
    model = MixtureClassifier(2, random_state=0)
    for part, known in zip(rows.split(MANY), labels.split(MANY), strict=True):
        model.partial_fit(part, known, classes=[0, 1])


FITS = {
    "kmeans": lambda rows, labels: GaussianMixture(4, random_state=0).fit(rows),
    "k-means++": lambda rows, labels: GaussianMixture(4, init_params="k-means++", random_state=0).fit(rows),
    "random": lambda rows, labels: GaussianMixture(2, init_params="random", max_iter=5, random_state=0).fit(rows),
    "missing values": lambda rows, labels: GaussianMixture(4, random_state=0).fit(with_missing(rows)),
    "selection": lambda rows, labels: GaussianMixture("auto", max_iter=5, random_state=0).fit(rows),
    "batches": in_batches,
    "classes": lambda rows, labels: MixtureClassifier(2, random_state=0).fit(rows, labels),
    "classes and weights": lambda rows, labels: MixtureClassifier(2, random_state=0).fit(
        rows, labels, torch.ones_like(rows[:, 0])
    ),
    "classes in batches": classes_in_batches,
    "average": lambda rows, labels: AveragedMixture(n_estimators=3, resampling="none", random_state=0).fit(rows),
    "discriminative": lambda rows, labels: MixtureClassifier(
        2, objective="conditional", max_iter=5, random_state=0
    ).fit(rows, labels),
    "all samples by L-BFGS": lambda rows, labels: MixtureClassifier(
        2, objective="conditional", solver=Gradient("lbfgs"), max_iter=2, random_state=0
    ).fit(rows, labels),
    "predictions": lambda rows, labels: MixtureClassifier(2, random_state=0).fit(rows, labels).predict_proba(rows),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", FITS)
def test_samples_stay_on_the_gpu(name, device):
    """No copy to the host holds a value for every sample."""
    rows, labels = samples(device, 2 * MANY)
    with Copies() as copies:
        FITS[name](rows, labels)
    assert copies.sizes
    assert max(copies.sizes) < len(rows) // 2


SMALL = [
    GaussianMixture(3, random_state=0),
    MixtureClassifier(2, random_state=0),
    DiscriminativeMixtureClassifier(2, random_state=0, max_iter=5, cv=2),
    HybridMixtureClassifier(1, n_epochs=2, tradeoff=0.5, margin=1.0, random_state=0),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", SMALL, ids=lambda estimator: type(estimator).__name__)
def test_a_small_fit_is_that_of_the_host_and_lies_on_the_gpu(estimator, device):
    rows, labels = samples(device, 300)
    there = type(estimator)(**estimator.get_params()).fit(rows, labels)
    here = type(estimator)(**estimator.get_params()).fit(rows.cpu(), labels.cpu())
    assert there.mixture_.means.device.type == "cuda"
    assert_same_mixture(there.mixture_, here.mixture_, 1e-12)
    probabilities = there.predict_proba(rows)
    assert probabilities.device == rows.device
    torch.testing.assert_close(probabilities.cpu(), here.predict_proba(rows.cpu()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["float32", "float16", "pinned memory", "memory map"])
def test_a_wide_fit_is_that_of_the_host(kind, device, tmp_path):
    """Closed forms from the moments of all rows, of which some are held out (class-moments)."""
    rows, labels = samples(device, 12_000, 120)
    rows, classes = rows * (1 + labels.unsqueeze(1)), torch.arange(12_000, device=device) % 4
    rows = rows.half() if kind == "float16" else rows
    here = MixtureClassifier(random_state=0).fit(rows.float().cpu(), classes.cpu())
    if kind == "pinned memory":
        there = MixtureClassifier(random_state=0, device=device).fit(rows.cpu().pin_memory(), classes.cpu())
    elif kind == "memory map":
        np.save(tmp_path / "rows.npy", rows.cpu().numpy())
        file = np.load(tmp_path / "rows.npy", mmap_mode="r")
        there = MixtureClassifier(random_state=0, device=device).fit(file, classes.cpu().numpy())
    else:
        there = MixtureClassifier(random_state=0).fit(rows, classes)
    assert [part.what for part in there.search_.members] == [part.what for part in here.search_.members]
    assert_same_mixture(there.mixture_, here.mixture_, 1e-6)
    answers = there.predict_proba(rows[:3000])
    assert answers.device == rows.device
    torch.testing.assert_close(
        answers.double().cpu(), here.predict_proba(rows[:3000].float().cpu()).double(), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_wide_predictions_on_a_gpu_are_those_of_the_host(covariance_type, device):
    """Distances by products with inverse factors, some components at a time; those of one covariance by one product."""
    rows, _ = samples(device, 3000, 150)
    classes = torch.arange(3000, device=device) % 40
    here = MixtureClassifier(1, covariance_type=covariance_type).fit(rows.cpu(), classes.cpu())
    there = MixtureClassifier(1, covariance_type=covariance_type).fit(rows, classes)
    expected = here.predict_joint_log_proba(rows.double().cpu())
    torch.testing.assert_close(there.predict_joint_log_proba(rows.double()).cpu(), expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("objective", [Marginal(), Joint(), Conditional()], ids=lambda objective: objective.name)
@pytest.mark.parametrize("name", ["full", "diag", "low_rank_1"])
def test_a_mixture_on_the_host_gives_the_same_pass(name, objective, rng, device):
    """Coefficients and moments are computed where the mixture is, the rest where the samples are."""
    mixture = random_mixture(COVARIANCES[name], rng, device)
    rows, labels = samples(device, 500, mixture.n_features)
    rows[3, 0] = torch.nan
    source = TensorSource(rows.double(), labels)
    host = move_for_passes(mixture, source)
    assert host.means.device.type == "cpu"
    summary = summarise(host, source, objective, locate(source))
    assert summary.moments.counts.device.type == "cpu"
    expected = summarise(mixture, source, objective, locate(source)).about(mixture.means)
    for part, expected_part in zip(summary.about(host.means).tensors(), expected.tensors(), strict=True):
        assert_close(part, expected_part, 1e-10, max(1.0, float(expected_part.abs().max())))


@pytest.fixture
def kernels_for_few_rows(monkeypatch):
    monkeypatch.setattr(fused, "FEW_PRODUCTS", 0)


DATA = {
    "ordinary": lambda rows: rows,
    "offset": lambda rows: rows + 1e4,
    "unequal scales": lambda rows: rows * torch.logspace(-6, 6, rows.shape[1], device=rows.device),
    "far outliers": lambda rows: torch.cat((rows, 1e4 * rows[:5])),
}


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("empty", [False, True], ids=["all used", "empty component"])
@pytest.mark.parametrize("objective", [Marginal(), Joint(), Conditional()], ids=lambda objective: objective.name)
@pytest.mark.parametrize(
    ("name", "n_components"), [("full", 4), ("diag", 4), ("spherical", 8), ("tied", 4), ("full", 70), ("diag", 300)]
)
def test_passes_over_float32_rows_are_those_of_the_host(
    name, n_components, objective, empty, kind, device, monkeypatch
):
    monkeypatch.setattr(fused, "FEW_PRODUCTS", 0)
    rows, labels = samples(device, 20_000, 12)
    rows = DATA[kind](rows)
    labels = torch.cat((labels, labels[: len(rows) - len(labels)]))
    means = rows[:n_components].double().cpu()
    variances = (rows.double().var(0) / 4).expand(n_components, -1).cpu()
    if name == "spherical":
        variances = variances.mean(1, keepdim=True).expand_as(variances)
    class_of = torch.arange(n_components) * 2 // n_components
    covariance = PARTS[name](None).start(variances.contiguous(), means[:0], class_of[:0], class_of)
    log_weights = torch.zeros(n_components, dtype=torch.float64)
    log_weights[0] = -60.0 if empty else 0.0
    mixture = Mixture(log_weights.log_softmax(0), means, covariance, class_of)
    there, here = TensorSource(rows, labels), TensorSource(rows.cpu().double(), labels.cpu())
    summary = summarise(move_for_passes(mixture, there), there, objective, locate(there)).about(means)
    expected = summarise(mixture, here, objective, locate(here)).about(means)
    assert summary.value == pytest.approx(expected.value, rel=1e-5)
    for part, expected_part in zip(summary.tensors(), expected.tensors(), strict=True):
        assert_close(part.cpu(), expected_part, 1e-5, max(1e-6, float(expected_part.abs().max())))


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("name", ["full", "diag", "spherical", "tied"])
def test_predictions_for_float32_rows_are_those_of_the_host(name, kind, device):
    rows, labels = samples(device, 40_000, 6)
    rows = DATA[kind](rows)
    labels = torch.cat((labels, labels[: len(rows) - len(labels)]))
    there = MixtureClassifier(3, covariance_type=name, max_iter=3, tol=1e3, random_state=0).fit(rows, labels)
    here = MixtureClassifier(3, covariance_type=name, max_iter=3, tol=1e3, random_state=0).fit(rows.cpu(), labels.cpu())
    here.mixture_ = there.mixture_.to("cpu")
    probabilities, densities = there.predict_proba(rows), there.score_samples(rows)
    expected = here.predict_proba(rows.cpu().double())
    assert_close(probabilities.cpu(), expected, 3e-5, 1.0)
    expected = here.score_samples(rows.cpu().double())
    torch.testing.assert_close(densities.cpu().double(), expected, rtol=1e-5, atol=1e-4)
    parts = torch.cat([there.predict_proba(part) for part in rows.split(777)])
    torch.testing.assert_close(parts, probabilities, rtol=0.0, atol=1.2e-7)  # the last digit of single precision


def test_lbfgs_on_the_gpu_reaches_the_objective_of_the_host(device):
    rows, labels = samples(device, FEW_VALUES // N_FEATURES + 100)
    settings = {"objective": "conditional", "solver": Gradient("lbfgs"), "max_iter": 3, "tol": 1e3, "random_state": 0}
    there, here = (MixtureClassifier(2, **settings).fit(rows.to(where), labels.to(where)) for where in (device, "cpu"))
    scores = [model.predict_log_proba(rows.cpu().double()).gather(1, labels.cpu()[:, None]) for model in (there, here)]
    assert float(scores[0].mean()) == pytest.approx(float(scores[1].mean()), abs=1e-3)


@pytest.mark.parametrize("unlabeled", [None, -1, np.nan, 7])
def test_labels_are_numbered_on_the_gpu_as_on_the_host(unlabeled, device):
    y = torch.arange(FEW_LABELS + 5, device=device) % 4 * 2 - 1  # -1, 1, 3, 5
    for weights in (None, torch.arange(len(y), device=device).double() % 3):
        there = read_labels(y, len(y), weights, "Model", unlabeled, True)
        here = read_labels(y.cpu().numpy(), len(y), weights, "Model", unlabeled, True)
        assert there.numbers.is_cuda
        assert np.array_equal(there.classes, here.classes)
        assert torch.equal(there.numbers.cpu(), here.numbers)


def test_compiled_kernels_are_kept_on_disk(tmp_path):
    """A second process finds what the first has compiled."""
    program = (
        "import torch; from mixtura.numerics import gpu;"
        "gpu.working_kernels(torch.device('cuda')).posteriors(torch.zeros(3, 5, device='cuda'))"
    )
    counts = []
    for _ in range(2):
        environment = dict(os.environ, TRITON_CACHE_DIR=str(tmp_path))
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        counts.append(sum(1 for path in tmp_path.rglob("*") if path.is_file()))
    assert counts[0] > 0
    assert counts[0] == counts[1]


# ---- features of a frozen network ------------------------------------------------------------------------------------


def test_means_follow_unlabeled_samples_on_a_gpu(device):
    """EM of few labels with a covariance that is kept (few-labels)."""
    rows, _ = samples(device, 12_000, 30)
    classes = torch.arange(12_000, device=device) % 4
    some = torch.where(torch.arange(12_000, device=device) < 4, classes, -1)
    there = MixtureClassifier(unlabeled=-1, random_state=0).fit(rows, some)
    here = MixtureClassifier(unlabeled=-1, random_state=0).fit(rows.cpu(), some.cpu())
    assert there.mixture_.means.device == rows.device
    assert here.training_weight_ == there.training_weight_ == 12_000
    assert_same_mixture(there.mixture_, here.mixture_, 1e-4)
    answers = there.predict_proba(rows)
    torch.testing.assert_close(answers.cpu(), here.predict_proba(rows.cpu()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [120, 30])
def test_doubt_on_a_gpu_is_that_of_the_host(size, device):
    """Outlier scores and prediction sets."""
    rows, labels = samples(device, 12_000, size)
    rows, classes = rows * (1 + labels.unsqueeze(1)), torch.arange(12_000, device=device) % 4
    there = MixtureClassifier(1, random_state=0).fit(rows, classes)
    here = MixtureClassifier(1, random_state=0).fit(rows.cpu(), classes.cpu())
    some = torch.cat((rows[:2000], rows[:50] + 30))
    for score in ("distance", "auto"):
        scores = there.outlier_score(some, score)
        assert scores.device == rows.device
        torch.testing.assert_close(scores.cpu(), here.outlier_score(some.cpu(), score), rtol=1e-2, atol=1e-2)
    assert bool(there.is_outlier(some)[2000:].all())
    assert float(there.is_outlier(some)[:2000].double().mean()) < 0.05
    members = there.calibrate_sets(rows[::3], classes[::3]).predict_set(rows[1::3], 0.9)
    others = here.calibrate_sets(rows[::3].cpu(), classes[::3].cpu()).predict_set(rows[1::3].cpu(), 0.9)
    assert members.device == rows.device
    assert float((members.cpu() != others).double().mean()) < 0.001


@pytest.mark.parametrize("kind", ["none", "full"])
def test_a_head_of_features_on_a_gpu_is_that_of_the_host(kind, device):
    """The closed form, and the way to an estimator and back."""
    rows, labels = samples(device, 3000, 110)
    classes = torch.arange(3000, device=device) % 4
    rows = rows * (1 + labels.unsqueeze(1)) if kind == "full" else rows
    head = MixtureHead.from_features(rows, classes, random_state=0).eval()
    host = MixtureHead.from_features(rows.cpu(), classes.cpu(), random_state=0).eval()
    assert (head.quadratic, head.components.bias.device) == (host.quadratic, rows.device)
    expected = host(rows.cpu()).softmax(1)
    torch.testing.assert_close(head(rows).softmax(1).cpu(), expected, rtol=1e-3, atol=1e-4)
    again = MixtureHead.from_estimator(head.to_estimator()).to(device).eval()
    torch.testing.assert_close(again(rows).softmax(1).cpu(), expected, rtol=1e-3, atol=1e-4)
    torch.nn.functional.cross_entropy(head.train()(rows), classes).backward()
    assert all(bool(part.grad.isfinite().all()) for part in head.parameters())


@pytest.mark.parametrize("given", ["weights_init", "means_init", "precisions_init"])
def test_given_parts_of_a_start_go_to_the_gpu(device, given):
    """With two clusters far apart, so that the rest of the start is that of the host, in one of two orders."""
    X, _ = samples(device, MANY)
    X[::2, 0] += 1e3
    parts = {
        "weights_init": np.full(2, 0.5),
        "means_init": X[:2].cpu().numpy(),
        "precisions_init": np.ones((2, N_FEATURES)),
    }
    model = GaussianMixture(2, covariance_type="diag", random_state=0, max_iter=3, tol=1e3, **{given: parts[given]})
    on_host = GaussianMixture(**model.get_params()).fit(X.cpu())
    means, expected = model.fit(X).means_, on_host.means_
    assert_close(means[means[:, 0].argsort()], expected[expected[:, 0].argsort()], 1e-4)


def recorded_from(monkeypatch):
    """One for each recording that is made."""
    recordings = []

    def record(*args):
        recording = Recording(*args)
        recordings.append(1)
        return recording

    monkeypatch.setattr(passes, "Recording", record)
    return recordings


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["full", "diag"])
def test_iterations_over_few_rows_are_recorded(monkeypatch, device, name):
    """From the eighth pass on a fit launches one graph; its parameters are those of passes without kernels."""
    X, _ = samples(device, MANY)
    recorded = recorded_from(monkeypatch)
    model = GaussianMixture(
        3, covariance_type=name, tol=0.0, max_iter=30, init_params="random_from_data", random_state=0
    )
    model.fit(X)
    assert recorded == [1]
    with plain_torch():
        expected = GaussianMixture(**model.get_params()).fit(X)
    assert recorded == [1]
    assert_same_mixture(model.mixture_, expected.mixture_, 1e-8)


def test_where_every_launch_waits_nothing_is_recorded(device):
    """As for debugging, where a recording cannot be made."""
    program = (
        "import torch; from mixtura import GaussianMixture; from mixtura.engine import passes;"
        "made = []; record = passes.Recording;"
        "passes.Recording = lambda *args: made.append(1) or record(*args);"
        f"X = torch.randn({MANY}, {N_FEATURES}, device='{device}');"
        "GaussianMixture(3, tol=0.0, max_iter=12, init_params='random_from_data', random_state=0).fit(X);"
        "assert made == [1]"
    )
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, env=environment)
