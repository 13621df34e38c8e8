"""Figures of README and docs that come from results: `python -m studies render` writes them, a test compares them.

A fragment is a piece of a document with fields for figures; in the document its words may be wrapped otherwise.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from reproduce.stamps import RESULTS, ROOT, published
from studies.comparison import read

STUDIES = ROOT / "studies" / "results"
BENCHMARKS = ROOT / "benchmarks" / "results"
NUMBER = r"-?\d+(?:\.\d+)?"


def hybrid(table: str, row: str) -> float:
    """Mean test error of a row of RPTP18 table 1."""
    return float(np.mean([run["test"] for run in read(RESULTS, "hybrid.json")[table][row].values()]))


def discriminative(data: str, method: str) -> float:
    """Mean test error of KJO03."""
    records = read(RESULTS, "discriminative.json")["records"]
    return float(np.mean([r["test"] for r in records if (r["data"], r["method"]) == (data, method)]))


def spread(row: str) -> float:
    """Mean test error of label spreading."""
    return float(np.mean([run["test"] for run in read(RESULTS, "label_spreading.json")["few labels"][row].values()]))


def pca50() -> dict[str, float]:
    """MNIST, 50 principal components: one EM fit, averaged EM, and the hybrid that starts from averaged EM."""
    table, average = "MNIST (pca50)", "LL, average of 5 starts"
    return {
        "em": hybrid(table, "LL"),
        "average": hybrid(table, average),
        "hybrid": hybrid(f"{table}, searched", "LL+LM"),
    }


def bupa() -> dict[str, float]:
    """Accuracies on BUPA."""
    runs = read(RESULTS, "regularised_bupa.json")["repetitions"].values()
    rows = {"average": "automatic, held-out log-loss, transforms, averaged, bootstrap", "plain": "unregularised"}
    return {key: float(np.mean([run[row]["accuracy"] for run in runs])) for key, row in rows.items()}


def sevens() -> dict[str, float]:
    figures = published()["KJO03 table 2, test error"]["rows"]["7-9"]
    own = {name: discriminative("7-9", name) for name in ("svm", "rlsc")}
    return {"ours": discriminative("7-9", "dgmm"), "mixtures": figures[0], "machines": figures[1], **own}


def banana() -> dict[str, float]:
    runs = read(RESULTS, "sparse_table.json")["runs"]["banana/sdgm"].values()
    return {key: float(np.mean([run[key] for run in runs])) for key in ("error", "weights")}


def speed() -> dict[str, float]:
    """Smallest and largest ratios to scikit-learn of iterations and predictions, and that of a small fit."""
    results, figures = read(BENCHMARKS, "speed.json"), {}
    for part, word in (("iterations", "em"), ("predictions", "predict")):
        for threads, suffix in (("two threads", "two"), ("one thread", "one")):
            ratios = [run["ratios"]["scikit-learn"] for run in results[part][threads]]
            figures |= {f"{word}_{suffix}_low": min(ratios), f"{word}_{suffix}_high": max(ratios)}
    return figures | {"small": 1 / results["small"]["one thread"]["ratios"]["scikit-learn"]}


def card() -> dict[str, float]:
    """Milliseconds of a million samples of 32 features with 64 full components on a GPU."""
    passes = read(BENCHMARKS, "gpu.json")["passes"]
    own = next(run for run in passes if run["workload"] == "full N=1,000,000 D=32 K=64")
    return {"each": own["pass"], "iteration": own["iteration of fit"]}


def texts() -> dict[str, float]:
    """Errors and log-losses on 4500 docstrings, of counts and of sentence embeddings."""
    results, figures = read(BENCHMARKS, "wide.json"), {}
    names = {"mixture": "counts", "logistic, tf-idf, C by folds": "logistic", "linear SVM, tf-idf": "machine",
             "naive Bayes": "bayes", "complement naive Bayes": "complement"}  # fmt: skip
    of_counts = next(own for own in results["texts"] if own["set"] == "docstrings")["results"]
    of_sentences = next(own for own in results["wide"] if own["set"] == "docstrings, sentence embeddings")["results"]
    scores = {name: of_counts[key] for key, name in names.items()} | {"sentences": of_sentences["mixture"]}
    for name, (error, loss, *_) in scores.items():
        figures |= {name: error, f"{name}_loss": loss}
    return figures


CHOSEN_ON = ("docstrings", "fashion, pixels", "usps, pixels")  # served to choose constants for wide features
WIDE = {"docstrings, sentence embeddings": "docstrings", "fashion, pixels": "fashion", "usps, pixels": "usps"}


def wide() -> Mapping[str, float]:
    """Errors, log-losses and ratios of seconds on wide features, and results on sets that served for no choice."""
    results, figures = read(BENCHMARKS, "wide.json")["wide"], {}
    for own in results:
        for method in ("mixture", "LDA", "logistic") if own["set"] in WIDE else ():
            error, loss, _ = own["results"][method]
            figures |= {f"{WIDE[own['set']]}_{method}": error, f"{WIDE[own['set']]}_{method}_loss": loss}
    for method, key in (("logistic", "fixed"), ("logistic, scaled, C by folds", "chosen")):
        ratios = [own["results"]["mixture"][2] / own["results"][method][2] for own in results]
        figures |= {f"{key}_low": min(ratios), f"{key}_high": max(ratios)}
        figures[f"{key}_median"] = float(np.median(ratios))
    blind = [own["results"] for own in results if not own["set"].startswith(CHOSEN_ON)]
    for place, key in ((0, "fewest"), (1, "smallest")):
        figures[key] = sum(own["mixture"][place] == min(v[place] for v in own.values()) for own in blind)
    return figures | {"blind": len(blind)}


def doubt() -> Mapping[str, float]:
    """Areas under the ROC curve of samples of unknown classes; sets that did not serve to choose the rule apart."""
    rows, figures = read(BENCHMARKS, "doubt.json")["rows"], {}
    rules = {
        "ours": "mixture, default",
        "posterior": "mixture, largest probability",
        "logistic": "logistic regression, largest probability",
        "neighbours": "nearest neighbours",
        "vim": "ViM",
    }
    areas = {name: np.array([row["results"][rule][0] for row in rows]) for name, rule in rules.items()}
    ranks = [rankdata([-area for area, _ in row["results"].values()]) for row in rows]
    near = np.array([row["kind"] == "near" for row in rows])
    blind = np.array(["without 7, 8, 9" not in row["set"] or row["set"].startswith("USPS") for row in rows])
    blind &= np.array(["without torch, sympy, sklearn" not in row["set"] for row in rows])
    for kind, own in (("near", near), ("far", ~near)):
        figures |= {kind: own.sum(), f"{kind}_blind": (own & blind).sum()}
        for name, values in areas.items():
            figures |= {f"{kind}_{name}": values[own].mean(), f"{kind}_{name}_blind": values[own & blind].mean()}
    for name, rule in rules.items():
        figures[f"rank_{name}"] = np.mean(ranks, 0)[list(rows[0]["results"]).index(rule)]
        figures[f"below_{name}"] = (areas[name] - areas["ours"]).max()
    shoes = next(row for row in rows if row["set"] == "Fashion, network, without 7, 8, 9" and row["kind"] == "near")
    figures |= {"rules": len(ranks[0]), "shoes": shoes["results"]["mixture, default"][0]}
    return figures | {"distance": shoes["results"]["mixture, distance"][0]}


def prediction_sets() -> dict[str, float]:
    own = read(BENCHMARKS, "doubt.json")["sets"]["docstrings, embeddings"]
    return {"low": 100 * own["smallest"], "high": 100 * own["largest"], "size": own["size"]}


def missingness() -> dict[str, float]:
    """Mean log-losses where the class decides which training values are missing."""
    rows = read(BENCHMARKS, "missingness.json")["rows"]
    reasons = {"same": "the same", "none": "none", "random": "at random"}
    methods = {"auto": 'missing="auto"', "ignorable": 'missing="ignorable"', "forest": "random forest, imputed"}
    return {
        f"{key}_{name}": float(np.mean([row["losses"][method][reason] for row in rows]))
        for key, reason in reasons.items()
        for name, method in methods.items()
    }


def few() -> dict[str, float]:
    way = "no validation labels"
    return {
        "components": spread(f'100: init="spread"; {way}'),
        "pixels": spread(f"100: spread, EM; {way}"),
        "thousand": spread(f'1000: init="spread"; {way}'),
    }


def optimism() -> dict[str, float]:
    """Estimates of performance minus losses of new samples."""
    draws, figures = read(STUDIES, "estimates.json")["draws"], {}
    parts = {"coins": draws["coins, default"], "skewed": draws["skewed, default"], "shifted": draws["shifted, default"]}
    for case in ("skewed", "shifted"):
        pairs = zip(draws[f"{case}, default"], draws[f"{case}, no transform"], strict=False)
        parts[f"{case}_warp"] = [[a[0] - b[0]] for a, b in pairs if a is not None and b is not None]
    for name, runs in parts.items():
        values = np.array([run for run in runs if run is not None])
        figures |= {name: values[:, 0].mean(), f"{name}_error": values[:, 0].std(ddof=1) / np.sqrt(len(values))}
        if name == "coins":
            figures |= {"winner": values[:, 2].mean(), "points": 100 * values[:, 1].mean()}
    return figures


START = "(averaged EM, from which it starts: {average:.2f} %; one EM fit: {em:.2f} %)"
# Document, fragment, and the function that has its figures.
FRAGMENTS: tuple[tuple[str, str, Callable[[], Mapping[str, Any]]], ...] = (
    ("README.md", f"the hybrid classifier has {{hybrid:.2f}} % test error {START}", pca50),
    (
        "README.md",
        "mixtures reach {ours:.1f} % (published mixtures: {mixtures} %, support vector machines: {machines} %; on our "
        "images support vector machines reach {svm:.1f} % and regularised least squares {rlsc:.1f} %)",
        sevens,
    ),
    ("README.md", "On Banana {weights:.0f} weights remain, at {error:.1f} % error", banana),
    (
        "README.md",
        "On two cores an EM iteration is {em_two_low:.1f} to {em_two_high:.1f} times as fast as scikit-learn's, with "
        "one thread {em_one_low:.1f} to {em_one_high:.1f} times, and `predict_proba` {predict_two_low:.1f} to "
        "{predict_two_high:.1f} times, with one thread {predict_one_low:.1f} to {predict_one_high:.1f} times; with one "
        "thread a fit to 250 samples takes {small:.1f} "
        "times as long",
        speed,
    ),
    ("README.md", "64 full components take {each:.1f} ms per pass, {iteration:.1f} ms per iteration of a fit", card),
    (
        "docs/texts.md",
        """| `NonnegativeMixtureClassifier` on counts | {counts:.1f} | {counts_loss:.3f} |
