"""Table 2 of HU21 with the recipe of the paper: python -m reproduce hu21-table2.

The network and its training are those of the authors' program: five convolutions with ReLU and three poolings (the
paper says four), a linear layer to D features, SGD with momentum 0.9 and a constant rate of 1e-3, batches of 32, 100
epochs, no augmentation, no normalisation beyond the pixels, the model of the last epoch. The mixture heads have one
component per class and full quadratic features; the divergence has the weight 1e-9 epoch / epochs. Strength of L1 and
the margin are not published: 1e-3 and 2. The margin grows over the first half of the epochs: with all of it after half
an epoch, the default of its head, classes merge and never separate again.
Nothing is chosen, so no validation images are needed.

The networks of all heads are trained side by side, so that one kernel computes a layer of all of them, and seeds in
streams of their own. After training, weights are removed one after the other, the smallest first (SDGM: the largest log
alpha first), for errors at equal numbers of weights.
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
from torch.func import stack_module_state
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
SAVED_EVERY = 10  # epochs between two copies on disk
LOSS_SCALE = 1024.0  # for gradients in half precision; the optimiser divides by it
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


class StackedNetworks(nn.Module):
    """Networks of the same shape side by side: grouped convolutions, and products of batches of matrices.

    On a GPU the factors of convolutions have half precision, and their sums single precision.
    """

    def __init__(self, networks: Sequence[PlainNetwork]):
        super().__init__()
        self.layers, self.n_networks = list(networks[0]), len(networks)
        stacked = stack_module_state(list(networks))[0]
        self.state = nn.ParameterDict({name.replace(".", "_"): value for name, value in stacked.items()})

    def of(self, number: int) -> dict[str, Tensor]:
        """The parameters of one network."""
        return {name.replace("_", "."): own[number].detach() for name, own in self.state.items()}

    def forward(self, images: Tensor) -> Tensor:
        """Features (G, N, D) of images (G, N, 1, H, W)."""
        n, device = self.n_networks, images.device.type
        x = images.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        for number, layer in enumerate(self.layers):
            own = [self.state[f"{number}_{name}"] for name in ("weight", "bias") if f"{number}_{name}" in self.state]
            if isinstance(layer, nn.Conv2d):
                weight, bias = (part.flatten(0, 1) for part in own)
                with torch.autocast(device, torch.float16, enabled=device == "cuda", cache_enabled=False):
                    x = functional.conv2d(x, weight, bias, padding=layer.padding, groups=n)
            elif isinstance(layer, nn.Linear):
                x = torch.baddbmm(own[1].unsqueeze(1), x.float(), own[0].mT)
            else:
                x = x.unflatten(1, (n, -1)).transpose(0, 1).flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
        return x


class Trainer:
    """Steps of training of all heads with one seed, which read everything from tensors, so that a GPU can replay
    recorded ones."""

    def __init__(self, column: Column, data: Data, seed: int, epochs: int, width: int = 32):
        self.data, self.seed, self.epochs, self.device = data, seed, epochs, data.images.device
        self.sizes = (column.n_features, width, int(data.labels.max()) + 1)
        self.steps_per_epoch = len(data.images) // BATCH
        pairs = {method: self.model(method) for method in METHODS}
        self.networks = StackedNetworks([network for network, _ in pairs.values()]).to(self.device)
        self.heads = {method: head.to(self.device) for method, (_, head) in pairs.items()}
        parameters = [*self.networks.parameters(), *(p for head in self.heads.values() for p in head.parameters())]
        self.optimiser = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, fused=True)
        self.scale = self.optimiser.grad_scale = torch.tensor(LOSS_SCALE, device=self.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.places = torch.arange(BATCH, device=self.device)
        self.orders = torch.stack([torch.randperm(len(data.images), device=self.device) for _ in METHODS])
        self.losses = torch.zeros(len(METHODS), device=self.device)
        self.replay, self.stream = self.step, None

    def settings_of(self, method: str) -> dict[str, Any]:
        if method != "large_margin":
            return SETTINGS[method]
        return SETTINGS[method] | {"decay": 0.01 ** (1 / max(1.0, HALF_MARGIN * self.epochs * self.steps_per_epoch))}

    def model(self, method: str) -> tuple[PlainNetwork, Any]:
        """A network and its head as they are before training."""
        torch.manual_seed(self.seed)
        n_features, width, n_classes = self.sizes
        settings = {name: value for name, value in self.settings_of(method).items() if name != "l1"}
        return PlainNetwork(n_features, width), make_head(method, n_features, n_classes, settings)

    def step(self) -> None:
        rows = self.orders.index_select(1, self.number % self.steps_per_epoch * BATCH + self.places)  # (5, BATCH)
        images, labels = self.data.images[rows], self.data.labels[rows]
        self.optimiser.zero_grad(set_to_none=True)
        features = self.networks(pixels(images))
        logits = [head(x, y).float() for head, x, y in zip(self.heads.values(), features, labels, strict=True)]
        losses = functional.cross_entropy(torch.cat(logits), labels.flatten(), reduction="none")
        losses = losses.view(labels.shape).mean(1)
        epoch = torch.div(self.number, self.steps_per_epoch, rounding_mode="floor")[0]
        penalty = SETTINGS["softmax_l1"]["l1"] * self.heads["softmax_l1"].penalty()
        penalty = penalty + self.heads["sparse"].kl() * (KL_WEIGHT * epoch / self.epochs)
        (self.scale * (losses.sum() + penalty)).backward()
        self.optimiser.step()
        self.losses.copy_(losses.detach())
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
        self.orders.copy_(torch.rand(self.orders.shape, device=self.device).argsort(1))

    def state(self) -> dict[str, Any]:
        """All that training changes, but for random generators."""
        heads = {method: head.state_dict() for method, head in self.heads.items()}
        networks, optimiser = self.networks.state_dict(), self.optimiser.state_dict()
        return {"networks": networks, "heads": heads, "optimiser": optimiser, "number": self.number}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state, with other draws than a run that was not stopped."""
        self.networks.load_state_dict(state["networks"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.number.copy_(state["number"])
        for method, head in self.heads.items():
            head.load_state_dict(state["heads"][method])
        torch.manual_seed(self.seed + int(self.number))
        self.shuffle()

    def trained(self, method: str) -> tuple[PlainNetwork, Any]:
        """A network and its head as they are after training."""
        network = self.model(method)[0]
        network.load_state_dict(self.networks.of(list(METHODS).index(method)))
        return network.to(self.device).eval(), self.heads[method].eval()


def train_together(trainers: Sequence[Trainer], file: Path | None = None) -> int:
    """Epochs of all trainers side by side, from the state in a file, where a run that was stopped left one.

    Returns how many epochs that run had.
    """
    recorded = trainers[0].device.type == "cuda"
    torch.backends.cudnn.benchmark = recorded
    if file is not None and file.exists():
        for trainer, state in zip(trainers, torch.load(file, map_location=trainers[0].device), strict=True):
            trainer.load(state)
    per_epoch, began = trainers[0].steps_per_epoch, time.perf_counter()
    first = int(trainers[0].number) // per_epoch
    for trainer in trainers if recorded else ():
        trainer.record()
    stride = STEPS_PER_GRAPH if recorded else 1
    for epoch in range(first, trainers[0].epochs):
        for _ in range(per_epoch // stride - (1 if recorded and epoch == first else 0)):
            for trainer in trainers:
                with torch.cuda.stream(trainer.stream):
                    trainer.replay()
        for trainer in trainers:
            with torch.cuda.stream(trainer.stream):
                trainer.shuffle()
        if epoch % SAVED_EVERY == SAVED_EVERY - 1 and recorded:
            torch.cuda.synchronize()
        if epoch % SAVED_EVERY == SAVED_EVERY - 1 and file is not None:
            torch.save([trainer.state() for trainer in trainers], file.with_suffix(".unfinished"))
            file.with_suffix(".unfinished").replace(file)
            losses = [round(loss, 3) for loss in trainers[0].losses.tolist()]
            print(f"epoch {epoch + 1}: {time.perf_counter() - began:.0f} s, losses {losses}", flush=True)
    if recorded:
        torch.cuda.synchronize()
    return first


@torch.no_grad()
def judged(network: PlainNetwork, head: Any, test: Data) -> dict[str, Any]:
    """Error, calibration, weights left, and errors with fewer weights."""
    features = torch.cat([network(pixels(part)) for part in test.images.split(2500)])
    record: dict[str, Any] = quality(head(features), test.labels)
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


def run_column(column: Column, options: Options) -> list[dict[str, Any]]:
    """All heads and seeds of a column."""
    n_images, epochs, width = (256, 1, 4) if options.quick else (None, EPOCHS, 32)
    file = options.out / f"heads_{column.data}_{column.n_features}.state"
    train, test = load(column.data, options.device, n_images)
    trainers = [Trainer(column, train, seed, epochs, width) for seed in range(options.n_seeds(3))]
    began = time.perf_counter()
    first = train_together(trainers, file)
    duration = time.perf_counter() - began
    continued = {"continued": f"after {first} epochs, with other draws"} if first else {}
    runs = [
        {"method": method, "settings": trainer.settings_of(method), "seed": trainer.seed, "epochs": epochs,
         "seconds": duration, "final_loss": float(loss), **continued, **judged(*trainer.trained(method), test)}
        for trainer in trainers for method, loss in zip(METHODS, trainer.losses, strict=True)
    ]  # fmt: skip
    file.unlink(missing_ok=True)
    return runs


def compute(options: Options) -> None:
    """Columns that are missing, or the one that `--cell` names."""
    columns = options.named({column.title: name for name, column in COLUMNS.items()}).values()
    for name in ["mnist_2"] if options.quick else columns:
        if not (file := options.out / f"heads_published_{name}.json").exists():
            write(file, run_column(COLUMNS[name], options))
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
