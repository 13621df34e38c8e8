"""Closed forms of one Gaussian per class: what they select, and that the fitted model is the one they scored."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from cases import assert_close
from mixtura import MixtureClassifier, load
from mixtura.covariances import Full, Tied
from mixtura.engine.evaluator import Evaluator
from mixtura.engine.passes import moments_by_label, without_rows
from mixtura.engine.sources import TensorSource
from mixtura.init.description import describe
from mixtura.init.starts import starting_mixture
from mixtura.priors import Shrinkage
from mixtura.selection.closed_forms import ClassScatters, ShrinkagePath, Spectrum, score_tied, shrinkage_units
from mixtura.selection.comparison import Comparison
from mixtura.selection.search import Search
from mixtura.selection.splits import Split
from test_bad_input import refused

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def wide(rng):
    """More features than products of them are formed for, and classes with fewer samples than features."""
    X = rng.normal(size=(150, 140)) @ rng.normal(size=(140, 140)) / 12
    y = np.arange(150) % 3
    return X + 0.6 * rng.normal(size=(3, 140))[y], y


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_one_gaussian_per_class_is_the_first_update(wide, covariance_type):
    X, y = wide
    model = MixtureClassifier(1, covariance_type=covariance_type, prior=Shrinkage(30.0, variances="pooled")).fit(X, y)
    means = np.stack([X[y == c].mean(0) for c in range(3)])
    scatters = np.stack([(X[y == c] - means[c]).T @ (X[y == c] - means[c]) for c in range(3)])
    target = 30.0 * np.diag(scatters.sum(0).diagonal() / 150)
    pooled = np.broadcast_to((scatters.sum(0) + target) / (150 + 30), scatters.shape)
    assert_close(model.means_, means)
    assert_close(
        model.mixture_.covariance.dense(), (scatters + target) / (50 + 30) if covariance_type == "full" else pooled
    )
    score = model.history_[-1].objective
    again = MixtureClassifier(
        1, covariance_type=covariance_type, prior=model.prior, warm_start=True, init=model.mixture_
    )
    assert_close(again.fit(X, y).history_[0].objective, score)


@pytest.mark.parametrize("structure", [Full(), Tied(Full())])
def test_moments_of_assigned_rows_are_those_of_a_pass(wide, rng, structure):
    X, y = wide
    weights = rng.uniform(0.1, 2, len(X))
    source = TensorSource(torch.from_numpy(X), torch.from_numpy(y), None, torch.from_numpy(weights))
    generator = torch.Generator().manual_seed(0)
    description = describe(source, 3, generator)
    rough, assigned = starting_mixture(description, structure, [2, 1, 1], "kmeans", generator)
    rows, shares, components = (torch.cat(parts) for parts in zip(*assigned, strict=True))
    actual = moments_by_label(rough.means, TensorSource(rows, components, None, shares), rough.covariance)
    for k in range(4):
        own = (components == k).numpy()
        deviations = rows.numpy()[own] - rough.means[k].numpy()
        assert_close(actual.counts[k], shares.numpy()[own].sum())
        assert_close(actual.firsts[k], shares.numpy()[own] @ deviations)
        assert_close(actual.seconds[0][k], (deviations * shares.numpy()[own, None]).T @ deviations)
    assert Evaluator(rough, description.frame, torch.float64).n_shared == 0


class TestTargets:
    """The targets of `Shrinkage` against their formulas."""

    @pytest.fixture
    def classes(self, rng):
        X = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 5)) * [1, 10, 0.1, 1, 1]
        y, weights = np.arange(60) % 3, rng.uniform(0.5, 2.0, 60)
        source = TensorSource(torch.from_numpy(X), torch.from_numpy(y), None, torch.from_numpy(weights))
        description = describe(source, 3, torch.Generator().manual_seed(0))
        means = np.stack([np.average(X[y == c], axis=0, weights=weights[y == c]) for c in range(3)])
        deviations = X - means[y]
        return description, (deviations * weights[:, None]).T @ deviations, weights.sum()

    @pytest.mark.parametrize("variances", ["covariance", "identity"])
    @pytest.mark.parametrize("n_components", [1, 4])
    def test_the_target_is_shrunk_itself(self, classes, variances, n_components):
        description, scatter, weight = classes
        scales = description.scales_for([n_components] * 3)
        prior = Shrinkage(4.0, 2.0, variances, target_strength=7.0).prior(scales)
        diagonal = scatter.diagonal() / weight
        own = np.diag(diagonal) if variances == "covariance" else np.eye(5) * diagonal.mean()
        expected = (scatter + 7.0 * own) / (weight + 7.0) * n_components ** (-2 / 5)
        assert_close(prior.variances, 2.0 * expected)
        assert prior.strength == 4

    def test_equal_variances(self, classes):
        description, scatter, weight = classes
        prior = Shrinkage(4.0, variances="identity").prior(description.scales_for([1] * 3))
        assert_close(prior.variances, np.full(5, scatter.diagonal().mean() / weight))

    def test_constant_features_have_the_variance_of_the_others(self, rng):
        X = rng.normal(size=(30, 4))
        X[:, 2] = 5.0
        source = TensorSource(torch.from_numpy(X), torch.from_numpy(np.arange(30) % 2))
        description = describe(source, 2, torch.Generator().manual_seed(0))
        shrunk = description.shrunk_covariance(3.0, False)
        assert_close(shrunk.diagonal(), description.within)
        assert_close(shrunk[2], float(description.within[2]) * np.eye(4)[2])

    def test_pairs_of_observed_values_give_a_matrix(self, rng):
        X = rng.normal(size=(40, 12)) @ rng.normal(size=(12, 12))
        X[rng.random(X.shape) < 0.6] = np.nan
        source = TensorSource(torch.from_numpy(X), torch.from_numpy(np.arange(40) % 2))
        description = describe(source, 2, torch.Generator().manual_seed(0))
        for identity in (False, True):
            assert torch.linalg.eigvalsh(description.shrunk_covariance(1e-3, identity))[0] > 0

    def test_what_has_no_matrix_is_refused(self):
        refused(
            lambda: Shrinkage(target_strength=3.0),
            "target_strength=3 needs variances='covariance' or 'identity', whose target is a matrix; got 'expected'. "
            "Leave target_strength=None.",
        )
        refused(
            lambda: Shrinkage(variances="identity", target_strength=0),
            "target_strength must be a number above 0 or None; got 0.",
        )

    def test_it_says_what_it_is(self):
        assert str(Shrinkage(4.0, variances="identity", target_strength=9)) == "4 rows, 1 x identity, target 9 rows"


class TestPath:
    """The scores of the path are those of the fitted mixture."""

    @pytest.fixture(params=["hard", "weights", "soft"])
    def labeled(self, rng, request):
        """Features and shares of classes; one class has more samples than features, one fewer, one a single one."""
        X = rng.normal(size=(120, 40)) @ rng.normal(size=(40, 40)) / 6
        y = np.repeat([0, 1, 2], [90, 29, 1])
        X[:, :3] += y[:, None]
        X[:, 7] = 2.0
        weights = rng.uniform(0.3, 3.0, 120) if request.param == "weights" else np.ones(120)
        shares = rng.dirichlet([0.1] * 3, 120) if request.param == "soft" else np.eye(3)[y]
        return X, shares, weights

    @pytest.mark.parametrize("target", ["pooled", "identity", "expected"])
    @pytest.mark.parametrize("few", [False, True])
    def test_scores_are_those_of_the_fitted_mixture(self, labeled, rng, target, few):
        X, shares, weights = (part[70:] if few else part for part in labeled)
        rows = rng.normal(size=(9, 40))
        rows[:, 7] = 2.0
        source = TensorSource(torch.from_numpy(X), None, torch.from_numpy(shares), torch.from_numpy(weights))
        generator = torch.Generator().manual_seed(0)
        description = describe(source, 3, generator)
        varies, scales = description.varies, shrinkage_units(description, target)
        assert varies.sum() == 39
        parts = [torch.from_numpy(part) for part in (X, shares, weights)]
        classes = ClassScatters.of(parts[0][:, varies], *parts[1:]).in_units(scales[varies])
        given = torch.from_numpy(rows)[:, varies] / scales[varies]
        # The path leaves out what all classes have in common.
        common = 20 * np.log(2 * np.pi) + float(scales[varies].log().sum() + description.within[7].log() / 2)
        tied = score_tied(classes, given, (0.5, 20.0))
        kappa = np.inf if target == "expected" else 20.0
        full = classes.full(given, kappa, (3.0, 100.0))
        path = ShrinkagePath(parts[0], Full(), *parts[1:], [], target)
        fits = [
            *(("tied", path.tied_prior(strength)) for strength in (0.5, 20.0)),
            *(("full", path.full_prior(kappa, strength)) for strength in (3.0, 100.0)),
        ]
        for scores, (covariance_type, prior) in zip((*tied, *full), fits, strict=True):
            model = MixtureClassifier(1, covariance_type=covariance_type, prior=prior).fit(X, shares, weights)
            assert_close(scores - common, model.predict_joint_log_proba(rows), 1e-9)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_categories_add_the_log_frequencies_of_the_fitted_mixture(self, rng, weighted):
        y, weights = np.arange(90) % 3, rng.uniform(0.3, 3.0, 90) if weighted else np.ones(90)
        X = pd.DataFrame({"x": rng.normal(size=90) + y, "z": rng.normal(size=90)})
        X["place"] = np.array(list("abcdefghijk"))[(np.arange(90) * 7 + 2 * y) % 11]
        X["kind"] = np.array(["new", "old"])[(rng.random(90) < 0.2 + 0.3 * y).astype(int)]
        kept = np.arange(90) < 60
        models = {
            kind: MixtureClassifier(1, covariance_type=kind, prior=prior).fit(X[kept], y[kept], weights[kept])
            for kind, prior in (("tied", Shrinkage(6.0, variances="pooled")), ("full", Shrinkage(3.0)))
        }
        encoding, structure = models["full"].encoding_, models["full"].mixture_.covariance.kind
        rows = torch.from_numpy(encoding.encode(X))
        split = Split(torch.from_numpy(kept), torch.from_numpy(~kept))
        parts = torch.eye(3, dtype=torch.float64)[torch.from_numpy(y)], torch.from_numpy(weights)
        source = TensorSource(rows[kept], torch.from_numpy(y[kept]), None, parts[1][kept])
        description = describe(source, 3, torch.Generator().manual_seed(0))
        paths = {t: ShrinkagePath(rows, structure, *parts, [(description, split)], t) for t in ("pooled", "expected")}
        scored = {"tied": paths["pooled"].tied([6.0])[0], "full": paths["expected"].full(np.inf, [3.0])[0]}
        for kind, scores in scored.items():
            assert bool(scores[torch.from_numpy(kept)].isinf().all())
            differences = scores[torch.from_numpy(~kept), 0].numpy() - models[kind].predict_joint_log_proba(X[~kept])
            assert_close(differences - differences[0, 0], np.zeros((30, 3)), 1e-9)

    def test_parts_with_more_and_fewer_rows_than_features_have_one_spectrum(self, rng):
        deviations = torch.from_numpy(rng.normal(size=(12, 9)))
        repeated = torch.cat([deviations, torch.zeros(0, 9, dtype=torch.float64)])
        wide = torch.cat([deviations, torch.zeros(12, 20, dtype=torch.float64)], 1)
        rows, means = torch.from_numpy(rng.normal(size=(5, 29))), torch.from_numpy(rng.normal(size=(2, 29)))
        by_rows, by_features = Spectrum.of(wide), Spectrum.of(torch.cat([wide, torch.zeros(40, 29).double()]))
        assert (by_rows.axes.shape[1], by_features.axes.shape[1]) == (9, 29)
        assert len(repeated) == 12
        for strength, one, other in zip(
            (0.1, 7.0),
            by_rows.distances(rows, means, (0.1, 7.0)),
            by_features.distances(rows, means, (0.1, 7.0)),
            strict=True,
        ):
            matrix = (wide.T @ wide + strength * torch.eye(29).double()).numpy()
            differences = rows.numpy()[:, None] - means.numpy()
            expected = np.einsum("nci,ij,ncj->nc", differences, np.linalg.inv(matrix), differences)
            assert_close(one, expected)
            assert_close(other, expected)
            assert_close(by_rows.log_determinant(strength), np.linalg.slogdet(matrix)[1])
            assert_close(by_features.log_determinant(strength), np.linalg.slogdet(matrix)[1])
            white = [each.whiten(rows, strength, 3.0).numpy() for each in (by_rows, by_features)]
            products = rows.numpy() @ np.linalg.inv(matrix / (3.0 + strength)) @ rows.numpy().T
            assert_close(white[0] @ white[0].T, products)
            assert_close(white[1] @ white[1].T, products)


class TestChoice:
    """The automatic choice with closed forms."""

    def test_wide_features_are_decided_by_closed_forms(self, wide):
        X, y = wide
        model = MixtureClassifier(random_state=0).fit(X, y)
        assert (model.n_iter_, model.converged_, model.warp_) == (1, True, None)
        assert {part.what["covariance_type"] for part in model.search_} == {"tied", "full"}
        assert {part.what["n_components"] for part in model.search_} == {1}
        assert {part.what["prior"].variances for part in model.search_} >= {"pooled", "identity"}
        best = model.search_.best.what
        again = MixtureClassifier(1, covariance_type=best["covariance_type"], prior=best["prior"]).fit(X, y)
        assert_close(model.predict_joint_log_proba(X), again.predict_joint_log_proba(X))
        assert_close(model.history_[0].objective, again.history_[-1].objective)

    @pytest.mark.parametrize("constant", [False, True])
    @pytest.mark.parametrize("options", [{}, {"covariance_type": "tied"}, {"class_prior": [0.2, 0.3, 0.5]}])
    def test_the_objective_of_the_first_update_is_that_of_a_pass(self, wide, constant, options):
        X, y = wide[0].copy(), wide[1]
        if constant:
            X[:, 3] = 2.0
        weights = 1.0 + np.arange(150) % 4
        model = MixtureClassifier(random_state=0, **options).fit(X, y, weights)
        best = model.search_.best.what
        given = {"prior": best["prior"], "covariance_type": best["covariance_type"], "init": model.mixture_}
        again = MixtureClassifier(1, **(options | given)).fit(X, y, weights)
        assert_close(model.history_[0].objective, again.history_[0].objective)

    @pytest.mark.parametrize(
        "options", [{"covariance_type": "full"}, {"time_budget": 1e9}, {"prior": "default"}, {"warp": "johnson"}]
    )
    def test_arguments_ask_for_more(self, wide, options):
        X, y = wide
        model = MixtureClassifier(random_state=0, cv=2, **options).fit(X[:, :100], y)
        kinds = {part.what["covariance_type"] for part in model.search_}
        if "warp" in options:
            assert kinds == {"tied", "full"}
        elif "covariance_type" in options:
            assert kinds == {"full"}
        else:
            assert "diag" in kinds

    def test_many_samples_are_held_out_once(self, rng):
        y = np.arange(1200) % 2
        X = rng.normal(size=(1200, 100)) + 0.2 * y[:, None]
        assert MixtureClassifier(random_state=0).fit(X, y).label_noise_ == 1 / 241
        few = (np.arange(1200) < 20).astype(int)  # of which 16 would be left for training
        assert MixtureClassifier(random_state=0).fit(X, few).label_noise_ < 1 / 900
        given = [(np.arange(600), np.arange(600, 900))]
        assert MixtureClassifier(random_state=0, cv=given).fit(X, y).label_noise_ == 1 / 301

    @pytest.mark.parametrize("kind", ["missing", "unlabeled"])
    def test_what_has_no_closed_form_is_fitted_by_em(self, wide, kind):
        X, y = wide[0][:, :30].copy(), wide[1].copy()
        X[:, 0] += 3 * y
        if kind == "missing":
            X[0, 0] = np.nan
        else:
            y[::5] = -1
        model = MixtureClassifier(random_state=0, unlabeled=-1, cv=2).fit(X, y)
        priors = {part.what["prior"].target_strength for part in model.search_}
        assert priors == {None}

    @pytest.mark.parametrize("size", [20, 120])
    def test_weights_count_as_samples(self, rng, size):
        y, weights = np.arange(60) % 2, 1 + np.arange(60) % 3 // 2
        X = rng.normal(size=(60, size)) + y[:, None]
        half = np.arange(60) < 30
        repeats = np.repeat(np.arange(60), weights)
        weighted = MixtureClassifier(random_state=0, cv=[(np.flatnonzero(half), np.flatnonzero(~half))])
        repeated = MixtureClassifier(
            random_state=0, cv=[(np.flatnonzero(half[repeats]), np.flatnonzero(~half[repeats]))]
        )
        options = {"covariance_type": "full"} if size < 100 else {}
        weighted.set_params(**options).fit(X, y, weights)
        repeated.set_params(**options).fit(X[repeats], y[repeats])
        ones, others = weighted.search_.candidates[0], repeated.search_.candidates[0]
        assert_close(ones.score, others.score)
        assert ones.what == others.what

    def test_soft_labels_have_closed_forms(self, wide, rng):
        X, y = wide
        hard = np.eye(3)[y]
        soft = 0.9 * hard + 0.1 / 3
        model = MixtureClassifier(random_state=0).fit(X, soft)
        assert model.n_iter_ == 1
        same = MixtureClassifier(random_state=0).fit(X, hard).search_.best
        assert_close(same.score, MixtureClassifier(random_state=0).fit(X, y).search_.best.score)

    def test_files_of_batches_are_fitted_by_the_same_choice(self, wide):
        X, y = wide
        batches = [(X[:70], y[:70]), (X[70:], y[70:])]
        streamed = MixtureClassifier(random_state=0).fit(batches)
        whole = MixtureClassifier(1, prior=streamed.search_.best.what["prior"])
        whole.set_params(covariance_type=streamed.search_.best.what["covariance_type"]).fit(X, y)
        assert_close(streamed.predict_joint_log_proba(X), whole.predict_joint_log_proba(X))
        assert streamed.n_iter_ == 1


def test_a_common_unit_is_free_and_the_unit_of_a_column_is_not(wide):
    X, y = wide
    prior = Shrinkage(50.0, variances="identity", target_strength=100.0)
    model = MixtureClassifier(1, prior=prior).fit(X, y)
    assert_close(MixtureClassifier(1, prior=prior).fit(1e3 * X, y).predict_proba(1e3 * X), model.predict_proba(X), 1e-7)
    units = np.where(np.arange(X.shape[1]) == 3, 100.0, 1.0)
    other = MixtureClassifier(1, prior=prior).fit(units * X, y).predict_joint_log_proba(units * X)
    assert abs(np.diff(other) - np.diff(model.predict_joint_log_proba(X))).max() > 0.1
    free = replace(prior, variances="covariance")
    ones, others = (
        MixtureClassifier(1, prior=free).fit(factors * X, y).predict_proba(factors * X) for factors in (1.0, units)
    )
    assert_close(ones, others, 1e-7)


class TestManySamples:
    """Held-out samples are taken away from the moments of all rows (class-moments)."""

    @pytest.fixture(autouse=True)
    def few_are_many(self, monkeypatch):
        for file in ("comparison", "automatic"):
            monkeypatch.setattr(f"mixtura.selection.{file}.SELECTION_SAMPLES", 60)

    @pytest.fixture
    def many(self, rng):
        """Classes of 30, 90 and 180 samples, with covariances of their own, and one that has a single sample."""
        y = np.repeat([0, 1, 2, 3], [30, 90, 180, 1])
        X = rng.normal(size=(301, 104)) * np.array([1.0, 0.7, 1.5, 1.0])[y, None]
        X[:, :40] += X[:, 60:100] * (y == 1)[:, None]
        order = rng.permutation(301)
        X[:, 4] = 2.0
        return (X + 0.3 * rng.normal(size=(4, 104))[y] * (np.arange(104) != 4))[order], y[order]

    @pytest.mark.parametrize("labels", ["hard", "weights", "soft"])
    @pytest.mark.parametrize("in_parts", [False, True])
    def test_moments_are_sums_over_the_samples(self, many, rng, device, labels, in_parts):
        X, y = many
        shares = rng.dirichlet(np.ones(4), 301) if labels == "soft" else np.eye(4)[y]
        weights = rng.uniform(0.5, 2.0, 301) if labels == "weights" else np.ones(301)
        means = rng.normal(size=(4, 104))
        known = (torch.from_numpy(y), torch.from_numpy(shares) if labels == "soft" else None, torch.from_numpy(weights))
        rows = torch.from_numpy(X)
        cuts = [0, 100, 101, 301] if in_parts else [0, 301]
        parts = [
            TensorSource(*(p if p is None else p[i:j].to(device) for p in (rows, *known))) for i, j in pairwise(cuts)
        ]

        class Parts(TensorSource):
            def blocks(self):
                return (block for part in parts for block in part.blocks())

        total = moments_by_label(torch.from_numpy(means).to(device), Parts(rows[:0].to(device)))
        for c, mean in enumerate(means):
            own = shares[:, c] * weights
            assert_close(total.counts[c], own.sum())
            assert_close(total.firsts[c], own @ (X - mean))
            assert_close(total.seconds[0][c], ((X - mean) * own[:, None]).T @ (X - mean))
        some = TensorSource(*(part if part is None else part[:100].to(device) for part in (rows, *known)))
        rest = without_rows(total, next(some.blocks()))
        again = sum_of(means, X[100:], (shares * weights[:, None])[100:])
        for part, expected in zip((rest.counts, rest.firsts, rest.seconds[0]), again, strict=True):
            torch.testing.assert_close(part.cpu(), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_held_out_samples_are_scored_by_the_fit_to_the_others(self, many, rng, monkeypatch, weighted):
        X, y = many
        weights = rng.uniform(0.5, 2.0, 301) if weighted else np.ones(301)
        comparison = comparison_of(X, y, weights, monkeypatch)
        held_out = (X[:, None] == comparison.rows.numpy()).all(2).any(1)
        assert 40 <= held_out.sum() == len(comparison.rows) <= 60
        for c in range(4):
            own = weights[held_out & (y == c)]
            assert own.sum() <= (0.5 if len(own) == 1 else 0.2) * weights[y == c].sum()
        path = comparison.path("pooled", False)
        scored = {
            ("tied", path.tied_prior(50.0)): path.tied([50.0])[0],
            ("full", path.full_prior(50.0, 20.0)): path.full(50.0, [20.0])[0],
            ("full", path.full_prior(np.inf, 20.0)): path.full(np.inf, [20.0])[0],
        }
        for (kind, prior), scores in scored.items():
            model = MixtureClassifier(1, covariance_type=kind, prior=prior)
            model.fit(X[~held_out], y[~held_out], weights[~held_out])
            differences = scores[:, 0].numpy() - model.predict_joint_log_proba(comparison.rows.numpy())
            assert_close(differences, np.full_like(differences, differences[0, 0]), 1e-8)

    def test_classes_of_few_samples_are_held_out_too(self, rng):
        y = np.repeat(np.arange(100), 2)
        X = rng.normal(size=(100, 100))[y] + 0.3 * rng.normal(size=(200, 100))
        model = MixtureClassifier(random_state=0).fit(X, y)
        assert model.search_ is not None
        assert 1 / 61 <= model.label_noise_ < 1 / 30
        assert model.score(X, y) > 0.9

    def test_the_model_is_the_fit_to_all_samples(self, many):
        X, y = many
        model = MixtureClassifier(random_state=0, average=1).fit(X, y)
        assert (model.n_iter_, model.converged_) == (1, True)
        assert [part.what["covariance_type"] for part in model.search_] == ["tied", "tied", "full"]
        best = model.search_.best.what
        again = MixtureClassifier(1, covariance_type=best["covariance_type"], prior=best["prior"]).fit(X, y)
        assert_close(model.predict_joint_log_proba(X), again.predict_joint_log_proba(X))
        assert_close(model.history_[0].objective, again.history_[-1].objective)

    @pytest.mark.parametrize("labels", ["hard", "weights", "soft"])
    def test_too_many_matrices_leave_the_tied_path(self, many, rng, monkeypatch, labels):
        X, y = many
        weights = rng.uniform(0.5, 2.0, 301) if labels == "weights" else np.ones(301)
        y = np.eye(4)[y] * 0.9 + 0.025 if labels == "soft" else y
        whole = MixtureClassifier(random_state=0, average=1).fit(X, y, weights)
        monkeypatch.setattr("mixtura.selection.automatic.MOST_SCATTERED", 3 * 104**2)
        model = MixtureClassifier(random_state=0, average=1).fit(X, y, weights)
        assert [part.what["covariance_type"] for part in model.search_] == ["tied", "tied"]
        for part, other in zip(model.search_, whole.search_, strict=False):
            assert part.what == other.what
            assert_close(part.score, other.score)
        again = MixtureClassifier(1, covariance_type="tied", prior=model.search_.best.what["prior"]).fit(X, y, weights)
        assert_close(model.predict_joint_log_proba(X), again.predict_joint_log_proba(X))
        assert_close(model.history_[0].objective, again.history_[-1].objective)
        assert model.n_iter_ == 1

    @pytest.mark.parametrize("own_axes", [True, False])
    def test_few_directions_of_every_class_are_compared_with_tied_covariances(self, rng, monkeypatch, own_axes):
        """Trained on samples that are not held out; all rows train the model."""
        monkeypatch.setattr("mixtura.selection.automatic.MOST_SCATTERED", 104**2)
        monkeypatch.setattr("mixtura.selection.automatic.LARGEST_DENSE", 100)
        for file in ("comparison", "automatic"):
            monkeypatch.setattr(f"mixtura.selection.{file}.SELECTION_SAMPLES", 300)
        y, axes = np.arange(900) % 3, rng.normal(size=(3, 2, 104))
        X = 0.5 * rng.normal(size=(900, 104)) + 0.1 * rng.normal(size=(3, 104))[y]
        X += np.einsum("nr,nrd->nd", rng.normal(size=(900, 2)), axes[y] if own_axes else axes[0 * y])
        comparison = comparison_of(X, y, np.ones(900), monkeypatch)
        held_out, others = comparison.rows.numpy(), next(comparison.others.blocks())
        assert len(held_out) + len(others.rows) == 600
        assert not (held_out[:, None] == others.rows.numpy()).all(2).any()
        assert comparison.rows_apart == torch.bincount(others.labels).min()
        model = MixtureClassifier(random_state=0, average=1, rank=2).fit(X, y)
        assert [part.what["covariance_type"] for part in model.search_] == ["tied", "tied", "low_rank"]
        assert model.search_.best.what["covariance_type"] == ("low_rank" if own_axes else "tied")
        assert model.training_weight_ == 900
        if own_axes:
            again = MixtureClassifier(1, covariance_type="low_rank", rank=2, prior="default", random_state=0).fit(X, y)
            assert_close(model.predict_joint_log_proba(X), again.predict_joint_log_proba(X), 0.02)
            assert model.score(X, y) > 0.9

    @pytest.mark.parametrize("where", ["memory map", "half precision", "batches", "dask", "parquet"])
    def test_rows_may_lie_anywhere(self, many, tmp_path, where):
        X, y = many[0].astype(np.float16 if where == "half precision" else np.float32), many[1]
        rows, inside = X, MixtureClassifier(random_state=0).fit(torch.from_numpy(X).float(), y)
        if where == "batches":
            outside = MixtureClassifier(random_state=0).fit([(X[:120], y[:120]), (X[120:], y[120:])])
        elif where == "parquet":
            FileBatches = pytest.importorskip("mixtura.streams.files").FileBatches
            table = pd.DataFrame(X, columns=[f"x{j}" for j in range(104)]).assign(label=y)
            rows = table.drop(columns="label")
            table[:120].to_parquet(tmp_path / "a.parquet")
            table[120:].to_parquet(tmp_path / "b.parquet")
            outside = MixtureClassifier(random_state=0)
            outside.fit(FileBatches([tmp_path / "a.parquet", tmp_path / "b.parquet"], label="label"))
        elif where == "dask":
            da = pytest.importorskip("dask.array")
            outside = MixtureClassifier(random_state=0)
            outside.fit(da.from_array(X, chunks=(100, 104)), da.from_array(y, chunks=100))
        else:
            np.save(tmp_path / "rows.npy", X)
            outside = MixtureClassifier(random_state=0).fit(np.load(tmp_path / "rows.npy", mmap_mode="r"), y)
        assert outside.search_.best.what == inside.search_.best.what
        assert_close(outside.predict_joint_log_proba(rows), inside.predict_joint_log_proba(X), 1e-4)

    def test_others_are_compared_as_before(self, many, monkeypatch):
        X, y = many[0][many[1] < 3][:, :100], many[1][many[1] < 3]
        calls = []
        monkeypatch.setattr("mixtura.selection.comparison.without_rows", lambda *parts: calls.append(parts))
        with pytest.raises(AttributeError):
            MixtureClassifier(random_state=0).fit(X, y)
        assert calls
        for changes in ({"cv": 3}, {"prior": "default"}, {"time_budget": 1e9}, {"covariance_type": "full"}):
            assert MixtureClassifier(random_state=0, **changes).fit(X, y).search_ is not None
        missing = np.where(np.arange(len(X))[:, None] == 7, np.nan, X)
        assert np.isfinite(MixtureClassifier(random_state=0, cv=2).fit(missing, y).search_.best.score)
        assert len(calls) == 1


def sum_of(means, X, parts) -> tuple[np.ndarray, ...]:
    """Counts, first and second moments about the means of classes with shares (n, C), by loops."""
    deviations = X[None] - means[:, None]
    seconds = [
        sum(w * np.outer(d, d) for w, d in zip(p, own, strict=True)) for p, own in zip(parts.T, deviations, strict=True)
    ]
    return parts.sum(0), np.einsum("nc,cnd->cd", parts, deviations), np.array(seconds)


def comparison_of(X, y, weights, monkeypatch):
    """The comparison of the automatic choice of these samples."""
    comparisons = []

    class FirstOnly(Comparison):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            comparisons.append(self)
            raise StopIteration

    with monkeypatch.context() as patches:
        patches.setattr("mixtura.selection.automatic.Comparison", FirstOnly)
        with pytest.raises(StopIteration):
            MixtureClassifier(random_state=0).fit(X, y, weights)
    return comparisons[0]


# ---- few labels ------------------------------------------------------------------------------------------------------


def clusters(seed, n_samples=400, n_features=30):
    """Four classes that are clusters, in features of different variances, and the labels of three samples of each."""
    rng, y = np.random.default_rng(seed), np.arange(n_samples) % 4
    means = np.random.default_rng(7).normal(size=(4, n_features))
    return np.linspace(1, 3, n_features) * (0.7 * means[y] + rng.normal(size=(n_samples, n_features))), y


def partly(y, n_labels):
    return np.where(np.arange(len(y)) < 4 * n_labels, y, -1)


def test_means_follow_unlabeled_samples_by_em_with_a_kept_covariance(tmp_path):
    """Against a slow twin, with one label per class: nothing can be held out."""
    X, y = clusters(0)
    model = MixtureClassifier(unlabeled=-1, random_state=0).fit(X, partly(y, 1))
    covariance = np.cov(X.T, bias=True)
    covariance = 0.3 * covariance + 0.7 * np.eye(30) * np.diag(covariance).mean()
    means, precision = X[:4].copy(), np.linalg.inv(covariance)
    for _ in range(100):
        offsets = X[4:, None] - means
        log_joint = -0.5 * np.einsum("ncd,de,nce->nc", offsets, precision, offsets)
        assigned = np.exp(log_joint - np.logaddexp.reduce(log_joint, axis=1, keepdims=True))
        means = (X[:4] + assigned.T @ X[4:]) / (1 + assigned.sum(0))[:, None]
    np.testing.assert_allclose(model.means_, means, atol=1e-2)
    np.testing.assert_allclose(model.covariances_, np.repeat(covariance[None], 4, 0), rtol=1e-6)
    np.testing.assert_allclose(model.weights_, 0.25)
    fresh, labels = clusters(1)
    alone = MixtureClassifier(random_state=0).fit(X[:4], y[:4])
    assert model.score(fresh, labels) > alone.score(fresh, labels) + 0.1
    assert model.is_outlier(fresh + 30).all()
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(fresh), model.predict_proba(fresh))


def test_an_interrupted_choice_by_labeled_samples_is_the_choice(monkeypatch):
    X, y = clusters(0)
    tried, n_tried = Search.try_together, []

    def interrupting(self, evaluate):
        n_tried.append(1)
        if len(n_tried) > 2:
            raise KeyboardInterrupt
        return tried(self, evaluate)

    monkeypatch.setattr(Search, "try_together", interrupting)
    model = MixtureClassifier(unlabeled=-1, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, partly(y, 3))
    assert model.training_weight_ == 12
    assert np.isfinite(model.predict_proba(X)).all()


def test_held_out_labels_decide_whether_unlabeled_samples_count():
    X, y = clusters(0)
    fresh, labels = clusters(1)
    model = MixtureClassifier(unlabeled=-1, random_state=0).fit(X, partly(y, 3))
    assert model.search_.best.what["covariance_type"] == "tied"
    assert model.search_.best.score == min(candidate.score for candidate in model.search_.candidates)
    assert model.training_weight_ == 400
    alone = MixtureClassifier(random_state=0).fit(X[:12], y[:12])
    assert model.score(fresh, labels) > alone.score(fresh, labels)
    model.calibrate_outliers(X, partly(y, 3), cv=2)
    assert model.is_outlier(fresh, 0.1).mean() < 0.3
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)  # clusters that have nothing to do with the classes
    X = 0.5 * rng.normal(size=(400, 30))
    X[:, 0] += 1.5 * y
    X[:, 1:10] += 3 * rng.choice([-1, 1], 400)[:, None]
    few = np.where(np.arange(400) < 60, y, -1)
    model = MixtureClassifier(unlabeled=-1, random_state=0).fit(X, few)
    assert model.training_weight_ == 60  # the labeled samples alone
    assert model.score(X[60:], y[60:]) > 0.8
