"""How many operations a training step launches with a head, and that the ways which save them change nothing else.

On a GPU a step of a small network takes as long as its operations take to launch, about 30 microseconds each on the
machine of benchmarks/results/heads.md. They can be counted anywhere.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from cases import assert_close
from mixtura.nn import MixtureHead, SparseMixtureHead, logits

# Of operations that launch more than one thing, or nothing.
LAUNCHES = {"logsumexp": 9, "native_batch_norm": 3, "native_batch_norm_backward": 2}
LAUNCHES |= dict.fromkeys(("detach", "empty", "empty_like", "new_empty", "new_empty_strided", "_unsafe_view"), 0)

# name: features, head, most launches in a step beyond those of nn.Linear, in bfloat16 autocast
CASES = {
    "full, 10 features": (10, lambda: MixtureHead(10, 10), 7),
    "full, 10 features, two components": (10, lambda: MixtureHead(10, 10, 2), 14),
    "full, 10 features, three components": (10, lambda: MixtureHead(10, 10, 3), 14),
    "full, 64 features": (64, lambda: MixtureHead(64, 10), 7),
    "full, 64 features, two components": (64, lambda: MixtureHead(64, 10, 2), 14),
    "low rank, 512 features": (512, lambda: MixtureHead(512, 10, 1, "low_rank"), 18),
    "diagonal, 64 features": (64, lambda: MixtureHead(64, 10, 1, "diagonal"), 7),
    "none, 10 features, two components": (10, lambda: MixtureHead(10, 10, 2, "none"), 3),
    "sparse, 10 features, two components": (10, lambda: SparseMixtureHead(10, 10, 2), 63),
}
every_case = pytest.mark.parametrize(("n_features", "make", "most"), CASES.values(), ids=CASES)


class Launches(TorchDispatchMode):
    """Counts what would be launched on a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        self.count += 0 if is_view else LAUNCHES.get(func.overloadpacket.__name__, 1)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(logits, "bound_by_launches", lambda values: True)
    monkeypatch.setitem(logits.MOST_FEATURES_SELECTED, "cpu", logits.MOST_FEATURES_SELECTED["cuda"])


def launches(head, n_features):
    """Of a forward and a backward pass, in bfloat16 autocast as in benchmarks/heads.py."""
    features = torch.randn(8, n_features, dtype=torch.bfloat16).requires_grad_()
    with Launches() as found:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            loss = functional.cross_entropy(head(features).float(), torch.arange(8))
            if isinstance(head, SparseMixtureHead):
                loss = loss + head.kl() / 60_000
        loss.backward()
    return found.count


@every_case
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_step_launches_few_operations_more_than_with_a_linear_layer(n_features, make, most):
    assert launches(make(), n_features) - launches(nn.Linear(n_features, 10), n_features) <= most


@every_case
def test_fewer_launches_change_no_result(n_features, make, most, monkeypatch, request):
    torch.manual_seed(0)
    head = make().double()
    features = torch.randn(20, n_features, dtype=torch.float64).requires_grad_()
    targets = [features, *(p for p in head.parameters() if p.requires_grad)]
    found = []
    for way in ("gather", "gpu"):
        if way == "gpu":
            request.getfixturevalue("as_on_a_gpu")
        else:
            monkeypatch.setitem(logits.MOST_FEATURES_SELECTED, "cpu", 0)
        torch.manual_seed(1)
        loss = functional.cross_entropy(head(features), torch.arange(20) % 10) + head.penalty() / 100
        found.append((loss.detach(), *torch.autograd.grad(loss, targets)))
    for own, other in zip(*found, strict=True):
        assert_close(own, other, 1e-9, 1.0)


@pytest.mark.parametrize("quadratic", ["full", "diagonal", "low_rank", "none"])
def test_autocast_leaves_small_heads_in_their_own_precision(quadratic):
    head, x = MixtureHead(5, 3, 2, quadratic), torch.randn(30, 5)
    expected = head(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(x), expected)
        assert head(x.bfloat16()).dtype == torch.float32


def test_autocast_halves_the_precision_of_large_heads():
    head, x = MixtureHead(512, 512, 4, "diagonal", normalise=False), torch.randn(2, 512)
    with torch.autocast("cpu", torch.bfloat16):
        assert head.scores(x).dtype == torch.bfloat16
        assert head(x).dtype == torch.float32
    assert head.scores(x).dtype == torch.float32


@pytest.mark.parametrize("quadratic", ["full", "diagonal", "low_rank", "none"])
def test_heads_tell_their_shapes_where_there_are_no_numbers(quadratic):
    """On the meta device, which knows no autocast."""
    head = MixtureHead(5, 3, 2, quadratic).to("meta")
    assert head(torch.empty(4, 5, device="meta")).shape == (4, 3)
