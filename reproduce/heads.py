"""Table 2 of HU21 with the recipe of the paper: python -m reproduce hu21-table2-published.

The network and its training are those of the authors' program: five convolutions with ReLU and three poolings (the
paper says four), a linear layer to D features, SGD with momentum 0.9 and a constant rate of 1e-3, batches of 32, 100
epochs, no augmentation, no normalisation beyond the pixels, the model of the last epoch. The mixture heads have one
component per class and full quadratic features; the divergence has the weight 1e-9 epoch / epochs. Strength of L1 and
the margin are not published: 1e-3 and 2. The margin grows over the first half of the epochs: with all of it after half
an epoch, the default of its head, classes merge and never separate again.
Nothing is chosen, so no validation images are needed.

On a GPU all heads and seeds are trained side by side, each in a stream of its own. After training, weights are removed
one after the other, the smallest first (SDGM: the largest log alpha first), for errors at equal numbers of weights.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import mixtura
from mixtura.nn import LargeMarginSoftmax, LinearHead, MixtureHead, SparseMixtureHead
from reproduce import data as published_data
from reproduce.options import Options
from reproduce.stamps import write_json

# Share of the training after which the margin has as much weight as the linear logit, 1 of the initial 100.
HALF_MARGIN = 0.5
EPOCHS, BATCH, RATE, MOMENTUM, KL_WEIGHT = 100, 32, 1e-3, 0.9, 1e-9
MEAN, SCALE = 0.1307, 0.3081  # of the pixels of MNIST, used for both data sets
QUADRATIC = {"n_components": 1, "quadratic": "full", "normalise": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax_l1": {"l1": 1e-3},
    "large_margin": {"margin": 2},
    "mixture": QUADRATIC,
    "sparse": QUADRATIC,
}
STEPS_PER_GRAPH = 5
COUNTS = (2, 5, 10, 15, 20, 30, 40, 50, 70, 100, 150, 200, 300, 400, 500, 600)  # weights left, for the curves


METHODS = {
    "softmax": "softmax",
    "softmax_l1": "softmax + L1",
    "large_margin": "large-margin softmax",
    "mixture": "discriminative mixture, `MixtureHead`",
    "sparse": "SDGM, `SparseMixtureHead`",
}


@dataclass(frozen=True)
class Column:
    """A column of table 2 of HU21, with its figures in the order of METHODS."""

    title: str
    data: str
    n_features: int
    paper: tuple[float, ...]


COLUMNS = {
    "mnist_2": Column("MNIST, D = 2", "mnist", 2, (3.19, 3.70, 2.52, 2.43, 1.81)),
    "mnist_10": Column("MNIST, D = 10", "mnist", 10, (1.01, 1.58, 0.80, 0.72, 0.86)),
    "fashion_10": Column("Fashion-MNIST, D = 10", "fashion_mnist", 10, (8.78, 9.20, 8.51, 8.30, 8.05)),
}


@dataclass(frozen=True)
class Data:
    """Images (n, 1, 28, 28) as bytes and labels (n,), on the device that trains."""

    images: Tensor
    labels: Tensor

    def part(self, rows: slice) -> Data:
        return Data(self.images[rows], self.labels[rows])


def load(name: str, device: str, n_rows: int | None) -> tuple[Data, Data]:
    """Training and test images on the device, or the first of them."""
    bunch = published_data.load(name)
    return tuple(  # pyright: ignore[reportReturnType]
        Data(
            torch.from_numpy(bunch[f"X_{part}"][:n_rows]).reshape(-1, 1, 28, 28).to(device),
            torch.from_numpy(bunch[f"y_{part}"][:n_rows].astype(np.int64)).to(device),
        )
        for part in ("train", "test")
    )


def about() -> dict[str, Any]:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "mixtura": mixtura.__version__}
    return {"machine": where, **versions}


def write(path: Path, runs: list[dict[str, Any]], size: str | None = None) -> None:
    """Runs with where they ran; size says what a small version has less of."""
    write_json(path, {"about": about() | ({} if size is None else {"size": size}), "runs": runs})


# ---- the network, its training and what it is worth ------------------------------------------------------------------


def make_head(method: str, n_features: int, n_classes: int, settings: dict[str, Any]) -> Any:
    """The head of a line of the table."""
    if method in ("softmax", "softmax_l1"):
        return LinearHead(n_features, n_classes)
    if method == "large_margin":
        return LargeMarginSoftmax(n_features, n_classes, **settings)
    if method == "density":
        return MixtureHead(n_features, n_classes, settings["n_components"], density=True)
    kind = {"mixture": MixtureHead, "sparse": SparseMixtureHead}[method]
    return kind(n_features, n_classes, **settings)


@torch.no_grad()
def quality(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Error in per cent, mean negative log-probability, expected calibration error (15 bins) in per cent."""
    log_probabilities = logits.float().log_softmax(1)
    confidence, predicted = log_probabilities.exp().max(1)
    right = (predicted == labels).float()
    bins = (confidence * 15).long().clamp_max(14)
    gaps = torch.zeros(15, device=logits.device).index_add_(0, bins, confidence - right)
    return {
        "error": 100 * (1 - float(right.mean())),
        "nll": float(functional.nll_loss(log_probabilities, labels)),
        "ece": 100 * float(gaps.abs().sum()) / len(labels),
    }


