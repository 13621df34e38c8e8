"""`mixtura report`: a model and its predictions for a table, as one HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixtura import __version__
from mixtura.cli import page
from mixtura.cli.answers import Answer, progress
from mixtura.cli.columns import read_problem
from mixtura.cli.comparing import HELD_OUT, RIVALS, scores_of, with_categories
from mixtura.cli.files import check_place, read_table
from mixtura.cli.fitting import choice_of, load_table_model
from mixtura.cli.settled import calibration_error, fit_settled, held_out, log_loss_of, sampled, settled, splits
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.estimators.trust import as_array
from mixtura.reading.outliers import find_suspicious, threshold_of
from mixtura.reading.tables import text_of
from mixtura.values.whole_files import written_whole

MOST_ROWS, MOST_POINTS, MOST_LISTED, MOST_FEATURES = 1500, 400, 12, 15
LARGEST_FILE = 3_000_000


@dataclass(frozen=True)
class ReportedRows:
    """A model, the rows of the report, and their predictions by copies of the model that were fitted without them."""

    model: TableClassifier
    frame: Any  # of the rows
    features: Any
    labels: np.ndarray
    probabilities: np.ndarray  # (n, C)
    outlier_scores: np.ndarray
    seed: int

    @property
    def numbers(self) -> np.ndarray:
        return np.searchsorted(self.model.classes_, self.labels)

    @property
    def names(self) -> list[str]:
        return [str(label) for label in self.model.classes_.tolist()]

    def encoded(self) -> tuple[np.ndarray, list[str]]:
        """The rows as numbers, missing values imputed and categories as indicators, and the names of the columns."""
        fitted, names = self.model.estimator_, [str(name) for name in self.features.columns]
        imputed, encoding = fitted.impute(self.features), fitted.encoding_
        if encoding is None:
            return np.nan_to_num(np.asarray(imputed, dtype=float)), names
        columns = [names[j] for j in encoding.numeric]
        for j, categories in zip(encoding.categorical, encoding.categories, strict=True):
            columns += [f"{names[j]}={category}" for category in categories.tolist()]
        return np.nan_to_num(encoding.encoded(imputed)), columns


def run_report(path: Path, data: Path, out: Path | None, with_data: bool, seed: int) -> Answer:
    """Write the report."""
    out = check_place(out or Path(f"{path.stem}.html"), ".html")
    with progress(2) as say:
        say("Predicting held-out rows")
        evidence = _evidence(load_table_model(path), data, seed)
        say("Writing the report")
        text = report(evidence, path.name, data.name, with_data)
    with written_whole(out.resolve()) as file:
        file.write(text.encode())
    facts = {"report": str(out), "bytes": len(text.encode()), "rows": len(evidence.labels)}
    return Answer([f"Report on {len(evidence.labels)} rows: {out} ({len(text.encode()) // 1024} kB)"], facts)


def _evidence(model: TableClassifier, data: Path, seed: int) -> ReportedRows:
    frame = read_table(data)
    target = model.about_["target"]
    if target not in frame.columns:
        raise ValueError(f"The table has no column {target!r}; a report needs the labels of its rows.")
    problem = read_problem(frame, target, _others(model, frame, target))
    unknown = sorted(set(np.unique(problem.labels).tolist()) - set(model.classes_.tolist()), key=str)
    if unknown:
        raise ValueError(f"Column {target!r} holds {unknown[0]!r}, which is not a class of the model.")
    rows = sampled(len(problem.labels), MOST_ROWS, problem.labels, seed)
    labels, table = problem.labels[rows], model.read(problem.frame.iloc[rows])
    probabilities, scores = held_out(model.estimator_, table, labels, seed)
    judged = ~np.isnan(scores)
    frame, features = (part[judged].reset_index(drop=True) for part in (problem.frame.iloc[rows], table))
    return ReportedRows(model, frame, features, labels[judged], probabilities[judged], scores[judged], seed)


def _others(model: TableClassifier, frame: Any, target: str) -> list[str]:
    """Columns that the model does not use and the report ignores."""
    used = {target, *(column.name for column in model.columns)}
    return [name for name in frame.columns if name not in used]


def report(evidence: ReportedRows, model_name: str, data_name: str, with_data: bool = True) -> str:
    """The page of a report; without data it shows no single row."""
    samples = _details(evidence) if with_data else []
    sections = [
        _summary(evidence, model_name, data_name),
        _plane(evidence, with_data),
        _confusion(evidence),
        _reliability(evidence),
        _rivals(evidence),
        _learning_curve(evidence),
        _missing(evidence),
        _importances(evidence),
        _components(evidence),
        *([_doubtful(evidence)] if with_data else []),
        _code(evidence, data_name),
    ]
    return page.page(f"Report on {model_name}", sections, samples)


# ---- sections --------------------------------------------------------------------------------------------------------


def _summary(evidence: ReportedRows, model_name: str, data_name: str) -> str:
    model, choice = evidence.model, choice_of(evidence.model.estimator_)
    error = 100 * (evidence.probabilities.argmax(1) != evidence.numbers).mean()
    search = model.estimator_.search_
    why = "without a comparison" if search is None else f"the best of {len(search)} by held-out log-loss"
    facts = [
        ("model file", model_name),
        ("trained on", f"{model.about_.get('file', '?')}, target {model.about_['target']}"),
        ("choice", f"{choice['covariance']} covariances, {text_of(choice['components_per_class'])} per class ({why})"),
        ("prior", choice["prior"]),
        ("feature transform", choice["transform"]),
        ("temperature", f"{choice['temperature']:.3f}"),
        ("report on", f"{data_name}, {len(evidence.labels)} rows, {evidence.features.shape[1]} features"),
        ("cross-validated error", f"{error:.1f} %"),
        ("cross-validated log-loss", f"{log_loss_of(evidence.probabilities, evidence.numbers):.3f}"),
        ("calibration error", f"{calibration_error(evidence.probabilities, evidence.numbers):.3f}"),
        ("version", f"mixtura {__version__}"),
    ]
    notes = [page.paragraph(note, soft=True) for note in model.about_.get("notes", [])]
    text = "Scores are those of copies of the model that have not seen the rows (5-fold cross-validation)."
    return page.section("The model and its selection", page.facts(facts), page.paragraph(text, True), *notes)


def plane_of(evidence: ReportedRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and component means in the plane that separates the classes best, (n, 2) and (K, 2), and the directions.

    The first two discriminant directions; a second one at right angles where there are two classes.
    """
    rows, _ = evidence.encoded()
    centre, scale = rows.mean(0), rows.std(0)
    scale[scale == 0] = 1.0
    standard = (rows - centre) / scale
    means = np.stack([standard[evidence.numbers == c].mean(0) for c in np.unique(evidence.numbers)])
    within = np.cov((standard - means[np.unique(evidence.numbers, return_inverse=True)[1]]).T).reshape(len(scale), -1)
    within = within + 1e-3 * np.trace(within) / len(scale) * np.eye(len(scale))
    factor = np.linalg.inv(np.linalg.cholesky(within))
    _, _, directions = np.linalg.svd((means - means.mean(0)) @ factor.T)
    if len(np.unique(evidence.numbers)) == 2:  # the largest variance at right angles
        whitened = standard @ factor.T
        rest = whitened - np.outer(whitened @ directions[0], directions[0])
        directions = np.stack([directions[0], np.linalg.svd(rest - rest.mean(0), full_matrices=False)[2][0]])
    weights = (directions[:2] @ factor).T  # (D, 2), or (1, 1) for one feature
    if weights.shape[1] == 1:
        weights = np.concatenate([weights, np.zeros_like(weights)], 1)
    centres = component_centres(evidence)
    return standard @ weights, ((centres - centre) / scale) @ weights, weights


