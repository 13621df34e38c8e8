"""python -m benchmarks.heads [--out FILE]: time of a training step with a mixture head against nn.Linear, on a GPU.

The network is the same but for its last layer; batches of 256, bf16 autocast, fused AdamW. "eager" is launched from
Python operation by operation; in "head recorded" the head alone is replayed, by torch.cuda.make_graphed_callables; in
"all recorded" the whole step is one CUDA graph. The two heads alternate every few steps, in changing order. Times are
medians; ratios are medians over neighbouring measurements. Then the latency of a sparse head before and after pruning.
It takes one or two minutes on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import mixtura
from mixtura.nn import MixtureHead, SparseMixtureHead, WarmUp
from studies.head_training import Network

BATCH = 256
RESULTS = Path(__file__).parent / "results"
KINDS = ("eager", "head recorded", "all recorded")


def small(n_features: int) -> tuple[nn.Module, Tensor]:
    """The network of HU21, section 4.2, and a batch of its images."""
    return Network(n_features, 0.0), torch.rand(BATCH, 1, 28, 28)


def residual() -> tuple[nn.Module, Tensor]:
    """ResNet-50 without its last layer: 2048 features of images of 224 x 224."""
    from torchvision.models import resnet50

    network = resnet50()
    network.fc = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return network, torch.rand(BATCH, 3, 224, 224)


# name: network and images, features, classes, head, most that a step may take beside nn.Linear
CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor]], int, int, Callable[[], nn.Module], float]] = {
    "D = 10, full": (lambda: small(10), 10, 10, lambda: MixtureHead(10, 10), 1.3),
    "D = 10, full, 2 components": (lambda: small(10), 10, 10, lambda: MixtureHead(10, 10, 2), 1.3),
    "D = 10, full, 2 components, sparse": (lambda: small(10), 10, 10, lambda: SparseMixtureHead(10, 10, 2), 1.3),
    "D = 64, full": (lambda: small(64), 64, 10, lambda: MixtureHead(64, 10), 1.3),
    "D = 64, full, 2 components": (lambda: small(64), 64, 10, lambda: MixtureHead(64, 10, 2), 1.3),
    "D = 512, low rank": (lambda: small(512), 512, 10, lambda: MixtureHead(512, 10, 1, "low_rank"), 1.3),
    "D = 2048, 1000 classes, diagonal, 4 components, ResNet-50": (
        residual,
        2048,
        1000,
        lambda: MixtureHead(2048, 1000, 4, "diag"),
        1.5,
    ),
}


class Whole(nn.Module):
    """A head with what it adds to the loss, so that both are recorded together."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        logits = self.head(features)
        return (logits, self.head.kl()) if isinstance(self.head, SparseMixtureHead) else (logits,)


def autocast() -> torch.autocast:
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)


