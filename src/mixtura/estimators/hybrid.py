"""HybridMixtureClassifier: mixtures that describe the rows and separate the classes (RPTP18)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixtura import checks
from mixtura.engine.passes import map_rows
from mixtura.engine.sources import Block, TensorSource
from mixtura.engine.threads import computing
from mixtura.estimators.classifier import MixtureClassifier
from mixtura.estimators.input import read_labels, read_rows
from mixtura.estimators.model_files import check_fitted
from mixtura.estimators.progress import watcher
from mixtura.model.mixture import Mixture
from mixtura.objectives import Conditional, Hybrid, Margin
from mixtura.objectives.likelihood import class_posteriors
from mixtura.priors import Scaled
from mixtura.roles import Objective
from mixtura.selection.plan import Plan
from mixtura.selection.scores import classification_score
from mixtura.solvers import EM, FileCheckpoint, FitResult, Gradient, HeldOut, Outcome, best_of, fingerprint, run
from mixtura.solvers.gradient import together
from mixtura.values.storable import storable
from mixtura.values.targets import Targets

# The trade-offs that "auto" compares, from describing to separating; 1 is the generative start itself.
PATH = (0.5, 0.1, 0.01)
# Fewer rows than this say too little about trade-offs.
SMALLEST_HELD_OUT = 20
DISCRIMINATIVE = ("margin", "conditional")


@dataclass(frozen=True)
class Trained:
    """A fit with one trade-off: the result, its score on the rows kept out, and the epoch that had it."""

    tradeoff: float
    result: FitResult
    score: tuple[float, ...]
    epoch: int
    scores: list[tuple[float, ...]]


@storable("HybridMixtureClassifier", check=check_fitted)
class HybridMixtureClassifier(MixtureClassifier):
    """Classifies with a Gaussian mixture per class that is trained to describe the rows and to separate the classes.

    Maximises tradeoff * likelihood + (1 - tradeoff) * discriminative (hybrid-objective) by stochastic gradients, from
    a start that EM finds. It stays a density: missing cells, unlabeled rows, `sample`, `impute` and `score_samples`
    work as in MixtureClassifier, the better the larger the trade-off. A row without any observed cell gets the class
    prior.

    A part of the labeled rows is kept out to choose the trade-off and the number of epochs; then all rows are
    fitted again with these. Pass `X_val` and `y_val` to `fit` to have them judged by rows of your own.

    Parameters:
        n_components, covariance_type, rank, prior, class_prior, class_weight, unlabeled, init, n_init, max_iter, tol:
            as in MixtureClassifier; `max_iter` and `tol` are those of the generative start. The log prior counts
            with the likelihood, times tradeoff.
        tradeoff: 1 is generative, 0 discriminative; "auto" compares 1, 0.5, 0.1 and 0.01 on the rows kept out.
        discriminative: "margin" (large margin) or "conditional" (log-likelihood of the classes given the rows).
        margin: wanted distance of log p(x, c) from the best other class; "auto" is the median distance at the start.
        unlabeled_weight: weight of an unlabeled row in the likelihood.
        validation_fraction: part of the labeled rows of every class that is kept out, where that is 20 rows or more;
            None: none, and "auto" becomes 0.5.
        refit: fit all rows again with what was chosen.
        n_epochs, batch_size, learning_rate, patience: of Adam on minibatches; it stops early after `patience` epochs
            without a better score of the rows kept out.
        checkpoint: a file (one for each trade-off, named after it) written after every epoch; a fit broken off goes on.
        tune: a number of trials, or an optuna study: search trade-off, margin, step size and rank by the rows kept out.

    Attributes:
        As MixtureClassifier, and tradeoff_, margin_, n_epochs_ (epochs of the mixture that was kept),
        validation_scores_ (trade-off -> one tuple an epoch, the start first: accuracy - 1 and mean log probability of
        the class, or the latter alone), best_params_ and study_ with `tune`.

    Examples:
        >>> from mixtura import HybridMixtureClassifier
        >>> from mixtura.datasets import make_ripley
        >>> X, y = make_ripley(125, random_state=0)
        >>> model = HybridMixtureClassifier(2, n_epochs=10, random_state=0).fit(X, y)
        >>> bool(model.score(X, y) > 0.85)
        True
    """

    objective = "hybrid"
    solver = "gradient"
    tradeoff_: float
    margin_: float | None
    n_epochs_: int

    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance_type: Any = "full",
        rank: Any = "auto",
        tradeoff: Any = "auto",
        discriminative: str = "margin",
        margin: Any = "auto",
        unlabeled_weight: float = 1.0,
        prior: Any = "default",
        class_prior: Any = "empirical",
        class_weight: Any = None,
        unlabeled: Any = None,
        init: Any = "kmeans",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-4,
        validation_fraction: float | None = 0.1,
        refit: bool = True,
        n_epochs: int = 50,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        patience: int = 10,
        checkpoint: Any = None,
        tune: Any = None,
        device: Any = None,
        dtype: Any = None,
        memory_limit: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ):
        super().__init__(
            n_components,
            covariance_type=covariance_type,
            rank=rank,
            objective=self.objective,
            solver=self.solver,
            prior=prior,
            class_prior=class_prior,
            class_weight=class_weight,
            unlabeled=unlabeled,
            init=init,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            device=device,
            dtype=dtype,
            memory_limit=memory_limit,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
        )
        self.tradeoff = tradeoff
        self.discriminative = discriminative
        self.margin = margin
        self.unlabeled_weight = unlabeled_weight
        self.validation_fraction = validation_fraction
        self.refit = refit
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.checkpoint = checkpoint
        self.tune = tune

    def fit(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Any, y: Any = None, sample_weight: Any = None, X_val: Any = None, y_val: Any = None
    ) -> HybridMixtureClassifier:
        """Fit the mixture.

        Arguments:
            X, y, sample_weight: as in MixtureClassifier; all rows are held in memory.
            X_val, y_val: rows that only choose trade-off and epoch, instead of `validation_fraction`; without a refit.
        """
        if self.tune is not None:
            from mixtura.estimators.tuning import tuned

            return tuned(self, X, y, sample_weight, X_val, y_val)
        self._check_arguments()
        source, classes = self._read_problem(X, y, sample_weight, self._objective())
        with computing():
            block = together(source)
            kept, held_out = self._split(block, classes, X_val, y_val)
            plan = self._plan(kept, classes, self._objective())
            best = self._best(plan, held_out)
            if held_out is not None and X_val is None and self.refit and best.result.outcome is not Outcome.INTERRUPTED:
                plan = self._plan(source, classes, self._objective())
                best = self._again(best, plan)
        self.tradeoff_, self.n_epochs_ = best.tradeoff, best.epoch
        self._keep(replace(best.result, outcome=self._outcome(best)), plan)
        return self

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _check_arguments(self) -> None:
        checks.switch("warm_start", self.warm_start)
        checks.switch("refit", self.refit)
        checks.count("verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, 0)
        checks.count("n_epochs", self.n_epochs, 0)
        checks.count("batch_size", self.batch_size)
        checks.count("patience", self.patience)
        checks.positive("learning_rate", self.learning_rate)
        checks.checkpoint(self.checkpoint)
        if self.validation_fraction is not None:
            checks.fraction("validation_fraction", self.validation_fraction)
        if not _is_auto(self.margin):
            checks.positive("margin", self.margin, ' or "auto"')

    def _objective(self) -> Hybrid:
        """The objective, for its kind: trade-off and margin may still be open."""
        tradeoff = PATH[0] if _is_auto(self.tradeoff) else checks.share("tradeoff", self.tradeoff, ' or "auto"')
        checks.one_of("discriminative", self.discriminative, DISCRIMINATIVE)
        weight = checks.non_negative("unlabeled_weight", self.unlabeled_weight)
        other: Objective = Conditional()
        if self.discriminative == "margin":
            other = Margin(1.0 if _is_auto(self.margin) else float(self.margin))
        return Hybrid(tradeoff, other, weight)

    # ---- rows kept out ---------------------------------------------------------------------------------------------

    def _split(
        self, block: Block, classes: np.ndarray, X_val: Any, y_val: Any
    ) -> tuple[TensorSource, TensorSource | None]:
        """The rows to fit, and the rows to choose by."""
        whole = TensorSource(block.rows, block.labels, block.shares, block.weights)
        if X_val is not None:
            return whole, self._given_validation(X_val, y_val, classes, block)
        chosen = self._chosen(block, len(classes))
        if chosen is None:
            return whole, None
        return part_of(block, ~chosen), part_of(block, chosen)

    def _given_validation(self, X_val: Any, y_val: Any, classes: np.ndarray, block: Block) -> TensorSource:
        rows = read_rows(self, X_val, reset=False)
        labels = read_labels(y_val, len(rows), None, type(self).__name__)
        strangers = [] if labels.numbers is None else np.setdiff1d(labels.classes, classes).tolist()
        if labels.numbers is None or strangers:
            raise ValueError(
                f"y_val must hold one label per row, each of them a class of y; got {strangers or 'soft labels'}."
            )
        numbers = torch.from_numpy(np.searchsorted(classes, labels.classes))[labels.numbers]
        values = rows.values if isinstance(rows.values, Tensor) else torch.from_numpy(np.array(rows.values))
        return TensorSource(values.to(block.rows), numbers.to(block.rows.device))

    def _chosen(self, block: Block, n_classes: int) -> Tensor | None:
        """Which rows are kept out, (n,): the same part of every class; None where they would be too few."""
        if self.validation_fraction is None or block.labels is None:
            return None
        random_state, _ = self._generator()
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        labels = block.labels.cpu()
        present = torch.ones_like(labels, dtype=torch.bool) if block.weights is None else block.weights.cpu() > 0
        chosen = torch.zeros_like(present)
        for c in range(n_classes):
            own = ((labels == c) & present).nonzero()[:, 0]
            order = torch.randperm(len(own), generator=generator)
            chosen[own[order[: int(self.validation_fraction * len(own))]]] = True
        return chosen.to(block.rows.device) if int(chosen.sum()) >= SMALLEST_HELD_OUT else None

    # ---- fitting ---------------------------------------------------------------------------------------------------

    def _best(self, plan: Plan, held_out: TensorSource | None) -> Trained:
        """The trade-off that the rows kept out prefer, the more generative of equals."""
        start = best_of(self._n_starts(), lambda: self._generative(plan))
        self.margin_ = self._margin(start.mixture, plan)
        self.validation_scores_ = {}
        if start.outcome is Outcome.INTERRUPTED:
            return Trained(1.0, start, (), 0, [])
        tradeoffs = [float(self.tradeoff)] if not _is_auto(self.tradeoff) else list(PATH)
        if held_out is None:
            return self._trained(start.mixture, tradeoffs[0], plan, None)
        best: Trained | None = None
        for tradeoff in tradeoffs:
            found = self._trained(start.mixture, tradeoff, plan, held_out)
            self.validation_scores_[tradeoff] = found.scores
            if best is None and _is_auto(self.tradeoff):  # the start is a candidate too
                best = Trained(1.0, start, found.scores[0], 0, found.scores[:1])
                self.validation_scores_ = {1.0: found.scores[:1], **self.validation_scores_}
            if best is None or found.score > best.score:
                best = found
            if found.result.outcome is Outcome.INTERRUPTED:
                return replace(best, result=replace(best.result, outcome=Outcome.INTERRUPTED))
        assert best is not None
        return best

    def _generative(self, plan: Plan) -> FitResult:
        """The start: EM, or a mixture that was handed over."""
        given = self._given_start(plan)
        if given is not None:
            return FitResult(given, Outcome.CONVERGED, ())
        max_iter, tol = checks.count("max_iter", self.max_iter, 0), checks.non_negative("tol", self.tol)
        problem = replace(plan.problem, objective=replace(self._objective(), tradeoff=1.0))
        result = run(EM(), problem, self._new_start(plan, problem=problem), max_iter, tol)
        return replace(result, mixture=plan.converted(result.mixture))

    def _margin(self, start: Mixture, plan: Plan) -> float | None:
        """The wanted margin; "auto" is the median of the margins at the start, and at least one."""
        if self.discriminative != "margin":
            return None
        if not _is_auto(self.margin):
            return float(self.margin)
        known = Targets(start.class_of, known_classes=start.n_classes)
        scores = map_rows(start, plan.source, lambda a: class_posteriors(a, known)[0].T)  # (n, C)
        first, second = scores.topk(2, dim=1).values.unbind(1)
        return max(1.0, float((first - second).median()))

    def _trained(
        self,
        start: Mixture,
        tradeoff: float,
        plan: Plan,
        held_out: TensorSource | None,
        n_epochs: int | None = None,
    ) -> Trained:
        """Epochs with one trade-off."""
        objective = replace(self._objective(), tradeoff=tradeoff)
        if isinstance(objective.discriminative, Margin) and self.margin_ is not None:
            objective = replace(objective, discriminative=Margin(self.margin_))
        prior = None if plan.prior is None or tradeoff == 0 else Scaled(plan.prior, tradeoff)
        problem = replace(plan.problem, objective=objective, prior=prior, seed=self._seed())
        solver = Gradient("adam", float(self.learning_rate), batch_size=self.batch_size)
        checkpoint = None
        if self.checkpoint is not None:
            name = f"{self.checkpoint}.{'all' if held_out is None else tradeoff}"
            checkpoint = FileCheckpoint(name, fingerprint(solver, problem, start, held_out))
        judge = None
        if held_out is not None:
            score = classification_score(held_out, self.discriminative == "margin", plan.memory_limit)
            judge = HeldOut(score, patience=self.patience)
        n_epochs = self.n_epochs if n_epochs is None else n_epochs
        with watcher(self.verbose, n_epochs, type(self).__name__) as watch:
            result = run(solver, problem, start, n_epochs, 0.0, watch, held_out=judge, checkpoint=checkpoint)
        scores = [score for _, score in result.scores]
        return Trained(tradeoff, result, max(scores, default=()), result.best_iteration, scores)

    def _seed(self) -> int:
        """The order of the minibatches: the same for every trade-off."""
        random_state, _ = self._generator()
        return int(random_state.randint(2**31 - 1))

    def _again(self, best: Trained, plan: Plan) -> Trained:
        """The chosen trade-off and number of epochs, with all rows."""
        start = best_of(self._n_starts(), lambda: self._generative(plan))
        if (best.tradeoff == 1.0 and best.epoch == 0) or start.outcome is Outcome.INTERRUPTED:
            return replace(best, result=start)
        found = self._trained(start.mixture, best.tradeoff, plan, None, best.epoch)
        return replace(best, result=found.result)

    def _outcome(self, best: Trained) -> Outcome:
        """All epochs done is how such a fit extents: nothing to warn about."""
        limit = best.result.outcome is Outcome.LIMIT
        return Outcome.HELD_OUT if limit else best.result.outcome


def part_of(block: Block, chosen: Tensor) -> TensorSource:
    """Some rows of a block, with all that is known of them."""
    known = (None if part is None else part[chosen] for part in (block.labels, block.shares, block.weights))
    return TensorSource(block.rows[chosen], *known)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"
