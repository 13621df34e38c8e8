"""Reading a fitted model: summary, components, explanations, outliers, abstaining, another class prior, imputed values.

python examples/reading_a_model.py [folder for the picture]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier, MixtureImputer, RejectOption
from mixtura.datasets import remove_values
from mixtura.plotting import ConfusionDisplay, CoverageDisplay, ExplanationDisplay, MixtureDisplay


def main(folder: str) -> None:
    data = load_iris(as_frame=True)
    X, y = data.data, data.target.map(dict(enumerate(data.target_names)))
    X = X.mask(np.isnan(remove_values(X.to_numpy(), 0.1, random_state=0)))  # a tenth of the values is missing
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
    model = MixtureClassifier(1, random_state=0).fit(X_train, y_train)
    print(model.summary(X_test, y_test))
    print("\nlog-loss without each feature:", model.feature_importances(X_test, y_test).round(3).to_dict())

    model.calibrate_outliers(X_train, y_train)
    strange = X_test.iloc[:1] * 0 + 50
    print("\nprobability of a flower of 50 cm:", model.predict_proba(strange).max().round(3))
    print(
        "is it an outlier?", model.is_outlier(strange), "   share of the test samples:", model.is_outlier(X_test).mean()
    )

    doubtful = np.abs(model.predict_proba(X_test).max(1) - 0.7).argmin()
    print("\n" + str(model.explain(X_test)[doubtful]))
    print("\nsuspicious labels:\n", model.suspicious_labels(X_train, y_train).to_frame())

    reject = RejectOption(model, confidence=0.9, false_alarm=0.01).fit(X_train, y_train)
    answered = ~reject.abstains(X_test)
    print(f"\nanswered {answered.mean():.0%} of the test samples, accuracy {reject.score(X_test, y_test):.3f}")

    rare = X_test[(y_test != "virginica") | (np.arange(len(y_test)) % 5 == 0)]  # a population with few virginica
    print("class prior there:", dict(zip(model.classes_, model.estimate_class_prior(rare).round(2), strict=True)))
    print(MixtureImputer().set_output(transform="pandas").fit(X_train).transform(X_test).round(2).head(3))

    figure, axes = plt.subplots(2, 3, figsize=(17, 9), layout="constrained")
    MixtureDisplay.from_estimator(
        model, X_test, y_test, features=("petal length (cm)", "petal width (cm)"), ax=axes[0, 0]
    )
    axes[0, 0].set_title("two features, the others integrated out")
    MixtureDisplay.from_estimator(model, X_test, y_test, ax=axes[0, 1])
    axes[0, 1].set_title("the plane that separates best")
    ConfusionDisplay.from_estimator(model, X_test, y_test, ax=axes[0, 2])
    model.explain(X_test)[doubtful].plot(axes[1, 0])
    ExplanationDisplay.from_estimator(model, X_test, classes=("virginica", "versicolor"), ax=axes[1, 1])
    CoverageDisplay.from_estimator(model, X_test, y_test, ax=axes[1, 2])
    path = Path(folder) / "reading_a_model.png"
    figure.savefig(path, dpi=60)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