def training_step(
    network: nn.Module, head: nn.Module, images: Tensor, labels: Tensor, n_features: int, record: bool = False
) -> Callable[[], None]:
    network = network.cuda().to(memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    whole = Whole(head).cuda().train()
    parameters = [*network.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=torch.tensor(1e-3).cuda(), fused=True, capturable=True)
    gc.collect()  # recorded modules refer to themselves, and may not be freed in a recording
    if record:
        features = torch.randn(BATCH, n_features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with autocast():
            whole = torch.cuda.make_graphed_callables(whole, (features,))

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with autocast():
            logits, *divergence = whole(network(images))
            loss = functional.cross_entropy(logits.float(), labels)
            if divergence:
                loss = loss + divergence[0] / 60_000
        loss.backward()
        optimiser.step()

    return step


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(steps: list[Callable[[], None]], n_rounds: int, n_inner: int) -> Tensor:
    """Times (round, step); the steps take turns, so that all run under the same conditions."""
    elapsed = torch.zeros(n_rounds + 3, len(steps))
    order = list(range(len(steps)))
    gc.collect()
    for times in elapsed:
        for number in order:
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(n_inner):
                steps[number]()
            stop.record()
            torch.cuda.synchronize()
            times[number] = start.elapsed_time(stop) / n_inner
        order.reverse()
    return elapsed[3:]


def compared(steps: list[Callable[[], None]], large: bool) -> dict[str, float]:
    times = milliseconds(steps, 5 if large else 100, 2 if large else 3)
    linear, head = times.median(0).values.tolist()
    return {"linear": linear, "head": head, "ratio": float((times[:, 1] / times[:, 0]).median())}


def measured(name: str) -> dict[str, Any]:
    make, n_features, n_classes, make_head, limit = CASES[name]
    labels = torch.randint(n_classes, (BATCH,)).cuda()
    images = make()[1].cuda().contiguous(memory_format=torch.channels_last)

    def step(head: nn.Module, record: bool = False) -> Callable[[], None]:
        torch.manual_seed(0)
        return training_step(make()[0], head, images, labels, n_features, record)

    large = n_features == 2048
    linear = step(nn.Linear(n_features, n_classes))
    results: dict[str, Any] = {"case": name, "limit": limit, "eager": compared([linear, step(make_head())], large)}
    results["head recorded"] = compared([linear, step(make_head(), record=True)], large)
    results["all recorded"] = compared([recorded(linear), recorded(step(make_head()))], large)
    return results


def sparse_head(n_components: int) -> SparseMixtureHead:
    """A head trained on 10 classes of normal rows with 10 features, until most of its weights are gone."""
    torch.manual_seed(0)
    labels = torch.arange(10_000).cuda() % 10
    rows = torch.randn(10, 10).cuda()[labels] + 0.7 * torch.randn(10_000, 10).cuda()
    head, warm_up = SparseMixtureHead(10, 10, n_components).cuda(), WarmUp(len(rows), 100, 500)
    optimiser = torch.optim.AdamW(head.parameters(), 0.05, fused=True, weight_decay=0)
    for step in range(1500):
        chosen = torch.randint(len(rows), (500,), device="cuda")
        loss = functional.cross_entropy(head(rows[chosen]), labels[chosen]) + head.kl() * warm_up(step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head.eval()


def latency(n_components: int) -> dict[str, Any]:
    """Microseconds for 256 rows before and after pruning."""
    head = sparse_head(n_components)
    small, rows = head.prune(), torch.randn(BATCH, 10).cuda()
    record: dict[str, Any] = {"components": 10 * n_components, "components_left": sum(small.n_components)}
    record |= {"weights": head.n_weights, "weights_left": small.n_weights}

    def call(module: nn.Module) -> Callable[[], None]:
        @torch.no_grad()
        def once() -> None:
            module(rows)

        return once

    calls = [call(head), call(small)]
    record["eager"] = (1e3 * milliseconds(calls, 15, 100)).median(0).values.tolist()
    record["recorded"] = (1e3 * milliseconds([recorded(once) for once in calls], 15, 100)).median(0).values.tolist()
    return record


def page(results: dict[str, Any]) -> str:
    """The results as tables."""
    lines = [
        "# Training step with a head against nn.Linear",
        "",
        f"{results['machine']}, torch {results['torch']}, mixtura {results['mixtura']}; batch 256, bf16, fused AdamW.",
        "",
        "Eager is launched from Python, operation by operation, which for networks as small as that of HU21 takes",
        "longer than the work itself. With the head",
        "recorded (`torch.cuda.make_graphed_callables`) the head alone is replayed; with all recorded the whole step",
        "is one CUDA graph, the time the GPU needs. Times in milliseconds, medians; the two heads take turns every",
        "three steps, and a ratio is the median of those of neighbours.",
        "",
        "| network and head | at most | " + " | ".join(f"{kind}: linear | head | ratio" for kind in KINDS) + " |",
        "|---|---|" + "---|---|---|" * len(KINDS),
    ]
    for case in results["cases"]:
        numbers = [f"{case[kind][key]:.3f}" for kind in KINDS for key in ("linear", "head", "ratio")]
        lines.append("| " + " | ".join([case["case"], f"{case['limit']:.2f}", *numbers]) + " |")
    if not results["pruning"]:
        return "\n".join(lines) + "\n"
    lines += [
        "",
        "Microseconds that a sparse head needs for 256 rows of 10 features and 10 classes in evaluation:",
        "",
        "| components | weights | left: components | weights | eager: before | pruned | recorded: before | pruned |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in results["pruning"]:
        sizes = [str(case[key]) for key in ("components", "weights", "components_left", "weights_left")]
        lines.append("| " + " | ".join([*sizes, *(f"{t:.0f}" for t in case["eager"] + case["recorded"])]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "heads.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": torch.cuda.get_device_name(), "python": platform.python_version()}
    results |= {"torch": torch.__version__, "mixtura": mixtura.__version__, "cases": [], "pruning": []}
    jobs = [("pruning", latency, n_components) for n_components in (8, 16)]
    for part, measure, case in [*(("cases", measured, name) for name in CASES), *jobs]:
        try:
            results[part].append(measure(case))  # pyright: ignore[reportArgumentType]
        except ImportError as error:
            print(f"{case}: left out, {error}")
            continue
        print(json.dumps(results[part][-1]), flush=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
