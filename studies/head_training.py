"""The network of HU21's section 4.2 and how it is trained with a head; with our recipe; used by studies/heads.py."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from mixtura.nn import LinearHead, SparseMixtureHead, WarmUp
from reproduce.heads import Data, make_head, quality

# Below this a weight of the L1 head counts as gone; the authors' program in effect draws the line there too.
SMALLEST_WEIGHT = math.exp(-6.5)
EVALUATION_BATCH = 2500


class Network(nn.Sequential):
    """Five convolutions with four poolings between them, then a linear layer to the features.

    Widths are those of the authors' program; it has three poolings, the paper four. Batch normalisation and dropout are
    ours, and the same for all heads.
    """

    def __init__(self, n_features: int, dropout: float, width: int = 32):
        widths = (1, width, width, 2 * width, 2 * width, 4 * width)
        layers: list[nn.Module] = []
        for number in range(5):
            size = 5 if number == 0 else 3
            layers += [
                nn.Conv2d(widths[number], widths[number + 1], size, padding=size // 2, bias=False),
                nn.BatchNorm2d(widths[number + 1]),
                nn.ReLU(),
            ]
            if number < 4:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))  # 28, 14, 7, 4, 2
        super().__init__(*layers, nn.Flatten(), nn.Dropout(dropout), nn.Linear(16 * width, n_features))


@dataclass(frozen=True)
class Training:
    """How to train; the same for all heads."""

    epochs: int = 40
    batch: int = 500
    learning_rate: float = 6e-3
    weight_decay: float = 0.02
    dropout: float = 0.3
    rotation: float = 10.0  # degrees
    shift: float = 2.0  # pixels
    zoom: float = 0.1
    flip: bool = False
    width: int = 32


@dataclass
class Trained:
    """A trained network with its head."""

    network: nn.Module
    head: Any
    seconds: float
    smallest_weight: float = 0.0  # of a linear head; those below are taken for zero
    losses: list[float] = field(default_factory=list)
    snapshots: list[np.ndarray] = field(default_factory=list)  # features of some images as training goes on
    steps: list[int] = field(default_factory=list)  # when they were taken


class Trainer:
    """Steps of training that read everything they need from tensors, so that a GPU can replay a recorded one."""

    def __init__(
        self, method: str, n_features: int, settings: dict[str, Any], training: Training, data: Data, seed: int
    ):
        torch.manual_seed(seed)
        self.device, self.data, self.training, self.method = data.images.device, data, training, method
        self.settings = dict(settings)
        self.strength = self.settings.pop("l1", 0.0)
        self.tradeoff = self.settings.get("tradeoff", 0.0)
        self.head_rate = self.settings.pop("head_rate", 1.0)
        n_classes = int(data.labels.max()) + 1
        network = Network(n_features, training.dropout, training.width)
        self.network = network.to(self.device, memory_format=torch.channels_last)
        self.head = make_head(method, n_features, n_classes, self.settings).to(self.device)
        self.steps_per_epoch = len(data.images) // training.batch
        self.n_steps = training.epochs * self.steps_per_epoch
        self._make_tables()
        self._make_optimiser()

    def _make_tables(self) -> None:
        """Learning rates (one cycle: up in a line for a fifth, then down a cosine) and weights of the divergence."""
        share = torch.arange(self.n_steps) / self.n_steps
        rise, fall = share / 0.2, 0.5 * (1 + torch.cos(math.pi * (share - 0.2) / 0.8))
        rates = self.training.learning_rate * torch.where(share < 0.2, rise, fall)
        epochs = self.training.epochs
        warm_up = WarmUp(len(self.data.images), start=0.1 * epochs, stop=0.5 * epochs)
        weights = torch.tensor([warm_up(step / self.steps_per_epoch) for step in range(self.n_steps)])
        self.rates, self.kl_weights = rates.float().to(self.device), weights.float().to(self.device)
        self.step_number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.places = torch.arange(self.training.batch, device=self.device)
        self.order = torch.randperm(len(self.data.images), device=self.device)
        self.loss = torch.zeros((), device=self.device)

    def _make_optimiser(self) -> None:
        """AdamW; what is not a weight of the network has no decay, and the head may learn faster."""
        decayed = [p for p in self.network.parameters() if p.ndim > 1]
        others = [p for p in self.network.parameters() if p.ndim <= 1]
        self.rate, self.rate_of_head = torch.zeros(2, device=self.device).unbind()
        groups = [
            {"params": decayed, "weight_decay": self.training.weight_decay},
            {"params": others},
            {"params": list(self.head.parameters()), "lr": self.rate_of_head},
        ]
        self.optimiser = torch.optim.AdamW(
            groups, lr=self.rate, weight_decay=0.0, fused=True, capturable=self.device.type == "cuda"
        )

    def step(self) -> None:
        rows = self.order.index_select(0, self.step_number % self.steps_per_epoch * self.training.batch + self.places)
        images = augmented(self.data.images.index_select(0, rows), self.training)
        labels = self.data.labels.index_select(0, rows)
        self.rate.copy_(self.rates.index_select(0, self.step_number)[0])
        self.rate_of_head.copy_(self.rate * self.head_rate)
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda", cache_enabled=False):
            features = self.network(images.contiguous(memory_format=torch.channels_last))
            loss = self._loss(features, labels)
        loss.backward()
        self.optimiser.step()
        self.loss.copy_(loss.detach())
        self.step_number.add_(1)

    def _loss(self, features: Tensor, labels: Tensor) -> Tensor:
        if self.method == "density":
            return self.head.hybrid_loss(features, labels, self.tradeoff)
        loss = functional.cross_entropy(self.head(features, labels).float(), labels)
        if self.method == "sparse":
            return loss + self.head.kl() * self.kl_weights.index_select(0, self.step_number)[0]
        return loss + self.strength * self.head.penalty() if self.strength else loss

    def run(self, record: bool, shown: Tensor | None = None) -> Trained:
        """Train to the end; `record` replays a recorded step, which a GPU does without waiting for Python."""
        began = time.perf_counter()
        self.network.train(), self.head.train()
        replay, done = self.step, 0
        if record and self.device.type == "cuda":
            replay, done = self._recorded()
        losses, snapshots, steps = [], [], []
        moments = set(np.unique(np.geomspace(1, self.n_steps, 25).round().astype(int)).tolist())
        while done < self.n_steps:
            if done % self.steps_per_epoch == 0 and done:
                self.order.copy_(torch.randperm(len(self.order), device=self.device))
                losses.append(float(self.loss))
            if shown is not None and done in moments:
                snapshots.append(features_of(self.network, shown).cpu().numpy())
                steps.append(done)
                self.network.train()
            replay()
            done += 1
        losses.append(float(self.loss))
        if shown is not None:
            snapshots.append(features_of(self.network, shown).cpu().numpy())
            steps.append(done)
        seconds, smallest = time.perf_counter() - began, SMALLEST_WEIGHT if self.strength else 0.0
        return Trained(self.network.eval(), self.head.eval(), seconds, smallest, losses, snapshots, steps)

    def _recorded(self) -> tuple[Any, int]:
        """A recorded step and the number of steps that were taken, in earnest, to warm up."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay, 3