| `MixtureClassifier` on [sentence embeddings](embeddings.md) | {sentences:.1f} | {sentences_loss:.3f} |
| logistic regression on tf-idf, penalty by cross-validation | {logistic:.1f} | {logistic_loss:.3f} |
| linear support vector machine on tf-idf | {machine:.1f} | |
| naive Bayes on counts | {bayes:.1f} | {bayes_loss:.3f} |
| complement naive Bayes on counts | {complement:.1f} | {complement_loss:.3f} |""",
        texts,
    ),
    ("docs/which_estimator.md", f"MNIST, 50 principal components: {{hybrid:.2f}} % {START}", pca50),
    (
        "docs/which_estimator.md",
        "bootstrap of automatic mixtures with transforms: accuracy {average:.1f} % (unregularised mixture: "
        "{plain:.1f} %)",
        bupa,
    ),
    (
        "docs/choosing.md",
        "one EM fit has {em:.1f} % test error, the average of five {average:.2f} %, and hybrid training from the "
        "average of three {hybrid:.2f} %",
        pca50,
    ),
    (
        "docs/embeddings.md",
        """| docstrings, all-MiniLM-L6-v2, 4500 x 384 | {docstrings_mixture:.1f} / {docstrings_mixture_loss:.3f} |
{docstrings_LDA:.1f} / {docstrings_LDA_loss:.3f} | {docstrings_logistic:.1f} / {docstrings_logistic_loss:.3f} |
| fashion, pixels, 3000 x 784 | {fashion_mixture:.1f} / {fashion_mixture_loss:.3f} |
{fashion_LDA:.1f} / {fashion_LDA_loss:.3f} | {fashion_logistic:.1f} / {fashion_logistic_loss:.3f} |
| USPS, pixels, 3000 x 256 | {usps_mixture:.1f} / {usps_mixture_loss:.3f} |
{usps_LDA:.1f} / {usps_LDA_loss:.3f} | {usps_logistic:.1f} / {usps_logistic_loss:.3f} |""",
        wide,
    ),
    (
        "docs/embeddings.md",
        "Of {blind} sets of other data the mixture has the fewest errors on {fewest} and the smallest log-loss on "
        "{smallest}",
        wide,
    ),
    (
        "docs/embeddings.md",
        "A fit takes {fixed_low:.1f} to {fixed_high:.0f} times as long as one logistic regression with a fixed penalty "
        "(median {fixed_median:.1f}), and {chosen_low:.2f} to {chosen_high:.2f} times as long as one whose penalty is "
        "chosen by cross-validation",
        wide,
    ),
    (
        "docs/embeddings.md",
        """| {near} near sets: classes left out | {near_ours:.3f} | {near_posterior:.3f} | {near_logistic:.3f} |
{near_neighbours:.3f} | {near_vim:.3f} |
| {near_blind} of them | {near_ours_blind:.3f} | {near_posterior_blind:.3f} | {near_logistic_blind:.3f} |
{near_neighbours_blind:.3f} | {near_vim_blind:.3f} |
| {far} far sets: letters for digits, Fashion for MNIST | {far_ours:.3f} | {far_posterior:.3f} | {far_logistic:.3f} |
{far_neighbours:.3f} | {far_vim:.3f} |
| {far_blind} of them | {far_ours_blind:.3f} | {far_posterior_blind:.3f} | {far_logistic_blind:.3f} |
{far_neighbours_blind:.3f} | {far_vim_blind:.3f} |
| mean rank among {rules} rules | {rank_ours:.1f} | {rank_posterior:.1f} | {rank_logistic:.1f} |
{rank_neighbours:.1f} | {rank_vim:.1f} |""",
        doubt,
    ),
    (
        "docs/embeddings.md",
        "It is at most {below_posterior:.3f} below the model's own largest probability on any set, and "
        "{below_logistic:.3f} below that of logistic regression on one",
        doubt,
    ),
    (
        "docs/embeddings.md",
        "with shoes and bags left out of Fashion-MNIST, {shoes:.2f} against {distance:.2f} by distance alone",
        doubt,
    ),
    (
        "docs/embeddings.md",
        "sets of 90 % hold the class of {low:.1f} to {high:.1f} % of the test samples of a package, and {size:.1f} of "
        "nine classes",
        prediction_sets,
    ),
    (
        "docs/missing.md",
        """| for the same reasons | **{same_auto:.3f}** | {same_ignorable:.3f} | {same_forest:.3f} |