def component_centres(evidence: ReportedRows) -> np.ndarray:
    """Typical values of the components in the units of the features, (K, D)."""
    from mixtura.reading.summaries import typical_values

    fitted = evidence.model.estimator_
    return typical_values(fitted.mixture_, fitted.warp_)[0]


def _plane(evidence: ReportedRows, with_data: bool) -> str:
    points, centres, weights = plane_of(evidence)
    everything = np.concatenate([points, centres])
    low, high = np.quantile(everything, 0.002, axis=0), np.quantile(everything, 0.998, axis=0)
    room = 0.06 * (high - low) + 1e-9
    labels = [_direction(evidence, weights[:, axis]) for axis in (0, 1)]
    axes = page.Axes(
        (low[0] - room[0], high[0] + room[0]), (low[1] - room[1], high[1] + room[1]), (labels[0], labels[1])
    )
    inside = np.all((points >= low - room) & (points <= high + room), axis=1)
    if with_data:
        for sample in _shown(evidence):
            if inside[sample]:
                place = int(np.searchsorted(_shown(evidence), sample))
                x, y = points[sample].tolist()
                axes.point(x, y, int(evidence.numbers[sample]), place)
    owners = evidence.model.estimator_.mixture_.class_of.tolist()
    for owner, centre in zip(owners, centres, strict=True):
        if ((centre >= low - room) & (centre <= high + room)).all():
            x, y = float(axes.x(centre[0])), float(axes.y(centre[1]))
            axes.parts.append(
                f"<path d='M{x - 8:.0f} {y:.0f}h16M{x:.0f} {y - 8:.0f}v16' stroke='var(--text)' stroke-width='4'/>"
            )
            tint = page.COLOURS[owner % len(page.COLOURS)]
            axes.parts.append(
                f"<path d='M{x - 7:.0f} {y:.0f}h14M{x:.0f} {y - 7:.0f}v14' stroke='{tint}' stroke-width='2'/>"
            )
    text = "The plane that separates the classes best (linear discriminants). Crosses are centres of components."
    hint = "<div id=detail tabindex=0>Point at a sample: its values, classes and reasons appear here.</div>"
    return page.section(
        "Classes and components",
        page.paragraph(text),
        page.legend(evidence.names),
        axes.picture("samples and components"),
        hint if with_data else "",
    )