def augmented(images: Tensor, training: Training) -> Tensor:
    """Bytes to numbers in [0, 1], turned, moved and zoomed a little, for Fashion-MNIST also mirrored."""
    n_images, device = len(images), images.device
    random = torch.rand(5, n_images, device=device) * 2 - 1
    angle, zoom = random[0] * math.radians(training.rotation), 1 + random[1] * training.zoom
    mirror = torch.where(random[4] < 0, -1.0, 1.0) if training.flip else torch.ones_like(zoom)
    move = random[2:4] * training.shift / 14
    first = torch.stack((zoom * mirror * angle.cos(), -zoom * angle.sin(), move[0]), 1)
    second = torch.stack((zoom * mirror * angle.sin(), zoom * angle.cos(), move[1]), 1)
    grid = functional.affine_grid(torch.stack((first, second), 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images.float() / 255, grid, align_corners=False)


# ---- what a trained network is worth ---------------------------------------------------------------------------------


@torch.no_grad()
def features_of(network: nn.Module, images: Tensor) -> Tensor:
    """Features (n, D) in float32."""
    network.eval()
    parts = []
    for batch in images.split(EVALUATION_BATCH):
        with torch.autocast(images.device.type, torch.bfloat16, images.is_cuda):
            parts.append(network((batch.float() / 255).contiguous(memory_format=torch.channels_last)))
    return torch.cat(parts).float()


@torch.no_grad()
def auroc(inside: Tensor, outside: Tensor) -> float:
    """The chance that a score of a row inside is above that of one outside."""
    truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    return float(roc_auc_score(truth, torch.cat((inside, outside)).double().cpu().numpy()))


@torch.no_grad()
def judged(trained: Trained, test: Data, outside: Data | None = None) -> dict[str, Any]:
    """Everything a table says of a run."""
    head = trained.head
    features = features_of(trained.network, test.images)
    record: dict[str, Any] = {"sparsity": 0.0, "seconds": trained.seconds, "final_loss": trained.losses[-1]}
    if isinstance(head, SparseMixtureHead):
        record |= _sparse_part(head, features, test.labels)
    elif isinstance(head, LinearHead):
        small = head.weight.abs() < trained.smallest_weight
        record["sparsity"] = 100 * float(small.float().mean())
        head.weight.masked_fill_(small, 0.0)
    logits = head(features)
    record |= quality(logits, test.labels)
    if outside is not None:
        foreign = features_of(trained.network, outside.images)
        record["auroc"] = auroc(logits.softmax(1).amax(1), head(foreign).softmax(1).amax(1))
        if getattr(head, "density", False):
            record["auroc_density"] = auroc(head.log_density(features), head.log_density(foreign))
            record["auroc_trained"] = auroc(head.scores(features).logsumexp(1), head.scores(foreign).logsumexp(1))
    return record


def _sparse_part(head: SparseMixtureHead, features: Tensor, labels: Tensor) -> dict[str, Any]:
    """The weights that pruning removes, and the error without pruning."""
    record: dict[str, Any] = {"weights": head.n_weights, "weights_left": head.n_weights_left}
    record["sparsity"] = 100 * (1 - head.n_weights_left / head.n_weights)
    small = head.prune()
    record["components_left"] = sum(small.n_components)
    record["pruned_difference"] = float((small(features) - head(features)).abs().max())
    head.components.threshold = math.inf
    record["error_unpruned"] = quality(head(features), labels)["error"]
    head.components.threshold = head.threshold
    batch = features[:256]
    record["microseconds"], record["microseconds_pruned"] = microseconds(lambda: head(batch), lambda: small(batch))
    return record


def microseconds(*functions: Callable[[], Any], n_rounds: int = 50) -> list[float]:
    """The median time of each function, which take turns."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(n_rounds):
        for own, function in zip(times, functions, strict=True):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            began = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            own.append(time.perf_counter() - began)
    return [1e6 * float(np.median(own)) for own in times]
