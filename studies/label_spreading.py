"""python -m studies.label_spreading N,N,...: table 2 of RPTP18, few labels among 50000 rows of MNIST (pca50).

Starts of EM over all rows: components of the labeled rows alone, or of rows whose labels spread from the labeled ones
along nearest neighbours. Two protocols:
    paper   10000 labeled validation rows choose start, components, iterations, trade-off and epoch;
    none    nothing is chosen: labels spread with the settings of DEFAULT, then EM until it converges.
Labeled subsets are drawn at random, not by class, as in the paper. Adds to reproduce/results/label_spreading.json, and
skips what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

import torch

from mixtura.init.label_spreading import Graph, graph_of, spread
from mixtura.model.mixture import Mixture
from mixtura.objectives import Joint
from mixtura.priors import Conjugate
from mixtura.solvers import EM, EarlyStopping, Problem, run, score_classes
from reproduce import hybrid as base
from reproduce.options import Options
from reproduce.stamps import write_json

N_CLASSES = 10
FILE = "label_spreading.json"
ITERATIONS = 100


@dataclass(frozen=True)
class Way:
    """Neighbours and reach of spreading (None: labeled rows alone), components per digit, and the prior."""

    neighbours: int | None = 10
    reach: float = 0.99
    k: int = 10
    prior: tuple[float, float] = (50.0, 0.3)


DEFAULT = Way()
WAYS = (DEFAULT, Way(k=5), Way(k=15), Way(k=20), Way(5), Way(5, k=15), Way(10, 0.9), Way(None, k=3), Way(None, k=15))


# ---- fits ------------------------------------------------------------------------------------------------------------


def start_of(x: torch.Tensor, labels: torch.Tensor, way: Way, seed: int) -> Mixture:
    """EM with labels taken as they are."""
    return base.generative({"train": (x, labels)}, base.Start((way.k,) * N_CLASSES, way.prior), seed, max_iter=20)


def problem_of(x: torch.Tensor, labels: torch.Tensor, way: Way) -> Problem:
    prior = Conjugate(way.prior[0], torch.full_like(x[0], way.prior[1]))
    uniform = torch.full((N_CLASSES,), 1 / N_CLASSES, dtype=x.dtype, device=x.device)
    limit = base.limit_of(x)
    return Problem.from_samples(x, labels, Joint(), prior=prior, class_prior=uniform, memory_limit=limit)


class Subset:
    """The fits of one labeled subset."""

    def __init__(self, data: dict[str, Any], graphs: dict[int, Graph], n_labels: int, subset: int, options: Options):
        self.data, self.graphs, self.subset, self.n_labels, self.options = data, graphs, subset, n_labels, options
        x, y = data["train"]
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1 + subset)).to(x.device)
        self.x, self.labels = x, torch.full_like(y, -1)
        self.labels[order[:n_labels]] = y[order[:n_labels]]

    def start(self, way: Way) -> Mixture:
        if way.neighbours is None:
            known = self.labels >= 0
            return start_of(self.x[known], self.labels[known], way, self.subset)
        labels = self.spread(way)
        reached = labels >= 0
        return start_of(self.x[reached], labels[reached], way, self.subset)

    def spread(self, way: Way) -> torch.Tensor:
        assert way.neighbours is not None
        uniform = torch.ones(N_CLASSES, device=self.x.device)
        return spread(self.graphs[way.neighbours], self.labels, uniform, way.reach)

    def errors(self, mixture: Mixture) -> dict[str, float]:
        return base.errors(mixture, self.data)

    def keep(self, row: str, record: dict[str, Any]) -> None:
        results = read(self.options)
        rows = results.setdefault("few labels", {})
        rows.setdefault(f"{self.n_labels}: {row}", {})[str(self.subset)] = record
        write_json(self.options.out / FILE, results)
        print(self.n_labels, row, self.subset, record, flush=True)

    def supervised(self) -> None:
        """Labeled rows alone; the validation rows choose the components."""
        known = self.labels >= 0
        ways = [Way(None, k=k) for k in (1, 3, 5, 10) if k * 20 * N_CLASSES <= self.n_labels or k == 1]
        fits = [start_of(self.x[known], self.labels[known], way, self.subset) for way in ways]
        self.keep("labeled rows only; paper's protocol", self.errors(max(fits, key=self._score)))

    def without_choice(self) -> None:
        start, problem = self.start(DEFAULT), problem_of(self.x, self.labels, DEFAULT)
        self.keep("spread, no EM; no validation labels", self.errors(start))
        fitted = run(EM(), problem, start, ITERATIONS, 1e-3).mixture
        self.keep("spread, EM; no validation labels", self.errors(fitted))
        data, start = {"train": (self.x, self.labels)}, base.Start((DEFAULT.k,) * N_CLASSES, DEFAULT.prior)
        options = {"init": "spread", "unlabeled": -1, "max_iter": ITERATIONS}
        fitted = base.generative(data, start, self.subset, **options)
        self.keep('init="spread"; no validation labels', self.errors(fitted))

    def chosen(self) -> None:
        """The paper's protocol: EM in every way, then hybrids from the best."""
        fits = []
        for way in WAYS:
            began = time.perf_counter()
            problem, judge = problem_of(self.x, self.labels, way), EarlyStopping(self._score, interval=4, patience=3)
            best = run(EM(), problem, self.start(way), ITERATIONS, 1e-3, held_out=judge).mixture
            fits.append((-self._score(best), way, best))
            print(self.n_labels, self.subset, way, fits[-1][0], f"{time.perf_counter() - began:.1f} s", flush=True)
        validation, way, mixture = min(fits, key=lambda fit: fit[0])
        ways = {str(way): value for value, way, _ in fits}
        self.keep("spread, EM; paper's protocol", {**self.errors(mixture), "way": str(way), "ways": ways})
        record = self._separated(mixture, validation)
        self.keep("spread, EM, then LM; paper's protocol", record)

    def _score(self, mixture: Mixture) -> float:
        return -base.error(mixture, self.data["validation"])

    def _separated(self, start: Mixture, validation: float) -> dict[str, Any]:
        """Hybrids with the labels that are given, and with those that the start finds."""
        known = self.labels >= 0
        assigned = torch.where(known, self.labels, score_classes(start, self.x).argmax(1))
        candidates = {"given": self.labels, "found": assigned, "spread": self.spread(DEFAULT)}
        best, mixture = {"validation": validation, "hybrid": "none"}, start
        for name, labels in candidates.items():
            for tradeoff, margin in ((0.01, 10.0), (0.3, 30.0)):
                part = {**self.data, "train": (self.x, labels)}
                own = base.Settings((), 5e-4, tradeoff, margin=margin, decay=True)
                trained, run_ = base.hybrid(part, start, own, self.subset, 8, test=False)
                if run_["validation"] < best["validation"]:
                    best, mixture = {**run_, "hybrid": f"labels {name}, margin {margin:g}"}, trained
        return {**best, **self.errors(mixture)}


def read(options: Options) -> dict[str, Any]:
    path = options.out / FILE
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("labels", help="numbers of labels, with commas between")
    parser.add_argument("--subsets", type=int, default=5)
    parser.add_argument("--device", default=Options.device)
    chosen = parser.parse_args()
    options, pixels = Options(device=chosen.device), base.pixels(chosen.device)
    data, rows = base.projected(pixels), pixels["train"][0].float()
    graphs = {count: graph_of(rows, count) for count in {way.neighbours for way in WAYS} - {None}}
    for subset in range(chosen.subsets):
        for count in map(int, chosen.labels.split(",")):
            last = f"{count}: spread, EM, then LM; paper's protocol"
            if str(subset) not in read(options).get("few labels", {}).get(last, {}):
                fits = Subset(data, graphs, count, subset, options)
                fits.supervised()
                fits.without_choice()
                fits.chosen()


if __name__ == "__main__":
    main()
