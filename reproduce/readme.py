"""reproduce/README.md, rendered from the registry."""

from __future__ import annotations

from reproduce.behaviour import state_of
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
        absent="\n".join(without_results()),
        results="\n".join(results),
    )


def write() -> None:
    PAGE.write_text(text())
