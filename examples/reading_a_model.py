"""
Reading a fitted model
======================

Summary, feature importances, explanations, outliers, reject option, suspicious labels, another class prior and imputed
values, on iris with 10 % of the values missing.
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

data = load_iris(as_frame=True)
X, y = data.data, data.target.map(dict(enumerate(data.target_names)))
X = X.mask(np.isnan(remove_values(X.to_numpy(), 0.1, random_state=0)))
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)
model = MixtureClassifier(1, random_state=0).fit(X_train, y_train)

# %%
# ``summary`` shows the classes, the components and their typical values.
print(model.summary(X_test, y_test))

# %%
# The importance of a feature is the rise of the log-loss when the feature is integrated out of the model.
print(model.feature_importances(X_test, y_test).round(3))

# %%
# Class probabilities say which class fits best, not whether any does. The outlier score does.
model.calibrate_outliers(X_train, y_train)
strange = X_test.iloc[:1] * 0 + 50
print("probability of a flower of 50 cm:", model.predict_proba(strange).max().round(3))
print("is it an outlier?", model.is_outlier(strange), "   share of the test samples:", model.is_outlier(X_test).mean())

# %%
# Contributions of the features to one prediction: Shapley values of exact marginalisation, in log-odds.
doubtful = np.abs(model.predict_proba(X_test).max(1) - 0.7).argmin()
print(model.explain(X_test)[doubtful])

# %%
# Training samples whose label contradicts the model that was fitted without them.
print(model.suspicious_labels(X_train, y_train).to_frame())

# %%
# Abstain below a probability of 0.9, and on outliers.
reject = RejectOption(model, confidence=0.9, false_alarm=0.01).fit(X_train, y_train)
answered = ~reject.abstains(X_test)
print(f"answered {answered.mean():.0%} of the test samples, accuracy {reject.score(X_test, y_test):.3f}")

# %%
# A population with few virginica: the class prior is estimated from samples without labels.
rare = X_test[(y_test != "virginica") | (np.arange(len(y_test)) % 5 == 0)]
print(dict(zip(model.classes_, model.estimate_class_prior(rare).round(2).tolist(), strict=True)))

# %%
# The same mixture fills in missing values for any other estimator.
print(MixtureImputer().set_output(transform="pandas").fit(X_train).transform(X_test).round(2).head(3))

# %%
# Pictures by scikit-learn's Display convention.
figure, axes = plt.subplots(2, 3, figsize=(17, 9), layout="constrained")
petals = ("petal length (cm)", "petal width (cm)")
MixtureDisplay.from_estimator(model, X_test, y_test, features=petals, ax=axes[0, 0])
axes[0, 0].set_title("two features, the others integrated out")
MixtureDisplay.from_estimator(model, X_test, y_test, ax=axes[0, 1])
axes[0, 1].set_title("the plane that separates best")
ConfusionDisplay.from_estimator(model, X_test, y_test, ax=axes[0, 2])
model.explain(X_test)[doubtful].plot(axes[1, 0])
ExplanationDisplay.from_estimator(model, X_test, classes=("virginica", "versicolor"), ax=axes[1, 1])
CoverageDisplay.from_estimator(model, X_test, y_test, ax=axes[1, 2])
if len(sys.argv) > 1:  # a folder for the picture
    figure.savefig(Path(sys.argv[1]) / "reading_a_model.png", dpi=60)
plt.show()
