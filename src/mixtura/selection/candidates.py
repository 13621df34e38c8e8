"""The order in which the automatic selection tries its candidates (automatic).

The first ones are closed forms: one Gaussian per class, for all strengths of shrinkage; of wide features they are the
only ones (closed-forms). Then the number of components of every covariance structure is increased while the held-out
log-loss decreases. The best candidates are fitted again with transformed features.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from mixtura.priors import Shrinkage
from mixtura.roles import Structure
from mixtura.selection.closed_forms import ShrinkagePath
from mixtura.selection.comparison import (
    ENOUGH_KEPT,
    MOST_NUMBERS,
    Candidate,
    CandidateFit,
    Comparison,
    has_own_matrices,
)
from mixtura.selection.search import Search, Trial
from mixtura.selection.task import PriorChoice, is_auto

# Components per class of each structure, where several are compared; of any other one, and of a structure alone.
LEVELS = {"full": (1, 2, 4, 8), "tied": (1, 2), "diag": (1, 2, 8, 32)}
OTHER_LEVELS, MOST_FULL = (1, 2, 4, 8, 16, 32), 8
# Pseudo-samples per feature of one Gaussian per class: of the tied covariance, and of those of the classes towards it.
TIED_PATH = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FULL_PATH = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
LEAST_GAIN = 0.01  # of the loss, by a larger strength of a target or by another target than the usual one
COMPARED = 2000  # held-out samples that choose strengths, where the others are not in memory
FULL_STRENGTH, TIED_STRENGTHS, DIAG_STRENGTH = 0.5, (0.2, 2.0), 4.0  # the first two per feature
# Features from which on closed forms are the whole search, equal variances are a target, and features stay as they are.
WIDE = 100
TRANSFORMED = 2  # structures that are fitted again with transformed features
# From this number of samples on fits are trained on by the hybrid objective with this trade-off.
TRAINED_SAMPLES, TRADEOFF = 500, 0.02


class CandidateOrder:
    """The order in which candidates are tried."""

    def __init__(
        self,
        comparison: Comparison,
        structures: dict[str, Structure],
        prior: PriorChoice,
        transforms: bool,
        search: Search[CandidateFit],
    ):
        self.comparison, self.structures, self.prior = comparison, structures, prior
        self.transforms, self.search = transforms, search
        size = comparison.n_numeric
        affordable = comparison.n_classes * size * size <= MOST_NUMBERS
        self.have_path = (affordable or comparison.whole is not None) and is_auto(prior) and comparison.has_closed_forms
        self._of_path: dict[tuple[str, bool], list[Trial[CandidateFit]]] = {}

    def all(self) -> None:
        """Closed forms, then more components of every structure, then transformed features."""
        if self.have_path:
            self.closed_forms()
        trials = [self._with_more_components(name, structure) for name, structure in self.structures.items()]
        if self.transforms and self.comparison.n_numeric < WIDE:
            best = sorted((trial for trial in trials if trial is not None), key=lambda trial: trial.score)
            for trial in best[:TRANSFORMED]:
                self._try_transformed(trial.fit.candidate)

    # ---- hybrid training ----

    def try_trained_on(self, larger: list[tuple[str, Structure, int]], tradeoff: float = TRADEOFF) -> None:
        """Train these structures on, with as many components per class, features as in the best candidate so far."""
        comparison = self.comparison
        recoded = comparison.recoding is not None
        own = [trial for trial in self.search.trials if trial.fit.candidate.recoded == recoded]
        if not own or comparison.n_numeric >= WIDE or len(comparison.rows) < TRAINED_SAMPLES:
            return
        best = min(own, key=lambda trial: trial.score).fit.candidate
        for name, structure, level in larger:
            settings = replace(best, name=name, structure=structure, recoded=False)
            settings = replace(settings, n_components=comparison.components(level, structure))
            candidate = replace(settings, prior=self._priors(settings, level, settings.transformed)[0])
            if comparison.trainable(candidate):
                self.search.try_together(partial(comparison.train_on, candidate, tradeoff))

    # ---- one Gaussian per class ----

    def single(self) -> None:
        """One component per class of every structure, the best one with transformed features too."""
        if self.have_path:
            self.closed_forms()
        trials = list(itertools.chain(*self._of_path.values()))
        for name, structure in {} if trials else self.structures.items():
            settings = Candidate(name, structure, self.comparison.components(1, structure), None)
            trials += [trial for trial in self._at_level(settings, 1) if trial is not None]
        if self.transforms and trials and self.comparison.n_numeric < WIDE:
            self._try_transformed(min(trials, key=lambda trial: trial.score).fit.candidate)

    def closed_forms(self, transformed: bool = False, only: str | None = None) -> None:
        """Try tied and full covariances of one component for all strengths of their prior (closed-forms)."""
        kinds = {
            _kind(structure): Candidate(name, structure, (), None, transformed)
            for name, structure in self.structures.items()
            if only in (None, name)
        }
        if not {"tied", "full"} & set(kinds):
            return
        path, place = self._try_tied(kinds.get("tied"), transformed)
        if path is not None and "full" in kinds and self.comparison.whole != "tied":
            self._full(kinds["full"], path, place)
        if self.comparison.rows_apart >= ENOUGH_KEPT and only is None:
            self._low_rank()

    def _low_rank(self) -> None:
        """Try few directions of every class, where its matrices are too many for full covariances (class-moments).

        Held-out log-loss by the default prior, and by 4, D / 10 and D / 2 samples of the expected variances: docstrings
        0.947, 0.986, 0.970, 0.958 (tied 0.967), Fashion-MNIST 0.586, 1.598, 0.740, 0.614 (tied 0.585).
        """
        for name, structure in self.structures.items():
            if structure.has_directions:
                candidate = Candidate(name, structure, (1,) * self.comparison.n_classes, "default")
                self.search.try_one(partial(self.comparison.evaluate_apart, candidate))

    def _try_tied(self, settings: Candidate | None, transformed: bool) -> tuple[ShrinkagePath | None, int]:
        """Try tied covariances, where they are wanted; the best target, and the position of its best strength."""
        comparison, best = self.comparison, (float("inf"), None, 0)

        def evaluate(target: str) -> list[Trial[CandidateFit]]:
            nonlocal best
            if transformed and not comparison.transforms_any:
                return []
            path = comparison.path(target, transformed)
            place, scores, loss = comparison.best_of_path(path.tied(self._strengths[:-1]))
            best = min(best, (loss, path, place), key=lambda other: other[0])
            if settings is None:
                return []
            candidate, n_parameters = self._closed(settings, path.tied_prior(self._strengths[place]))
            return [comparison.judge(candidate, scores, n_parameters)]

        for target in ("pooled", "identity") if self._has_one_unit else ("pooled",):
            trials = self.search.try_together(partial(evaluate, target))
            if settings is not None:
                self._of_path.setdefault((settings.name, transformed), []).extend(trials)
        return best[1:]

    def _full(self, settings: Candidate, path: ShrinkagePath, place: int) -> None:
        """Try covariances of the classes: towards the best tied ones, then of larger strengths while this helps."""
        if self.comparison.whole is not None:
            self._of_path[settings.name, False] = [
                self.search.try_one(partial(self._full_of_all, settings, path, place))
            ]
            return

        def evaluate(path: ShrinkagePath, tied: float) -> Trial[CandidateFit]:
            strengths = [strength * self.comparison.n_numeric for strength in FULL_PATH]
            number, scores, _ = self.comparison.best_of_path(path.full(tied, strengths))
            candidate, n_parameters = self._closed(settings, path.full_prior(tied, strengths[number]))
            return self.comparison.judge(candidate, scores, n_parameters)

        known, best = self._of_path.setdefault((settings.name, settings.transformed), []), float("inf")
        for tied in self._strengths[place:]:
            known.append(self.search.try_one(partial(evaluate, path, tied)))
            if known[-1].score > (1 - LEAST_GAIN) * best:
                break
            best = known[-1].score
        if self.comparison.n_numeric < WIDE:  # variances of heavy tails are larger
            expected = self.comparison.path("expected", settings.transformed)
            known.append(self.search.try_one(partial(evaluate, expected, float("inf"))))

    def _full_of_all(self, settings: Candidate, path: ShrinkagePath, place: int) -> Trial[CandidateFit]:
        """The same for held-out samples of many: some of them choose the strengths, since each costs much."""
        every = max(1, len(self.comparison.rows) // COMPARED)
        some, thin = self.comparison.thinned(every), path.thinned(every)
        best, number = (float("inf"), 0.0, 0), FULL_PATH.index(1.0)
        for tied in self._strengths[place:]:
            known: dict[int, float] = {}

            def loss(at: int, tied: float = tied, known: dict[int, float] = known) -> float:
                if at not in known:
                    strength = FULL_PATH[at] * self.comparison.n_numeric
                    known[at] = some.best_of_path(thin.full(tied, [strength]))[2]
                return known[at]

            for step in (1, -1):  # the loss falls, then rises
                while 0 <= number + step < len(FULL_PATH) and loss(number + step) < loss(number):
                    number += step
            if loss(number) > (1 - LEAST_GAIN) * best[0]:
                best = min(best, (loss(number), tied, number))
                break
            best = loss(number), tied, number
        _, tied, number = best
        strength = FULL_PATH[number] * self.comparison.n_numeric
        _, scores, _ = self.comparison.best_of_path(path.full(tied, [strength]))
        candidate, n_parameters = self._closed(settings, path.full_prior(tied, strength))
        return self.comparison.judge(candidate, scores, n_parameters)

    @property
    def _has_one_unit(self) -> bool:
        """Whether equal variances are a target: features are many, and all of them numbers."""
        return self.comparison.n_numeric >= WIDE and not self.comparison.n_frequencies

    @cached_property
    def _strengths(self) -> list[float]:
        """Strengths of tied covariances, and an infinite one."""
        return [*(strength * self.comparison.n_numeric for strength in TIED_PATH), float("inf")]

    def _closed(self, settings: Candidate, prior: Shrinkage) -> tuple[Candidate, int]:
        """The settings of a closed form, and the number of its parameters."""
        size, n_classes = self.comparison.n_numeric, self.comparison.n_classes
        n_matrices = n_classes if has_own_matrices(settings.structure) else 1
        n_parameters = (
            n_classes - 1 + n_classes * (size + self.comparison.n_frequencies) + n_matrices * size * (size + 1) // 2
        )
        counts = self.comparison.components(1, settings.structure)
        return replace(settings, n_components=counts, prior=prior), n_parameters

    # ---- more components ----

    def _try_transformed(self, best: Candidate) -> None:
        """Fit one component, and the best number of components of a structure, with transformed features."""
        one = self.comparison.components(1, best.structure)
        if self.have_path and _kind(best.structure) is not None:
            self.closed_forms(transformed=True, only=best.name)
            counts = [best.n_components] if best.n_components != one else []
        else:
            counts = list(dict.fromkeys((one, best.n_components)))
        for each in counts:
            for prior in self._priors(best, max(each), transformed=True):
                self._try(replace(best, n_components=each, prior=prior, transformed=True))

    def _with_more_components(self, name: str, structure: Structure) -> Trial[CandidateFit] | None:
        """The best trial of a structure; the number of components increases while the held-out log-loss decreases."""
        best: Trial[CandidateFit] | None = None
        last = None
        for level in self._levels(name, structure):
            counts = self.comparison.components(level, structure)
            if counts == last:
                break
            last, gains = counts, False
            settings = Candidate(name, structure, counts, None)
            for trial in self._at_level(settings, level):
                if trial is None:
                    return best
                if best is None or trial.score < best.score:
                    best, gains = trial, True
            if not gains:
                break
        return best

    def _at_level(self, settings: Candidate, level: int) -> Iterator[Trial[CandidateFit] | None]:
        """The trials of a number of components, with every prior."""
        if level == 1 and (settings.name, False) in self._of_path:
            yield from self._of_path[settings.name, False]
            return
        for prior in self._priors(settings, level):
            yield self._try(replace(settings, prior=prior))

    def _levels(self, name: str, structure: Structure) -> tuple[int, ...]:
        levels = OTHER_LEVELS if len(self.structures) == 1 else LEVELS.get(name, OTHER_LEVELS)
        return tuple(level for level in levels if level <= MOST_FULL or not has_own_matrices(structure))

    def _try(self, candidate: Candidate) -> Trial[CandidateFit] | None:
        """Run a trial; None if it exceeds the limits of computing time and memory."""
        others = self.search.trials or len(self.structures) > 1
        if others and not self.comparison.affordable(candidate):
            return None

        def trials() -> list[Trial[CandidateFit]]:
            if candidate.transformed and not self.comparison.transforms_any:
                return []
            return [self.comparison.evaluate(candidate)]

        return next(iter(self.search.try_together(trials)), None)

    def _priors(self, settings: Candidate, level: int, transformed: bool = False) -> Sequence[PriorChoice]:
        if not is_auto(self.prior):
            return [self.prior]
        size, structure = self.comparison.n_numeric, settings.structure
        if has_own_matrices(structure):
            return [replace(self._target(settings.name, transformed), strength=FULL_STRENGTH * size)]
        if structure.is_unrestricted:
            return [Shrinkage(strength * size) for strength in TIED_STRENGTHS[: 2 if level == 1 else 1]]
        return [Shrinkage(DIAG_STRENGTH)]

    def _target(self, name: str, transformed: bool) -> Shrinkage:
        """The prior whose target is the best for one component; the usual target unless another one gains."""
        trials = self._of_path.get((name, transformed), [])
        best = min(trials, key=lambda trial: trial.score, default=None)
        for trial in trials:
            prior = _shrinkage_of(trial)
            usual = prior.variances == Shrinkage().variances
            if usual and best is not None and trial.score <= (1 + LEAST_GAIN) * best.score:
                return prior
        return Shrinkage() if best is None else _shrinkage_of(best)


def _shrinkage_of(trial: Trial[CandidateFit]) -> Shrinkage:
    """The prior of a closed form."""
    prior = trial.fit.candidate.prior
    assert isinstance(prior, Shrinkage)
    return prior


def _kind(structure: Structure) -> str | None:
    """Whether one component per class has a closed form with a tied covariance, or with covariances of the classes."""
    if not structure.is_unrestricted:
        return None
    return "full" if has_own_matrices(structure) else "tied"
