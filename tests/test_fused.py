"""Kernels of heads against the operations of torch that they stand for: on a GPU, or by Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/test_fused.py
"""

import copy
import os

import pytest
import torch
from torch.nn import functional

from cases import assert_close
from mixtura.nn import MixtureHead, SparseMixtureHead, fused

CASES = {
    "full": lambda: MixtureHead(10, 10),
    "full, few features": lambda: MixtureHead(2, 3, 2),
    "full, two components": lambda: MixtureHead(10, 10, 2),
    "full, 40 classes, three components": lambda: MixtureHead(7, 40, 3),
    "full, 64 features": lambda: MixtureHead(64, 4, 2),
    "diagonal": lambda: MixtureHead(33, 5, 1, "diagonal"),
    "diagonal, 13 components": lambda: MixtureHead(5, 3, 13, "diagonal"),
    "low rank": lambda: MixtureHead(40, 10, 1, "low_rank"),
    "low rank, three components": lambda: MixtureHead(9, 4, 3, "low_rank", rank=3),
    "low rank, rank one": lambda: MixtureHead(9, 4, 2, "low_rank", rank=1),
}


@pytest.fixture
def place(device, monkeypatch):
    """The device of kernels: a GPU, or that of the interpreter."""
    pytest.importorskip("triton")
    if device.type != "cuda":
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1")
        monkeypatch.setattr(fused, "usable", lambda *_: torch.is_grad_enabled())
        monkeypatch.setattr(fused, "kernels", lambda: __import__("mixtura.nn.kernels").nn.kernels)
    assert fused.kernels() is not None
    return device


def both(head, call, monkeypatch):
    """What a call gives with kernels and without."""
    found = []
    for kernels in (True, False):
        with monkeypatch.context() as patch:
            if not kernels:
                patch.setattr(fused, "usable", lambda *_: False)
            torch.manual_seed(1)
            found.append(call(copy.deepcopy(head)))
    return found


SPARSE = {
    "full": lambda: SparseMixtureHead(10, 10, 2),
    "full, 20 features": lambda: SparseMixtureHead(20, 4, 1),
    "diagonal": lambda: SparseMixtureHead(20, 3, 3, "diagonal"),
}


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
def test_kernels_add_the_noise_of_torch(make, place, monkeypatch):
    torch.manual_seed(0)
    head = make().to(place)
    with torch.no_grad():
        head.components.log_variances.normal_(-2, 3)
        head.components.log_variances[0, :3] = 9.0
    rows = 2 * torch.randn(50, head.n_features, device=place)
    draws = torch.randn(50, head.n_classes * head.n_components, device=place)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: draws)
    monkeypatch.setattr(torch, "randn_like", lambda _: draws)

    def step(own):
        features = rows.clone().requires_grad_()
        logits = own(features)
        parts = own.components
        targets = (features, parts.weight, parts.bias, parts.log_variances)
        return logits.detach(), *torch.autograd.grad(logits.square().sum(), targets)

    for own, other in zip(*both(head, step, monkeypatch), strict=True):
        assert_close(own, other, 2e-4, float(other.abs().max()))


@pytest.mark.parametrize("n_rows", [5, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_kernels_give_the_logits_and_derivatives_of_torch(make, dtype, n_rows, place, monkeypatch):
    torch.manual_seed(0)
    head = make().to(place)
    with torch.no_grad():
        for part in head.components.parameters():
            part.normal_(0, 0.5)
        head.normaliser.bias.normal_()
    rows = (3 * torch.randn(n_rows, head.n_features) + 1).to(place, dtype)
    labels = torch.arange(n_rows, device=place) % head.n_classes
    weights = torch.randn(n_rows, head.n_classes, device=place)

    def step(own):
        features = rows.clone().requires_grad_()
        with torch.autocast(place.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = own(features)
        loss = functional.cross_entropy(logits, labels) + (logits * weights).mean()
        targets = [features, *(part for part in own.parameters() if part.requires_grad)]
        gradients = [part.float() for part in torch.autograd.grad(loss, targets)]
        return logits.detach(), own.normaliser.running_mean, own.normaliser.running_var, *gradients

    with_kernels, without = both(head, step, monkeypatch)
    assert with_kernels[0].dtype == torch.float32
    for number, (own, other) in enumerate(zip(with_kernels, without, strict=True)):
        rounded = dtype == torch.bfloat16 and number == 3  # the features' derivative, in their precision
        assert_close(own, other, 2e-2 if rounded else 2e-4, float(other.abs().max()))


def test_the_divergence_and_its_derivatives(place, monkeypatch):
    torch.manual_seed(0)
    head = SparseMixtureHead(10, 10, 3, "low_rank").to(place)
    with torch.no_grad():
        head.components.log_variances.normal_(-4, 5)

    def step(own):
        parts = own.components
        value = own.kl()
        targets = (parts.weight, parts.log_variances, parts.projection, parts.projection_log_variances)
        return value.detach(), *torch.autograd.grad(3 * value, targets)

    for own, other in zip(*both(head, step, monkeypatch), strict=True):
        assert_close(own, other, 1e-4, float(other.abs().max()))


@pytest.mark.parametrize("kind", [MixtureHead, SparseMixtureHead])
def test_derivatives_of_derivatives(kind, place, monkeypatch):
    """A penalty on the gradient, as of those who want a smooth head."""
    torch.manual_seed(0)
    head = kind(6, 3, 2).to(place)
    rows, draws = torch.randn(20, 6, device=place), torch.randn(20, 6, device=place)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: draws)
    monkeypatch.setattr(torch, "randn_like", lambda _: draws)

    def step(own):
        features = rows.clone().requires_grad_()
        (slope,) = torch.autograd.grad(own(features).square().sum(), features, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), own.components.weight)

    for own, other in zip(*both(head, step, monkeypatch), strict=True):
        assert_close(own, other, 1e-3, float(other.abs().max()))


def test_other_calls_go_another_way(place, monkeypatch):
    """Evaluation, many rows, many components, a normaliser that learns or is another one."""
    head = MixtureHead(4, 3, 2).to(place)
    called = []
    monkeypatch.setattr(fused.FusedLogits, "apply", lambda *_: called.append(1))
    with torch.no_grad():
        head(torch.randn(8, 4, device=place))
    head(torch.randn(fused.MOST_ROWS + 1, 4, device=place))
    head.eval()(torch.randn(8, 4, device=place))
    MixtureHead(4, 3, 20).to(place)(torch.randn(8, 4, device=place))
    head.train().normaliser.requires_grad_(True)
    head(torch.randn(8, 4, device=place))
    head.normaliser = torch.nn.LayerNorm(4).to(place)
    head(torch.randn(8, 4, device=place))
    assert not called
