"""Tables and picture of the benchmark of the defaults: scores, paired differences, wins and losses, signed ranks."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import defaults
from benchmarks.classifiers import CLASSIFIERS, IMPUTED, OURS
from benchmarks.data_sets import N_GENERATED, division

Row = dict[str, Any]
Differences = dict[str, float]
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "defaults.png"
MEASURES = {"error": 100, "log-loss": 1, "Brier": 1, "calibration": 100, "AUC": 100}  # factors in the tables
EQUAL = {"error": 0.005, "log-loss": 0.01}  # smaller differences on a set count as equal
FEWEST_SETS = 10  # with which a classifier is compared in README
N_DRAWS = 20_000
FIRST, UNKNOWN = "first", "unknown"  # the machine of rows that do not name theirs, and one that is not to be compared
TITLES = {
    "complete": "No values removed",
    "random": "{} % of the values removed at random, in training and test rows",
    "at random": "{} % removed with probabilities that depend on another column, in training and test rows",
    "informative": "{} % removed with probabilities that depend on the value itself, in training and test rows",
    "by class": "{} % removed with probabilities that depend on the class, in training and test rows",
    "deployment": "Training rows complete, {} % removed at random from test rows",
}


# ---- statistics ------------------------------------------------------------------------------------------------------


def newest(rows: list[Row]) -> list[Row]:
    """One row for each measurement, that of the last version of the code that was measured under its condition."""
    keys = [(row["part"], row["condition"], row["classifier"]) for row in rows]
    last = {key: row["code"] for key, row in zip(keys, rows, strict=True) if key[-1].startswith("Mixture")}
    kept = [row for key, row in zip(keys, rows, strict=True) if last.get(key, row["code"]) == row["code"]]
    return list({(r["part"], r["set"], r["fold"], r["condition"], r["classifier"]): r for r in kept}.values())


def part_of(rows: list[Row]) -> str:
    """The part that is shown first: evaluation sets once the default is run on them."""
    own = {row["part"] for row in rows if row["classifier"] == OURS}
    return "evaluation" if "evaluation" in own else "development"


def pair(rows: list[Row], first: str, second: str, measure: str) -> tuple[dict[str, float], dict[str, float]]:
    """Means over the folds that both have, set by set; the sizes of one generator are one set."""
    values: dict[str, dict[tuple[str, int], float]] = {first: {}, second: {}}
    for row in rows:
        if row["classifier"] in values:
            values[row["classifier"]][row["set"], row["fold"]] = row[measure]
    both = sorted(values[first].keys() & values[second].keys())
    clusters: dict[str, list[tuple[str, int]]] = {}
    for name, fold in both:
        generator, _, size = name.rpartition(" ")
        generated = size.isdigit() and int(size) in N_GENERATED
        clusters.setdefault(generator if generated else name, []).append((name, fold))
    means = [{c: float(np.mean([values[f][k] for k in keys])) for c, keys in clusters.items()} for f in (first, second)]
    return means[0], means[1]


def folds_of(rows: list[Row], first: str, second: str) -> str:
    """The number of folds that both have, or the smallest and the largest over the sets."""
    fits = [{(row["set"], row["fold"]) for row in rows if row["classifier"] == name} for name in (first, second)]
    numbers = Counter(name for name, _ in set.intersection(*fits)).values()
    return " to ".join(str(n) for n in sorted({min(numbers), max(numbers)})) if numbers else "0"


def on_one_machine(rows: list[Row], first: str, others: list[str]) -> tuple[str, list[Row]]:
    """The machine on which the first and the others have the most sets and folds in common, and its rows."""
    of_machines: dict[str, list[Row]] = {}
    for row in rows:
        if (machine := row.get("machine", FIRST)) != UNKNOWN:
            of_machines.setdefault(machine, []).append(row)

    def shared(machine: str) -> int:
        fits = [
            {(row["set"], row["fold"]) for row in of_machines[machine] if row["classifier"] == name}
            for name in (first, *others)
        ]
        return sum(len(fits[0] & own) for own in fits[1:])

    machine = max(of_machines, key=shared, default=FIRST)
    return machine, of_machines.get(machine, [])


def signed_rank(differences: np.ndarray, equal: float, seed: int = 0) -> tuple[float, float, float]:
    """Probabilities that the first is better, that both are equal, and that the second is better.

    The Bayesian signed-rank test of Benavoli et al. (2014, 2017): a Dirichlet process over the differences, with one
    pseudo-observation at zero. Differences are those of losses, first minus second.
    """
    z = np.concatenate(([0.0], differences))
    sums = z[:, None] + z
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(z)), N_DRAWS)
    shares = np.stack(
        [np.einsum("si,ij,sj->s", weights, m, weights) for m in (sums < -2 * equal, abs(sums) <= 2 * equal)]
    )
    winner = np.vstack((shares, 1 - shares.sum(0))).argmax(0)
    better, same, worse = np.bincount(winner, minlength=3) / N_DRAWS
    return float(better), float(same), float(worse)


def differences_of(rows: list[Row], first: str, second: str, measure: str) -> np.ndarray:
    a, b = pair(rows, first, second, measure)
    return np.array([a[name] - b[name] for name in a])


def mean_and_error(differences: np.ndarray) -> tuple[float, float]:
    n = len(differences)
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")


def count(differences: np.ndarray, equal: float) -> tuple[int, int, int]:
    """Sets on which the first has a smaller loss, an equal one, a larger one."""
    wins, losses = int((differences < -equal).sum()), int((differences > equal).sum())
    return wins, len(differences) - wins - losses, losses


# ---- the page --------------------------------------------------------------------------------------------------------


def rivals(rows: list[Row]) -> list[str]:
    """Classifiers with results on sets that the default has too, by the mean difference of log-losses."""
    means = {name: differences_of(rows, OURS, name, "log-loss") for name in CLASSIFIERS if name != OURS}
    return sorted((name for name, each in means.items() if len(each)), key=lambda name: -means[name].mean())


def better_form(rows: list[Row], name: str) -> str:
    """The classifier itself or the one with imputation, by log-loss, if both have the same sets."""
    own, imputed = pair(rows, name, name + IMPUTED, "log-loss")
    shared = len(own) == len(pair(rows, OURS, name, "log-loss")[0]) >= FEWEST_SETS
    return name + IMPUTED if shared and sum(imputed.values()) < sum(own.values()) else name


def table(rows: list[Row]) -> list[str]:
    """Ours beside every other classifier over the sets that both have."""
    head = "classifier | sets | folds | error %, ours | its | difference | log-loss, ours | its | difference"
    head += " | log-loss: won, equal, lost | better, equal, worse | Brier | calibration | AUC"
    head += " | fit s, ours | its | ms, ours | its"
    named = any("machine" in row for row in rows)
    head += " | machine" * named
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    n_sets = len({row["set"] for row in rows if row["classifier"] == OURS})
    for name in rivals(rows):
        cells = []
        if 2 * len({row["set"] for row in rows if row["classifier"] == name}) < n_sets:
            continue
        for measure, digits in (("error", 1), ("log-loss", 3)):
            factor = MEASURES[measure]
            own, other = pair(rows, OURS, name, measure)
            mean, error = mean_and_error(differences_of(rows, OURS, name, measure))
            cells += [f"{factor * np.mean(list(values.values())):.{digits}f}" for values in (own, other)]
            cells += [f"{factor * mean:+.{digits}f} ± {factor * error:.{digits}f}"]
        losses = differences_of(rows, OURS, name, "log-loss")
        cells += [", ".join(map(str, count(losses, EQUAL["log-loss"])))]
        cells += [", ".join(f"{p:.2f}" for p in signed_rank(losses, EQUAL["log-loss"]))]
        for measure, digits in (("Brier", 3), ("calibration", 1), ("AUC", 1)):
            mean, error = mean_and_error(MEASURES[measure] * differences_of(rows, OURS, name, measure))
            cells += [f"{mean:+.{digits}f} ± {error:.{digits}f}"]
        machine, of_machine = on_one_machine(rows, OURS, [name])
        for measure, factor in (("fit seconds", 1), ("predict seconds", 1000)):
            seconds = pair(of_machine, OURS, name, measure)
            cells += [f"{factor * np.mean(list(values.values())):.1f}" if values else "" for values in seconds]
        cells += [machine if seconds[0] else ""] * named
        lines.append(f"| {name} | {len(losses)} | {folds_of(rows, OURS, name)} | {' | '.join(cells)} |")
    return lines


def failures(rows: list[Row]) -> list[str]:
    reasons = Counter((r["classifier"], r["failure"]) for r in rows if "failure" in r)
    return [f"- {name}, {n} fits: {reason}" for (name, reason), n in sorted(reasons.items())]


def by_folds(rows: list[Row]) -> dict[str, list[str]]:
    """Other classifiers by the number of folds that they have beside ours, the most folds first."""
    numbers = {name: folds_of(rows, OURS, name) for name in CLASSIFIERS if name != OURS}
    counts = sorted(set(numbers.values()) - {"0"}, reverse=True)
    return {count: [name for name in numbers if numbers[name] == count] for count in counts}


def by_set(rows: list[Row], others: list[str]) -> list[str]:
    """Error and log-loss of ours and the others, set by set, over the folds that all of them have of the set."""
    names = [OURS, *others]
    rows = [row for row in rows if row["classifier"] in names]
    lines = ["| set | samples x features | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for data in dict.fromkeys(row["set"] for row in rows):
        of_set = [row for row in rows if row["set"] == data]
        present = {name: {row["fold"] for row in of_set if row["classifier"] == name} for name in names}
        if not any(present[name] for name in others):
            continue
        folds = set.intersection(*(own for own in present.values() if own))
        cells = []
        for name in names:
            chosen = [row for row in of_set if row["classifier"] == name and row["fold"] in folds]
            means = [np.mean([row[measure] for row in chosen]) if chosen else 0.0 for measure in ("error", "log-loss")]
            cells.append(f"{means[0]:.1%}, {means[1]:.3f}" if chosen else "")
        first = of_set[0]
        categories = f", {first['categories']} categorical" if first["categories"] else ""
        size = f"{first['samples']} x {first['features']}{categories}"
        lines.append(f"| {data} | {size} | " + " | ".join(cells) + " |")
    return lines


def by_kind(rows: list[Row]) -> dict[str, list[Row]]:
    """Results on sets with categories and on sets of numbers alone."""
    return {
        "with categories": [row for row in rows if row["categories"]],
        "of numbers alone": [row for row in rows if not row["categories"]],
    }


def kinds(rows: list[Row]) -> list[str]:
    """Differences on sets with categories and on sets of numbers alone."""
    parts = by_kind(rows)
    columns = [f"{kind}: {what}" for kind in parts for what in ("sets", "error, points", "log-loss")]
    lines = [f"| classifier | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name in rivals(rows):
        cells = []
        for own in parts.values():
            cells += [str(len(pair(own, OURS, name, "error")[0]))]
            for measure, digits in (("error", 1), ("log-loss", 3)):
                mean, error = mean_and_error(MEASURES[measure] * differences_of(own, OURS, name, measure))
                cells += [f"{mean:+.{digits}f} ± {error:.{digits}f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def constants(rows: list[Row]) -> list[str]:
    """Fits that give all test rows the same probabilities, of which the reader should know."""
    same = Counter((row["classifier"], row["set"]) for row in rows if row["AUC"] == 0.5 and "failure" not in row)
    return [f"- {name} on {data}, {n} fits" for (name, data), n in sorted(same.items())]


def title(condition: str) -> str:
    mechanism, _, share = condition.rpartition(" ")
    return TITLES[mechanism or condition].format(share)


INTRODUCTION = """[data_sets.toml](../data_sets.toml) lists the sets with their sources, the purposes that each
served before, and their division into development and evaluation sets. A set has at most 3000 rows, a random part if
there are more; classes with fewer than 10 rows are left out. Every set is divided into 5 folds.

