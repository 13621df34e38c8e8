"""
Topics of short texts
=====================

Word counts and tf-idf stay sparse, and every basis is a list of words. The texts are generated: four kinds of messages
to a workshop, each with several topics, and words that occur in all messages. Several bases per class represent the
topics.
"""

from __future__ import annotations

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

from mixtura import NonnegativeMixtureClassifier

TOPICS = {
    "order": ["spring hinge bolt washer", "timber plank oak board", "paint varnish brush primer"],
    "repair": ["engine valve gasket leak", "lamp cable fuse socket", "door lock handle key"],
    "bill": ["invoice tax amount account", "refund deposit card bank"],
    "visit": ["monday appointment morning calendar", "address street parking floor"],
}
ANYWHERE = [
    "please",
    "thank",
    "you",
    "the",
    "of",
    "is",
    "we",
    "can",
    "with",
    "for",
    "and",
    "today",
    "new",
    "again",
    "need",
]


def texts(n_rows: int, random_state: int = 0) -> tuple[list[str], np.ndarray]:
    """Messages and their kinds: words of one thing of the kind, some of any other, and many that occur anywhere."""
    rng = np.random.default_rng(random_state)
    kinds = rng.choice(list(TOPICS), n_rows)
    messages = []
    for kind in kinds:
        own = rng.choice(rng.choice(TOPICS[kind]).split(), rng.poisson(2) + 1)
        other = rng.choice(" ".join(TOPICS[rng.choice(list(TOPICS))]).split(), rng.poisson(1))
        messages.append(" ".join([*own, *other, *rng.choice(ANYWHERE, rng.poisson(6) + 1)]))
    return messages, kinds


def main() -> None:
    messages, kinds = texts(1500)
    rows = train_test_split(messages, kinds, random_state=0)
    model = make_pipeline(CountVectorizer(), NonnegativeMixtureClassifier(4, solver="accelerated", random_state=0))
    rivals = {
        "mixture of word counts": model,
        "mixture of tf-idf": make_pipeline(
            CountVectorizer(), TfidfTransformer(), NonnegativeMixtureClassifier(4, solver="accelerated", random_state=0)
        ),
        "multinomial naive Bayes": make_pipeline(CountVectorizer(), MultinomialNB()),
        "logistic regression": make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000)),
    }
    for name, rival in rivals.items():
        print(f"{name:26} accuracy {100 * rival.fit(rows[0], rows[2]).score(rows[1], rows[3]):.1f} %")
    words, classifier = model[0].get_feature_names_out(), model[-1]
    print(
        f"\n{classifier.n_components_.sum()} of {4 * len(TOPICS)} bases are left; the words that speak most for each:"
    )
    for number, basis in enumerate(classifier.bases_ - classifier.bases_.mean(0)):
        kind = classifier.classes_[classifier.weights_[:, number].argmax()]
        print(f"{kind:8} {' '.join(words[basis.argsort()[::-1][:6]])}")


if __name__ == "__main__":
    main()
