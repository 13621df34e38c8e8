"""Heads of networks: laws over a table of heads, then what each has of its own."""

import copy
import gc
import io
import math
import pickle
import shutil
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional

import mixtura
import reference
import reference_heads as twin
from cases import assert_close
from mixtura import MixtureClassifier
from mixtura.model.mixture import Mixture
from mixtura.nn import LargeMarginSoftmax, LinearHead, MixtureHead, PrunedHead, SparseMixtureHead, WarmUp
from mixtura.nn.components import without_offsets
from mixtura.objectives import Margin
from mixtura.values.features import triangle
from mixtura.values.targets import Targets

D, C = 5, 3
QUADRATICS = ("full", "diag", "low_rank", "none")
HEADS = {
    **{f"mixture_{q}_{m}": (lambda q=q, m=m: MixtureHead(D, C, m, q)) for q in QUADRATICS for m in (1, 3)},
    **{f"density_{q}": (lambda q=q: MixtureHead(D, C, 2, q, density=True)) for q in QUADRATICS},
    **{f"sparse_{q}": (lambda q=q: SparseMixtureHead(D, C, 2, q)) for q in QUADRATICS},
    "raw_features": lambda: MixtureHead(D, C, 2, "full", normalise=False),
    "linear": lambda: LinearHead(D, C),
    "large_margin": lambda: LargeMarginSoftmax(D, C),
}
every_head = pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
COMPILED = ("mixture_full_3", "mixture_low_rank_3", "density_full", "density_low_rank", "density_none", "sparse_full")
FEW = {name: HEADS[name] for name in (*COMPILED, "large_margin")}
some_heads = pytest.mark.parametrize("make", FEW.values(), ids=FEW)


