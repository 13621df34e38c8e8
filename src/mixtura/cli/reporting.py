"""`mixtura report`: a model and its predictions for a table, as one HTML file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from mixtura import __version__
from mixtura.cli import html
from mixtura.cli.comparing import HELD_OUT, RIVALS, rivals_for, scores_of, with_categories
from mixtura.cli.fitting import choice_of, components_text, load_table_model
from mixtura.cli.held_out_rows import (
    FALSE_ALARM,
    FOLDS,
    MOST_LISTED,
    ReportedRows,
    copy_probabilities,
    details_of,
    evidence_of,
    importances_of,
    plane_of,
)
from mixtura.cli.output import Answer, check_place, progress
from mixtura.cli.scores import calibration_error, decimals, log_loss_of, percents, performance
from mixtura.estimators.refits import split_samples, with_selected_settings
from mixtura.files.tensor_files import write_atomically
from mixtura.inspection.tables import text_of

MOST_FEATURES, MOST_CLASSES, MOST_COMPONENTS, MOST_ELLIPSES = 15, 30, 12, 60
MOST_VALUES = 40  # of one row
MAPPED_ROWS = 200  # of the map of missing values
CIRCLE = np.stack((np.cos(np.linspace(0, 2 * np.pi, 60)), np.sin(np.linspace(0, 2 * np.pi, 60))), 1)


def run_report(path: Path, data: Path, out: Path | None, with_data: bool, seed: int) -> Answer:
    """Write the report."""
    out = check_place(out or Path(f"{path.stem}.html"), path, data, ending=".html")
    model = load_table_model(path)
    with progress(2 + len(RIVALS)) as say:
        say("Predicting held-out rows")
        evidence = evidence_of(model, data, seed)
        text = report(evidence, path.name, data.name, with_data, say)
    with write_atomically(out.resolve()) as file:
        file.write(text.encode())
    facts = {"report": str(out), "bytes": len(text.encode()), "rows": len(evidence.labels)}
    return Answer([f"Report on {len(evidence.labels)} rows: {out} ({len(text.encode()) // 1024} kB)"], facts)


def report(
    evidence: ReportedRows, model_name: str, data_name: str, with_data: bool = True, say: Any = lambda text: None
) -> str:
    """The page of a report; without data it shows no single row."""
    rivals, curve = _rivals(evidence, say), _learning_curve(evidence)
    say("Writing the report")
    sections = [
        ("The model and its selection", _choice(evidence, model_name)),
        ("Classes and components", _plane(evidence, with_data)),
        ("Confusion matrix", _confusion(evidence)),
        ("Reliability and learning curve", f"<div class=pair>{_reliability(evidence)}{curve}</div>"),
        ("Comparison with other classifiers", rivals),
        ("Missing values", _missing(evidence, with_data)),
        ("Features that matter", _importances(evidence)),
        ("Typical values", _typical_values(evidence)),
        *([("Doubtful rows", _doubtful(evidence))] if with_data else []),
        ("The code that reproduces it", _code(evidence)),
    ]
    samples = details_of(evidence, MOST_VALUES) if with_data else []
    return html.page(f"Report on {model_name}", _beginning(evidence, data_name), sections, samples)


# ---- what was trained ------------------------------------------------------------------------------------------------


def _beginning(evidence: ReportedRows, data_name: str) -> str:
    target, shares = evidence.model.about_["target"], np.bincount(evidence.numbers) / len(evidence.numbers)
    own, naive = performance(evidence.fitted, evidence.probabilities, evidence.numbers), 1 - shares.max()
    error, prior = percents(own["held_out_error"], own["held_out_error_interval"]), shares[shares > 0]
    log_loss = decimals(own["held_out_log_loss"], own["held_out_log_loss_interval"])
    n_classes, n_columns = len(evidence.names), len(evidence.columns)
    missing = np.asarray(evidence.frame[evidence.columns].isna()).mean()
    numbers = [
        (error, f"error of held-out rows (most frequent class alone: {html.percent(naive)})"),
        (log_loss, f"log-loss (class frequencies alone: {-(prior * np.log(prior)).sum():.3f})"),
        (f"{calibration_error(evidence.probabilities, evidence.numbers):.3f}", "calibration error"),
        (f"{len(evidence.labels)}", f"rows, {n_classes} classes"),
        (f"{n_columns}", f"columns, {html.percent(missing)} of the values missing"),
    ]
    text = f"A classifier of {target!r}, and its predictions for rows of {data_name} that it had not seen (5-fold "
    text += "cross-validation with the settings of the model)."
    if own["held_out_error_interval"]:
        text += " Error and log-loss are corrected for the selection of the settings (95 % intervals); other figures "
        text += "of this page are not."
    return html.paragraph(text) + html.tiles(numbers)


def _choice(evidence: ReportedRows, model_name: str) -> str:
    about, choice, search = evidence.model.about_, choice_of(evidence.fitted), evidence.fitted.search_
    counts = choice["components_per_class"]
    shape = "Every class is one Gaussian" if counts == 1 else f"Every class is a mixture of {components_text(counts)}"
    if not isinstance(counts, int):
        shape = f"The classes are mixtures of {text_of(counts)} components"
    text = f"{shape} with {choice['covariance']} covariances. "
    if search is None or len(search) < 2:
        text += "No other settings were compared."
    else:
        text += f"These settings were selected among {len(search)} candidates by the log-loss of held-out rows; among "
        text += "candidates that do not differ significantly the one with the fewest parameters was taken."
    n_numeric = sum(column.categories is None for column in evidence.model.features)
    facts = [
        ("model file", f"{model_name}, mixtura {about.get('version', __version__)}"),
        ("trained on", f"{about.get('file', '?')}, target {about['target']}"),
        ("columns", f"{n_numeric} numeric, {len(evidence.columns) - n_numeric} with categories"),
        ("prior", choice["prior"]),
        ("transform", "none" if choice["transform"] is None else f"{choice['transform']}, towards normality"),
        ("temperature", f"{choice['temperature']:.3f} (above 1: less extreme probabilities than the densities give)"),
        ("parameters", f"{evidence.fitted.n_parameters_}"),
    ]
    notes = [html.paragraph(note, soft=True) for note in about.get("notes", [])]
    return html.paragraph(text) + html.facts(facts) + _candidates(search) + "".join(notes)


def _candidates(search: Any, most: int = 6) -> str:
    """The best candidates of the selection."""
    if search is None or len(search) < 2:
        return ""
    best = [search.candidates[number] for number in search.ranked()[:most]]
    rows = [
        [
            candidate.what.get("covariance_type", ""),
            text_of(candidate.what.get("n_components", "")),
            str(candidate.what.get("prior", "")),
            candidate.what.get("warp") or "none",
            f"{candidate.score:.4f}",
            f"{candidate.standard_error:.4f}",
        ]
        for candidate in best
    ]
    heads = ["covariances", "components per class", "prior", "transform", "held-out log-loss", "standard error"]
    title = "The chosen candidate and the best of the others" if len(search) > 2 else "The candidates"
    return html.heading(title) + html.table(heads, rows, own=0)


# ---- the plane -------------------------------------------------------------------------------------------------------


def _plane(evidence: ReportedRows, with_data: bool) -> str:
    plane = plane_of(evidence)
    everything = np.concatenate([plane.points, plane.means])
    low, high = np.quantile(everything, 0.005, axis=0), np.quantile(everything, 0.995, axis=0)
    room = 0.08 * (high - low) + 1e-9
    low, high = low - room, high + room
    axes = html.Axes((low[0], high[0]), (low[1], high[1]), plane.labels, (640, 500))
    _draw_components(axes, plane, evidence, behind=True)
    inside = np.all((plane.points >= low) & (plane.points <= high), axis=1)
    if with_data:
        for place, sample in enumerate(evidence.drawn.tolist()):
            if inside[sample]:
                wrong = " wrong" if evidence.predicted[sample] != evidence.numbers[sample] else ""
                attributes = f"class='mark {{tint}} point{wrong}' data-sample='{place}'"
                left, top = float(axes.x(plane.points[sample, 0])), float(axes.y(plane.points[sample, 1]))
                axes.parts.append(html.mark(left, top, int(evidence.numbers[sample]), 4, attributes))
    _draw_components(axes, plane, evidence, behind=False)
    text = "The plane that separates the classes best (linear discriminants of the features as the model sees them). "
    if len(plane.means) <= MOST_ELLIPSES:
        text += "Ellipses are the rows of each component, at one and two standard deviations."
    if with_data:
        text += " A dark edge marks a row that was predicted wrongly when it was held out."
        n_drawn, n_outside = len(evidence.drawn), int((~inside[evidence.drawn]).sum())
        text += f" {n_drawn} of {len(evidence.labels)} rows are drawn." if n_drawn < len(evidence.labels) else ""
        text += f" Rows outside of the picture: {n_outside}." if n_outside else ""
    hint = "<div id=detail><p class=soft>Point at a row, or select the picture and use the arrow keys: its prediction, "
    hint += "component, reasons and values appear here.</p></div>"
    picture = axes.picture("rows and components in a plane", ticks=False)
    body = f"<div class=plane><div>{picture}</div>{hint}</div>" if with_data else picture
    legend = html.legend(evidence.names) if len(evidence.names) <= MOST_CLASSES else ""
    return html.paragraph(text) + legend + body


def _draw_components(axes: html.Axes, plane: Any, evidence: ReportedRows, behind: bool) -> None:
    """Ellipses behind the points, numbers before them."""
    owners = evidence.fitted.mixture_.class_of.tolist()
    for k, owner in enumerate(owners if len(owners) <= MOST_ELLIPSES else []):
        mean, tint = plane.means[k], html.tint(owner)
        if plane.counts[k] < 1:
            continue
        if behind:
            lengths, directions = np.linalg.eigh(plane.covariances[k])
            ring = (CIRCLE * np.sqrt(lengths.clip(0))) @ directions.T
            for size, kind in ((2, "ellipse far"), (1, "ellipse")):
                outline = (mean + size * ring).clip([axes.across[0], axes.up[0]], [axes.across[1], axes.up[1]])
                axes.outline(outline, f"{kind} {tint}")
        elif axes.across[0] < mean[0] < axes.across[1] and axes.up[0] < mean[1] < axes.up[1]:
            x, y = float(axes.x(mean[0])), float(axes.y(mean[1]))
            axes.parts.append(f"<circle class='centre {tint}' cx='{x:.1f}' cy='{y:.1f}' r='9'/>")
            axes.text(x, y + 4, str(k), kind="number")


# ---- scores ----------------------------------------------------------------------------------------------------------


def _confusion(evidence: ReportedRows) -> str:
    n_classes = len(evidence.names)
    matrix = np.zeros((n_classes, n_classes), dtype=int)
    np.add.at(matrix, (evidence.numbers, evidence.predicted), 1)
    if n_classes > MOST_CLASSES:
        return _most_confused(evidence, matrix)
    shares = matrix / matrix.sum(1, keepdims=True).clip(1)
    rows = [
        [
            name,
            *(html.shaded(matrix[i, j] or "", shares[i, j]) for j in range(n_classes)),
            html.percent(shares[i, i]) if matrix[i].any() else "-",
        ]
        for i, name in enumerate(evidence.names)
    ]
    heads = ["true \\ predicted", *evidence.names, "recall"]
    text = "Rows are true classes, columns predicted ones; shades are shares of the true class."
    return html.table(heads, rows) + html.paragraph(text, True)


def _most_confused(evidence: ReportedRows, matrix: np.ndarray) -> str:
    """The pairs of classes that are confused most often, where the matrix is too large to read."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None)[:MOST_FEATURES]
    pairs = [(int(place) // len(matrix), int(place) % len(matrix)) for place in order]
    rows = [[evidence.names[i], evidence.names[j], wrong[i, j], matrix[i].sum()] for i, j in pairs if wrong[i, j]]
    if not rows:
        return html.paragraph(f"No row of the {len(matrix)} classes was predicted wrongly.")
    text = html.paragraph(f"The most frequent confusions of {len(matrix)} classes.")
    return text + html.table(["true class", "predicted class", "rows", "rows of the true class"], rows)


def _reliability(evidence: ReportedRows, n_bins: int = 10) -> str:
    confidence, right = evidence.probabilities.max(1), evidence.predicted == evidence.numbers
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    axes = html.Axes((0, 1), (0, 1), ("probability of the predicted class", "accuracy"), (480, 400))
    for b in np.unique(bins).tolist():
        axes.box(b / n_bins, (b + 1) / n_bins, 0, (bins == b).mean(), "count")
    axes.line([0, 1], [0, 1], "guide")
    used = [(confidence[bins == b].mean(), right[bins == b].mean(), int((bins == b).sum())) for b in np.unique(bins)]
    for mean, share, count in used:
        axes.line([mean, mean], _interval(share, count), "interval")
    axes.line([mean for mean, _, _ in used], [share for _, share, _ in used])
    for mean, share, count in used:
        axes.dot(
            mean, share, f"{count} rows: accuracy {html.percent(share)} at a mean probability of {html.percent(mean)}"
        )
    text = "Calibrated probabilities lie on the diagonal. Vertical lines are 95 % intervals, bars shares of the rows."
    return "<div>" + axes.picture("reliability diagram") + html.paragraph(text, True) + "</div>"


def _interval(share: float, count: int, z: float = 1.96) -> list[float]:
    """The interval of Wilson for a share of a number of rows."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2)) / (1 + z * z / count)
    return [middle - half, middle + half]


def _learning_curve(evidence: ReportedRows) -> str:
    train, test = split_samples(evidence.fitted, evidence.features, evidence.labels, FOLDS, seed=evidence.seed)[0]
    order = np.random.default_rng(evidence.seed).permutation(train)
    sizes, losses = [], []
    for share in (0.1, 0.2, 0.4, 0.7, 1.0):
        part = order[: max(2, round(share * len(order)))]
        if len(np.unique(evidence.labels[part])) < len(np.unique(evidence.labels)):
            continue
        try:
            probabilities = copy_probabilities(evidence, part, test)
        except ValueError:  # a column without values in so few rows
            continue
        sizes.append(len(part))
        losses.append(log_loss_of(probabilities, evidence.numbers[test]))
    if len(sizes) < 2:
        return html.paragraph("There are too few rows per class for a learning curve.")
    axes = html.Axes((0, max(sizes)), (0, max(*losses, 0.05) * 1.1), ("training rows", "held-out log-loss"), (480, 400))
    axes.line(sizes, losses)
    for size, loss in zip(sizes, losses, strict=True):
        axes.dot(size, loss, f"{size} training rows: log-loss {loss:.3f}")
    text = f"Log-loss of {len(test)} held-out rows. If the curve still falls at its end, more rows would help."
    return "<div>" + axes.picture("learning curve") + html.paragraph(text, True) + "</div>"


def _rivals(evidence: ReportedRows, say: Any) -> str:
    parts = split_samples(evidence.fitted, evidence.features, evidence.labels, round(1 / HELD_OUT), seed=evidence.seed)
    train, test = parts[0]
    values, labels = with_categories(evidence.features, evidence.model.features), evidence.labels
    if len(np.unique(labels[train])) < 2:
        return html.paragraph("There are too few rows per class for a comparison.")
    parts = (values.iloc[train], values.iloc[test], labels[train], labels[test])
    own, numbers = copy_probabilities(evidence, train, test), evidence.numbers[test]
    scores = [("this model", log_loss_of(own, numbers), float((own.argmax(1) != numbers).mean()))]
    failed = []
    for rival in rivals_for(len(evidence.names)):
        say(f"Fitting {rival.name}")
        with threadpool_limits(1):  # several threads of OpenMP wait for each other on a busy machine
            result = scores_of(rival, parts, evidence.seed)
        if "failed" in result:
            failed.append([rival.name, "failed", result["failed"]])
        else:
            scores.append((rival.name, result["log_loss"], result["error"]))
    scores.sort(key=lambda line: line[1])
    largest = max(
        min(scores[-1][1], 3 * scores[len(scores) // 2][1]), 1e-12
    )  # one bad method shall not hide the others
    rows = [
        [name, html.bar(min(loss / largest, 1.0), f"{loss:.3f}"), html.percent(error)] for name, loss, error in scores
    ]
    text = f"{len(test)} held-out rows of one split. The others have the defaults of scikit-learn (300 trees) and mean "
    text += "imputation; gradient boosting takes missing values as they are. The settings of this model were selected "
    text += "on a table that may hold these rows."
    position = [name for name, _, _ in scores].index("this model")
    table = html.table(["method", "log-loss", "error"], [*rows, *failed], own=position)
    return table + html.paragraph(text, True)


# ---- values ----------------------------------------------------------------------------------------------------------


def _missing(evidence: ReportedRows, with_data: bool) -> str:
    columns = evidence.columns
    absent = np.asarray(evidence.frame[columns].isna(), dtype=bool)
    if not absent.any():
        return html.paragraph("No value is missing.")
    shares = absent.mean(0)
    chosen = [j for j in np.argsort(-shares, kind="stable")[:MOST_FEATURES] if shares[j] > 0]
    present = np.unique(evidence.numbers)[:MOST_COMPONENTS]
    rows = []
    for j in chosen:
        by_class = [absent[evidence.numbers == c, j].mean() for c in present]
        rows.append(
            [columns[j], html.percent(shares[j]), *(html.shaded(html.percent(share), share) for share in by_class)]
        )
    heads = ["column", "all", *(evidence.names[c] for c in present)]
    text = "Share of missing values, by class. The model integrates them out; nothing is imputed."
    table = html.table(heads, rows) + html.paragraph(text, True)
    if not with_data:
        return table
    return f"<div class=pair><div>{table}</div><div>{_missing_map(absent[:, chosen], evidence, chosen)}</div></div>"


def _missing_map(absent: np.ndarray, evidence: ReportedRows, chosen: list[int]) -> str:
    """Rows by columns; rows with the same missing values stand together."""
    rows = np.random.default_rng(evidence.seed).permutation(len(absent))[:MAPPED_ROWS]
    part = absent[rows]
    part = part[np.lexsort(part.T[::-1])[::-1]]
    axes = html.Axes((0, len(chosen)), (0, len(part)), ("", f"{len(part)} rows"), (480, 340))
    for j in range(len(chosen)):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], part[:, j], [False]]).astype(int)))
        for first, last in edges.reshape(-1, 2).tolist():
            axes.box(j + 0.06, j + 0.94, len(part) - last, len(part) - first, "gap")
        name = html.short(evidence.columns[chosen[j]], max(3, 60 // len(chosen)))
        axes.text(float(axes.x(j + 0.5)), axes.height - html.MARGIN + 16, name)
    text = "Coloured cells are missing values. Rows with the same missing values are next to each other."
    return axes.picture("map of missing values", ticks=False) + html.paragraph(text, True)


def _importances(evidence: ReportedRows) -> str:
    result = importances_of(evidence)
    names = [str(name) for name in evidence.features.columns]
    class_of = evidence.fitted.mixture_.class_of.tolist()
    classes = list(result.by_class)[:MOST_COMPONENTS]
    several = len(result.by_component) > len(result.by_class)
    components = list(result.by_component)[:MOST_COMPONENTS] if several else []
    groups = [result.by_class[c] for c in classes] + [result.by_component[k] for k in components]
    largest = max(float(result.overall.max()), 1e-12)
    most = max(float(max(group.max() for group in groups)), 1e-12)
    rows = [
        [
            names[j],
            html.bar(max(float(result.overall[i]), 0.0) / largest, _rounded(result.overall[i])),
            *(html.shaded(_rounded(group[i]), min(max(float(group[i]), 0.0) / most, 1.0)) for group in groups),
        ]
        for i, j in enumerate(result.features[:MOST_FEATURES])
    ]
    heads = ["feature", "all rows", *(f"class {evidence.names[c]}" for c in classes)]
    heads += [f"component {k} of {evidence.names[class_of[k]]}" for k in components]
    text = (
        "Rise of the log-loss if the feature is integrated out of the model: over all rows, and over the rows of each "
    )
    text += "class and component. A negative number: without the feature these rows are predicted better."
    return html.table(heads, rows) + html.paragraph(text, True)


def _rounded(number: float) -> str:
    return f"{round(float(number), 3) + 0.0:.3f}"  # no minus before zero


def _typical_values(evidence: ReportedRows) -> str:
    summary = evidence.fitted.summary()
    columns = summary.components.visible
    rows = list(zip(*columns.values(), strict=True))
    more = f" {len(rows) - 40} more components are not shown." if len(rows) > 40 else ""
    return html.table(list(columns), rows[:40]) + html.paragraph(summary.note + more, True)


def _doubtful(evidence: ReportedRows) -> str:
    suspicious, positions = evidence.suspicious, {int(row): place for place, row in enumerate(evidence.drawn)}

    def button(row: int) -> html.Cell:
        return html.button(f"row {evidence.places[row]}", positions[row])

    rows = [
        [
            button(int(suspicious.positions[i])),
            suspicious.labels[i],
            suspicious.suggestions[i],
            html.percent(suspicious.label_probabilities[i]),
            html.percent(suspicious.suggestion_probabilities[i]),
        ]
        for i in range(min(len(suspicious), MOST_LISTED))
    ]
    heads = ["", "label", "looks like", "p(label)", "p(other)"]
    first = html.table(heads, rows) if rows else html.paragraph("No label contradicts the model.")
    if len(suspicious) > MOST_LISTED:
        first += html.paragraph(f"and {len(suspicious) - MOST_LISTED} more", True)
    unusual = [
        [button(row), evidence.names[evidence.numbers[row]], f"{evidence.outlier_scores[row]:.1f}"]
        for row in evidence.outlying[:MOST_LISTED].tolist()
    ]
    second = html.table(["", "class", "outlier score"], unusual) if unusual else html.paragraph("None.")
    share = html.percent(FALSE_ALARM, 0)
    text = f"An outlier score above {evidence.outlier_limit:.1f}, exceeded by {share} of ordinary rows."
    numbering = "Row 1 is the first row below the header. A click shows a row in the plane."
    return html.paragraph(numbering, True) + (
        f"<div class=pair><div>{html.heading('Suspicious labels')}{first}</div>"
        f"<div>{html.heading('Outliers')}{second}{html.paragraph(text, True)}</div></div>"
    )


def _code(evidence: ReportedRows) -> str:
    about = evidence.model.about_
    code = (
        "from pathlib import Path\n\n"
        "from mixtura import MixtureClassifier\n"
        "from mixtura.cli.columns import read_problem\n"
        "from mixtura.cli.files import read_table\n"
        "from mixtura.estimators.table_classifier import TableClassifier\n"
        "from mixtura.priors import Shrinkage\n\n"
        f"table = read_table(Path({about.get('file', 'table.csv')!r}))\n"
        f"problem = read_problem(table, {about['target']!r}, drop={about.get('drop', [])!r})\n"
        f"estimator = {with_selected_settings(evidence.fitted)!r}\n"
        "model = TableClassifier(estimator, problem.columns).fit(problem.frame, problem.labels)\n"
    )
    text = "The same settings, fitted again without the selection."
    if evidence.fitted.mixture_.n_components > len(evidence.names):
        text += " Its initialisation is another one, so that a mixture of several components may differ slightly."
    if evidence.fitted.label_noise_ > 0:
        text += f" Its probabilities are not bounded by the label noise of {evidence.fitted.label_noise_:.2g}."
    return html.paragraph(text) + f"<pre>{html.escaped(code)}</pre>"