class PlainNetwork(nn.Sequential):
    """Convolutions 1-32 (5 x 5), 32-32, pool, 32-64, 64-64, pool, 64-128, pool, then a linear layer."""

    def __init__(self, n_features: int, width: int = 32):
        def convolution(n_in: int, n_out: int, size: int = 3) -> list[nn.Module]:
            return [nn.Conv2d(n_in, n_out, size, padding=size // 2), nn.ReLU()]

        super().__init__(
            *convolution(1, width, 5), *convolution(width, width), nn.MaxPool2d(2),
            *convolution(width, 2 * width), *convolution(2 * width, 2 * width), nn.MaxPool2d(2),
            *convolution(2 * width, 4 * width), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36 * width, n_features),
        )  # fmt: skip


def pixels(images: Tensor) -> Tensor:
    return (images.float() / 255 - MEAN) / SCALE


class PlainTrainer:
    """Steps of training that read everything from tensors, so that a GPU can replay recorded ones."""

    def __init__(self, method: str, n_features: int, data: Data, seed: int, epochs: int, width: int = 32):
        torch.manual_seed(seed)
        settings = dict(SETTINGS[method])
        self.method, self.seed, self.data, self.epochs = method, seed, data, epochs
        if method == "large_margin":
            settings["decay"] = 0.01 ** (1 / max(1.0, HALF_MARGIN * epochs * (len(data.images) // BATCH)))
        self.settings = dict(settings)
        self.strength = settings.pop("l1", 0.0)
        self.device = data.images.device
        on_gpu = self.device.type == "cuda"
        self.network = PlainNetwork(n_features, width).to(self.device)
        if on_gpu:  # the layout that its convolutions compute in
            self.network = self.network.to(memory_format=torch.channels_last)
        self.head = make_head(method, n_features, int(data.labels.max()) + 1, settings).to(self.device)
        parameters = [*self.network.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, fused=on_gpu)
        self.steps_per_epoch = len(data.images) // BATCH
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.places = torch.arange(BATCH, device=self.device)
        self.order = torch.randperm(len(data.images), device=self.device)
        self.loss = torch.zeros((), device=self.device)
        self.replay, self.stream = self.step, None

    def step(self) -> None:
        rows = self.order.index_select(0, self.number % self.steps_per_epoch * BATCH + self.places)
        images, labels = self.data.images.index_select(0, rows), self.data.labels.index_select(0, rows)
        self.optimiser.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.head(self.network(pixels(images)), labels).float(), labels)
        if self.method == "sparse":
            epoch = torch.div(self.number, self.steps_per_epoch, rounding_mode="floor")[0]
            loss = loss + self.head.kl() * (KL_WEIGHT * epoch / self.epochs)
        elif self.strength:
            loss = loss + self.strength * self.head.penalty()
        loss.backward()
        self.optimiser.step()
        self.loss.copy_(loss.detach())
        self.number.add_(1)

    def record(self) -> None:
        """Record some steps as a graph in a stream of its own; the warm-up steps count as training steps."""
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(STEPS_PER_GRAPH):
                self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(STEPS_PER_GRAPH):
                self.step()
        self.replay = graph.replay

    def shuffle(self) -> None:
        self.order.copy_(torch.randperm(len(self.order), device=self.device))


def train_together(trainers: Sequence[PlainTrainer]) -> None:
    """Epochs of all trainers side by side."""
    recorded = trainers[0].device.type == "cuda"
    torch.backends.cudnn.benchmark = recorded
    for trainer in trainers if recorded else ():
        trainer.record()
    stride, began = STEPS_PER_GRAPH if recorded else 1, time.perf_counter()
    for epoch in range(trainers[0].epochs):
        for _ in range(trainers[0].steps_per_epoch // stride - (1 if recorded and epoch == 0 else 0)):
            for trainer in trainers:
                with torch.cuda.stream(trainer.stream):
                    trainer.replay()
        for trainer in trainers:
            with torch.cuda.stream(trainer.stream):
                trainer.shuffle()
        if recorded:
            torch.cuda.synchronize()
        used = time.perf_counter() - began
        if epoch % 5 == 0:
            losses = {f"{t.method} {t.seed}": round(float(t.loss), 3) for t in trainers[:5]}
            print(f"epoch {epoch + 1}: {used:.0f} s, losses {losses}", flush=True)


@torch.no_grad()
def judged(trainer: PlainTrainer, test: Data) -> dict[str, Any]:
    """Error, calibration, weights left, and errors with fewer weights."""
    network, head = trainer.network.eval(), trainer.head.eval()
    features = torch.cat([network(pixels(part)) for part in test.images.split(2500)]).float()
    record: dict[str, Any] = {**quality(head(features), test.labels), "final_loss": float(trainer.loss)}
    counts = weight_counts(head)
    record |= {"weights": counts[0], "weights_left": counts[1], "sparsity": 100 * (1 - counts[1] / counts[0])}
    return record | {"curve": curve(head, features, test.labels)}


def weight_of(head: Any) -> Tensor:
    return head.components.weight if isinstance(head, MixtureHead) else head.weight


def weight_counts(head: Any) -> tuple[int, int]:
    """All weights, and those that are not zero; biases do not count."""
    if isinstance(head, SparseMixtureHead):
        return head.n_weights, head.n_weights_left
    weight = weight_of(head)
    return weight.numel(), weight.numel()


def curve(head: Any, features: Tensor, labels: Tensor) -> list[list[float]]:
    """Numbers of weights left and test errors in per cent."""
    points = []
    sparse = isinstance(head, SparseMixtureHead)
    weight = None if sparse else weight_of(head)
    keys = torch.cat([part.flatten() for part in head.components.log_alphas()]) if sparse else -weight.abs().flatten()
    ordered, whole = keys.sort().values, None if sparse else weight.clone()
    usual = head.components.threshold if sparse else 0.0
    for count in [n for n in COUNTS if n < len(ordered)] + [len(ordered)]:
        limit = float(ordered[count]) if count < len(ordered) else float("inf")
        if sparse:
            head.components.threshold = limit
        else:
            weight.copy_(torch.where(-whole.abs() < limit, whole, 0.0))
        points.append([count, quality(head(features), labels)["error"]])
    if sparse:
        head.components.threshold = usual
    else:
        weight.copy_(whole)
    return points


def run_column(column: Column, options: Options) -> list[dict]:
    """All heads and seeds of a column."""
    n_images, epochs, width = (256, 1, 4) if options.quick else (None, EPOCHS, 32)
    train, test = load(column.data, options.device, n_images)
    seeds = range(options.n_seeds(3))
    trainers = [
        PlainTrainer(method, column.n_features, train, seed, epochs, width) for seed in seeds for method in METHODS
    ]
    began = time.perf_counter()
    train_together(trainers)
    duration = time.perf_counter() - began
    return [
        {"method": t.method, "settings": t.settings, "seed": t.seed, "epochs": epochs, "seconds": duration,
         **judged(t, test)}
        for t in trainers
    ]  # fmt: skip


def compute(options: Options) -> None:
    """Columns that are missing."""
    for name, column in COLUMNS.items():
        wanted = name == "mnist_2" or not options.quick
        if wanted and not (options.out / f"heads_published_{name}.json").exists():
            runs = run_column(column, options)
            write(options.out / f"heads_published_{name}.json", runs)
    draw(options.out)


def draw(folder: Path) -> None:
    """Error against the number of weights left, a panel for each column."""
    import matplotlib.pyplot as plt

    files = {column.title: folder / f"heads_published_{name}.json" for name, column in COLUMNS.items()}
    files = {title: file for title, file in files.items() if file.exists()}
    figure, axes = plt.subplots(1, len(files), figsize=(4.4 * len(files), 3.6), layout="constrained", squeeze=False)
    looks = {
        "softmax": ("#000000", "o", "softmax, magnitude pruning"),
        "softmax_l1": ("#E69F00", "s", "softmax + L1, magnitude pruning"),
        "mixture": ("#0072B2", "^", "mixture, magnitude pruning"),
        "sparse": ("#D55E00", "D", "SDGM, by log alpha"),
    }
    for axis, (title, file) in zip(axes[0], files.items(), strict=True):
        runs = json.loads(file.read_text())["runs"]
        for method, (colour, marker, label) in looks.items():
            curves = np.array([run["curve"] for run in runs if run["method"] == method])  # (seeds, points, 2)
            axis.plot(curves[0, :, 0], curves[..., 1].mean(0), color=colour, marker=marker, markersize=4, label=label)
        axis.set(xscale="log", yscale="log", xlabel="weights left", ylabel="test error, %", title=title)
        for ticks, ends in ((axis.set_xticks, axis.get_xlim()), (axis.set_yticks, axis.get_ylim())):
            own = [n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if ends[0] <= n <= ends[1]]
            ticks(own, [str(n) for n in own])
            ticks([], minor=True)
        axis.grid(alpha=0.3)
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(folder / "heads_weights.png", dpi=90)
    plt.close(figure)