The mixture, LightGBM, histogram boosting, CatBoost and explainable boosting have native support of categories; the
others have one-hot coding. Settings of the other classifiers are chosen by cross-validation on the training rows:
[classifiers.py](../classifiers.py); of LightGBM and histogram boosting that is the number of trees, and CatBoost,
explainable boosting, RealMLP, TabM and xRFM have the settings of their packages. Class probabilities of the mixture and
of the RBF-SVM are calibrated on training rows, those of the others are as they come; the log-loss takes probabilities
below 1e-15 for 1e-15. Forests, LightGBM, histogram boosting, CatBoost and explainable boosting have native support of
missing values, the others medians and indicators; "imputed" stands for these in place of native support. A classifier
that fails predicts the class frequencies. With complete training rows and missing values in test rows ("deployment")
the others are trained with three thinned copies of the rows. TabPFN and other pretrained models are not compared: their
weights are in no package registry.

Every row compares over the sets and folds that both have; classifiers that were run on fewer than half of the sets have
none. Differences are ours minus theirs, means over sets of means
over folds, with standard errors over sets (the sizes of one generator are one set): negative is better for us, but for
AUC. "Won, equal, lost" counts sets on which log-losses differ by more than 0.01. "Better, equal, worse" are
probabilities of a Bayesian signed-rank test that the mixture's log-loss is smaller by more than 0.01, within 0.01, or
larger. Error, calibration error and AUC are in per cent. Seconds of a fit and milliseconds of the predictions for the
test rows are processor time with one thread, means over the fits that both have on one machine, the one with the most
of them; where there is none, they are absent.

