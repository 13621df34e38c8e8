"""Pictures by scikit-learn's Display convention: every estimator, Pipelines, names, many classes, missing values."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mixtura import AveragedMixtureClassifier, GaussianMixture, MixtureClassifier, SparseMixtureClassifier
from mixtura.datasets import make_rings, make_ripley, remove_values
from mixtura.model.transforms import Warp
from mixtura.selection.search import ScoredCandidate, SearchTable
from named_samples import NAMES, named_samples

pd = pytest.importorskip("pandas")
pyplot = pytest.importorskip("matplotlib.pyplot")
pyplot.switch_backend("Agg")
from matplotlib.patches import Polygon  # noqa: E402

from mixtura import plotting  # noqa: E402 - where matplotlib is installed

MODELS = {
    "full": MixtureClassifier(2, random_state=0),
    "warped": MixtureClassifier(1, warp=Warp([0.0] * 4, [1.0] * 4), random_state=0),
    "averaged": AveragedMixtureClassifier(MixtureClassifier(1), n_estimators=2, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), MixtureClassifier(1)),
}


@pytest.fixture(scope="module")
def ripley():
    X, y = make_ripley(50, random_state=0)
    return MixtureClassifier(2, random_state=0).fit(X, y), X, y


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("features", [("height", "age"), (0, 2), None])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_boundaries_and_components_are_drawn_in_features_or_in_a_plane(model, features, n_classes):
    X, y = named_samples(n_classes)
    display = plotting.MixtureDisplay.from_estimator(model.fit(X, y), X, y, features=features)
    assert display.figure_ is display.ax_.figure
    assert texts(display.ax_) == sorted(y.unique())
    if features is not None:
        assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("height", "age")
    else:
        assert display.ax_.get_xlabel().startswith("discriminant 1 (mostly ")
    last = model.steps[-1][1] if model is MODELS["pipeline"] else model
    assert len(display.ax_.patches) == 2 * len(last.weights_)
    numbers = {text.get_text() for text in display.ax_.texts}
    assert numbers <= {str(k) for k in range(len(last.weights_))}  # those of the summary


def test_shades_are_marginal_probabilities():
    X, y = named_samples(2)
    model = MixtureClassifier(2, random_state=0).fit(X, y)
    view = plotting.MixtureDisplay.from_estimator(model, X, y, features=("height", "age")).view
    grid = np.array([[0.0, 1.0], [2.0, -1.0]])
    rows = np.full((2, 4), np.nan)
    rows[:, [0, 2]] = grid
    np.testing.assert_allclose(view.posteriors(grid), model.predict_proba(X[:0].reindex(range(2)).fillna(0) + rows))
    plane = plotting.MixtureDisplay.from_estimator(model, X, y).view
    weights = plane.mixture.weights.numpy()
    means, matrices, class_of = plane.components()
    drawn = np.random.default_rng(0).multivariate_normal(means[0], matrices[0], 3)
    from scipy.stats import multivariate_normal

    parts = list(zip(weights, means, matrices, strict=True))
    densities = np.stack([w * multivariate_normal(m, s).pdf(drawn) for w, m, s in parts], 1)
    totals = np.stack([densities[:, class_of == c].sum(1) for c in range(2)], 1)
    np.testing.assert_allclose(plane.posteriors(drawn), totals / totals.sum(1, keepdims=True), rtol=1e-6)


def test_models_without_components_are_drawn_in_two_features():
    X, y = named_samples(2, missing=0.0)
    model = SparseMixtureClassifier(random_state=0).fit(X, y)
    assert plotting.MixtureDisplay.from_estimator(model, X, y, features=(0, 1)).ax_.images
    with pytest.raises(ValueError, match="SparseMixtureClassifier has no components; choose two features to draw"):
        plotting.MixtureDisplay.from_estimator(model, X, y)
    density = GaussianMixture(2, random_state=0).fit(X)
    assert texts(plotting.MixtureDisplay.from_estimator(density, X).ax_) == ["samples"]


def test_pairs_and_curves_are_drawn():
    X, y = named_samples(10)
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    pairs = plotting.PairsDisplay.from_estimator(model, X, y, features=["height", "size", 1])
    assert pairs.axes_.shape == (3, 3)
    assert pairs.axes_[2, 0].get_xlabel() == "height"
    confusion = plotting.ConfusionDisplay.from_estimator(model, X, y)
    assert confusion.matrix.sum() == len(X)
    assert [text.get_text() for text in confusion.ax_.get_yticklabels()] == model.classes_.tolist()
    for display in (plotting.ReliabilityDisplay, plotting.CoverageDisplay):
        assert display.from_estimator(model, X, y).ax_.get_legend() is not None
    history = plotting.HistoryDisplay.from_estimator(make_pipeline(StandardScaler(), model).fit(X, y))
    assert texts(history.ax_) == ["MixtureClassifier"]


def test_explanations_are_bars_for_one_sample_and_points_for_several():
    X, y = named_samples(2)
    model = MixtureClassifier(1, random_state=0).fit(X, y)
    holed = int(np.flatnonzero(X.isna().sum(axis=1) == 1)[0])
    explanation = model.explain(X)
    bars = explanation[holed].plot()
    labels = [text.get_text() for text in bars.ax_.get_yticklabels()]
    assert labels[0] == "class prior"
    assert sum(label.endswith("missing") for label in labels) == 1
    points = plotting.ExplanationDisplay.from_estimator(model, X, classes="kind 0", max_features=2)
    order = np.argsort(-model.explain(X, classes="kind 0").mean_sizes)
    assert [text.get_text() for text in points.ax_.get_yticklabels()] == [NAMES[j] for j in order[:2]]
    assert "2 more features" in points.ax_.get_title()


def test_ten_classes_look_different():
    from mixtura.plotting.style import colour, line, marker

    looks = {(colour(c), marker(c), str(line(c))) for c in range(24)}
    assert len(looks) == 24


# ---- two features and histories ------------------------------------------------------------------------------------


def test_plot_classifier_draws_rows_components_and_boundary(ripley):
    model, X, y = ripley
    _, ax = pyplot.subplots()
    assert plotting.plot_classifier(model, X, y, ax) is ax
    ellipses = [patch for patch in ax.patches if isinstance(patch, Polygon)]
    assert len(ellipses) == 2 * 4
    rows = {part.get_label(): part.get_offsets() for part in ax.collections if part.get_label() in ("0", "1")}
    np.testing.assert_array_equal(rows["1"], X[y == 1])
    assert len(ax.images) == 1


def test_ellipses_are_where_the_distance_is_one_and_two(ripley):
    model, X, y = ripley
    ax = plotting.plot_classifier(model, X, y)
    for number, patch in enumerate(ax.patches):
        k, n_scales = divmod(number, 2)
        deviations = patch.get_xy() - model.mixture_.means[k].numpy()
        distances = np.einsum(
            "ni,ij,nj->n", deviations, np.linalg.inv(model.mixture_.covariances[k].numpy()), deviations
        )
        np.testing.assert_allclose(distances, (n_scales + 1) ** 2, rtol=1e-9)


def test_plot_classifier_takes_frames_missing_values_and_unlabeled_rows():
    X, y = make_rings(40, n_classes=3, random_state=0)
    frame = pd.DataFrame(remove_values(X, 0.1, 0), columns=["width", "height"])
    labels = np.where(np.arange(len(y)) % 5 == 0, "unknown", np.array(["a", "b", "c"])[y])
    model = MixtureClassifier(2, unlabeled="unknown", random_state=0).fit(frame, labels)
    ax = plotting.plot_classifier(model, frame, labels)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("width", "height")
    assert {"a", "b", "c", "unlabeled"} <= {part.get_label() for part in ax.collections}


def test_plot_classifier_names_what_it_needs(ripley):
    model, X, y = ripley
    wide = MixtureClassifier(1, random_state=0).fit(np.column_stack((X, X[:, 0] ** 2)), y)
    with pytest.raises(ValueError, match=r"a model with 2 features; this one has 3\. Fit a model to two columns"):
        plotting.plot_classifier(wide, X, y)
    with pytest.raises(TypeError, match="such as MixtureClassifier; got GaussianMixture"):
        plotting.plot_classifier(GaussianMixture(random_state=0).fit(X), X, y)
    with pytest.raises(ValueError, match="not fitted yet"):
        plotting.plot_classifier(MixtureClassifier(1), X, y)
    with pytest.raises(ValueError, match=r"X must have shape \(n_samples, 2\); got \(100, 1\)"):
        plotting.plot_classifier(model, X[:, :1], y)
    with pytest.raises(ValueError, match=r"y must have shape \(100,\), one label per sample of X; got \(99,\)"):
        plotting.plot_classifier(model, X, y[:-1])


def test_histories_show_every_iteration(ripley):
    model, X, _ = ripley
    for fitted in (model, GaussianMixture(2, random_state=0).fit(X)):
        (line,) = plotting.HistoryDisplay.from_estimator(fitted).ax_.lines
        np.testing.assert_array_equal(line.get_ydata(), [record.objective for record in fitted.history_])
        assert len(line.get_xdata()) == fitted.n_iter_


def test_a_history_without_iterations_is_refused(ripley):
    _, X, y = ripley
    with pytest.raises(ValueError, match=r"this MixtureClassifier has none\. Fit it with max_iter=1 or more"):
        plotting.HistoryDisplay.from_estimator(MixtureClassifier(1, max_iter=0, random_state=0).fit(X, y))


def test_labels_of_a_search_name_what_differs():
    candidates = [
        ScoredCandidate(
            {"covariance_type": kind, "n_components": count, "warp": warp, "prior": "default"}, 0.1, 0.02, 1.0
        )
        for kind, count, warp in (("diag", (1, 3), None), ("full", 1, "johnson"))
    ]
    ax = plotting.SearchDisplay(SearchTable("log_loss", candidates, chosen=0)).plot().ax_
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["full, 1 component, transformed features", "diag, 1 or 3 components"]
