"""
The demo: MixtureClassifier() beside others
===========================================

`make demo` runs this script in less than a minute. It prints test error and log-loss of `MixtureClassifier()`, which
selects its own settings, and of classifiers of scikit-learn with their defaults, on two tables: penguins (numbers,
categories, missing values) and handwritten digits, as they are and with 30 % and 60 % of the values removed from the
training and the test half. The picture shows the penguins in the plane that separates them best, and the errors.
"""

import argparse
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from mixtura import MixtureClassifier
from mixtura.datasets import load_penguins, remove_values
from mixtura.plotting import MixtureDisplay

REMOVED = (0.0, 0.3, 0.6)
BUDGET = 4.0  # seconds of one automatic choice; the digits with missing values would take 20 and gain little


def imputed(model):
    """Mean imputation and scaling of numbers, indicators of categories, and a model."""
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    kinds = [(numbers, make_column_selector(dtype_include="number"))]
    kinds += [(OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_include="category"))]
    return make_pipeline(make_column_transformer(*kinds, sparse_threshold=0), model)


METHODS = {
    "MixtureClassifier()": lambda: MixtureClassifier(time_budget=BUDGET, random_state=0),
    "logistic regression": lambda: imputed(LogisticRegression(max_iter=1000)),
    "RBF-SVM": lambda: imputed(CalibratedClassifierCV(SVC(), cv=3)),
    "random forest": lambda: imputed(RandomForestClassifier(100, random_state=0)),
    "gradient boosting": lambda: HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0),
}


def halves(X, y, fraction):
    """Two halves of a table, with a fraction of the values removed at random."""
    X = X.mask(np.isnan(remove_values(np.zeros(X.shape), fraction, 0)))
    return train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)


def scores_of(make, halves):
    """Test error in per cent and log-loss."""
    X_train, X_test, y_train, y_test = halves
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-learn, such as the probabilities of its support vector machine
        model = make().fit(X_train, y_train)
    probabilities = model.predict_proba(X_test)
    error = 100 * float(np.mean(model.classes_[probabilities.argmax(1)] != np.asarray(y_test)))
    return error, log_loss(y_test, probabilities, labels=model.classes_)


def draw(errors, path):
    """The penguins in a plane, and errors against the share of removed values."""
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.6), layout="constrained")
    X, y = load_penguins()
    model = MixtureClassifier(random_state=0).fit(X, y)
    complete = X.notna().all(axis=1)
    MixtureDisplay.from_estimator(model, X[complete], y[complete], ax=axes[0])
    axes[0].set_title("Penguins: classes and components")
    for ax, (name, curves) in zip(axes[1:], errors.items(), strict=True):
        for method, curve in curves.items():
            own = method == "MixtureClassifier()"
            look = {"linewidth": 2.4, "color": "black"} if own else {"linewidth": 1.2, "linestyle": "--"}
            ax.plot([100 * fraction for fraction in REMOVED], curve, marker="o", label=method, **look)
        ax.set(xlabel="values removed, %", ylabel="test error, %", ylim=(0, None), title=name)
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].legend(fontsize=9)
    figure.savefig(path, dpi=100)


def main(path):
    began = time.perf_counter()
    tables = {"penguins": load_penguins(), "digits": load_digits(as_frame=True, return_X_y=True)}
    errors = {}
    for name, (X, y) in tables.items():
        parts = [halves(X, y, fraction) for fraction in REMOVED]
        heads = [f"{100 * fraction:.0f} % removed" if fraction else "as it is" for fraction in REMOVED]
        print(f"\n{f'{name}: error, log-loss':30}" + "".join(f"{head:>18}" for head in heads))
        errors[name] = {}
        for method, make in METHODS.items():
            scores = [scores_of(make, part) for part in parts]
            errors[name][method] = [error for error, _ in scores]
            print(f"{method:30}" + "".join(f"{f'{error:.1f} %, {loss:.3f}':>18}" for error, loss in scores))
    draw(errors, path)
    print(
        "\nMixtures marginalise missing values, gradient boosting handles them natively, the others impute means."
        f"\nPicture: {path}; {time.perf_counter() - began:.0f} seconds in all."
        "\nNext, with a table of your own:\n    mixtura fit TABLE.csv --target COLUMN"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare MixtureClassifier() with others and draw a picture.")
    parser.add_argument("--out", default="mixtura_demo.png", help="picture to write")
    with threadpool_limits(1):  # tables this small gain nothing by threads, which wait for each other on busy cores
        main(parser.parse_known_args()[0].out)
