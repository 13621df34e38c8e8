"""One page with all published tables beside ours, coloured by verdict: docs/reproductions.md, from the JSON files."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path

from reproduce.registry import PAPERS
from reproduce.stamps import RESULTS, ROOT, published
from studies.claims import CLAIMS
from studies.comparison import (
    BLOCKS,
    COMPARATOR,
    FIXED,
    METHOD,
    NOT_COMPUTED,
    NOT_HERE,
    VERDICTS,
    Block,
    Cell,
    compared,
    counted,
    sentences,
)

PAGE = ROOT / "docs" / "reproductions.md"
# A sign as well as a colour: colour-blind readers distinguish blue and orange, and print in different greys.
SIGNS = {"better": "▲", "below start": "△", "equal": "=", "worse": "▼", "not comparable": "◇", "absent": "-"}
COLOURS = {
    "better": "#b9dcf2",
    "below start": "#e3eef6",
    "equal": "#eeeeee",
    "worse": "#f7c59f",
    "not comparable": "#ffffff",
    "absent": "#fff3c4",
}
STYLE = """<style>
.reproductions table { border-collapse: collapse; font-size: 0.8em; line-height: 1.25; margin: 0.4em 0 1.2em; }
.reproductions td, .reproductions th { border: 1px solid #cccccc; padding: 0.15em 0.45em; text-align: right; }
.reproductions td, .reproductions th { color: #111111; }
.reproductions th, .reproductions td.name { text-align: left; font-weight: normal; background: #ffffff; }
.reproductions th { font-weight: bold; }
.reproductions tr.published td { background: #ffffff; color: #555555; font-style: italic; }
.reproductions .wide { overflow-x: auto; }
.reproductions .bar { display: flex; width: 16em; height: 1.1em; border: 1px solid #888888; }
.reproductions .bar span { display: block; text-align: center; font-size: 0.85em; overflow: hidden; color: #111111; }
"""  # fmt: skip


def style() -> str:
    lines = [f".reproductions .{key.replace(' ', '-')} {{ background: {colour}; }}" for key, colour in COLOURS.items()]
    return STYLE + "\n".join(lines) + "\n</style>"


def digits(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}"


def shown(cell: Cell) -> str:
    if cell.reason == NOT_HERE:
        return "<td></td>"
    if not cell.values:
        return f'<td class="absent" title="{escape(cell.reason)}">-</td>'
    spread = f" ± {digits(cell.error)}" if len(cell.values) > 1 else ""
    title = f"{cell.verdict}; {len(cell.values)} runs; published {cell.published}"
    text = f"{SIGNS[cell.verdict]} {digits(cell.mean)}{spread}"
    return f'<td class="{cell.verdict.replace(" ", "-")}" title="{escape(title)}">{text}</td>'


def grid(name: str, folder: Path) -> list[str]:
    """Rows of a published table, each followed by ours."""
    table = published()[name]
    results = {block.name: compared(block, folder) for block in BLOCKS if block.table == name}
    lines = ['<div class="wide"><table>']
    lines.append("<tr><th></th><th></th>" + "".join(f"<th>{escape(c)}</th>" for c in table["columns"]) + "</tr>")
    reasons = table.get("absent_because", {})
    for row, values in table["rows"].items():
        cells = "".join(f"<td>{digits(value)}</td>" for value in values)
        lines.append(
            f'<tr class="published"><td class="name">{escape(row)}</td><td class="name">published</td>{cells}</tr>'
        )
        own = {block: [cell for cell in every if cell.row == row] for block, every in results.items()}
        there = {block: part for block, part in own.items() if any(cell.values for cell in part)}
        for block, part in there.items():
            cells = "".join(map(shown, part))
            lines.append(f'<tr><td class="name"></td><td class="name">{escape(block)}</td>{cells}</tr>')
        if not there:
            reason = reasons.get(row, "not computed")
            cell = f'<td class="absent name" colspan="{len(values) + 1}">- absent: {escape(reason)}</td>'
            lines.append(f'<tr><td class="name"></td>{cell}</tr>')
    columns = [f"{column}: {reasons[column]}" for column in table["columns"] if column in reasons]
    other = table.get("not_comparable", {}).get("why")
    notes = ([f"Absent: {'; '.join(columns)}."] if columns else []) + ([f"◇ Not comparable: {other}."] if other else [])
    return [*lines, "</table></div>", "", *notes, ""]


def bar(block: Block, folder: Path) -> str:
    cells = [cell for cell in counted(block, folder) if cell.group == METHOD]
    parts = []
    for verdict in VERDICTS:
        count = sum(cell.verdict == verdict for cell in cells)
        if count:
            width = 100 * count / len(cells)
            parts.append(
                f'<span class="{verdict.replace(" ", "-")}" style="width: {width:.1f}%">{SIGNS[verdict]}</span>'
            )
    return f'<div class="bar">{"".join(parts)}</div>'


def summary(folder: Path) -> list[str]:
    """How many figures of each block are better, equal, worse or absent."""
    lines = ["<table>"]
    heads = ["table", "ours", *(f"{SIGNS[verdict]} {verdict}" for verdict in VERDICTS), "not computed",
             "methods compared with", "cannot fail", ""]  # fmt: skip
    lines.append("<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>")
    for block in BLOCKS:
        every = counted(block, folder)
        cells = [cell for cell in every if cell.group == METHOD]
        totals = {verdict: sum(cell.verdict == verdict for cell in cells) for verdict in VERDICTS}
        left = sum(cell.reason == NOT_COMPUTED for cell in cells)
        counts = "".join(
            f'<td class="{verdict.replace(" ", "-")}">{count}</td>' if count else "<td></td>"
            for verdict, count in totals.items()
        )
        counts += f"<td>{left}</td>" if left else "<td></td>"
        apart = Counter(cell.verdict for cell in every if cell.group == COMPARATOR and cell.values)
        fixed = sum(cell.group == FIXED for cell in every)
        counts += f"<td>{' '.join(f'{n} {SIGNS[v]}' for v in VERDICTS if (n := apart[v]))}</td><td>{fixed or ''}</td>"
        names = f'<td class="name">{escape(block.table)}</td><td class="name">{escape(block.name)}</td>'
        lines.append(f"<tr>{names}{counts}<td>{bar(block, folder)}</td></tr>")
    return [*lines, "</table>", ""]


def not_computed(folder: Path) -> list[str]:
    """Published figures that could be computed with the data at hand and were not, for each block."""
    lines = ["| table | ours | figures | which |", "|---|---|---|---|"]
    for block in BLOCKS:
        absent = [cell for cell in counted(block, folder) if cell.reason == NOT_COMPUTED]
        columns: dict[str, list[str]] = {}
        for cell in absent:
            columns.setdefault(cell.row, []).append(cell.column)
        if absent:
            every = [cell.column for cell in counted(block, folder) if cell.row == absent[0].row]
            groups: dict[str, list[str]] = {}  # columns -> rows that lack just these
            for row, own in columns.items():
                groups.setdefault("all" if own == every else ", ".join(own), []).append(row)
            cells = "; ".join(f"{', '.join(rows)}: {own}" for own, rows in groups.items())
            lines.append(f"| {block.table} | {block.name} | {len(absent)} | {cells} |")
    return lines if len(lines) > 2 else ["There are none."]


def page(folder: Path = RESULTS) -> str:
    lines = [
        "# Reproductions",
        "",
        "The tables of the five papers beside ours. Written by `python -m studies render` from the result files and",
        "from [published.json](../reproduce/published.json); how to compute a table again is in",
        "[reproduce/README.md](../reproduce/README.md).",
        "",
        "Each cell holds our mean ± standard error over seeds, splits or repetitions. A cell is *equal* if it differs",
        "from the published figure by at most one standard error, which combines ours with the published one (printed,",
        "or the binomial error of the test samples; for means over 100 splits in HU21 table 1, which prints none, an",
        "estimate: about a tenth of the spread over splits). Otherwise it is *better* or *worse*. A figure that is",
        "better than published but worse than our EM on the same data (averaged where the fit starts from averages,",
        "otherwise with sizes by validation) is *below start*. Figures",
        "of methods that a paper compares with, and figures that cannot fail, are counted apart, in the last columns.",
        "An absent figure was not",
        "computed, or its data are licensed or not published; the sentences of each table say which. Training errors",
        "and sizes of KJO03 are in published.json and not compared here.",
        "",
        style(),
        "",
        '<div class="reproductions">',
        "",
        *summary(folder),
    ]
    for key, name in PAPERS.items():
        lines += ["</div>", "", f"## {key}: {name}", "", CLAIMS[key](folder), "", '<div class="reproductions">', ""]
        for table in [table for table in published() if table.startswith(key)]:
            paragraphs = sentences(table, folder)
            if paragraphs:
                lines += ["</div>", "", f"### {table}", "", published()[table]["title"] + ".", ""]
                lines += [text for paragraph in paragraphs for text in (f"- {paragraph}",)]
                lines += ["", '<div class="reproductions">', "", *grid(table, folder)]
    lines += ["</div>", "", "## Not computed", ""]
    lines += ["Published figures that can be computed with the data at hand and that no run has computed so far.", ""]
    return "\n".join([*lines, *not_computed(folder), ""])


def write() -> None:
    PAGE.write_text(page())