def _direction(evidence: ReportedRows, weights: np.ndarray) -> str:
    order = np.argsort(-np.abs(weights))[:3]
    _, names = evidence.encoded()
    return "mostly " + ", ".join(names[j][:24] for j in order) if np.abs(weights).max() > 0 else ""


def _shown(evidence: ReportedRows) -> np.ndarray:
    """Positions of the samples that are drawn: doubtful ones first, then a random choice."""
    doubtful = np.argsort(evidence.probabilities[np.arange(len(evidence.labels)), evidence.numbers])[: MOST_POINTS // 4]
    others = np.random.default_rng(evidence.seed).permutation(len(evidence.labels))
    return np.sort(np.unique(np.concatenate([doubtful, others[: MOST_POINTS - len(doubtful)]])))


def _details(evidence: ReportedRows) -> list[str]:
    """Details of each drawn sample: label, prediction, component, reasons and values."""
    shown, fitted = _shown(evidence), evidence.model.estimator_
    explanation = fitted.explain(evidence.features.iloc[shown], n_orders=4)
    names, texts = [str(name) for name in evidence.features.columns], []
    columns = [column.name for column in evidence.model.columns]
    for place, sample in enumerate(shown):
        best = int(evidence.probabilities[sample].argmax())
        contributions = explanation.values[place]
        order = np.argsort(-np.abs(contributions))[:4]
        reasons = ", ".join(f"{names[j]} ({contributions[j]:+.2f})" for j in order)
        row = evidence.frame.iloc[int(sample)]
        values = ", ".join(f"{name} = {_value(row[name])}" for name in columns[:MOST_FEATURES])
        texts.append(
            f"Row {sample}: {evidence.names[evidence.numbers[sample]]}; predicted {evidence.names[best]} "
            f"({evidence.probabilities[sample, best]:.0%}), component {explanation.nearest_components[place]}, "
            f"outlier score {evidence.outlier_scores[sample]:.1f}\n"
            f"Reasons for {explanation.classes[place]}, in log-odds: {reasons}\nValues: {values}"
        )
    return texts


def _value(value: Any) -> str:
    if value is None or value != value:
        return "missing"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)[:60]


def _confusion(evidence: ReportedRows) -> str:
    n_classes = len(evidence.names)
    if n_classes > 30:
        return page.section("Confusion matrix", page.paragraph(f"{n_classes} classes do not fit into a table."))
    matrix = np.zeros((n_classes, n_classes), dtype=int)
    np.add.at(matrix, (evidence.numbers, evidence.probabilities.argmax(1)), 1)
    shares = matrix / matrix.sum(1, keepdims=True).clip(1)
    rows = [
        [name, *(page.shaded(matrix[i, j] or "", shares[i, j]) for j in range(n_classes))]
        for i, name in enumerate(evidence.names)
    ]
    text = page.paragraph("Rows are true classes, columns predicted ones; shades are shares of the true class.", True)
    return page.section("Confusion matrix", page.table(["true \\ predicted", *evidence.names], rows), text)


