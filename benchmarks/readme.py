"""python -m benchmarks.readme: figures of the benchmark of the defaults in README.md and docs/which_estimator.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import defaults
from benchmarks.classifiers import IMPUTED, OURS
from benchmarks.data_sets import division
from benchmarks.defaults_page import (
    EQUAL,
    FEWEST_SETS,
    MEASURES,
    better_form,
    by_kind,
    count,
    differences_of,
    folds_of,
    mean_and_error,
    newest,
    on_one_machine,
    pair,
    part_of,
    rivals,
)
from studies.documents import rendered

README = Path(__file__).parents[1] / "README.md"
DECISIONS = Path(__file__).parents[1] / "docs" / "which_estimator.md"
SECTION = ("## Results\n", "## Estimators\n")  # it begins with the first and ends before the second
CONDITIONS = {"complete": "complete", "random 30": "30 % missing"}
ON_GPU = ("RealMLP", "TabM", "xRFM")  # whose processor time says little
MECHANISMS = {
    "random": "{} % missing",
    "at random": "{} % by another column",
    "informative": "{} % by the value",
    "deployment": "{} % in test rows alone",
}
SHARES = (10, 30, 60)
SIGNS = {"better": "+", "not distinguishable": "=", "worse": "-"}
LARGE = 0.05  # a log-loss or an error that is larger by this than that of another classifier is a loss to name
MOST_NAMED = 8
Row = dict[str, Any]

MEASURED = """![Differences of errors and log-losses with 95 % intervals, on {part} sets](docs/images/defaults.png)

**Measured.** {n_sets} {part} sets, none of them generated, with {samples} training samples;
{n_categories} have categories, {n_alone} categories alone ([list](benchmarks/data_sets.toml), [all figures and
conditions](benchmarks/results/defaults.md)). Settings of the other classifiers are chosen by cross-validation on the
training rows (of LightGBM and histogram boosting the number of trees); CatBoost, explainable boosting, RealMLP, TabM
and xRFM have those of their packages. Class probabilities of the default and of the RBF-SVM are calibrated on training
rows, those of the others are as they come. "30 % missing": that share is removed at random from training and test rows;
forests, LightGBM and histogram boosting then have native support or, where both were run, medians with indicators,
whichever has the smaller log-loss here. Differences are ours minus theirs, means over sets of means over folds, with
standard errors over sets: negative is better for us. Won, equal, lost: sets on which log-losses differ by more than
{equal}. The default has {own}.
"""
LOST = f"""**Lost.** Sets on which another classifier has a log-loss that is smaller by more than {LARGE}, or
an error that is smaller by more than {100 * LARGE:.0f} points; ours / that of the other one with the largest
difference:
"""
UNKNOWN = {
    "development": """**Not known.** {n_others} evaluation sets, set apart before any further rule is chosen, have not
been run. Rules of the default were chosen on the development sets, the average of models among them by this fold: these
figures are optimistic. """,
    "evaluation": """**Limits.** No rule was chosen on these sets. The default was run on them when it was done, on
