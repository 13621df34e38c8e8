"""
Texts: topics, and the words that speak for them
================================================

A pipeline of ``CountVectorizer`` and ``NonnegativeMixtureClassifier`` needs no settings: held-out texts select the
transform of the counts, the prior on the coefficients, one component per class or several, and the temperature. Counts
stay sparse, and every prediction is a sum over words.

The texts are docstrings of the installed packages, the classes their modules.
"""

import ast
import importlib.util
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import NMF
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import ComplementNB, MultinomialNB
from sklearn.pipeline import make_pipeline

from mixtura import NonnegativeMixtureClassifier

MODULES = ["numpy.ma", "scipy.optimize", "scipy.signal", "scipy.sparse", "scipy.stats", "sklearn.metrics", "torch.nn"]
PER_MODULE = 300


def docstrings(module: str) -> list[str]:
    """First paragraphs of the docstrings of a module, without its name."""
    spec = importlib.util.find_spec(module)
    names, texts = re.compile(rf"\b({module.replace('.', '|')})\b", re.IGNORECASE), {}
    for file in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "tests" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                text = " ".join((ast.get_docstring(node) or "").split("\n\nParameters")[0].split()[:60])
                if len(text.split()) > 8:
                    texts[names.sub(" ", text)] = None
    return list(texts)[:PER_MODULE]


def draw_words(classes: np.ndarray, names: np.ndarray, differences: np.ndarray) -> None:
    """The seven words that speak most for each class."""
    figure, axes = plt.subplots(2, 4, figsize=(11, 5), layout="constrained")
    axes.flat[-1].set_axis_off()
    for axis, label, row in zip(axes.flat, classes, differences, strict=False):
        order = row.argsort()[-7:]
        axis.barh(names[order], row[order], color="#0072B2")
        axis.set_title(label, fontsize=10)
    figure.suptitle("coefficients of words, beside the mean of the classes", fontsize=11)
    plt.show()


def main() -> None:
    parts = {module: docstrings(module) for module in MODULES}
    texts = [text for part in parts.values() for text in part]
    labels = np.repeat(list(parts), [len(part) for part in parts.values()])
    train, test, y_train, y_test = train_test_split(texts, labels, stratify=labels, random_state=0)
    words = {"stop_words": "english", "min_df": 2}
    model = make_pipeline(CountVectorizer(**words), NonnegativeMixtureClassifier(random_state=0))
    codes = NMF(50, init="nndsvda", tol=1e-3, random_state=0)  # parts of texts as features, for comparison
    rivals = {
        "mixture of words": model,
        "mixture of 50 NMF codes": make_pipeline(
            CountVectorizer(**words), codes, NonnegativeMixtureClassifier(random_state=0)
        ),
        "multinomial naive Bayes": make_pipeline(CountVectorizer(**words), MultinomialNB()),
        "complement naive Bayes": make_pipeline(CountVectorizer(**words), ComplementNB()),
        "logistic regression": make_pipeline(CountVectorizer(**words), LogisticRegression(max_iter=1000)),
    }
    for name, rival in rivals.items():
        loss = log_loss(y_test, rival.fit(train, y_train).predict_proba(test))
        print(f"{name:24} error {100 - 100 * rival.score(test, y_test):4.1f} %   log-loss {loss:.2f}")

    classifier, names = model[-1], model[0].get_feature_names_out()
    print("\nwords that speak most for each class, beside the other classes:")
    shares = classifier.weights_ / classifier.weights_.sum(1, keepdims=True)
    coefficients = shares @ classifier.bases_  # of a class: the mean of its components
    for label, row in zip(classifier.classes_, coefficients - coefficients.mean(0), strict=True):
        print(f"{label:16} {' '.join(names[row.argsort()[::-1][:7]])}")
    draw_words(classifier.classes_, names, coefficients - coefficients.mean(0))

    print("\none text, and what its words say:")
    print(" ".join(test[0].split()[:30]))
    print(classifier.explain(model[0].transform(test[:1]), feature_names=names))


if __name__ == "__main__":
    main()