| none (complete rows) | {none_auto:.3f} | **{none_ignorable:.3f}** | {none_forest:.3f} |
| 30 % at random | {random_auto:.3f} | **{random_ignorable:.3f}** | {random_forest:.3f} |""",
        missingness,
    ),
    (
        "docs/few_labels.md",
        "{components:.1f} % test error with 100 labels (five draws; {pixels:.1f} % with neighbours in pixel space), "
        "{thousand:.1f} % with 1000 labels",
        few,
    ),
    (
        "docs/theory.md",
        "the estimate less the loss of new samples is {coins:.4f} ± {coins_error:.4f} (score of the winner: "
        "{winner:.3f}; error: {points:.1f} points, probably",
        optimism,
    ),
    (
        "docs/theory.md",
        "it is {skewed:.4f} ± {skewed_error:.4f}, of which transforms are {skewed_warp:.4f} ± {skewed_warp_error:.4f} "
        "(the default less a fit without them, on the same draws); where one of these features differs between the "
        "classes {shifted:.4f} ± {shifted_error:.4f}, transforms {shifted_warp:.4f} ± {shifted_warp_error:.4f}",
        optimism,
    ),
)


def pattern(fragment: str) -> re.Pattern[str]:
    """The fragment with any numbers in its fields and any white space between its words."""
    parts = []
    for words, field, _, _ in string.Formatter().parse(fragment):
        parts.append(r"\s+".join(map(re.escape, re.split(r"\s+", words))))
        parts += [f"({NUMBER})"] if field is not None else []
    return re.compile("".join(parts))


def rendered(text: str, fragment: str, values: Mapping[str, Any]) -> str:
    """The text with the figures of a fragment replaced."""
    matches = list(pattern(fragment).finditer(text))
    if len(matches) != 1:
        raise ValueError(f"a fragment must be in its document once; got {len(matches)} times: {fragment}")
    numbers = re.findall(NUMBER, "|".join(
        format(values[field], form or "") for _, field, form, _ in string.Formatter().parse(fragment) if field
    ))  # fmt: skip
    for group, number in reversed(list(enumerate(numbers, 1))):
        text = text[: matches[0].start(group)] + number + text[matches[0].end(group) :]
    return text


def documents(root: Path = ROOT) -> dict[Path, str]:
    """Every document with its figures as in the results."""
    texts: dict[Path, str] = {}
    for name, fragment, values in FRAGMENTS:
        path = root / name
        texts[path] = rendered(texts.get(path, path.read_text("utf-8")), fragment, values())
    return texts


def write() -> None:
    for path, text in documents().items():
        path.write_text(text, "utf-8")