one or two folds at first, later with the same code on more. {incomplete}They are small tables from packages;
standard errors are over such sets. Recurrence has the features, not the classes, of rows of a development set, breast
cancer. On the {n_others} development sets, on which its rules were chosen, it has {others}. The page of all
figures says what was not run. """,
}
PRETRAINED = """Pretrained models such as TabPFN are not compared: their weights are in no package registry.
[Earlier figures](benchmarks/results/earlier_defaults.md) are of 41 sets, of which 27 are nine of our own
generators at three sizes; the other classifiers were trained on complete rows alone there.
"""
COMPARED = (
    "{what}, complete, {{c_sets}} sets: {{c_ours:{form}}} (random forest {{c_forest:{form}}}, LightGBM "
    "{{c_LightGBM:{form}}}); 30 % missing, {{r_sets}} sets: {{r_ours:{form}}} (random forest {{r_forest:{form}}}, "
    "LightGBM {{r_LightGBM:{form}}})"
)
SLOWER = (
    "the automatic choice takes {c_slower:.1f} times as long as a random forest of 300 trees, with 30 % of the values "
    "missing {r_slower:.1f} times"
)
CATEGORICAL = (
    "log-loss, {sets} evaluation sets with categories: {ours:.3f} (random forest {forest:.3f}, "
    "logistic regression {regression:.3f}, histogram boosting {boosting:.3f})"
)
SINGLE = (
    "{seconds_single:.1f} seconds a fit (`MixtureClassifier()`: {seconds_ours:.1f}); error {error_single:.1f} % "
    "({error_ours:.1f} %) on {sets} sets"
)
BOOSTING = (
    "on {sets} complete evaluation sets, {folds:.0f} folds, it has {its:.1f} % errors and a log-loss of {its_loss:.3f} "
    "(the default: {ours:.1f} %, {ours_loss:.3f}; at {errors:.1f} and {losses:.1f} standard errors)"
)


def render() -> str:
    every = newest(defaults.results())
    part = part_of(every)
    rows, others = ([row for row in every if (row["part"] == part) == chosen] for chosen in (True, False))
    n_others = len(division()["development" if part == "evaluation" else "evaluation"])
    unknown = (
        UNKNOWN[part].format(
            n_others=n_others,
            others=own_figures(others) if part == "evaluation" else "",
            incomplete=incomplete(of(rows, "complete")),
        )
        + PRETRAINED
    )
    blocks = [measured(rows, part), *table(rows), "", shown(rows), cost(rows), LOST, *lost(rows), "", unknown, ""]
    return "\n".join([SECTION[0], *blocks])


def of(rows: list[Row], condition: str) -> list[Row]:
    return [row for row in rows if row["condition"] == condition]


def others(rows: list[Row]) -> list[str]:
    return [name for name in rivals(rows) if not name.startswith("Mixture")]


def own_figures(rows: list[Row]) -> str:
    own = []
    for condition, title in CONDITIONS.items():
        folds = {row["fold"] for row in of(rows, condition) if not row["classifier"].startswith("Mixture")}
        ours = [row for row in of(rows, condition) if row["classifier"] == OURS and row["fold"] in folds]
        error, loss = (np.mean([row[measure] for row in ours]) for measure in ("error", "log-loss"))
        own += [f"{100 * error:.1f} % errors and a log-loss of {loss:.3f} ({title}, {len(folds)} of 5 folds)"]
    return ", ".join(own)


def incomplete(rows: list[Row]) -> str:
    """A sentence on classifiers that were not run on all sets."""
    every = dict.fromkeys(row["set"] for row in rows if row["classifier"] == OURS)
    words = []
    for name in others(rows):
        own = {row["set"] for row in rows if row["classifier"] == name}
        lacking = [data for data in every if data not in own]
        words += [f"{name} on {', '.join(lacking)}"] if lacking and len(own) >= FEWEST_SETS else []
    return f"Not run, or stopped, for their time: {'; '.join(words)}. " if words else ""


def measured(rows: list[Row], part: str) -> str:
    samples = [row["samples"] for row in rows]
    return MEASURED.format(
        part=part,
        n_sets=len({row["set"] for row in rows}),
        samples=f"{min(samples)} to {max(samples)}",
        n_categories=len({row["set"] for row in rows if row["categories"]}),
        n_alone=len({row["set"] for row in rows if row["categories"] == row["features"]}),
        equal=EQUAL["log-loss"],
        own=own_figures(rows),
    )


def shown(rows: list[Row]) -> str:
    """Verdicts at two standard errors, by log-loss and by error, for every classifier and condition."""
    columns = columns_of(rows)
    names = [name for name in others(of(rows, "complete")) if name in compared(of(rows, "complete"))]
    most = {title: most_folds(own) for title, own in columns.items()}
    lines = [f"| classifier | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| folds | {' | '.join(most.values())} |"]
    for name in names:
        cells = [signs(own, name, most[title]) for title, own in columns.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    head = (
        "**Shown.** At two standard errors, comparison by comparison, the default is better (+), not distinguishable "
        "(=) or worse (-):\nthe first sign by log-loss, the second by errors. Another number of folds is in brackets; "
        "an empty cell was not run.\n"
        "By another column, by the value: what it depends on whether a value is missing.\n\n"
    )
    return head + "\n".join(lines) + f"\n\n{smaller_errors(of(rows, 'complete'))}\n"


def columns_of(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of the conditions that were run, complete sets also by kind."""
    complete = of(rows, "complete")
    columns = {"complete": complete} | {f"complete, {kind}": own for kind, own in by_kind(complete).items()}
    for mechanism, title in MECHANISMS.items():
        columns |= {title.format(share): of(rows, f"{mechanism} {share}") for share in SHARES}
    return {title: own for title, own in columns.items() if compared(own)}


def most_folds(rows: list[Row]) -> str:
    """The number of folds that most of the others have."""
    numbers = [folds_of(rows, OURS, better_form(rows, name)) for name in compared(rows)]
    return max(sorted(set(numbers), reverse=True), key=numbers.count)


