"""
Plots of a model, and its deployment
====================================

Plots of ten classes in a plane, of a search and of its history; export of the same model to ONNX and scikit-learn.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from onnxruntime import InferenceSession
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier
from mixtura.plotting import HistoryDisplay, MixtureDisplay, PairsDisplay, ReliabilityDisplay, SearchDisplay

X, y = load_wine(return_X_y=True, as_frame=True)
y = y.map({0: "barolo", 1: "grignolino", 2: "barbera"})
wine = MixtureClassifier(random_state=0).fit(X, y)
digits, numbers = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    digits, numbers.astype(str), test_size=0.5, stratify=numbers, random_state=0
)
model = MixtureClassifier(2, covariance_type="diag", random_state=0).fit(X_train, y_train)

# %%
# ``to_onnx`` writes a graph that runs without mixtura and without torch.
with tempfile.TemporaryDirectory() as folder:
    wine.to_onnx(Path(folder) / "wine.onnx")
    session = InferenceSession(str(Path(folder) / "wine.onnx"))
answers = session.run(None, {session.get_inputs()[0].name: X.to_numpy(np.float32)})
outputs = dict(zip((output.name for output in session.get_outputs()), answers, strict=True))
print({name: values.shape for name, values in outputs.items()})
print("largest difference of a probability:", abs(outputs["probabilities"] - wine.predict_proba(X)).max())

# %%
# One Gaussian per class is quadratic discriminant analysis, as an estimator of scikit-learn.
print(MixtureClassifier(1, random_state=0).fit(X, y).to_sklearn())

# %%
# A model for a population with other class proportions.
other = wine.with_class_prior([0.6, 0.2, 0.2])
print(dict(zip(wine.classes_, other.predict_proba(X[65:66])[0].round(3).tolist(), strict=True)))

# %%
# The plane that separates ten classes best, calibration, and the history of the fit.
figure, axes = plt.subplots(1, 3, figsize=(14, 4.5), layout="constrained")
MixtureDisplay.from_estimator(model, X_test, y_test, ax=axes[0])
axes[0].set_title("ten classes, in the plane that separates best")
ReliabilityDisplay.from_estimator(model, X_test, y_test, ax=axes[1])
HistoryDisplay.from_estimator(model, ax=axes[2])

# %%
# What was compared for the wines.
figure, axis = plt.subplots(figsize=(10, 5), layout="constrained")
SearchDisplay.from_estimator(wine, ax=axis)

# %%
# Pairs of features, each with the other features integrated out.
PairsDisplay.from_estimator(wine, X, y, features=list(X.columns[:4]))
plt.show()