def _reliability(evidence: ReportedRows, n_bins: int = 10) -> str:
    confidence, right = evidence.probabilities.max(1), evidence.probabilities.argmax(1) == evidence.numbers
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    used = np.unique(bins)
    axes = page.Axes((0, 1), (0, 1), ("probability of the predicted class", "accuracy"))
    axes.line([0, 1], [0, 1], "guide")
    means, shares = (np.array([part[bins == b].mean() for b in used]) for part in (confidence, right))
    axes.line(means, shares, colour=page.COLOURS[0])
    for mean, share, b in zip(means, shares, used, strict=True):
        axes.point(mean, share, 0, size=5)
        axes.text(float(axes.x(mean)) - 8, float(axes.y(share)) - 8, str(int((bins == b).sum())), "end")
    text = page.paragraph("Calibrated probabilities lie on the diagonal. Numbers are counts of rows.", True)
    return page.section("Reliability", axes.picture("reliability diagram"), text)


def _rivals(evidence: ReportedRows) -> str:
    train, test = splits(evidence.labels, evidence.seed, round(1 / HELD_OUT))[0]
    values, labels = with_categories(evidence.features, evidence.model.columns), evidence.labels
    parts = (values.iloc[train], values.iloc[test], labels[train], labels[test])
    ours = fit_settled(evidence.model.estimator_, evidence.features.iloc[train], labels[train])
    own = np.zeros((len(test), len(evidence.names)))
    own[:, np.searchsorted(evidence.model.classes_, ours.classes_)] = as_array(
        ours.predict_proba(evidence.features.iloc[test])
    )
    numbers = evidence.numbers[test]
    scores = {"this model": (log_loss_of(own, numbers), float((own.argmax(1) != numbers).mean()))}
    for rival in RIVALS:
        result = scores_of(rival, parts, evidence.seed)
        if "failed" not in result:
            scores[rival.name] = (result["log_loss"], result["error"])
    largest = max(loss for loss, _ in scores.values())
    rows = [
        [name, page.bar(loss / largest, f"{loss:.3f}"), f"{100 * error:.1f} %"]
        for name, (loss, error) in sorted(scores.items(), key=lambda item: item[1][0])
    ]
    text = page.paragraph(
        f"Held out: {len(test)} rows of one split; the others get mean imputation, unless they take NaN.", True
    )
    return page.section("Comparison with other classifiers", page.table(["method", "log-loss", "error"], rows), text)


def _learning_curve(evidence: ReportedRows) -> str:
    train, test = splits(evidence.labels, evidence.seed)[0]
    order = np.random.default_rng(evidence.seed).permutation(train)
    sizes, losses = [], []
    for share in (0.1, 0.2, 0.4, 0.7, 1.0):
        part = order[: max(2, round(share * len(order)))]
        if len(np.unique(evidence.labels[part])) < len(np.unique(evidence.labels)):
            continue
        try:
            copy = fit_settled(evidence.model.estimator_, evidence.features.iloc[part], evidence.labels[part])
        except ValueError:  # a column without values in so few rows
            continue
        probabilities = np.zeros((len(test), len(evidence.names)))
        places = np.searchsorted(evidence.model.classes_, copy.classes_)
        probabilities[:, places] = as_array(copy.predict_proba(evidence.features.iloc[test]))
        sizes.append(len(part))
        losses.append(log_loss_of(probabilities, evidence.numbers[test]))
    if len(sizes) < 2:
        return page.section("Learning curve", page.paragraph("There are too few rows per class for a learning curve."))
    axes = page.Axes((0, max(sizes)), (0, max(losses) * 1.1), ("training rows", "held-out log-loss"))
    axes.line(sizes, losses, colour=page.COLOURS[0])
    for size, loss in zip(sizes, losses, strict=True):
        axes.point(size, loss, 0)
    text = page.paragraph("If the curve still falls at its end, more rows would help.", True)
    return page.section("Learning curve", axes.picture("learning curve"), text)


def _missing(evidence: ReportedRows) -> str:
    columns = [column.name for column in evidence.model.columns]
    shares = np.asarray(evidence.frame[columns].isna(), dtype=float)
    if not shares.any():
        return page.section("Missing values", page.paragraph("No value is missing."))
    order = np.argsort(-shares.mean(0), kind="stable")[:MOST_FEATURES]
    present = np.unique(evidence.numbers)
    rows = []
    for j in order[shares.mean(0)[order] > 0]:
        by_class = [shares[evidence.numbers == c, j].mean() for c in present]
        rows.append([columns[j], f"{shares[:, j].mean():.0%}", *(page.shaded(f"{s:.0%}", s) for s in by_class)])
    heads = ["column", "all", *(evidence.names[c] for c in present)]
    text = page.paragraph("Share of missing values by class. They are integrated out, not imputed.", True)
    return page.section("Missing values", page.table(heads, rows), text)


