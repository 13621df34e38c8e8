"""Pictures of a model with ten classes, and the same model in ONNX and in scikit-learn.

python examples/pictures_and_deployment.py [folder for the picture and the graph]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from onnxruntime import InferenceSession
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier
from mixtura.plotting import HistoryDisplay, MixtureDisplay, PairsDisplay, ReliabilityDisplay, SearchDisplay


def main(folder: str) -> None:
    X, y = load_wine(return_X_y=True, as_frame=True)
    y = y.map({0: "barolo", 1: "grignolino", 2: "barbera"})
    wine = MixtureClassifier(random_state=0).fit(X, y)
    digits, numbers = load_digits(return_X_y=True)
    parts = train_test_split(digits, numbers.astype(str), test_size=0.5, stratify=numbers, random_state=0)
    model = MixtureClassifier(2, covariance_type="diag", random_state=0).fit(parts[0], parts[2])

    path = Path(folder) / "wine.onnx"
    wine.to_onnx(path)
    session, rows = InferenceSession(str(path)), X.to_numpy(np.float32)
    answers = session.run(None, {session.get_inputs()[0].name: rows})
    outputs = dict(zip((output.name for output in session.get_outputs()), answers, strict=True))
    print({name: values.shape for name, values in outputs.items()})
    print("largest difference of a probability:", abs(outputs["probabilities"] - wine.predict_proba(X)).max())
    print(MixtureClassifier(1, random_state=0).fit(X, y).to_sklearn())
    other = wine.with_class_prior([0.6, 0.2, 0.2])
    print("with another class prior:", dict(zip(wine.classes_, other.predict_proba(X[65:66])[0].round(3), strict=True)))

    figure, axes = plt.subplots(2, 2, figsize=(14, 11), layout="constrained")
    MixtureDisplay.from_estimator(model, parts[1], parts[3], ax=axes[0, 0])
    axes[0, 0].set_title("ten classes, in the plane that separates best")
    ReliabilityDisplay.from_estimator(model, parts[1], parts[3], ax=axes[0, 1])
    SearchDisplay.from_estimator(wine, ax=axes[1, 0])
    HistoryDisplay.from_estimator(model, ax=axes[1, 1])
    figure.savefig(Path(folder) / "pictures.png", dpi=60)
    PairsDisplay.from_estimator(wine, X, y, features=list(X.columns[:4])).figure_.savefig(
        Path(folder) / "pairs.png", dpi=60
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
