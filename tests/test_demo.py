"""The command line and the pictures."""

import re
import sys

import numpy as np
import pytest

from mixtura import GaussianMixture, MixtureClassifier
from mixtura.cli import demo, main
from mixtura.datasets import make_rings, make_ripley, remove_values

PNG = b"\x89PNG\r\n\x1a\n"
no_typer = "typer is not installed: pip install 'mixtura[cli]'"
no_matplotlib = "matplotlib is not installed: pip install 'mixtura[plot]'"


@pytest.fixture
def pyplot():
    """matplotlib without a screen; figures are closed afterwards."""
    matplotlib = pytest.importorskip("matplotlib", reason=no_matplotlib)
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot", reason=no_matplotlib)
    yield plt
    plt.close("all")


@pytest.fixture(scope="module")
def ripley():
    X, y = make_ripley(50, random_state=0)
    return MixtureClassifier(2, random_state=0).fit(X, y), X, y


# ---- the command line --------------------------------------------------------------------------------------------


def test_demo_prints_every_method_and_writes_a_picture(pyplot, tmp_path, capsys):
    pytest.importorskip("typer", reason=no_typer)
    picture = tmp_path / "demo.png"
    assert main(["demo", "--quick", "--seed", "1", "--output", str(picture)]) == 0
    shown = capsys.readouterr().out
    for title in ("Error, %", "Log-loss", "Seconds"):
        assert len(re.findall(rf"^{title} +Ripley +digits +30 % removed +60 % removed$", shown, re.M)) == 1
    for method in demo.METHODS:
        lines = re.findall(rf"^{method.name}(?: +\d+\.\d+\*?){{4}}$", shown, re.M)
        assert len(lines) == 3, method.name
        assert re.search(rf"^{method.name} +{re.escape(method.note)}$", shown, re.M)
    assert f"Figure: {picture}" in shown
    assert picture.read_bytes().startswith(PNG)


def test_demo_without_matplotlib_says_so(monkeypatch, tmp_path):
    for name in ("mixtura.plotting", "mixtura.plotting.figures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    said = demo._draw([], {}, tmp_path / "demo.png")
    assert said == "No figure: matplotlib is not installed; install it with pip install 'mixtura[plot]'."


def test_the_command_line_without_typer_says_so(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "mixtura.cli.commands", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["demo"]) == 2
    assert (
        capsys.readouterr().err
        == "mixtura: The command line needs typer; install it with: pip install 'mixtura[cli]'.\n"
    )


def test_table_marks_the_best_of_each_column():
    errors = {method.name: 0.2 for method in demo.METHODS} | {"QDA": 0.0512, "RBF-SVM": 0.0508}
    scores = {(name, "Ripley"): demo.Score(None, error, 1.0, 1.0) for name, error in errors.items()}
    lines = demo.table("Error, %", scores, ["Ripley"], lambda actual: 100 * actual.error, "{:.1f}").splitlines()
    assert [line.split()[0] for line in lines if line.endswith("5.1*")] == ["QDA", "RBF-SVM"]
    assert sum("*" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--output", "demo.txt"], "must end in .png, .svg, .pdf; got 'demo.txt'"),
        (["demo", "--output", "nowhere/demo.png"], "must be in an existing folder; got 'nowhere/demo.png'"),
        (["demo", "--seed", "-1"], "Invalid value for '--seed': Input should be greater than or equal to 0"),
        (["demo", "--seed", "x"], "Invalid value for '--seed': Input should be a valid integer"),
    ],
)
def test_wrong_arguments_get_a_message(arguments, message, capsys, monkeypatch, tmp_path):
    pytest.importorskip("typer", reason=no_typer)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_removed_values_are_those_requested():
    for fraction in demo.FRACTIONS:
        problem = demo.digits(fraction, quick=True, seed=0)
        for part in (problem.X_train, problem.X_test):
            assert np.isnan(part).sum() == round(fraction * part.size)


def test_one_variance_is_the_mean_within_classes(rng):
    y = np.repeat([0, 1], 500)
    X = 100 * y[:, None] + rng.normal(size=(1000, 3)) * np.array([1.0, 2.0, 3.0])
    prior = demo.one_variance(demo.DemoData("made up", remove_values(X, 0.2, 0), y, X, y))
    np.testing.assert_allclose(prior.variances, (1 + 4 + 9) / 3, rtol=0.1)
    assert prior.strength == 3.0


# ---- pictures ----------------------------------------------------------------------------------------------------