To repeat it:

    pip install '.[bench]'
    apt install r-cran-mlbench r-cran-kernlab r-cran-mclust r-cran-th.data r-cran-vim r-cran-randomforest
    python -m benchmarks.export_data ~/sets        # MIXTURA_DATA has two archives of reproduce/data.py
    export MIXTURA_BENCHMARKS=~/sets
    python -m benchmarks defaults --sets evaluation --processes 8 --minutes 60   # a later call continues
    python -m benchmarks defaults --sets evaluation --folds 2 --conditions "random 10" "random 60"
    python -m benchmarks defaults --sets evaluation --folds 2 --conditions "at random 30" "informative 30"
    python -m benchmarks defaults --sets evaluation --folds 2 --conditions complete \\
        --classifiers "explainable boosting" TabM RealMLP xRFM
    python -m benchmarks defaults --sets evaluation --folds 1 --conditions "deployment 30" \\
        "at random 10" "informative 10" "at random 60" "informative 60"
"""


USES = {
    "development": "Rules of the default were chosen on these sets, so that its figures here are optimistic.",
    "evaluation": """No rule was chosen on these sets. The default was run on them when it was done: folds 1 and 2 of
complete sets and with 30 % missing at random, fold 1 under the other conditions. Other folds and classifiers were run
later, with the same code of the mixtures, the same settings of the others and the same versions of packages. No
measurement was replaced by another.""",
    "generators": "Drawn from distributions of our own.",
}


def circumstances(rows: list[Row]) -> str:
    """Time, machines and versions of the run on evaluation sets, and fits that were stopped or left out."""
    run = tomllib.loads((defaults.RESULTS / "defaults_evaluation.toml").read_text("utf-8"))
    stopped = [f"{s['classifier']} on {s['set']} after {s['minutes']} minutes" for s in run["stopped"]]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    hours = sum(row["fit seconds"] + row["predict seconds"] for row in rows) / 3600
    machines = "; ".join(f"{name}: {words}" for name, words in run["machines"].items())
    words = [f"All fits and predictions took {hours:.1f} core-hours.", f"Machines: {machines}."]
    words += [f"Versions: {versions}.", f"Stopped and absent: {', '.join(stopped)}."]
    return " ".join([*words, f"Not run: {'; '.join(run['left_out'])}.", run["checks"]])


def page(rows: list[Row]) -> str:
    rows = newest(rows)
    lines = ["# Defaults", "", "Written by `python -m benchmarks defaults`.", ""]
    lines += [INTRODUCTION]
    for part in ("evaluation", "development", "generators"):
        of_part = [row for row in rows if row["part"] == part]
        if not any(row["classifier"] == OURS for row in of_part):
            continue
        n_sets = len({row["set"] for row in of_part})
        folds = len({row["fold"] for row in of_part})
        listed = f" of {len(division()[part])}" if part in division() else ""
        conditions: dict[str, list[str]] = {}
        for condition, code in dict.fromkeys((r["condition"], r["code"]) for r in of_part if r["classifier"] == OURS):
            conditions.setdefault(code, []).append(condition)
        codes = [
            f"{code} ({', '.join(own)})" if len(conditions) > 1 else code for code, own in sorted(conditions.items())
        ]
        lines += [f"## {part.capitalize()} sets", "", USES[part], ""]
        lines += [f"{n_sets}{listed} sets, at most {folds} of 5 folds. Code of the mixtures: {', '.join(codes)}.", ""]
        lines += extent(of_part)
        lines += [circumstances(of_part), ""] if part == "evaluation" else []
        for condition in defaults.CONDITIONS:
            chosen = [row for row in of_part if row["condition"] == condition]
            if any(row["classifier"] != OURS for row in chosen):
                lines += [f"### {part.capitalize()}: {title(condition)}", "", *table(chosen), ""]
        if reasons := failures(of_part):
            lines += ["Failures:", "", *reasons, ""]
        if same := constants(of_part):
            lines += [
                "Fits with an AUC of exactly 50 %, which do not tell test rows apart:",
                "",
                *same,
                "",
            ]
        complete = [row for row in of_part if row["condition"] == "complete"]
        if part == "evaluation":
            words = "Differences without removed values, by the features of the sets."
            lines += ["### Evaluation: sets with categories and sets of numbers", "", words, "", *kinds(complete), ""]
        for number, names in by_folds(complete).items():
            lines += [f"### {part.capitalize()}, set by set: classifiers with {number} fold{'s' * (number != '1')}", ""]
            lines += ["Error and log-loss without removed values.", "", *by_set(complete, names), ""]
    return "\n".join(lines)


def extent(rows: list[Row]) -> list[str]:
    """Folds x sets of every classifier and condition, and what has no results at all."""
    names = [name for name in CLASSIFIERS if any(row["classifier"] == name for row in rows)]
    conditions = [c for c in defaults.CONDITIONS if any(row["condition"] == c for row in rows)]
    fits: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for row in rows:
        fits.setdefault((row["classifier"], row["condition"]), set()).add((row["set"], row["fold"]))
    lines = ["Folds x sets that were run (numbers of fits where sets differ in folds):", ""]
    lines += [f"| classifier | {' | '.join(conditions)} |", "|---" * (1 + len(conditions)) + "|"]
    for name in names:
        own = [fits.get((name, condition), set()) for condition in conditions]
        lines.append(f"| {name} | {' | '.join(map(size_of, own))} |")
    absent = [name.replace(IMPUTED, " (imputed)") for name in CLASSIFIERS if name not in names]
    lacking = {"classifiers": absent, "conditions": [c for c in defaults.CONDITIONS if c not in conditions]}
    words = [f"{what}: {', '.join(own)}" for what, own in lacking.items() if own]
    return [*lines, "", *([f"Without results, {'; '.join(words)}.", ""] if words else [])]


def size_of(fits: set[tuple[str, int]]) -> str:
    n_sets, n_folds = (len({fit[i] for fit in fits}) for i in (0, 1))
    even = len(fits) == n_sets * n_folds
    return f"{n_folds} x {n_sets}" if fits and even else f"{len(fits)} fits" if fits else ""


def compare_versions(new: list[Row], old: list[Row], code: str) -> list[str]:
    """The default of this code beside that of an earlier file, condition by condition."""
    old = [row for row in newest(old) if row["classifier"] == OURS]
    new = [row for row in new if row["classifier"] == OURS and row["code"] == code]
    both = [{**row, "classifier": "new"} for row in new] + [{**row, "classifier": "old"} for row in old]
    lines = []
    for condition in dict.fromkeys(row["condition"] for row in new):
        chosen = [row for row in both if row["condition"] == condition]
        lines += [f"{condition}: new minus old"]
        for measure in (*MEASURES, "fit seconds"):
            a, b = pair(chosen, "new", "old", measure)
            if a:
                each = np.array([a[name] - b[name] for name in a])
                mean, error = mean_and_error(each)
                worst = sorted(a, key=lambda name: a[name] - b[name])
                words = ", ".join(f"{name} {a[name] - b[name]:+.3f}" for name in (*worst[:3], *worst[-3:]))
                means = [float(np.mean(list(values.values()))) for values in (a, b)]
                lines += [
                    f"  {measure:12} {means[0]:.4f} against {means[1]:.4f}: {mean:+.4f} ± {error:.4f}, "
                    f"{len(each)} sets; {words}"
                ]
    return lines


def draw(rows: list[Row]) -> None:
    """Paired differences with 95 % intervals, by classifier and condition, of the better form with missing values."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = newest(rows)
    part = part_of(rows)
    of_part = [row for row in rows if row["part"] == part and not row["classifier"].startswith("MixtureClassifier(1")]
    complete = [row for row in of_part if row["condition"] == "complete"]
    names = [n for n in rivals(complete) if not n.endswith(IMPUTED)]
    sizes = [f"{len(pair(complete, OURS, name, 'error')[0])} x {folds_of(complete, OURS, name)}" for name in names]
    labels = [f"{name}, {size}" for name, size in zip(names, sizes, strict=True)]
    figure, axes = plt.subplots(1, 2, figsize=(10, 1.8 + 0.5 * len(names)), layout="constrained", sharey=True)
    for ax, measure, unit in zip(axes, ("error", "log-loss"), ("error, percentage points", "log-loss"), strict=True):
        for shift, condition, label in ((-0.12, "complete", "complete"), (0.12, "random 30", "30 % missing")):
            chosen = [row for row in of_part if row["condition"] == condition]
            each = [
                MEASURES[measure] * differences_of(chosen, OURS, better_form(chosen, name), measure) for name in names
            ]
            points = [(height, *mean_and_error(values)) for height, values in enumerate(each) if len(values) > 1]
            heights, means, errors = np.array(points).T if points else np.empty((3, 0))
            color = "C0" if condition == "complete" else "C1"
            ax.errorbar(means, heights + shift, xerr=1.96 * errors, fmt="o", color=color, label=label, capsize=3)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(xlabel=f"MixtureClassifier() minus the other: {unit}", yticks=range(len(names)), yticklabels=labels)
        ax.grid(alpha=0.3)
    axes[1].legend(fontsize=8)
    figure.suptitle(
        f"{part} sets (complete: sets x folds), differences with 95 % intervals; left of zero the mixture is better",
        fontsize=10,
    )
    figure.savefig(IMAGE, dpi=80)
    plt.close(figure)


def write(rows: list[Row]) -> None:
    (defaults.RESULTS / "defaults.md").write_text(page(rows) + "\n", "utf-8")
    draw(rows)