def _importances(evidence: ReportedRows) -> str:
    fitted, numbers = evidence.model.estimator_, evidence.numbers
    rows = np.arange(len(numbers))[:500]
    part = evidence.features.iloc[rows]
    importances = np.asarray(fitted.feature_importances(part, evidence.labels[rows]), dtype=float).ravel()
    order = np.argsort(-importances)[:MOST_FEATURES]
    largest = max(float(importances.max()), 1e-12)
    present = np.unique(numbers[rows])[:12]
    names = [str(name) for name in part.columns]
    lines = [
        [
            names[j],
            page.bar(max(float(importances[j]), 0.0) / largest, f"{importances[j]:.3f}"),
            *(_typical(part.iloc[numbers[rows] == c, j]) for c in present),
        ]
        for j in order
    ]
    heads = ["feature", "importance", *(evidence.names[c] for c in present)]
    text = page.paragraph(
        "Importance: rise of the log-loss if the feature is integrated out of the model. By class: the mean, or the "
        "most frequent category.",
        True,
    )
    return page.section("Feature importances", page.table(heads, lines), text)


def _typical(values: Any) -> str:
    """The mean of numbers, or the most frequent category and its share."""
    known = values.dropna()
    if not len(known):
        return "-"
    if known.dtype.kind == "f":
        return f"{known.mean():.4g}"
    counts = known.value_counts()
    return f"{counts.index[0]} ({counts.iloc[0] / len(known):.0%})"


def _components(evidence: ReportedRows) -> str:
    summary = evidence.model.estimator_.summary()
    columns = summary.components.visible
    rows = list(zip(*columns.values(), strict=True))[:40]
    return page.section("Components", page.table(list(columns), rows), page.paragraph(summary.note, True))


def _doubtful(evidence: ReportedRows) -> str:
    suspicious = find_suspicious(evidence.probabilities, evidence.numbers, np.array(evidence.names))
    rows = [
        [f"row {position}", label, suggestion, f"{own:.1%}", f"{other:.1%}"]
        for position, label, suggestion, own, other in zip(
            suspicious.positions[:MOST_LISTED],
            suspicious.labels,
            suspicious.suggestions,
            suspicious.label_probabilities,
            suspicious.suggestion_probabilities,
            strict=False,
        )
    ]
    heads = ["", "label", "looks like", "p(label)", "p(other)"]
    first = page.table(heads, rows) if rows else page.paragraph("No label contradicts the model.")
    reference = evidence.model.estimator_.outlier_reference_
    limit = threshold_of(evidence.outlier_scores if reference is None else reference, 0.01)
    odd = [j for j in np.argsort(-evidence.outlier_scores)[:MOST_LISTED] if evidence.outlier_scores[j] > limit]
    lines = [[f"row {j}", evidence.names[evidence.numbers[j]], f"{evidence.outlier_scores[j]:.1f}"] for j in odd]
    text = f"Outliers (score above {limit:.1f}, which 1 % of ordinary rows exceed):"
    second = page.table(["", "class", "outlier score"], lines) if lines else page.paragraph("None.")
    return page.section("Doubtful rows", page.paragraph("Suspicious labels:"), first, page.paragraph(text), second)


def _code(evidence: ReportedRows, data_name: str) -> str:
    target = evidence.model.about_["target"]
    columns = ", ".join(
        f"TableColumn({column.name!r})"
        if column.categories is None
        else f"TableColumn({column.name!r}, {column.categories!r})"
        for column in evidence.model.columns[:40]
    )
    more = "" if len(evidence.model.columns) <= 40 else ", ...  # see model.columns"
    estimator = settled(evidence.model.estimator_, evidence.model.classes_)
    code = (
        "import pandas as pd\nfrom mixtura import MixtureClassifier\nfrom mixtura.priors import Shrinkage\n"
        "from mixtura.estimators.table_classifier import TableClassifier, TableColumn\n\n"
        f"table = pd.read_csv({data_name!r})\ntable = table[table[{target!r}].notna()]\n"
        f"columns = [{columns}{more}]\nestimator = {estimator!r}\n"
        f"model = TableClassifier(estimator, columns).fit(table, table[{target!r}])\n"
    )
    return page.section("Code to reproduce the model", f"<pre>{page.escaped(code)}</pre>")
