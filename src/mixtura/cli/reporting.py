"""`mixtura report`: a model and its predictions for held-out rows of a table, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mixtura import __version__
from mixtura.cli import output
from mixtura.cli.fitting import choice_of, components_text, load_table_model
from mixtura.cli.held_out_rows import FALSE_ALARM, FOLDS, HeldOut, calibration_error, predict_held_out, threshold_table
from mixtura.cli.output import Answer, check_place, decimals, percents, progress
from mixtura.cli.tables import missing_values, names_of, read_problem, read_table
from mixtura.estimators.density_classifier import DensityClassifier
from mixtura.estimators.table_classifier import TableClassifier
from mixtura.estimators.table_columns import category_of, entries_of
from mixtura.files.models import write_atomically
from mixtura.inspection.outliers import threshold_of
from mixtura.inspection.summaries import text_of
from mixtura.plotting import ConfusionDisplay, MixtureDisplay, ReliabilityDisplay
from mixtura.plotting.curves import draw_decisions
from mixtura.plotting.mixtures import draw_classes
from mixtura.plotting.style import Figure, svg_of
from mixtura.selection.search import SearchTable

MOST_FEATURES, MOST_CLASSES, MOST_CONFUSED = 15, 12, 10
MOST_CANDIDATES, MOST_COMPONENTS = 6, 40
MOST_POINTS, MOST_LISTED, MOST_VALUES = 400, 12, 40  # rows that are drawn, that are named, and values of a row
MOST_EXPLAINED, ORDERS = 100, 4  # features
ROWS_FOR_IMPORTANCES, MOST_JUDGED = 500, 100  # rows and features


def run_report(path: Path, data: Path, out: Path | None, with_data: bool, seed: int, sep: str | None = None) -> Answer:
    """Write the report."""
    out = check_place(out or Path(f"{path.stem}.html"), path, data, ending=".html")
    model = load_table_model(path)
    with progress(2) as say:
        say("Predicting held-out rows")
        evidence, read = evidence_of(model, data, seed, sep)
        say("Writing the report")
        text = report(evidence, path, data, read, with_data)
    with write_atomically(out.resolve()) as file:
        file.write(text.encode())
    facts = {"report": str(out), "bytes": len(text.encode()), "rows": len(evidence.labels)}
    facts |= {**evidence.performance, "cross_validation_log_loss": evidence.log_loss}
    return Answer([f"Report on {len(evidence.labels)} rows: {out} ({len(text.encode()) // 1024} kB)"], facts)


def evidence_of(model: TableClassifier, data: Path, seed: int, sep: str | None = None) -> tuple[HeldOut, str]:
    """Held-out predictions for a table, and the line of Python that reads it."""
    target = model.about_.get("target")
    if target is None:
        raise ValueError("The model file does not say which column is the target; pass a model file of `mixtura fit`.")
    table = read_table(data, sep)
    if target not in table.columns:
        raise ValueError(f"The table has no column {target!r}; a report needs the labels of its rows.")
    model.read(table.head(1))  # says which columns are absent
    group = model.about_.get("group")
    group = group if group in table.columns else None
    left_out = [name for name in table.columns if name not in {target, group, *names_of(model.features)}]
    problem = read_problem(table, target, left_out, group)
    unknown = sorted(set(np.unique(problem.labels).tolist()) - set(model.classes_.tolist()), key=str)
    if unknown:
        raise ValueError(f"Column {target!r} holds {unknown[0]!r}, which is not a class of the model.")
    evidence = predict_held_out(model, problem, seed)
    if len(np.unique(evidence.labels)) < 2:
        raise ValueError(f"A report needs two classes of {target!r} with at least two rows each.")
    return evidence, table.attrs["read"]


def report(evidence: HeldOut, model: Path, data: Path, read: str, with_data: bool = True) -> str:
    """The page of a report; without data it shows no single row."""
    drawn = _draw_rows(evidence)
    sections = [
        ("The model and its selection", _choice(evidence, model.name)),
        ("Classes and components", _plane(evidence, drawn, with_data)),
        ("Confusions", _confusion(evidence)),
        ("Calibration", _reliability(evidence)),
        ("Decisions", _decisions(evidence)),
        ("Missing values", _missing(evidence)),
        ("Features that matter", _importances(evidence)),
        ("Typical values", _typical_values(evidence)),
        *([("Doubtful rows", _doubtful(evidence, drawn))] if with_data else []),
        ("The code that reproduces it", _code(evidence, model, read)),
    ]
    samples = _details(evidence, drawn) if with_data else []
    return output.page(f"Report on {model.name}", _beginning(evidence, data.name), sections, samples)


# ---- the model -------------------------------------------------------------------------------------------------------


def _beginning(evidence: HeldOut, data_name: str) -> str:
    shares = np.bincount(evidence.numbers, evidence.weights, len(evidence.names)) / evidence.weights.sum()
    prior, (columns, absent) = shares[shares > 0], _absent(evidence)
    calibration = calibration_error(evidence.probabilities, evidence.numbers, evidence.weights)
    own = evidence.performance
    error, error_range = _split(percents(own["held_out_error"], own["held_out_error_interval"]))
    log_loss, loss_range = _split(decimals(own["held_out_log_loss"], own["held_out_log_loss_interval"]))
    numbers = [
        (error, f"error{error_range}; most frequent class alone: {output.percent(1 - shares.max())}"),
        (log_loss, f"log-loss{loss_range}; class frequencies alone: {-(prior * np.log(prior)).sum():.3f}"),
        (f"{calibration:.3f}", "calibration error"),
        (f"{len(evidence.labels)}", f"rows, {len(evidence.names)} classes"),
        (f"{len(columns)}", f"columns, {output.percent(absent.mean())} of the values missing"),
    ]
    text = f"A classifier of {evidence.model.about_['target']!r}. All predictions are for rows of {data_name} that the "
    fitted = evidence.model.estimator_
    several = isinstance(fitted, DensityClassifier) and fitted.further_members_
    whose = "the settings of its best member" if several else "its settings"
    text += f"model had not seen: {FOLDS}-fold cross-validation with {whose}."
    if evidence.sizes:
        text += " Rare classes have all their rows here and frequent ones a random part; numbers have weights for that."
    if own["held_out_error_interval"]:
        text += (
            " Error and log-loss are corrected for the selection of the settings (95 % intervals); other figures of "
        )
        text += "this page are not."
    return output.paragraph(text) + output.tiles(numbers)


def _split(text: str) -> tuple[str, str]:
    """A number, and the interval behind it."""
    value, mark, interval = text.partition(" (")
    return value, mark + interval


def _choice(evidence: HeldOut, model_name: str) -> str:
    fitted = evidence.model.estimator_
    about, choice, search = evidence.model.about_, choice_of(fitted), fitted.search_
    counts = choice["components_per_class"]
    shape = "Every class is one Gaussian" if counts == 1 else f"Every class is a mixture of {components_text(counts)}"
    if not isinstance(counts, int):
        shape = f"The classes are mixtures of {text_of(counts)} components"
    text = f"{shape} with {choice['covariance']} covariances. "
    if search is None or len(search) < 2:
        text += "No other settings were compared."
    else:
        text += f"These settings were selected among {len(search)} by the log-loss of held-out rows."
    n_numeric = sum(column.categories is None for column in evidence.model.features)
    pairs = [
        ("model file", f"{model_name}, {type(fitted).__name__} of mixtura {about.get('version', __version__)}"),
        ("trained on", f"{about.get('file', '?')}, target {about['target']}"),
        ("features", f"{n_numeric} numeric, {len(evidence.model.features) - n_numeric} with categories"),
        ("prior", choice["prior"]),
        ("transform", "none" if choice["transform"] is None else f"{choice['transform']}, towards normality"),
        ("temperature", f"{choice['temperature']:.3f} (above 1: less extreme probabilities than the densities give)"),
        ("parameters", f"{fitted.n_parameters_}"),
    ]
    notes = [output.paragraph(note, soft=True) for note in about.get("notes", [])]
    return output.paragraph(text) + output.facts(pairs) + _candidates(search) + "".join(notes)


def _candidates(search: SearchTable | None) -> str:
    """The best candidates of the selection."""
    if search is None or len(search) < 2:
        return ""
    names = {
        "covariance_type": "covariances",
        "n_components": "components per class",
        "prior": "prior",
        "warp": "transform",
    }
    best = [search.candidates[number] for number in search.ranked()[:MOST_CANDIDATES]]
    rows = [
        [text_of(c.what.get(name) or "none") for name in names] + [f"{c.score:.4f}", f"{c.standard_error:.4f}"]
        for c in best
    ]
    heads = [*names.values(), "held-out log-loss", "standard error"]
    text = "Log-losses of the selection are of its own folds, and of candidates without refinements such as a "
    text += "temperature; compare them with each other alone."
    table = output.table(heads, rows, own=0) + output.paragraph(text, True)
    return output.heading("The selected settings and the next best") + table


# ---- pictures --------------------------------------------------------------------------------------------------------


def _draw_rows(evidence: HeldOut) -> np.ndarray:
    """Positions of the rows that are drawn, by class: those that the report lists, then a random choice."""
    listed = np.concatenate([evidence.suspicious.positions[:MOST_LISTED], evidence.outlying[:MOST_LISTED]])
    others = np.random.default_rng(evidence.seed).permutation(len(evidence.labels))
    order = np.concatenate([listed, others])
    rows = order[np.sort(np.unique(order, return_index=True)[1])][:MOST_POINTS]
    return rows[np.lexsort((rows, evidence.numbers[rows]))]


def _plane(evidence: HeldOut, drawn: np.ndarray, with_data: bool) -> str:
    """A picture of rows and components, and the place for the details of a row."""
    text, picture = _picture(evidence, drawn, with_data)
    if not with_data:
        return output.paragraph(text) + picture
    hint = "<div id=detail><p class=soft>Point at a row, or select the picture and use the arrow keys: its prediction, "
    hint += "reasons and values appear here.</p></div>"
    return output.paragraph(text) + f"<div class=plane><div id=rows tabindex=0>{picture}</div>{hint}</div>"


def _picture(evidence: HeldOut, drawn: np.ndarray, with_data: bool) -> tuple[str, str]:
    fitted = evidence.model.estimator_
    features = evidence.model.read(evidence.frame)
    if not isinstance(fitted, DensityClassifier) or fitted.mixture_.n_features < 2:
        return "A picture needs a model with components and two features.", ""
    complete = fitted.impute(features)
    if len(evidence.names) > MOST_CLASSES:
        chosen = [evidence.model.classes_[number] for number in _most_confused(evidence)]
        picture = svg_of(lambda f: draw_classes(f, fitted, complete, evidence.labels, chosen), (10, 4.4))
        return f"The {len(chosen)} classes that are confused most, each among all rows.", picture
    rows, labels = (complete.iloc[drawn], evidence.labels[drawn]) if with_data else (complete, None)

    def draw(figure: Figure) -> None:
        display = MixtureDisplay.from_estimator(fitted, rows, labels, ax=figure.subplots())
        if with_data:
            wrong = display.view.points[evidence.wrong[drawn]]
            display.ax_.scatter(*wrong.T, s=34, facecolors="none", edgecolors="black", linewidths=1.2, zorder=3)
        else:
            display.ax_.collections[-1].remove()  # the rows

    text = "The plane that separates the classes best. Shades are class probabilities in it, black lines boundaries; "
    text += "ellipses are components at one and two standard deviations."
    if with_data:
        text += f" {len(drawn)} of {len(evidence.labels)} rows are drawn, missing values at their expectation; a dark "
        text += "ring marks a row that was predicted wrongly when it was held out."
    return text, svg_of(draw, (7, 5))


def _most_confused(evidence: HeldOut) -> np.ndarray:
    """The numbers of the classes with the most wrong rows, in order of the classes."""
    wrong = evidence.confusions - np.diag(np.diag(evidence.confusions))
    return np.sort(np.argsort(-(wrong.sum(0) + wrong.sum(1)), kind="stable")[:MOST_CONFUSED])


def _confusion(evidence: HeldOut) -> str:
    matrix, names = evidence.confusions, [output.short(name, 24) for name in evidence.names]
    text = "Rows are true classes, columns predicted ones; shades are shares of the true class."
    chosen = np.arange(len(names))
    if len(names) > MOST_CLASSES:
        chosen = _most_confused(evidence)
        text = f"The {len(chosen)} classes that are confused most. {text}"
    part, shown = matrix[np.ix_(chosen, chosen)], [names[c] for c in chosen]
    size = (2.6 + 0.5 * len(shown), 1.8 + 0.45 * len(shown))
    picture = svg_of(lambda figure: ConfusionDisplay(part, shown).plot(figure.subplots()), size)
    wrong = matrix - np.diag(np.diag(matrix))
    pairs = [divmod(int(place), len(matrix)) for place in np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSED]]
    rows = [[names[i], names[j], wrong[i, j], matrix[i].sum()] for i, j in pairs if wrong[i, j]]
    table = output.table(["true class", "predicted class", "rows", "of"], rows) if rows else output.paragraph("None.")
    table = output.heading("Most frequent confusions") + table
    return output.paragraph(text) + f"<div class=pair><div class=small>{picture}</div><div>{table}</div></div>"


def _reliability(evidence: HeldOut) -> str:
    outcomes = evidence.numbers[:, None] == np.arange(len(evidence.names))
    display = ReliabilityDisplay(evidence.probabilities, outcomes, evidence.names)
    text = "Calibrated probabilities lie on the diagonal. Vertical lines are standard errors."
    picture = svg_of(lambda figure: display.plot(figure.subplots()), (5.2, 4.2))
    return f"<div class=small>{picture}</div>" + output.paragraph(text, True)


def _decisions(evidence: HeldOut) -> str:
    """Curves and thresholds of the rarest class, or of the one that `--positive` names."""
    classes, about = evidence.model.classes_.tolist(), evidence.model.about_
    counts = np.bincount(evidence.numbers, evidence.weights, len(classes))
    number = classes.index(about["positive"]) if about.get("positive") in classes else int(counts.argmin())
    positive, scores = evidence.numbers == number, evidence.probabilities[:, number]
    if not positive.any():
        return output.paragraph("The rarest class has no held-out row.")
    picture = svg_of(lambda figure: draw_decisions(figure, positive, scores, evidence.weights), (10.5, 3.6))
    rows = []
    for metric, line in threshold_table(positive, scores, evidence.weights):
        name, _, value = metric.partition(":")
        wish = f"a missed row costs as much as {value} false alarm{'' if value == '1' else 's'}"
        wish = wish if name == "cost" else f"precision of {output.percent(float(value), 0)}"
        rows.append(
            [wish, f"{line['threshold']:.3g}", *(output.percent(line[k]) for k in ("flagged", "precision", "recall"))]
        )
    text = (
        f"Is a row of class {evidence.names[number]!r}? {int(positive.sum())} held-out rows are. With mixtura predict "
    )
    text += (
        "--threshold T this class is predicted from a probability of T on; mixtura fit --positive names another one."
    )
    heads = ["wish", "threshold", "rows predicted so", "precision", "recall"]
    return f"{output.paragraph(text)}<div class='scroll wide'>{picture}</div>{output.table(heads, rows)}"


# ---- values ----------------------------------------------------------------------------------------------------------


def _absent(evidence: HeldOut) -> tuple[list[str], np.ndarray]:
    """The columns of the model that the table has, and which of their values are missing, (n, columns)."""
    names = [name for name in names_of(evidence.model.features) if name in evidence.frame]
    return names, missing_values(evidence.frame, names)


def _missing(evidence: HeldOut) -> str:
    names, absent = _absent(evidence)
    shares = absent.mean(0)
    chosen = [j for j in np.argsort(-shares, kind="stable")[:MOST_FEATURES] if shares[j] > 0]
    if not chosen:
        return output.paragraph("No value is missing.")
    present = np.unique(evidence.numbers)[:MOST_CLASSES]
    rows = []
    for j in chosen:
        by_class = [absent[evidence.numbers == c, j].mean() for c in present]
        rows.append([names[j], output.percent(shares[j]), *(output.shaded(output.percent(s), s) for s in by_class)])
    text = "Share of missing values, by class. The model integrates them out; nothing is imputed."
    heads = ["column", "all", *(evidence.names[c] for c in present)]
    return output.table(heads, rows) + output.paragraph(text, True)


def _importances(evidence: HeldOut) -> str:
    fitted, rng = evidence.model.estimator_, np.random.default_rng(evidence.seed)
    if not isinstance(fitted, DensityClassifier) or len(evidence.model.features) > MOST_JUDGED:
        return output.paragraph(f"Importances need a density and at most {MOST_JUDGED} features.")
    rows = np.sort(rng.permutation(len(evidence.labels))[:ROWS_FOR_IMPORTANCES])
    frame, labels, numbers = evidence.frame.iloc[rows], evidence.labels[rows], evidence.numbers[rows]
    overall = evidence.model.feature_importances(frame, labels).to_numpy()
    classes = np.unique(numbers)[:MOST_CLASSES].tolist()
    parts = [evidence.model.feature_importances(frame[numbers == c], labels[numbers == c]).to_numpy() for c in classes]
    largest, most = max(float(overall.max()), 1e-12), max(*(float(part.max()) for part in parts), 1e-12)
    table = []
    for j in np.argsort(-overall, kind="stable")[:MOST_FEATURES]:
        cells = [output.shaded(_round(part[j]), min(max(float(part[j]), 0.0) / most, 1.0)) for part in parts]
        own = output.bar(max(float(overall[j]), 0.0) / largest, _round(overall[j]))
        table.append([evidence.model.features[j].feature, own, *cells])
    text = "Rise of the log-loss if the feature is integrated out of the model: over all rows, and over those of each "
    text += "class. Below zero: these rows are predicted better without the feature."
    heads = ["feature", "all rows", *(evidence.names[c] for c in classes)]
    return output.table(heads, table) + output.paragraph(text, True)


def _round(number: float) -> str:
    return f"{round(float(number), 3) + 0.0:.3f}"  # no minus before zero


def _typical_values(evidence: HeldOut) -> str:
    if not isinstance(evidence.model.estimator_, DensityClassifier):
        return output.paragraph("This kind of model has no components.")
    summary = evidence.model.summary()
    columns = summary.components.visible
    rows = list(zip(*columns.values(), strict=True))
    n_more = len(rows) - MOST_COMPONENTS
    more = f" {n_more} more components are not shown." if n_more > 0 else ""
    return output.table(list(columns), rows[:MOST_COMPONENTS]) + output.paragraph(summary.note + more, True)


# ---- single rows -----------------------------------------------------------------------------------------------------


def _doubtful(evidence: HeldOut, drawn: np.ndarray) -> str:
    suspicious, places = evidence.suspicious, {int(row): place for place, row in enumerate(drawn)}

    def link(row: int) -> output.Cell:
        return output.button(f"row {evidence.frame.index[row] + 1}", places[row])

    listed = zip(suspicious.positions[:MOST_LISTED].tolist(), *suspicious.to_frame().to_numpy().T, strict=False)
    rows = [[link(i), label, other, *map(output.percent, shares)] for i, label, other, *shares in listed]
    first = output.table(["", "label", "looks like", "p(label)", "p(other)"], rows)
    first = first if rows else output.paragraph("No label is probably wrong.")
    if len(suspicious) > MOST_LISTED:
        first += output.paragraph(f"and {len(suspicious) - MOST_LISTED} more", True)
    unusual = [
        [link(row), evidence.names[evidence.numbers[row]], f"{evidence.outlier_scores[row]:.1f}"]
        for row in evidence.outlying[:MOST_LISTED].tolist()
    ]
    second = output.table(["", "class", "outlier score"], unusual) if unusual else output.paragraph("None.")
    limit = threshold_of(evidence.reference, FALSE_ALARM)
    text = f"An outlier score above {limit:.1f}, exceeded by {output.percent(FALSE_ALARM, 0)} of ordinary rows."
    numbering = "Row 1 is the first row below the header. A click shows a row in the plane."
    return output.paragraph(numbering, True) + (
        f"<div class=pair><div>{output.heading('Labels that are probably wrong')}{first}</div>"
        f"<div>{output.heading('Outliers')}{second}{output.paragraph(text, True)}</div></div>"
    )


def _details(evidence: HeldOut, drawn: np.ndarray) -> list[dict[str, object]]:
    """Details of every drawn row: label, prediction, reasons and values."""
    model, frame = evidence.model, evidence.frame.iloc[drawn]
    explained = isinstance(model.estimator_, DensityClassifier) and len(model.features) <= MOST_EXPLAINED
    explanation = model.explain(frame, n_orders=ORDERS) if explained else None
    limit, texts = threshold_of(evidence.reference, FALSE_ALARM), []
    columns = [name for name in names_of(model.features) if name in frame]
    for place, sample in enumerate(drawn.tolist()):
        probabilities, number = evidence.probabilities[sample], int(evidence.numbers[sample])
        best, score = int(probabilities.argmax()), evidence.outlier_scores[sample]
        lines = [f"Held-out prediction: {evidence.names[best]} ({output.percent(probabilities[best])})"]
        if best != number:
            lines.append(f"Probability of {evidence.names[number]}: {output.percent(probabilities[number])}")
        lines.append(f"Outlier score {score:.1f}" + (f", above {limit:.1f}: an outlier" if score > limit else ""))
        reasons, why = [], ""
        if explanation is not None:
            contributions = explanation.values[place]
            order = [j for j in np.argsort(-np.abs(contributions))[:6] if contributions[j]]
            reasons = [[explanation.feature_names[j], round(float(contributions[j]), 3)] for j in order]
            why = f"Reasons for {explanation.classes[place]}, in log-odds"
        left_out = len(columns) - MOST_VALUES
        texts.append(
            {
                "row": int(frame.index[place]) + 1,
                "label": evidence.names[number],
                "lines": lines,
                "why": why,
                "reasons": reasons,
                "values": [[name, shown_value(frame[name].iloc[place])] for name in columns[:MOST_VALUES]],
                "more": f"and {left_out} more columns" if left_out > 0 else "",
            }
        )
    return texts


def shown_value(value: object) -> str:
    """A value of a table as text."""
    (entry,) = entries_of(np.array([value], dtype=object))
    if entry is None:
        return "missing"
    return f"{entry:.4g}" if isinstance(entry, float) else str(category_of(entry))[:60]


# ---- the code --------------------------------------------------------------------------------------------------------


def _code(evidence: HeldOut, model: Path, read: str) -> str:
    """A program that prints the log-loss of the report."""
    about, fitted, copy = evidence.model.about_, evidence.model.estimator_, evidence.copy
    target, group, sizes = about["target"], about.get("group"), evidence.sizes
    shown = copy.__repr__(N_CHAR_MAX=10**9)  # shortened otherwise
    names = {"priors": ("Shrinkage", "Conjugate"), "covariances": ("Tied", "Diagonal", "Full")}
    used = [(room, name) for room, known in names.items() for name in known if f"{name}(" in shown]
    kind, given = ("StratifiedKFold", "") if group is None else ("StratifiedGroupKFold", f", table[{group!r}]")
    adopted, weights = [], {label: float(evidence.weights[evidence.labels == label][0]) for label in sizes}
    if isinstance(fitted, DensityClassifier) and fitted.label_noise_:
        adopted.append(f"part.estimator_.label_noise_ = {fitted.label_noise_!r}")
    if isinstance(fitted, DensityClassifier) and fitted.missingness_:
        scale = f"scaled({fitted.missingness_.strength!r})"
        adopted.append(f"part.estimator_.missingness_ = part.estimator_.missingness_.{scale}")
    chosen = [
        f"sizes = {sizes!r}",
        f"parts = [labels[labels == c].sample(n, random_state={evidence.seed}) for c, n in sizes.items()]",
        "labels = pd.concat(parts).sort_index()",
        "table = table.loc[labels.index]",
    ]
    program = output.part_of_page("report_code.txt").format(
        imports="".join(f"from mixtura.{room} import {name}\n" for room, name in used),
        kind=kind,
        estimator=type(copy).__name__,
        read=read,
        target=target,
        without=f"table = table[~table[{target!r}].isin({evidence.left_out!r})]\n" if evidence.left_out else "",
        as_label=".astype(float).astype(int)" if evidence.labels.dtype.kind == "i" else ".astype(str).str.strip()",
        sampling="".join(f"{line}\n" for line in chosen) if sizes else "",
        model=model.name,
        shown=shown,
        n_classes=len(set(evidence.labels)),
        weights=f"labels.map({weights!r})" if sizes else "np.ones(len(table))",
        n_folds=evidence.n_folds,
        seed=evidence.seed,
        groups=given,
        adopted="".join(f"    {line}\n" for line in adopted),
    )
    text = "It fits the selected settings again without each part of the rows, and prints "
    text += f"{evidence.log_loss:.3f}, the log-loss of the predictions on this page"
    text += ", not corrected for the selection." if evidence.performance["held_out_error_interval"] else "."
    return output.paragraph(text) + f"<pre>{output.escaped(program)}</pre>"