def rows_and_labels(n_rows=64, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(C, (n_rows,), generator=generator)
    centres = 2 * torch.randn(C, D, generator=generator)
    return (centres[labels] + torch.randn(n_rows, D, generator=generator)).to(device), labels.to(device)


def loss_of(head, x, y):
    """The loss that a training loop minimises."""
    if getattr(head, "density", False):
        return head.hybrid_loss(x, y)
    return functional.cross_entropy(head(x, y), y) + head.penalty() / 1000


def train(head, x, y, n_steps=25, rate=0.05):
    optimiser = torch.optim.Adam(head.parameters(), lr=rate)
    head.train()
    for _ in range(n_steps):
        optimiser.zero_grad()
        loss = loss_of(head, x, y)
        loss.backward()
        optimiser.step()
    return head.eval()


# ---- laws ------------------------------------------------------------------------------------------------------------


@every_head
def test_logits_have_a_column_per_class_and_learn(make, device):
    head = make().to(device)
    x, y = rows_and_labels(device=device)
    before = functional.cross_entropy(head.eval()(x), y)
    logits = train(head, x, y)(x)
    assert logits.shape == (64, C)
    assert functional.cross_entropy(logits, y) < 0.5 * before
    assert torch.equal(head(x.reshape(4, 16, D)), logits.reshape(4, 16, C))


@every_head
def test_a_new_head_gives_logits_of_sensible_size(make):
    logits = make()(rows_and_labels()[0])
    assert logits.std() < 10 if "density" in repr(make()) else logits.abs().max() < 8


@every_head
def test_every_parameter_gets_a_gradient(make):
    head = make().train()
    loss_of(head, *rows_and_labels()).backward()
    for name, parameter in head.named_parameters():
        if name.startswith("normaliser"):
            continue  # its spread is fixed
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@every_head
def test_gradients_are_those_of_differences(make):
    head = make().double().eval()
    x = rows_and_labels(4)[0].double().requires_grad_()
    assert torch.autograd.gradcheck(head, (x,))
    names = [name for name, p in head.named_parameters() if p.requires_grad and "log_variances" not in name]

    def of_parameters(*values):
        return torch.func.functional_call(head, dict(zip(names, values, strict=True)), (x.detach(),))

    assert torch.autograd.gradcheck(of_parameters, tuple(head.get_parameter(name) for name in names))


@every_head
def test_a_state_dict_goes_through_a_file_without_code(make):
    head, other = make(), make()
    train(head, *rows_and_labels(), n_steps=3)
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = rows_and_labels(seed=1)[0]
    assert torch.equal(other.eval()(x), head(x))
    assert torch.equal(copy.deepcopy(head)(x), head(x))
    third = make()
    third.load_state_dict(dict(head.state_dict()))  # without the versions of modules, as safetensors keeps it
    assert torch.equal(third.eval()(x), head(x))


@every_head
def test_half_precision_changes_little(make, device):
    head = train(make().to(device), *rows_and_labels(device=device), n_steps=10)
    x = rows_and_labels(seed=1, device=device)[0]
    with torch.autocast(device.type, torch.bfloat16):
        low = head(x).float().log_softmax(1)
    assert torch.isfinite(low).all()
    assert (low.argmax(1) == head(x).argmax(1)).float().mean() > 0.9
    assert (low.exp() - head(x).softmax(1)).abs().max() < 0.2


@every_head
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_training_from_random_starts_stays_finite(make, precision, device):
    """Large steps, features in foreign units, a constant feature."""
    for seed in range(5):
        torch.manual_seed(seed)
        head, network = make().to(device), nn.Linear(D, D).to(device)
        x, y = rows_and_labels(32, device, seed)
        x = x * torch.tensor([1.0, 30.0, 0.01, 0.0, 1.0], device=device) + 3
        optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
        optimiser.add_param_group({"params": network.parameters()})
        for _ in range(15):
            optimiser.zero_grad()
            with torch.autocast(device.type, precision, enabled=precision == torch.bfloat16):
                loss = loss_of(head, network(x) if head_normalises(head) else 0.1 * network(x).tanh(), y)
            loss.backward()
            optimiser.step()
            assert math.isfinite(loss.item())
        assert all(torch.isfinite(p).all() for p in head.parameters())


def head_normalises(head) -> bool:
    return getattr(head, "normaliser", None) is not None


@some_heads
def test_compiled_heads_agree(make):
    head = train(make(), *rows_and_labels(), n_steps=3)
    x = rows_and_labels(seed=1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own deprecations
        compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
        assert_close(compiled(x), head(x), 1e-5)
        x.requires_grad_()
        (expected,) = torch.autograd.grad(head(x).square().sum(), x)
        (actual,) = torch.autograd.grad(compiled(x).square().sum(), x)
        torch._dynamo.reset()
    assert_close(actual, expected, 1e-4)


@pytest.mark.slow
@some_heads
def test_compiled_to_machine_code_heads_agree(make):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler for code on the CPU, and there is none")
    head = train(make(), *rows_and_labels(), n_steps=3)
    x = rows_and_labels(seed=1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_close(torch.compile(head, fullgraph=True)(x), head(x), 1e-5)
        torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # recorded on one stream, replayed on another
@pytest.mark.parametrize("name", ["mixture_full_1", "mixture_full_3", "mixture_low_rank_3"])
def test_a_recorded_head_has_the_same_gradients(name, device):
    if device.type != "cuda":
        pytest.skip("CUDA graphs need a GPU")
    x, y = rows_and_labels(device=device)
    plain = HEADS[name]().to(device)
    gc.collect()  # graphs of earlier tests: recorded modules refer to themselves, and may not be freed in a recording
    recorded = torch.cuda.make_graphed_callables(copy.deepcopy(plain), (x.clone().requires_grad_(),))
    actual = [torch.autograd.grad(functional.cross_entropy(h(x), y), h.components.weight) for h in (plain, recorded)]
    assert_close(actual[1][0], actual[0][0], 1e-4, 1.0)


@pytest.fixture
def one_process():
    """A process group of one, within this process: no socket, file or thread that could keep a test waiting."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def own_gradients(_, bucket):
    """The mean over one process, as DistributedDataParallel asks for it."""
    mean = torch.futures.Future()
    mean.set_result(bucket.buffer())
    return mean


@some_heads
@pytest.mark.usefixtures("one_process")
def test_heads_train_in_a_distributed_network(make):
    """One process, which is all that the hooks of DistributedDataParallel need to run."""
    head = make().train()
    parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(head))
    parallel.register_comm_hook(None, own_gradients)
    x, y = rows_and_labels()
    for module in (head, parallel):
        torch.manual_seed(1)
        functional.cross_entropy(module(x, y), y).backward()
    for (name, own), other in zip(head.named_parameters(), parallel.parameters(), strict=True):
        if own.grad is not None:
            assert_close(other.grad, own.grad, 1e-5, 1.0)
        else:
            assert name.startswith("normaliser")


@every_head
def test_plain_numbers_give_the_same_logits(make):
    head = train(make(), *rows_and_labels(), n_steps=3)
    if not isinstance(head, MixtureHead):
        pytest.skip("baselines are plain numbers already")
    x = rows_and_labels(seed=1)[0]
    assert_close(PrunedHead(head)(x), head(x), 1e-5)


@every_head
def test_export_keeps_the_outputs_for_any_number_of_rows(make):
    head = train(make(), *rows_and_labels(), n_steps=3)
    x = rows_and_labels(seed=1)[0]
    program = torch.export.export(head, (x[:7],), dynamic_shapes={"features": {0: torch.export.Dim("rows", min=2)}})
    assert_close(program.module()(x), head(x), 1e-5)


@some_heads
def test_onnx_gives_the_same_logits(make):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    head = train(make(), *rows_and_labels(), n_steps=3)
    x = rows_and_labels(seed=1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        plain = PrunedHead(head) if getattr(head, "density", False) else head  # there is no operator for factorisations
        program = torch.onnx.export(plain, (x,), dynamo=True, verbose=False)
        file = io.BytesIO()
        program.save(file)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_close(actual, head(x), 1e-4)


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quadratic", QUADRATICS)
def test_scores_are_those_of_the_twin(quadratic):
    head = MixtureHead(D, C, 2, quadratic, rank=2).double()
    x = rows_and_labels(20)[0].double()
    train(head, *rows_and_labels(20, seed=1), n_steps=0)
    head.double().train()(x)  # running means and variances
    head.eval()
    centre, scale = (part.numpy() for part in head.frame())
    actual = head.components.coefficients().detached()
    projections = None if actual.projections is None else actual.projections.numpy()
    known = actual.weights.numpy(), actual.bias.numpy(), projections
    assert_close(head(x), twin.logits(x.numpy(), centre, scale, *known, quadratic, C))
    rows = (x.numpy() - centre) / scale
    scores = [
        [twin.score(row, w, b, None if projections is None else projections[k], quadratic) for row in rows]
        for k, (w, b) in enumerate(zip(*known[:2], strict=True))
    ]
    assert_close(head.scores(x), np.array(scores).T)


@pytest.mark.parametrize("quadratic", QUADRATICS)
def test_the_feature_map_of_a_density_head_gives_its_log_joints(quadratic):
    head = train(MixtureHead(D, C, 2, quadratic, rank=2, density=True), *rows_and_labels(), n_steps=3).double()
    x = rows_and_labels(seed=1)[0].double()
    with torch.no_grad():
        parts, (centre, scale) = head.components, head.frame()
        mixture = Mixture(parts.log_weights(), parts.means, parts.covariance(), torch.arange(C).repeat_interleave(2))
        assert_close(
            head.scores(x), reference.log_joint(((x - centre) / scale).numpy(), reference.twin_of(mixture)), 1e-6
        )


def test_offsets_of_projections_go_into_weights_and_biases():
    head = train(MixtureHead(D, C, 2, "low_rank", rank=2, density=True), *rows_and_labels(), n_steps=3).double()
    given = head.components.coefficients().detached()
    plain, x = without_offsets(given), torch.randn(D, 7, dtype=torch.float64)
    assert given.offsets.abs().min() > 0
    assert plain.offsets is None
    assert_close(plain.forward(plain.phi(x))[0], given.forward(given.phi(x))[0])
    assert without_offsets(plain) is plain


def test_one_linear_component_is_nn_linear():
    torch.manual_seed(3)
    linear = nn.Linear(D, C).double()
    torch.manual_seed(3)
    head = MixtureHead(D, C, 1, "none").double()
    for own, known in zip((head.components.weight, head.components.bias), linear.parameters(), strict=True):
        with torch.no_grad():
            own.copy_(known)
    x, y = rows_and_labels()
    x = x.double()
    assert_close(head(x), linear(x), 1e-14)
    functional.cross_entropy(head(x), y).backward()
    functional.cross_entropy(linear(x), y).backward()
    assert_close(head.components.weight.grad, linear.weight.grad, 1e-14)
    assert_close(head.components.bias.grad, linear.bias.grad, 1e-14)
    assert head.normaliser is None
    assert sum(p.numel() for p in head.parameters()) == sum(p.numel() for p in linear.parameters())


@pytest.mark.parametrize("quadratic", ["full", "diag", "low_rank"])
@pytest.mark.parametrize("n_features", [2, 16, 64])
def test_the_size_of_scores_at_the_start_does_not_depend_on_the_number_of_features(n_features, quadratic):
    torch.manual_seed(0)
    head = MixtureHead(n_features, 100, 1, quadratic)
    scores = head(5 + 3 * torch.randn(500, n_features))
    assert 0.4 < scores.std() < 0.9
    assert_close(head.normaliser.weight.square() * (head.components.weight.shape[1] - n_features), 50, 1e-5)


def test_the_start_of_a_linear_head_is_that_of_nn_linear():
    head, linear = MixtureHead(400, 50, 1, "none"), nn.Linear(400, 50)
    for own, known in zip((head.components.weight, head.components.bias), linear.parameters(), strict=True):
        assert own.abs().max() <= 1 / 20
        assert_close(own.std(), known.std(), 0.25)


@pytest.mark.parametrize("quadratic", ["diag", "low_rank"])
def test_large_sizes_make_nothing_of_the_size_of_the_products(quadratic):
    head = MixtureHead(2048, 100, 4, quadratic, rank=2)
    n_numbers = sum(p.numel() for p in head.parameters())
    assert n_numbers <= 400 * (2 * 2048 + 2 * 2048 + 1) + 2 * 2048
    assert torch.isfinite(head(torch.randn(3, 2048))).all()


def test_two_components_draw_a_boundary_that_no_line_can():
    torch.manual_seed(0)
    x = torch.randn(400, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()  # exclusive or
    errors = {}
    for name, head in {"linear": LinearHead(2, 2), "two planes": MixtureHead(2, 2, 2, "none")}.items():
        errors[name] = float((train(head, x, y, 200)(x).argmax(1) != y).float().mean())
    assert errors["linear"] > 0.3 > 0.1 > errors["two planes"]


# ---- sparse ----------------------------------------------------------------------------------------------------------


def emptied(quadratic="full", n_components=3, seed=0):
    """A sparse head in which some weights, a feature and whole components are gone."""
    torch.manual_seed(seed)
    head = SparseMixtureHead(D, C, n_components, quadratic)
    head(rows_and_labels()[0])
    parts = head.components
    with torch.no_grad():
        parts.weight.normal_()
        parts.log_variances[torch.rand_like(parts.weight) < 0.7] = 5
        parts.log_variances[:, 0] = -8
        parts.weight[:, 2] = 0  # a feature, by itself
        gone = [0, 1, 4]  # two components of the first class, one of the second
        parts.weight[gone] = 0
        if parts.projection is not None:
            parts.projection.normal_()
            parts.projection_log_variances[torch.rand_like(parts.projection) < 0.7] = 5
            parts.projection[..., 2] = 0
            parts.projection[gone] = 0
    if quadratic == "full":
        with torch.no_grad():
            first, second, _ = triangle(D, parts.weight.device)
            parts.weight[:, D:][:, (first == 2) | (second == 2)] = 0
    elif quadratic != "none":
        with torch.no_grad():
            parts.weight[:, D + 2] = 0
    return head.eval()


@pytest.mark.parametrize("quadratic", QUADRATICS)
def test_the_divergence_is_that_of_the_twin(quadratic):
    head = emptied(quadratic)
    parts = head.components
    expected = twin.dropout_kl(parts.weight.detach(), parts.log_variances.detach())
    if parts.projection is not None:
        expected += twin.dropout_kl(parts.projection.detach(), parts.projection_log_variances.detach())
    assert_close(head.kl().item(), expected, 1e-5)
    assert torch.equal(head.penalty(), head.kl())


def test_noise_has_the_mean_and_variance_of_noisy_weights():
    torch.manual_seed(0)
    head = SparseMixtureHead(2, 2, 1, "diag", normalise=False)
    with torch.no_grad():
        head.components.log_variances.fill_(-2.0)
    x = torch.tensor([[1.0, -0.5]])
    phi = torch.tensor([1.0, -0.5, 1.0, 0.25])
    draws = head(x.expand(20000, -1)).detach()
    assert_close(draws.mean(0), head.components.weight @ phi + head.components.bias, 0.05, 0.3)
    assert_close(draws.var(0), phi.square().sum() * math.exp(-2.0) * torch.ones(2), 0.05)
    assert torch.equal(head.eval()(x), head(x))


def test_noise_of_projections_has_the_mean_of_their_squares():
    torch.manual_seed(0)
    head = SparseMixtureHead(2, 2, 1, "low_rank", rank=2, normalise=False)
    with torch.no_grad():
        head.components.projection.normal_()
        head.components.projection_log_variances.fill_(-2.0)
    x = torch.tensor([[1.0, -0.5]])
    along = (head.components.projection @ x[0]).square() + x.square().sum() * math.exp(-2.0)  # (K, R)
    expected = head.components.weight @ torch.tensor([1.0, -0.5, 1.0, 0.25]) + head.components.bias + 0.5 * along.sum(1)
    assert_close(head(x.expand(20000, -1)).mean(0), expected, 0.05)


@pytest.mark.parametrize("quadratic", ["full", "low_rank"])
def test_the_gradient_of_the_divergence_is_that_of_differences(quadratic):
    torch.manual_seed(0)
    head = SparseMixtureHead(3, 2, 1, quadratic).double()
    with torch.no_grad():
        for name, part in head.components.named_parameters():
            part.normal_(-2.0 if "variances" in name else 0.0)
    parts = [part for name, part in head.components.named_parameters() if name != "bias"]
    for part, slope in zip(parts, torch.autograd.grad(head.kl(), parts), strict=True):
        direction, h = torch.randn_like(part), 1e-6
        ends = []
        with torch.no_grad():
            for move in (h, -2 * h):
                part.add_(direction, alpha=move)
                ends.append(float(head.kl()))
            part.add_(direction, alpha=h)
        assert_close((ends[0] - ends[1]) / (2 * h), (slope * direction).sum(), 1e-6, 10.0)


@pytest.mark.parametrize("quadratic", QUADRATICS)
def test_pruning_keeps_the_outputs_and_drops_the_rest(quadratic, device):
    head = emptied(quadratic).to(device)
    small, x = head.prune(), rows_and_labels(seed=2, device=device)[0]
    assert_close(small(x), head(x), 1e-5)
    assert small.n_weights == head.n_weights_left < head.n_weights
    assert 2 not in small.kept_features.tolist()
    assert small.n_components[0] == 2  # two of three lost their weights and are one now
    state = small.state_dict()
    assert sum(len(part) for name, part in state.items() if name.endswith("values")) == small.n_weights
    assert len(state["bias"]) == sum(small.n_components)
    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    again = emptied(quadratic).to(device).prune()
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(again(x), small(x))
    assert torch.equal(pickle.loads(pickle.dumps(small))(x), small(x))


def test_a_pruned_head_passes_gradients_to_the_features():
    head = emptied()
    x = rows_and_labels()[0].requires_grad_()
    (expected,) = torch.autograd.grad(head(x).square().sum(), x)
    (actual,) = torch.autograd.grad(head.prune()(x).square().sum(), x)
    assert_close(actual, expected, 1e-4, 1.0)


def test_the_divergence_empties_weights_that_are_of_no_use():
    torch.manual_seed(0)
    x, y = rows_and_labels(300)
    x = torch.cat((x[:, :2], torch.randn(300, 3)), 1)  # three features of noise
    head, warm_up = SparseMixtureHead(D, C, 2), WarmUp(300, 5, 20)
    optimiser = torch.optim.Adam(head.parameters(), 0.05)
    for step in range(300):
        optimiser.zero_grad()
        (functional.cross_entropy(head(x), y) + head.kl() * warm_up(step / 5)).backward()
        optimiser.step()
    error = float((head.eval()(x).argmax(1) != y).float().mean())
    assert head.n_weights_left < 0.3 * head.n_weights
    assert error < 0.25
    assert_close(head.prune()(x), head(x), 1e-4)


def test_warm_up_goes_from_nothing_to_one_over_the_rows():
    warm_up = WarmUp(500, start=2, stop=4)
    assert [warm_up(epoch) for epoch in (0, 2, 3, 4, 9)] == [0, 0, 0.001, 0.002, 0.002]


# ---- baselines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
def test_large_margin_logits_are_those_of_the_twin(margin):
    head = LargeMarginSoftmax(D, C, margin, blend=0.7, decay=0.5, smallest_blend=0.2).double()
    x, y = rows_and_labels()
    weight = head.weight.detach().numpy()
    for blend in (0.7, 0.35, 0.2, 0.2):
        assert_close(head.blend, np.float32(blend), 1e-6)
        assert_close(head(x.double(), y), twin.large_margin(x.double().numpy(), weight, y.numpy(), margin, blend), 1e-5)
    assert_close(head(x.double()), x.double().numpy() @ weight.T)
    assert torch.equal(head.eval()(x.double(), y), head(x.double()))


def test_l1_is_the_sum_of_absolute_weights():
    head = LinearHead(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, -2.0], [0.0, 3.0]]))
    assert head.penalty() == 6


# ---- from and to estimators ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quadratic", QUADRATICS)
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("n_components", [1, 2])
def test_a_head_from_features_predicts_as_the_mixture_it_came_from(quadratic, density, n_components):
    X, y = load_wine(return_X_y=True)
    head = MixtureHead.from_features(X, y, n_components, quadratic, density=density, random_state=0).double().eval()
    types = {"full": "full", "diag": "diag", "low_rank": "low_rank"}
    kind = types.get(quadratic) or (mixtura.covariances.Tied(mixtura.covariances.Diagonal()) if density else "tied")
    model = MixtureClassifier(n_components, covariance_type=kind, random_state=0).fit((X - X.mean(0)) / X.std(0), y)
    rows = torch.from_numpy(X)
    expected = model.predict_proba((X - X.mean(0)) / X.std(0))
    assert_close(head(rows).softmax(1), expected, 1e-3, 1.0)
    if density:
        there = model.score_samples((X - X.mean(0)) / X.std(0)) - np.log(X.std(0)).sum()
        assert_close(head.log_density(rows), there, 1e-2, 1.0)


@every_head
def test_an_estimator_has_the_probabilities_of_its_head(make):
    head = train(make(), *rows_and_labels(), n_steps=10).double()
    if not isinstance(head, MixtureHead):
        pytest.skip("baselines are for comparison: they have no estimator")
    x = rows_and_labels(seed=1)[0].double()
    model = head.to_estimator(classes=["a", "b", "c"])
    assert_close(model.predict_proba(x.numpy()), head(x).softmax(1), 1e-7, 1.0)
    assert model.predict(x.numpy()).tolist() == [("a", "b", "c")[i] for i in head(x).argmax(1)]
    if head.density:
        density = head.scores(x).logsumexp(1) - head.frame()[1].log().sum()
        assert_close(model.score_samples(x.numpy()), density, 1e-7)
        head.refit(x, x.argmax(1) % C)
        assert_close(head.to_estimator().score_samples(x.numpy()), head.log_density(x), 1e-6)


ESTIMATORS = {
    **{kind: {"covariance_type": kind} for kind in ("full", "tied", "diag", "spherical", "low_rank")},
    "several": {"n_components": {0: 1, 1: 3, 2: 2}},
    "own class": {"covariance_type": mixtura.covariances.Tied(mixtura.covariances.Full(), per_class=True)},
    "selected": {"n_components": "auto", "average": 1, "warp": None},
}


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_head_from_an_estimator_has_its_probabilities_and_gives_it_back(name, density):
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0) * np.geomspace(0.1, 10, 13) + 3
    model = MixtureClassifier(**{"n_components": 2, "random_state": 0} | ESTIMATORS[name]).fit(X, y)
    temperature = 1.0 if density else model.temperature_
    expected = torch.from_numpy(model.predict_joint_log_proba(X) / temperature).softmax(1)
    head = MixtureHead.from_estimator(model, density).double().eval()
    assert_close(head(torch.from_numpy(X)).softmax(1), expected, 2e-2 if density else 1e-3, 1.0)
    again = MixtureHead.from_estimator(head.to_estimator(), density).double().eval()
    assert_close(
        again(torch.from_numpy(X)).softmax(1), head(torch.from_numpy(X)).softmax(1), 2e-2 if density else 1e-3, 1.0
    )


def test_what_is_no_model_of_the_features_has_no_head():
    X, y = load_wine(return_X_y=True)
    model = MixtureClassifier(1, warp="johnson", random_state=0).fit(X, y)
    with pytest.raises(
        ValueError, match=r"as they are, but this MixtureClassifier transforms the features; fit it with"
    ):
        MixtureHead.from_estimator(model)


@pytest.fixture
def wide_features():
    """Features of one unit, whose classes differ in their means alone, or in their scales too."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    X = rng.normal(size=(600, 110)) * np.geomspace(0.3, 3, 110) + 0.35 * rng.normal(size=(3, 110))[y]
    return {"none": (X, y), "full": (X * np.array([0.8, 1.0, 1.3])[y, None], y)}


@pytest.mark.parametrize("kind", ["none", "full"])
def test_wide_features_give_the_closed_form(wide_features, kind):
    X, y = wide_features[kind]
    head = MixtureHead.from_features(X, y, random_state=0).double().eval()
    assert head.quadratic == kind
    model = MixtureClassifier(random_state=0, average=1).fit(X, y)
    assert model.search_.best.what["covariance_type"] == {"none": "tied", "full": "full"}[kind]
    expected = torch.from_numpy(model.predict_joint_log_proba(X) / model.temperature_).softmax(1)
    assert_close(head(torch.from_numpy(X)).softmax(1), expected, 1e-4, 1.0)
    assert_close(head.refit(X, y, random_state=0)(torch.from_numpy(X)).softmax(1), expected, 1e-4, 1.0)
    given = MixtureHead.from_features(X, y, prior="default", random_state=0)
    assert given.quadratic == "full"


@pytest.mark.parametrize("quadratic", ["none", "full"])
def test_a_head_of_the_other_kind_takes_its_own_closed_form(wide_features, quadratic):
    X, y = wide_features["none" if quadratic == "full" else "full"]
    head = MixtureHead.from_features(X, y, quadratic=quadratic, random_state=0).double().eval()
    assert head.quadratic == quadratic
    kind = {"none": "tied", "full": "full"}[quadratic]
    trials = MixtureClassifier(random_state=0, average=1).fit(X, y).search_
    best = min((trial for trial in trials if trial.what["covariance_type"] == kind), key=lambda trial: trial.score).what
    model = MixtureClassifier(1, covariance_type=kind, prior=best["prior"]).fit(X, y)
    expected = torch.from_numpy(model.predict_joint_log_proba(X) / best["temperature"]).softmax(1)
    assert_close(head(torch.from_numpy(X)).softmax(1), expected, 1e-4, 1.0)


def test_an_estimator_from_a_head_can_be_saved(tmp_path):
    model = train(MixtureHead(D, C, 2), *rows_and_labels(), n_steps=3).to_estimator()
    x = rows_and_labels(seed=1)[0].numpy()
    model.save(tmp_path / "head.st")
    assert_close(mixtura.load(tmp_path / "head.st").predict_proba(x), model.predict_proba(x))


def test_from_features_works_with_fifty_rows_per_class_at_2048_dimensions():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, 2048)) * 0.15
    y = np.repeat(np.arange(4), 50)
    X, X_test = (np.maximum(means[y] + rng.normal(size=(200, 2048)), 0).astype(np.float32) for _ in range(2))
    head = MixtureHead.from_features(torch.from_numpy(X), y, rank=2, random_state=0).eval()
    assert head.quadratic == "low_rank"
    logits = head(torch.from_numpy(X_test))
    assert torch.isfinite(logits).all()
    assert (logits.argmax(1).numpy() == y).mean() > 0.9


def test_refitting_is_starting_from_features():
    x, y = rows_and_labels()
    head = train(MixtureHead(D, C, 2, density=True), x, y, n_steps=3)
    assert head.refit(x, y, random_state=0) is head
    fresh = MixtureHead.from_features(x, y, 2, density=True, random_state=0).eval()
    assert_close(head(x), fresh(x), 1e-5)
    assert head.log_density(x).mean() > train(MixtureHead(D, C, 2, density=True), x, y).log_density(x).mean()
    with pytest.raises(
        ValueError, match=r"The head has 5 features and 3 classes, but X and y have 5 and 2\. Pass samples"
    ):
        head.refit(x[y < 2], y[y < 2])


def test_a_density_is_refitted_without_a_change_of_the_logits():
    x, y = rows_and_labels()
    head = train(MixtureHead(D, C, 2, density=True), x, y, n_steps=3)
    logits, fresh = head(x), MixtureHead.from_features(x, y, 2, density=True, random_state=0).eval()
    assert torch.equal(head.refit(x, y, logits=False, random_state=0)(x), logits)
    assert_close(head.log_density(x), fresh.log_density(x), 1e-3, 1.0)
    with pytest.raises(
        ValueError, match=r"refit with logits=False needs normalised Gaussian densities; .* with MixtureHead"
    ):
        MixtureHead(D, C).refit(x, y, logits=False)
    with pytest.raises(ValueError, match=r"logits must be True or False; got 0\."):
        head.refit(x, y, logits=0)


def test_from_features_fills_a_class_with_few_rows():
    x, y = rows_and_labels(30)
    few = torch.cat((torch.arange(30)[y != 0], torch.arange(30)[y == 0][:1]))
    with pytest.warns(mixtura.checks.RepairWarning, match="has 1 samples for 3 components"):
        head = MixtureHead.from_features(x[few], y[few], 3, "diag", random_state=0).eval()
    assert torch.isfinite(head(x)).all()


# ---- density ---------------------------------------------------------------------------------------------------------


def test_the_hybrid_loss_is_the_sum_of_its_parts():
    head = train(MixtureHead(D, C, 2, density=True), *rows_and_labels(), n_steps=5).double()
    x, y = rows_and_labels(seed=1)
    x = x.double()
    conditional = functional.cross_entropy(head(x), y)
    marginal = -head.scores(x).logsumexp(1).mean()
    assert_close(head.hybrid_loss(x, y, 0.3), conditional + 0.3 * marginal, 1e-6)
    joint = conditional + marginal
    margins = -Margin(2.0).evaluate(head.scores(x).T, Targets(torch.arange(C).repeat_interleave(2), y)).values.mean()
    assert_close(head.hybrid_loss(x, y, 0.3, Margin(2.0)), 0.3 * joint + 0.7 * margins, 1e-6)
    unlabeled = torch.full_like(y, -1)
    assert_close(head.hybrid_loss(x, unlabeled, 0.3), 0.3 * marginal, 1e-6)


@pytest.mark.parametrize("quadratic", ["full", "diag", "none"])
def test_running_density_equals_the_twin(quadratic):
    torch.manual_seed(0)
    head = MixtureHead(D, C, 2, quadratic, density=True, normalise=False).double()
    x, y = rows_and_labels(40)
    y[:4] = -1
    for n_batches in range(3):
        before = head.running_density.mixture(0.0)
        known = (part.numpy() for part in (before.weights, before.means, before.covariances))
        scores, rate = head.scores(x.double()).detach().numpy(), 1 / (n_batches + 2)
        class_of = before.class_of.tolist()
        expected = twin.running_density(x.double().numpy(), scores, y.tolist(), *known, class_of, rate, quadratic)
        head.hybrid_loss(x.double(), y)
        actual = head.running_density.mixture(0.0)
        assert_close(actual.weights, expected[0], 1e-7)
        assert_close(actual.means, expected[1], 1e-6, 1.0)
        assert_close(actual.covariances, np.broadcast_to(expected[2], actual.covariances.shape), 1e-6, 1.0)
        x = x + 0.1
    head.running_density.momentum = 1.0  # then a step is one of EM on the rows alone
    head(x.double(), y.clamp_min(0))
    actual = head.running_density.mixture(0.0)
    assert_close(actual.weights @ actual.means, x.double().mean(0), 1e-6, 1.0)


@pytest.mark.parametrize("quadratic", QUADRATICS)
def test_running_density_equals_a_later_fit(quadratic):
    """The density of a head as trained is as good as one made of the same features at the end."""
    torch.manual_seed(0)
    x, y = rows_and_labels(600)
    head = MixtureHead(D, C, 1, quadratic, rank=2, density=True)
    for _ in range(150):
        batch = torch.randint(600, (100,))
        head.hybrid_loss(x[batch], y[batch])
    head.eval()
    after = MixtureHead.from_features(x, y, 1, quadratic, rank=2, density=True, random_state=0).eval()
    assert abs(float(head.log_density(x).mean() - after.log_density(x).mean())) < 0.1
    before = {name: part.clone() for name, part in head.state_dict().items()}
    head.hybrid_loss(x, y), head(x, y)  # evaluation does not update the density
    assert all(torch.equal(part, before[name]) for name, part in head.state_dict().items())


def test_a_density_is_low_far_away(device):
    head = train(MixtureHead(D, C, density=True).to(device), *rows_and_labels(device=device), n_steps=50)
    x = rows_and_labels(seed=1, device=device)[0]
    assert head.log_density(x).median() > head.log_density(x + 50).max()
    assert torch.equal(head.log_density(x.reshape(8, 8, D)).flatten(), head.log_density(x))


def test_an_evaluation_in_inference_mode_does_not_stop_training():
    triangle.cache_clear()
    head = MixtureHead(D, C, density=True)
    x, y = rows_and_labels()
    with torch.inference_mode():
        head.eval()(x)
    head.train().hybrid_loss(x, y).backward()
    assert head.components.means.grad is not None


# ---- bad input -------------------------------------------------------------------------------------------------------


@every_head
def test_wrong_features_are_named(make):
    head = make()
    name = type(head).__name__
    with pytest.raises(
        ValueError, match=rf"features of {name} must have shape \(\.\.\., 5\) .*; got \(2, 4\)\. Create "
    ):
        head(torch.zeros(2, 4))
    with pytest.raises(
        TypeError, match=rf"features of {name} must have a floating-point dtype; got torch.int64\. Convert"
    ):
        head(torch.zeros(2, 5, dtype=torch.int64))
    with pytest.raises(TypeError, match=rf"features of {name} must be a torch tensor; got ndarray\."):
        head(np.zeros((2, 5)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixtureHead(5, 3, 0), "n_components must be an integer of at least 1; got 0."),
        (lambda: SparseMixtureHead(5, 3, -1), "n_components must be an integer of at least 1; got -1."),
        (lambda: MixtureHead(0, 3), "n_features must be an integer of at least 1; got 0."),
        (lambda: MixtureHead(5, 1), "n_classes must be an integer of at least 2; got 1."),
        (lambda: LinearHead(5, 1), "n_classes must be an integer of at least 2; got 1."),
        (lambda: LargeMarginSoftmax(5, 3, 0), "margin must be an integer of at least 1; got 0."),
        (lambda: LargeMarginSoftmax(5, 3, decay=1), "decay must be a number above 0 and below 1; got 1."),
        (lambda: MixtureHead(5, 3, 1, "cubic"), "quadratic must be one of 'full', 'diag', 'low_rank', 'none'; got"),
        (lambda: MixtureHead(5, 3, 1, "low_rank", rank=6), "rank must not exceed the number of features, 5; got 6."),
        (lambda: MixtureHead(5, 3, density=1), "density must be True or False; got 1."),
        (lambda: SparseMixtureHead(5, 3, threshold=-1), "threshold must be a number of at least 0; got -1."),
        (lambda: WarmUp(0), "n_rows must be an integer of at least 1; got 0."),
        (lambda: MixtureHead(5, 3).to_estimator(["a", "b"]), "classes must be 3 different labels, one per class"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message follows
        make()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (torch.tensor([0, 3]), ValueError, "labels must be between 0 and 2, since the head has 3 classes; got 3."),
        (torch.tensor([-1, 0]), ValueError, "labels must be between 0 and 2, since the head has 3 classes; got -1."),
        (
            torch.tensor([0, 1, 2]),
            ValueError,
            "labels must have shape (2,), one label per sample of features; got (3,).",
        ),
        (torch.tensor([0.0, 1.0]), TypeError, "labels must be an integer tensor; got torch.float32."),
    ],
)
def test_wrong_labels_are_named(labels, kind, message):
    with pytest.raises(kind) as error:
        LargeMarginSoftmax(D, C)(torch.randn(2, D), labels)
    assert str(error.value).startswith(message)
    if labels.min() >= 0:  # -1 is an unlabeled row there
        with pytest.raises(kind) as error:
            MixtureHead(D, C, density=True).hybrid_loss(torch.randn(2, D), labels)
        assert str(error.value).startswith(message.replace("between 0", "between -1"))


def test_features_to_start_from_are_finite():
    x, y = rows_and_labels()
    x[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"X must hold finite values to initialise a head; row 3 has a missing"):
        MixtureHead.from_features(x, y)


def test_pruning_everything_is_refused():
    head = SparseMixtureHead(D, C, 1, "none")
    with torch.no_grad():
        head.components.log_variances.fill_(9)
    with pytest.raises(
        ValueError, match=r"would be constant: all 15 weights have log alpha >= threshold \(3\)\. Train"
    ):
        head.prune()


@pytest.mark.parametrize("method", ["log_density", "hybrid_loss"])
def test_a_density_needs_a_head_with_density(method):
    arguments = (torch.zeros(2, D), torch.zeros(2, dtype=torch.int64))[: 1 if method == "log_density" else 2]
    with pytest.raises(
        ValueError, match=rf"{method} needs normalised Gaussian densities; .* with MixtureHead\(5, 3, \.\.\., density"
    ):
        getattr(MixtureHead(D, C), method)(*arguments)
