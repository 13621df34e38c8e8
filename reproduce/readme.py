"""reproduce/README.md, rendered from the registry."""

from __future__ import annotations

from reproduce.behaviour import state_of
from reproduce.comparison import BLOCKS, NOT_COMPUTED, counted
from reproduce.registry import PAPERS, SOURCES, TABLES, Table
from reproduce.stamps import RESULTS, stamps_of

PAGE = RESULTS.parent / "README.md"
TEMPLATE = RESULTS.parent / "README.template.md"


def entry(name: str, table: Table) -> list[str]:
    """One row: command, results, data, device, minutes, deviations."""
    pages = sorted({f"{file.removesuffix('.json')}.md" for file in table.results if (RESULTS / file).exists()})
    pages = [page for page in pages if (RESULTS / page).exists()] or sorted(table.pages(RESULTS))
    links = ", ".join(f"[{page}](results/{page})" for page in pages)
    data = ", ".join(SOURCES[key].file for key in table.data)
    cells = [f"`{name}`", table.title, links, data, table.device, table.minutes, table.deviations]
    return ["| " + " | ".join(cells) + " |"]


def not_computed() -> list[str]:
    """Published figures that could be computed with the data at hand and were not, for each block."""
    lines = []
    for block in BLOCKS:
        absent = [cell for cell in counted(block) if cell.reason == NOT_COMPUTED]
        columns: dict[str, list[str]] = {}
        for cell in absent:
            columns.setdefault(cell.row, []).append(cell.column)
        if absent:
            every = [cell.column for cell in counted(block) if cell.row == absent[0].row]
            groups: dict[str, list[str]] = {}  # columns -> rows that lack just these
            for row, own in columns.items():
                groups.setdefault("all" if own == every else ", ".join(own), []).append(row)
            cells = "; ".join(f"{', '.join(rows)}: {own}" for own, rows in groups.items())
            lines.append(f"| {block.table} | {block.name} | {len(absent)} | {cells} |")
    return lines


def without_results() -> list[str]:
    """Tables that nobody has computed so far."""
    names = [name for name, table in TABLES.items() if not any((RESULTS / file).exists() for file in table.results)]
    listed = ", ".join(f"`{name}` ({TABLES[name].device}, {TABLES[name].minutes} minutes)" for name in names)
    return [f"Without any results: {listed}.", ""] if names else []


def text() -> str:
    tables = []
    for key, paper in PAPERS.items():
        own = {name: table for name, table in TABLES.items() if table.paper == key}
        tables += [f"## {key}: {paper}", ""]
        tables += ["| TABLE | what | pages | data | device | minutes | deviations |", "|---|---|---|---|---|---|---|"]
        tables += [line for name, table in own.items() for line in entry(name, table)] + [""]
    data = [
        f"| {source.file} | {source.source} | {source.licence} | {'yes' if source.public else 'no'} |"
        for source in SOURCES.values()
    ]
    results = [
        f"| `{name}` | {file} | {state_of(stamps_of(RESULTS / file), name)} |"
        for name, table in TABLES.items()
        for file in table.results
        if (RESULTS / file).exists()
    ]
    return TEMPLATE.read_text().format(
        tables="\n".join(tables),
        data="\n".join(data),
        absent="\n".join([*not_computed(), "", *without_results()]),
        results="\n".join(results),
    )


def write() -> None:
    PAGE.write_text(text())