def test_plot_classifier_draws_rows_components_and_boundary(pyplot, ripley):
    from matplotlib.patches import Ellipse

    from mixtura.plotting import plot_classifier

    model, X, y = ripley
    _, ax = pyplot.subplots()
    assert plot_classifier(model, X, y, ax) is ax
    ellipses = [patch for patch in ax.patches if isinstance(patch, Ellipse)]
    assert len(ellipses) == 2 * 4
    rows = {part.get_label(): part.get_offsets() for part in ax.collections if part.get_label() in ("0", "1")}
    np.testing.assert_array_equal(rows["1"], X[y == 1])
    assert len(ax.images) == 1


def test_ellipses_are_where_the_distance_is_one_and_two(pyplot, ripley):
    from mixtura.plotting import plot_classifier

    model, X, y = ripley
    ax = plot_classifier(model, X, y)
    angles = np.linspace(0, 2 * np.pi, 12)
    circle = np.stack((np.cos(angles), np.sin(angles)), 1)
    for number, patch in enumerate(ax.patches):
        k, n_scales = divmod(number, 2)
        deviations = patch.get_patch_transform().transform(circle) - model.mixture_.means[k].numpy()
        distances = np.einsum(
            "ni,ij,nj->n", deviations, np.linalg.inv(model.mixture_.covariances[k].numpy()), deviations
        )
        np.testing.assert_allclose(distances, (n_scales + 1) ** 2, rtol=1e-9)


def test_plot_classifier_takes_frames_missing_values_and_unlabeled_rows(pyplot):
    from mixtura.plotting import plot_classifier

    pd = pytest.importorskip("pandas")
    X, y = make_rings(40, n_classes=3, random_state=0)
    frame = pd.DataFrame(remove_values(X, 0.1, 0), columns=["width", "height"])
    labels = np.where(np.arange(len(y)) % 5 == 0, "unknown", np.array(["a", "b", "c"])[y])
    model = MixtureClassifier(2, unlabeled="unknown", random_state=0).fit(frame, labels)
    ax = plot_classifier(model, frame, labels)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("width", "height")
    assert {"a", "b", "c", "unlabeled"} <= {part.get_label() for part in ax.collections}


def test_plot_classifier_names_what_it_needs(ripley):
    pytest.importorskip("matplotlib", reason=no_matplotlib)
    from mixtura.plotting import plot_classifier

    model, X, y = ripley
    wide = MixtureClassifier(1, random_state=0).fit(np.column_stack((X, X[:, 0] ** 2)), y)
    with pytest.raises(ValueError, match=r"a model with 2 features; this one has 3\. Fit a model to two columns"):
        plot_classifier(wide, X, y)
    with pytest.raises(TypeError, match="such as MixtureClassifier; got GaussianMixture"):
        plot_classifier(GaussianMixture(random_state=0).fit(X), X, y)
    with pytest.raises(ValueError, match="not fitted yet"):
        plot_classifier(MixtureClassifier(1), X, y)
    with pytest.raises(ValueError, match=r"X must have shape \(n_samples, 2\); got \(100, 1\)"):
        plot_classifier(model, X[:, :1], y)
    with pytest.raises(ValueError, match=r"y must have shape \(100,\), one label per sample of X; got \(99,\)"):
        plot_classifier(model, X, y[:-1])


def test_histories_show_every_iteration(pyplot, ripley):
    from mixtura.plotting import HistoryDisplay

    model, X, _ = ripley
    for fitted in (model, GaussianMixture(2, random_state=0).fit(X)):
        (line,) = HistoryDisplay.from_estimator(fitted).ax_.lines
        np.testing.assert_array_equal(line.get_ydata(), [record.objective for record in fitted.history_])
        assert len(line.get_xdata()) == fitted.n_iter_


def test_a_history_without_iterations_is_refused(ripley):
    pytest.importorskip("matplotlib", reason=no_matplotlib)
    from mixtura.plotting import HistoryDisplay

    _, X, y = ripley
    with pytest.raises(ValueError, match=r"this MixtureClassifier has none\. Fit it with max_iter=1 or more"):
        HistoryDisplay.from_estimator(MixtureClassifier(1, max_iter=0, random_state=0).fit(X, y))


def test_names_beside_curves_do_not_overlap():
    pytest.importorskip("matplotlib", reason=no_matplotlib)
    from mixtura.plotting.figures import _apart

    heights = [5.0, 5.1, 5.05, 20.0, 0.0]
    heights_apart = np.array(_apart(heights, 1.0))
    assert (np.diff(np.sort(heights_apart)) >= 1 - 1e-6).all()
    np.testing.assert_array_equal(np.argsort(heights_apart), np.argsort(heights))
