"""Each mistake gets one clear message: which argument, what was got, what to do. Files: test_model_files.py."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris

from mixtura import (
    AveragedMixture,
    AveragedMixtureClassifier,
    DiscriminativeMixtureClassifier,
    GaussianMixture,
    HybridMixtureClassifier,
    MarginalFeatureSelector,
    MixtureClassifier,
    MixtureImputer,
    NonnegativeMixtureClassifier,
    RejectOption,
    RelevanceVectorClassifier,
    SparseMixtureClassifier,
    checks,
)
from mixtura.objectives import Conditional

X, Y = load_iris(return_X_y=True)


def refused(call, text, kind=ValueError):
    """The call raises exactly this text; a `...` stands for anything."""
    pattern = re.escape(text).replace(re.escape("..."), "[^$]*")
    with pytest.raises(kind, match=f"^{pattern}$"):
        call()


# ---- arguments of the constructor ----------------------------------------------------------------------------------

QUICK = [
    MixtureClassifier(1),
    GaussianMixture(),
    DiscriminativeMixtureClassifier(1, prior="default", max_iter=1),
    HybridMixtureClassifier(1, n_epochs=1),
    SparseMixtureClassifier(1, max_iter=1),
    RelevanceVectorClassifier(max_iter=1),
    NonnegativeMixtureClassifier(1, sparsity=0.0, max_iter=1000),
    AveragedMixture(n_estimators=1),
    AveragedMixtureClassifier(n_estimators=1),
    MixtureImputer(),
    RejectOption(),
    MarginalFeatureSelector(),
]
LABELS = ("unlabeled", "reject_label")  # any object may be a label
EACH_ARGUMENT = [(model, name) for model in QUICK for name in model.get_params(deep=False) if name not in LABELS]


@pytest.mark.parametrize(("model", "name"), EACH_ARGUMENT, ids=lambda part: str(part).partition("(")[0])
@pytest.mark.parametrize("value", ["nonsense", object()], ids=["text", "object"])
def test_every_argument_is_checked_also_where_it_has_no_effect(model, name, value):
    wrong = clone(model).set_params(**{name: value})
    if (name, value) != ("checkpoint", "nonsense"):  # which may be the path of a file, and needs a seed
        with pytest.raises((ValueError, TypeError)):
            wrong._check_arguments()  # before samples are read
    with pytest.raises((ValueError, TypeError)):
        wrong.fit(X[::5], Y[::5])


ARGUMENTS = [
    ({"n_components": 0}, "n_components must be an integer of at least 1; got 0."),
    ({"n_components": 2.5}, "n_components must be an integer of at least 1; got 2.5."),
    ({"n_components": True}, "n_components must be an integer of at least 1; got True."),
    (
        {"n_components": {0: 1, 1: 2}},
        "n_components as a dict must have one entry per class, and the classes are [0, 1, 2]; missing are [2].",
    ),
    (
        {"n_components": {0: 1, 1: 2, 5: 1}},
        "n_components as a dict must have one entry per class, and the classes are [0, 1, 2]; missing are [2] and "
        "unknown are [5].",
    ),
    ({"n_components": {0: 1, 1: 2, 2: 0}}, "n_components[2] must be an integer of at least 1; got 0."),
    (
        {"covariance_type": "round"},
        "covariance_type must be one of 'full', 'tied', 'diag', 'spherical', 'low_rank', 'low_rank_precision', "
        "\"auto\" or a structure such as mixtura.covariances.Tied; got 'round'.",
    ),
    ({"covariance_type": 3}, "covariance_type must be one of ...; got 3."),
    ({"covariance_type": "low_rank", "rank": 0}, 'rank must be "auto" or an integer of at least 1; got 0.'),
    (
        {"covariance_type": "low_rank", "rank": 9},
        'rank must not exceed the number of features, 4; got 9. Lower it, or use rank="auto".',
    ),
    (
        {"objective": "beauty"},
        "objective must be one of 'joint', 'marginal', 'conditional', 'margin', 'hybrid' or an objective object; got "
        "'beauty'.",
    ),
    ({"objective": Conditional}, "objective must be one of ... or an objective object; got <class ...>."),
    (
        {"objective": Conditional(), "solver": "em"},
        "solver='em' cannot be used here: it maximises likelihoods, and objective \"conditional\" is not one. Use one "
        "of 'baum_welch', 'gradient'.",
    ),
    (
        {"objective": "margin", "solver": "baum_welch"},
        "solver='baum_welch' cannot be used here: it needs a differentiable objective, and the margin in objective "
        "\"margin\" has kinks. Use one of 'gradient'.",
    ),
    (
        {"objective": "conditional", "unlabeled": 2},
        "50 samples are unlabeled, but objective 'conditional' is purely discriminative and cannot use them. Use "
        "HybridMixtureClassifier or objective='joint', or remove these samples.",
    ),
    (
        {"solver": "magic"},
        "solver must be one of 'em', 'baum_welch', 'gradient', \"auto\" or a solver object; got 'magic'.",
    ),
    ({"prior": "strong"}, "prior must be one of 'default'..., None or a prior object; got 'strong'."),
    ({"prior": 3.0}, "prior must be one of 'default'..., None or a prior object; got 3.0."),
    (
        {"class_prior": "equal"},
        "class_prior must be one of 'empirical', 'uniform' or an array with one probability per class; got 'equal'.",
    ),
    (
        {"class_prior": [0.5, 0.5]},
        "class_prior must have one probability for each of the 3 classes, in the order of classes_; got shape (2,).",
    ),
    (
        {"class_prior": [0.5, 0.7, -0.2]},
        "class_prior must be positive and sum to 1; got [0.5, 0.7, -0.2], summing to 1.",
    ),
    (
        {"class_prior": [0.5, 0.5, 0.5]},
        "class_prior must be positive and sum to 1; got [0.5, 0.5, 0.5], summing to 1.5.",
    ),
    (
        {"class_prior": {0: 1.0}},
        "A class prior must have one probability for each of the classes [0, 1, 2]; got [0].",
    ),
    ({"class_prior": {0: "a"}}, "class_prior must be one of 'empirical', 'uniform' or an array ...; got {0: 'a'}."),
    (
        {"class_weight": "heavy"},
        "class_weight must be one of 'balanced', a dict of class to number or None; got 'heavy'.",
    ),
    ({"class_weight": {0: "a"}}, "class_weight must be one of ...; got {0: 'a'}."),
    ({"class_weight": {7: 1.0}}, "The classes, [0, 1, 2], are not in class_weight"),
    (
        {"class_weight": {0: 0.0, 1: 1.0, 2: 1.0}},
        "Class 0 has no sample of positive weight (sample_weight times class_weight). Give it a positive weight, or "
        "remove its samples.",
    ),
    ({"unlabeled": [1]}, "unlabeled must be None, np.nan (missing labels) or one label; got [1]."),
    (
        {"init": "best"},
        "init must be one of 'kmeans', 'k-means++', 'random', 'spread' or a fitted mixture; got 'best'.",
    ),
    ({"n_init": 0}, "n_init must be an integer of at least 1; got 0."),
    ({"max_iter": -1}, "max_iter must be an integer of at least 0; got -1."),
    ({"tol": -1e-3}, "tol must be a number of at least 0; got -0.001."),
    ({"tol": np.nan}, "tol must be a number of at least 0; got nan."),
    ({"device": "gpu"}, 'device must be None, "cpu", "cuda" or a torch.device; got \'gpu\'.'),
    ({"device": "meta"}, 'device must be one that stores values, such as "cpu" or "cuda"; got \'meta\'.'),
    ({"random_state": "seed"}, "'seed' cannot be used to seed a numpy.random.RandomState instance"),
    ({"verbose": "loud"}, "verbose must be an integer of at least 0; got 'loud'."),
    ({"warm_start": "yes"}, "warm_start must be True or False; got 'yes'."),
]


@pytest.mark.parametrize(("arguments", "text"), ARGUMENTS, ids=lambda a: str(a)[:40])
def test_arguments_of_the_classifier(arguments, text):
    refused(lambda: MixtureClassifier(**{"n_components": 1, **arguments}).fit(X, Y), text)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (AveragedMixture(GaussianMixture(tol="x")), "The GaussianMixture ...'tol' parameter... Got 'x' instead."),
        (AveragedMixture(GaussianMixture(criterion="x")), "The GaussianMixture ...criterion must be ...; got 'x'."),
        (AveragedMixtureClassifier(MixtureClassifier(n_init=0)), "The MixtureClassifier ...n_init must be ...; got 0."),
        (RejectOption(MixtureClassifier(solver="x")), "The MixtureClassifier ...solver must be one of ...; got 'x'."),
        (MarginalFeatureSelector(MixtureClassifier(cv=1)), "The MixtureClassifier ...cv must be ...; got 1."),
        (
            MixtureImputer(AveragedMixture(n_estimators=0)),
            "The AveragedMixture given as estimator has a wrong argument: n_estimators must be an integer of at least "
            "1; got 0.",
        ),
        (MixtureImputer(0), "estimator must be an integer of at least 1; got 0."),
    ],
    ids=lambda part: type(part).__name__,
)
def test_arguments_of_an_inner_estimator_are_checked_before_samples_are_read(model, text):
    refused(lambda: model.fit(None, None), text)


@pytest.mark.parametrize("estimator", [MixtureClassifier, GaussianMixture])
@pytest.mark.parametrize("limit", ["much", "5 parsecs", "MB", "1 KB", -1, 0, float("inf"), float("nan"), [1], True])
def test_memory_limit(estimator, limit):
    text = f'memory_limit must be at least 1 MiB, as bytes or text like "256 MB"; got {limit!r}.'
    refused(lambda: estimator(memory_limit=limit).fit(X, Y), text)


@pytest.mark.parametrize("limit", ["1 MiB", "1.5 MB", "2GB", "64 mb", 2**20, 3e6])
def test_memory_limits_that_are_fine(limit):
    assert MixtureClassifier(1, memory_limit=limit).fit(X, Y).converged_


@pytest.mark.parametrize("estimator", [MixtureClassifier, GaussianMixture])
def test_no_gpu_here(estimator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device in ("cuda", "cuda:1", torch.device("cuda")):
        text = f'device={device!r} is not available: torch sees 0 GPUs. Use device=None or "cpu".'
        refused(lambda device=device: estimator(device=device).fit(X, Y), text)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    text = "device='cuda:7' is not available: torch sees 2 GPUs. Use device=None or \"cpu\"."
    refused(lambda: estimator(device="cuda:7").fit(X, Y), text)


# ---- rows ----------------------------------------------------------------------------------------------------------

ENCODE = (
    "Gaussian mixtures need numeric features: encode them first, for example with "
    "sklearn.preprocessing.OneHotEncoder in a ColumnTransformer, or drop them. MixtureClassifier, its presets, its "
    "averages and MixtureImputer take categories of a data frame in memory as they are."
)
NOT_ROWS = "X must be a table of numbers: an array, a data frame, a tensor, a memory map or a list of rows; got "
ROWS = {
    "one dimension": (X[0], "Expected 2D array, got 1D array instead...Reshape your data..."),
    "three dimensions": (X[None], "Found array with dim 3, while dim <= 2 is required by MixtureClassifier."),
    "one dimension, tensor": (
        torch.ones(4),
        "Expected 2D array, got 1D tensor instead, of shape (4,). Reshape X: one row per sample, one column per "
        "feature.",
    ),
    "no rows": (
        X[:0],
        "Found array with 0 sample(s) (shape=(0, 4)) while a minimum of 1 is required by MixtureClassifier.",
    ),
    "no rows, tensor": (
        torch.ones(0, 4),
        "Found array with 0 sample(s) while a minimum of 1 is required by MixtureClassifier.",
    ),
    "no columns": (
        X[:, :0],
        "Found array with 0 feature(s) (shape=(150, 0)) while a minimum of 1 is required by MixtureClassifier.",
    ),
    "no columns, tensor": (
        torch.ones(150, 0),
        "Found array with 0 feature(s) (shape=(150, 0)) while a minimum of 1 is required by MixtureClassifier.",
    ),
    "infinite": (
        np.where(X > 7, np.inf, X),
        "Input X contains infinity or a value too large for dtype('float64'). Remove those samples, clip them, or "
        "set the values to NaN (missing).",
    ),
    "infinite, tensor": (
        torch.from_numpy(np.where(X > 7, -np.inf, X)),
        "Input X contains infinity, first in row 102; remove those samples, clip them, or set the values to NaN "
        "(missing).",
    ),
    "logical, tensor": (
        torch.ones(150, 4, dtype=torch.bool),
        "X must hold real numbers; got dtype torch.bool. Convert it, for example with X.double().",
    ),
    "text": (
        [["a", "1"], ["b", "2"]],
        f"could not convert string to float: 'a'. X has columns that are not numeric: [0, 1]. {ENCODE}",
    ),
    "text in one dimension": (
        ["a", "b"],
        "could not convert string to float: 'a'. X has one dimension, as a list of texts. For texts count their words: "
        "make_pipeline(CountVectorizer(), NonnegativeMixtureClassifier()), of sklearn.pipeline and "
        "sklearn.feature_extraction.text. A table has two dimensions, samples and features.",
    ),
    "nothing": (None, f"{NOT_ROWS}NoneType."),
    "a dict": ({"a": [1.0]}, f"{NOT_ROWS}dict."),
    "a word": ("rows.csv", f"{NOT_ROWS}str."),
    "too large": (
        np.where(X > 7, 1e200, X),
        "X holds values up to 1e+200 in column 0; their squares overflow. Rescale that column, or remove such values.",
    ),
}


@pytest.mark.parametrize(("rows", "text"), ROWS.values(), ids=ROWS)
def test_rows(rows, text):
    n_rows = len(rows) if hasattr(rows, "__len__") and not isinstance(rows, str | dict) else 2
    refused(lambda: MixtureClassifier(1).fit(rows, np.arange(n_rows) % 2), text)


@pytest.mark.parametrize(
    "column",
    [
        pd.Categorical(["u", "v", "w"] * 50),
        np.array(["u", "v", "w"] * 50),
        np.array(["u", "v", "w"] * 50, dtype=object),
        pd.array(["u", "v", "w"] * 50, dtype="string"),
    ],
    ids=lambda c: str(c.dtype),
)
def test_columns_that_are_not_numbers_are_named(column):
    frame = pd.DataFrame({"size": X[:, 0], "kind": column})
    for estimator in (MixtureClassifier(1, categorical_features=None), GaussianMixture()):
        refused(lambda e=estimator: e.fit(frame, Y), f"...X has columns that are not numeric: ['kind']. {ENCODE}")


@pytest.mark.parametrize(
    "column",
    [
        pd.date_range("2020-01-01", periods=150),
        pd.to_timedelta(np.arange(150), unit="D"),
        pd.period_range("2020-01", periods=150, freq="M"),
    ],
    ids=lambda c: str(c.dtype),
)
def test_dates_are_named(column):
    cure = (
        "Gaussian mixtures need numeric features: convert them first, for example to days since a date, or to month "
        "and weekday, as mixtura.estimators.TableClassifier does, or drop them."
    )
    frame = pd.DataFrame({"size": X[:, 0], "when": column})
    with_text = frame.assign(colour="red")
    refused(lambda: MixtureClassifier(1).fit(with_text, Y), f"X holds dates or times in columns ['when']. {cure}")
    for estimator in (MixtureClassifier(1), GaussianMixture()):
        refused(lambda e=estimator: e.fit(frame, Y), f"X holds dates or times in columns ['when']. {cure}")
        dates = np.full((150, 2), "2020-01-01", dtype="datetime64[D]")
        refused(lambda e=estimator, d=dates: e.fit(d, Y), f"X holds dates or times. {cure}")


def test_numbers_in_any_column_type_are_fine():
    frame = pd.DataFrame(
        {"a": X[:, 0], "b": Y.astype(bool), "c": X[:, 1].astype("float32"), "d": (X[:, 2] * 10).astype(int)}
    )
    frame["e"] = X[:, 3].astype(object)
    assert MixtureClassifier(1).fit(frame, Y).score(frame, Y) > 0.9


class TestFeaturesThatChanged:
    @pytest.mark.parametrize("estimator", [MixtureClassifier(1), GaussianMixture()], ids=lambda e: type(e).__name__)
    def test_number(self, estimator):
        estimator.fit(X, Y)
        text = f"X has 3 features, but {type(estimator).__name__} is expecting 4 features as input."
        for method in ("predict", "predict_proba", "score_samples", "impute", "responsibilities"):
            refused(lambda m=method: getattr(estimator, m)(X[:, :3]), text)
            refused(lambda m=method: getattr(estimator, m)(torch.from_numpy(X[:, :3])), text)

    def test_names(self):
        frame = pd.DataFrame(X, columns=list("abcd"))
        model = MixtureClassifier(1).fit(frame, Y)
        refused(
            lambda: model.predict(frame.set_axis(list("efgh"), axis=1)), "The feature names should match...missing..."
        )
        refused(lambda: model.predict(frame[list("badc")]), "The feature names should match...in the same order...")

    def test_text_at_predict(self):
        model = MixtureClassifier(1).fit(X[:, :2], Y)
        refused(
            lambda: model.predict([["a", 1]]),
            f"could not convert ... X has columns that are not numeric: [0]. {ENCODE}",
        )


# ---- labels --------------------------------------------------------------------------------------------------------

SOFT = "y with several columns means soft labels"
LABELS = {
    "absent": (
        None,
        "MixtureClassifier requires y to be passed, but the target y is None; use GaussianMixture for rows without "
        "labels.",
    ),
    "too few": (
        Y[:10],
        "Found input variables with inconsistent numbers of samples: [150, 10]; y must have one label per sample of X.",
    ),
    "one class": (
        np.full(150, "a"),
        "MixtureClassifier needs samples of at least two classes, but y holds only one class: 'a'. Add samples of "
        "another class, or use GaussianMixture to estimate the density of a single class.",
    ),
    "a number": (3, "y should be a 1d array, got an array of shape () instead."),
    "three dimensions": (np.zeros((150, 2, 2)), "Found array with dim 3...while dim <= 2 is required..."),
    "real numbers": (
        np.linspace(0, 1, 150),
        "Unknown label type: continuous. Maybe you are trying to fit a classifier...",
    ),
    "missing": (
        np.where(Y == 0, np.nan, Y),
        "Input y contains NaN or another missing label for 50 samples. Pass unlabeled=np.nan to use them as "
        "unlabeled samples, or remove them.",
    ),
    "infinite": (np.where(Y == 0, np.inf, Y), "Input y contains infinity; labels must be finite numbers or text."),
    "mixed kinds": (
        np.array([1, "a", 2] * 50, dtype=object),
        "y holds labels of types that cannot be sorted together: int, str. Convert all labels to text, or all to "
        "numbers.",
    ),
    "soft, not summing to 1": (
        np.where(np.arange(150)[:, None] == 7, 0.5, np.eye(3)[Y]),
        f"{SOFT}: rows must be non-negative and sum to 1; row 7 is [0.5, 0.5, 0.5], which sums to 1.5. "
        "Divide each row by its sum, or pass one label per sample.",
    ),
    "soft, negative": (
        np.tile([1.5, -0.5], (150, 1)),
        f"{SOFT}: rows must be non-negative and sum to 1; row 0 is [1.5, -0.5], which sums to 1. "
        "Divide each row by its sum, or pass one label per sample.",
    ),
    "soft, infinite": (np.tile([np.inf, 0], (150, 1)), f"{SOFT}: ...row 0 is [inf, 0.0], which sums to inf. ..."),
    "soft, partly missing": (
        np.where((np.arange(150)[:, None] == 4) & (np.arange(3) == 1), np.nan, np.eye(3)[Y]),
        "Row 4 of the soft labels y is partly NaN; either all of its values must be NaN (unlabeled) or none.",
    ),
    "soft, nothing labeled": (
        np.full((150, 3), np.nan),
        "MixtureClassifier needs labeled samples, but all 150 samples are unlabeled. Label some samples of every "
        "class, or use GaussianMixture, which needs no labels.",
    ),
    "soft, an empty class": (
        pd.DataFrame({"a": np.ones(150), "b": np.zeros(150)}),
        "Class 'b' (column 1 of the soft labels y) has probability 0 for every sample. Remove the column, or add "
        "samples of that class.",
    ),
    "soft, text": (
        np.full((150, 2), "a"),
        f"{SOFT}, which must be numbers; could not convert string to float: ... Pass one label per sample instead.",
    ),
    "soft, too few": (
        np.eye(3)[Y][:9],
        "Found input variables with inconsistent numbers of samples: [150, 9]; y must have one label per sample of X.",
    ),
}


@pytest.mark.parametrize(("labels", "text"), LABELS.values(), ids=LABELS)
def test_labels(labels, text):
    refused(lambda: MixtureClassifier(1).fit(X, labels), text)


def test_nothing_labeled():
    text = (
        "MixtureClassifier needs labeled samples, but all 150 samples are unlabeled. Label some samples of every "
        "class, or use GaussianMixture, which needs no labels."
    )
    refused(lambda: MixtureClassifier(1, unlabeled=-1).fit(X, np.full(150, -1)), text)
    refused(lambda: MixtureClassifier(1, unlabeled="?").fit(X, np.full(150, "?")), text)
    refused(lambda: MixtureClassifier(1, unlabeled=-1).fit([(X, np.full(150, -1))]), text)


def test_one_class_labeled():
    text = "MixtureClassifier needs samples of at least two classes, but y holds only one class: 0. ..."
    refused(lambda: MixtureClassifier(1, unlabeled=-1).fit(X, np.where(Y > 0, -1, 0)), text)
    text = (
        "MixtureClassifier needs samples of at least two classes, but the samples of positive weight (100 others "
        "have weight 0) hold only one class: 0. Give samples of another class a positive weight, or use "
        "GaussianMixture to estimate the density of a single class."
    )
    refused(lambda: MixtureClassifier(1).fit(X, Y, sample_weight=(Y == 0) * 1.0), text)


def test_soft_labels_and_class_weight():
    text = (
        "class_weight needs one label per sample; got soft labels. Set class_weight=None and multiply sample_weight by "
        "the weights of the classes."
    )
    refused(lambda: MixtureClassifier(1, class_weight="balanced").fit(X, np.eye(3)[Y]), text)


# ---- weights -------------------------------------------------------------------------------------------------------

WEIGHTS = {
    "negative": (
        np.where(np.arange(150) == 3, -2.0, 1.0),
        "Negative values in data passed to `sample_weight`: the smallest is -2; weights must be at least 0.",
    ),
    "missing": (
        np.where(np.arange(150) == 3, np.nan, 1.0),
        "sample_weight must be finite; 1 weights are NaN or infinite, the first in row 3. Set such weights to 0, or "
        "remove the samples.",
    ),
    "infinite": (
        np.where(np.arange(150) < 2, np.inf, 1.0),
        "sample_weight must be finite; 2 weights are NaN or infinite, the first in row 0. Set such weights to 0, or "
        "remove the samples.",
    ),
    "zero": (np.zeros(150), "sample_weight is zero for every sample; at least one weight must be positive."),
    "too few": (np.ones(3), "sample_weight.shape == (3,), expected (150,)!"),
    "two dimensions": (np.ones((150, 2)), "Sample weights must be 1D array or scalar; got shape (150, 2)."),
    "complex": (
        np.ones(150) + 1j,
        "sample_weight must hold one number per sample; it could not be converted to numbers: they are complex.",
    ),
    "text": (
        ["a"] * 150,
        "sample_weight must hold one number per sample; it could not be converted to numbers: could not convert "
        "string to float: 'a'.",
    ),
}


@pytest.mark.parametrize("estimator", [MixtureClassifier, GaussianMixture])
@pytest.mark.parametrize(("weights", "text"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights(weights, text, estimator):
    refused(lambda: estimator().fit(X, Y, sample_weight=weights), text)


def test_classes_without_weight_are_absent_like_their_rows():
    model = MixtureClassifier(1).fit(X, Y, sample_weight=(Y > 0) * 1.0)
    assert model.classes_.tolist() == [1, 2]
    soft = np.eye(3)[Y]
    refused(lambda: MixtureClassifier(1).fit(X, soft, (Y > 0) * 1.0), "Class 0 has no sample of positive weight ...")


# ---- other calls ---------------------------------------------------------------------------------------------------


def test_sampling():
    model = MixtureClassifier(1).fit(X, Y)
    refused(lambda: model.sample(0), "n_samples must be an integer of at least 1; got 0.")
    refused(lambda: model.sample(2.5), "n_samples must be an integer of at least 1; got 2.5.")
    refused(lambda: model.sample(1, class_label=9), "class_label must be one of [0, 1, 2]; got 9.")
    density = GaussianMixture().fit(X)
    refused(lambda: density.sample(0), "Invalid value for 'n_samples': 0 . The sampling requires at least one sample.")


def test_a_failed_fit_leaves_the_last_one_usable():
    model = MixtureClassifier(1).fit(X, Y)
    expected = model.predict_proba(X)
    refused(lambda: model.fit(X, np.zeros(150)), "MixtureClassifier needs samples of at least two classes...")
    np.testing.assert_array_equal(model.predict_proba(X), expected)


def test_batches():
    refused(
        lambda: MixtureClassifier(1).fit((X, Y) for _ in range(2)),
        "X is a generator, which can be iterated only once, but a fit makes many passes over the rows; pass a list of "
        "batches or an object whose __iter__ starts again.",
    )
    refused(
        lambda: MixtureClassifier(1).fit([X, X]),
        "Batch 0 could not be used: MixtureClassifier needs batches of (X, y) or (X, y, sample_weight); this one has "
        "no y.",
    )
    for arguments in ({"class_weight": "balanced"}, {}):
        name = "class_weight" if arguments else "sample_weight"
        weights = None if arguments else np.ones(150)
        refused(
            lambda a=arguments, w=weights: MixtureClassifier(**a).fit([(X, Y)], sample_weight=w),
            f"{name} cannot be combined with an X of batches or of Dask. Put weights into the batches, as "
            "(X, y, sample_weight), or, for Dask, into sample_weight.",
        )


def test_batches_that_change_between_readings():
    class Changing:
        readings = 0

        def __iter__(self):
            self.readings += 1
            yield X, Y if self.readings < 3 else Y + 5

    refused(
        lambda: MixtureClassifier(1).fit(Changing()),
        "Batch 0 could not be used: y holds 5, which is not a class of the model; the classes are [0, 1, 2]. Batches "
        "must hold the same rows in every pass.",
    )


# ---- tables of arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", QUICK, ids=lambda model: type(model).__name__)
def test_tables_name_arguments_that_exist(model):
    own = vars(type(model)).get("_arguments", {})
    assert set(own) <= set(model.get_params(deep=False))


RULES = [
    (checks.POSITIVE | checks.AUTO, [1, 0.5, np.float32(2), "auto"], [0, -1, True, np.inf, np.nan, "often", None]),
    (checks.NON_NEGATIVE | checks.NONE, [0, 1, None], [-1e-9, np.inf, False, "auto", 1j]),
    (checks.SHARE, [0, 1, 0.5], [-0.1, 1.1, np.nan]),
    (checks.FRACTION, [0.1], [0, 1, np.nan]),
    (checks.PART, [1, 0.1], [0, 1.1]),
    (checks.at_least(2), [2, np.int64(3)], [1, 2.0, True, "2"]),
    (checks.among(("a", "b")), ["a"], ["c", None, ["a"]]),
    (checks.SWITCH, [True, np.bool_(False)], [0, 1, None]),
]


@pytest.mark.parametrize(("rule", "allowed", "wrong"), RULES, ids=lambda part: getattr(part, "words", "")[:20])
def test_rules_take_and_refuse(rule, allowed, wrong):
    assert all(rule.holds(value) for value in allowed)
    assert not any(rule.holds(value) for value in wrong)


def test_a_rule_says_all_that_it_takes():
    refused(
        lambda: checks.require("tol", 0, checks.POSITIVE | checks.AUTO),
        'tol must be a number above 0 or "auto"; got 0.',
    )
    text = "false_alarm must be a number above 0 and at most 1 or None; got 2."
    refused(lambda: RejectOption(false_alarm=2).fit(X, Y), text)
