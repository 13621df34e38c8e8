"""python -m benchmarks.heads [--out FILE]: time of a training step with a mixture head against nn.Linear, on a GPU.

The network is the same but for its last layer; batches of 256, bf16 autocast, fused AdamW. "eager" is launched from
Python operation by operation, "recorded" is one CUDA graph. Medians over steps, the two heads taking turns.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import mixtura
from mixtura.nn import MixtureHead, SparseMixtureHead
from reproduce.head_training import Network

BATCH = 256
RESULTS = Path(__file__).parent / "results"


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
    "D = 10, full, 2 components": (lambda: small(10), 10, 10, lambda: MixtureHead(10, 10, 2), 1.15),
    "D = 10, full, 2 components, sparse": (lambda: small(10), 10, 10, lambda: SparseMixtureHead(10, 10, 2), 1.15),
    "D = 64, full": (lambda: small(64), 64, 10, lambda: MixtureHead(64, 10), 1.15),
    "D = 64, full, 2 components": (lambda: small(64), 64, 10, lambda: MixtureHead(64, 10, 2), 1.15),
    "D = 512, low rank": (lambda: small(512), 512, 10, lambda: MixtureHead(512, 10, 1, "low_rank"), 1.15),
    "D = 2048, 1000 classes, diagonal, 4 components, ResNet-50": (
        residual,
        2048,
        1000,
        lambda: MixtureHead(2048, 1000, 4, "diagonal"),
        1.5,
    ),
}


def training_step(network: nn.Module, head: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    model = nn.Sequential(network, head).cuda().to(memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    optimiser = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3).cuda(), fused=True, capturable=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = functional.cross_entropy(model(images).float(), labels)
            if isinstance(head, SparseMixtureHead):
                loss = loss + head.kl() / 60_000
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


def milliseconds(steps: list[Callable[[], None]], n_rounds: int, n_inner: int) -> list[float]:
    """The median time of each step; they take turns, so that both meet the same moods of the machine."""
    found: list[list[float]] = [[] for _ in steps]
    for round_number in range(n_rounds + 3):
        for times, step in zip(found, steps, strict=True):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(n_inner):
                step()
            stop.record()
            torch.cuda.synchronize()
            if round_number >= 3:
                times.append(start.elapsed_time(stop) / n_inner)
    return [float(torch.tensor(times).median()) for times in found]


def measured(name: str) -> dict[str, Any]:
    make, n_features, n_classes, make_head, limit = CASES[name]
    steps, images = [], None
    labels = torch.randint(n_classes, (BATCH,)).cuda()
    for head in (nn.Linear(n_features, n_classes), make_head()):
        torch.manual_seed(0)
        network, batch = make()
        images = batch.cuda().contiguous(memory_format=torch.channels_last) if images is None else images
        steps.append(training_step(network, head, images, labels))
    large = n_features == 2048
    linear, head = milliseconds(steps, 5 if large else 15, 2 if large else 20)
    found = {"case": name, "limit": limit, "eager": {"linear": linear, "head": head, "ratio": head / linear}}
    linear, head = milliseconds([recorded(step) for step in steps], 5 if large else 15, 2 if large else 20)
    found["recorded"] = {"linear": linear, "head": head, "ratio": head / linear}
    return found


def page(found: dict[str, Any]) -> str:
    """The results as a table."""
    lines = [
        "# Training step with a head against nn.Linear",
        "",
        f"{found['machine']}, torch {found['torch']}, mixtura {found['mixtura']}; batch 256, bf16, fused AdamW.",
        "",
        "Recorded is one CUDA graph, the time the GPU needs. Eager is launched from Python, operation by operation,",
        "which for networks as small as that of HU21 takes longer than the work itself.",
        "",
        "| network and head | at most | eager: linear ms | head ms | ratio | recorded: linear ms | head ms | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in found["cases"]:
        numbers = [f"{case[kind][key]:.3f}" for kind in ("eager", "recorded") for key in ("linear", "head", "ratio")]
        lines.append("| " + " | ".join([case["case"], f"{case['limit']:.2f}", *numbers]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "heads.json")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": torch.cuda.get_device_name(), "python": platform.python_version()}
    found |= {"torch": torch.__version__, "mixtura": mixtura.__version__, "cases": []}
    for name in CASES:
        try:
            found["cases"].append(measured(name))
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        print(json.dumps(found["cases"][-1]), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