def signs(rows: list[Row], name: str, most: str) -> str:
    """The verdicts by log-loss and by error; the number of folds if it is another one."""
    if name not in compared(rows):
        return ""
    form = better_form(rows, name)
    words = [SIGNS[verdict(differences_of(rows, OURS, form, measure))] for measure in ("log-loss", "error")]
    folds = folds_of(rows, OURS, form)
    return " ".join(words) + f" ({folds})" * (folds != most)


def verdict(differences: np.ndarray) -> str:
    """Whether the default is better, by differences over sets (ours minus theirs), at two standard errors."""
    average, error = mean_and_error(differences)
    if abs(average) < 2 * error:
        return "not distinguishable"
    return "better" if average < 0 else "worse"


def compared(rows: list[Row]) -> list[str]:
    """Other classifiers with enough sets, without their forms with imputation."""
    names = [name for name in others(rows) if not name.endswith(IMPUTED)]
    return [name for name in names if len(differences_of(rows, OURS, name, "error")) >= FEWEST_SETS]


def smaller_errors(rows: list[Row]) -> str:
    """Other classifiers whose mean error is smaller, whether or not that is distinguishable."""
    points = {name: 100 * differences_of(rows, OURS, name, "error").mean() for name in others(rows)}
    ahead = sorted((name for name in points if points[name] > 0), key=points.__getitem__, reverse=True)
    largest = max(points.values())
    return (
        f"By mean error on complete sets {len(ahead)} of {len(points)} others are ahead, by at most {largest:.1f} "
        f"points{': ' * bool(ahead)}{', '.join(ahead)}."
    )


def cost(rows: list[Row]) -> str:
    """Seconds of a fit beside the other classifiers, the quickest first."""
    clauses = []
    for condition, title in CONDITIONS.items():
        chosen = of(rows, condition)
        names = [name for name in others(chosen) if not name.endswith(IMPUTED) and name not in ON_GPU]
        machine, of_machine = on_one_machine(chosen, OURS, names)
        pairs = {name: pair(of_machine, OURS, name, "fit seconds") for name in names}
        pairs = {name: own for name, own in pairs.items() if len(own[0]) >= FEWEST_SETS}
        seconds = sorted((mean(other, "fit seconds"), name) for name, (_, other) in pairs.items())
        ours = max((own for own, _ in pairs.values()), key=len)  # the most sets
        words = ", ".join(f"{name} {value:.1f}" for value, name in seconds)
        clauses += [f"{title} {mean(ours, 'fit seconds'):.1f} ({words}; {machine} machine)"]
    machines = "machines as the page of all figures names them"
    return f"**Cost.** Seconds of a fit, processor time of one thread, {machines}: {'; '.join(clauses)}.\n"


def table(rows: list[Row]) -> list[str]:
    columns = ["sets x folds", "error, points", "log-loss", "won, equal, lost"]
    head = ["classifier", *(f"{title}: {column}" for title in CONDITIONS.values() for column in columns)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in others(of(rows, "complete")):
        cells = [comparison(of(rows, c), better_form(of(rows, c), name)) for c in CONDITIONS]
        if any(cells[0]):
            lines.append(f"| {name} | {' | '.join([*cells[0], *cells[1]])} |")
    return lines


def comparison(rows: list[Row], name: str) -> list[str]:
    losses = differences_of(rows, OURS, name, "log-loss")
    if len(losses) < FEWEST_SETS:
        return [""] * 4
    cells = [f"{len(losses)} x {folds_of(rows, OURS, name)}"]
    for measure, digits in (("error", 1), ("log-loss", 3)):
        average, error = mean_and_error(MEASURES[measure] * differences_of(rows, OURS, name, measure))
        cells += [f"{average:+.{digits}f} ± {error:.{digits}f}"]
    return [*cells, ", ".join(map(str, count(losses, EQUAL["log-loss"])))]


def lost(rows: list[Row]) -> list[str]:
    """Sets on which another classifier has far fewer errors or log-loss, and sets that the default cannot fit.

    Of a set the other one with the largest difference is named; classifiers with fewer folds have lines of their own.
    """
    lines = []
    for measure, form in (("log-loss", "{0} {1:.2f} / {2:.2f} ({3})"), ("error", "{0} {1:.1%} / {2:.1%} ({3})")):
        for condition, title in CONDITIONS.items():
            chosen = of(rows, condition)
            numbers = {name: folds_of(chosen, OURS, name) for name in others(chosen)}
            for folds in sorted(set(numbers.values()), reverse=True):
                losses: dict[str, tuple[float, float, float, str]] = {}
                for name in (name for name in numbers if numbers[name] == folds):
                    own, other = pair(chosen, OURS, name, measure)
                    for data, loss in other.items():
                        difference = round(own[data] - loss, 9)
                        if data not in losses or difference > losses[data][0]:
                            losses[data] = (difference, own[data], loss, name)
                large = sorted((-each[0], data) for data, each in losses.items() if each[0] > LARGE)
                words = [form.format(data, *losses[data][1:]).replace("%", " %") for _, data in large[:MOST_NAMED]]
                more = f" and {len(large) - MOST_NAMED} more" if len(large) > MOST_NAMED else ""
                which = f", {folds} fold{'s' * (folds != '1')}"
                named = ": " * bool(words) + ", ".join(words)
                lines += [f"- {measure}, {title}{which}, {len(large)} of {len(losses)} sets{named}{more}"]
    failed = sorted({row["set"] for row in rows if row["classifier"] == OURS and "failure" in row})
    if failed:
        lines += [f"- It cannot be fitted to {', '.join(failed)}, and counts as the class frequencies there"]
    return lines


def decisions() -> dict[str, dict[str, float]]:
    """Fragments of the page of estimators, and their figures."""
    rows = newest(defaults.results())
    rows = [row for row in rows if row["part"] == part_of(rows)]
    errors: dict[str, float] = {}
    losses: dict[str, float] = {}
    slower: dict[str, float] = {}
    for condition, key in (("complete", "c"), ("random 30", "r")):
        for name in ("random forest", "LightGBM"):
            for measure, figures in (("error", errors), ("log-loss", losses)):
                own, other = pair(of(rows, condition), OURS, name, measure)
                figures |= {f"{key}_sets": len(own), f"{key}_ours": mean(own, measure)}
                figures |= {f"{key}_{name.split()[-1]}": mean(other, measure)}
        one_machine = on_one_machine(of(rows, condition), OURS, ["random forest"])[1]
        seconds = pair(one_machine, OURS, "random forest", "fit seconds")
        slower[f"{key}_slower"] = mean(seconds[0], "fit seconds") / mean(seconds[1], "fit seconds")
    single = {}
    for measure in ("error", "fit seconds"):
        chosen = of(rows, "complete")
        if measure == "fit seconds":
            chosen = on_one_machine(chosen, OURS, ["MixtureClassifier(1)"])[1]
        own, other = pair(chosen, OURS, "MixtureClassifier(1)", measure)
        kind = measure.split()[-1]
        single |= {f"{kind}_ours": mean(own, measure), f"{kind}_single": mean(other, measure), "sets": len(own)}
    mixed = [row for row in of(rows, "complete") if row["categories"] > 0]
    categorical: dict[str, float] = {}
    for name in ("random forest", "logistic regression", "histogram boosting"):
        own, other = pair(mixed, OURS, name, "log-loss")
        categorical |= {"sets": len(own), "ours": mean(own, "log-loss"), name.split()[-1]: mean(other, "log-loss")}
    boosting = {"folds": float(folds_of(of(rows, "complete"), OURS, "explainable boosting"))}
    for measure, suffix, ratio in (("error", "", "errors"), ("log-loss", "_loss", "losses")):
        own, other = pair(of(rows, "complete"), OURS, "explainable boosting", measure)
        average, error = mean_and_error(differences_of(of(rows, "complete"), OURS, "explainable boosting", measure))
        boosting |= {"sets": len(own), f"ours{suffix}": mean(own, measure), f"its{suffix}": mean(other, measure)}
        boosting |= {ratio: abs(average) / error}
    return {
        BOOSTING: boosting,
        COMPARED.format(what="error in %", form=".1f"): errors,
        COMPARED.format(what="log-loss", form=".3f"): losses,
        SINGLE: single,
        SLOWER: slower,
        CATEGORICAL: categorical,
    }


def mean(values: dict[str, float], measure: str) -> float:
    return MEASURES.get(measure, 1) * float(np.mean(list(values.values())))


def with_decisions(text: str) -> str:
    for fragment, figures in decisions().items():
        text = rendered(text, fragment, figures)
    return text


def section_of(text: str) -> str:
    return text[text.index(SECTION[0]) : text.index(SECTION[1])]


def main() -> None:
    text = README.read_text("utf-8")
    README.write_text(text.replace(section_of(text), render()), "utf-8")
    DECISIONS.write_text(with_decisions(DECISIONS.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
