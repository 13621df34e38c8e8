"""reproduce/README.md, rendered from the registry."""

from __future__ import annotations

from reproduce.behaviour import state_of
from reproduce.comparison import BLOCKS, NOT_COMPUTED, counted
from reproduce.registry import PAPERS, SOURCES, TABLES, Table
from reproduce.stamps import RESULTS, stamps_of

PAGE = RESULTS.parent / "README.md"
HEAD = """# Reproductions

Every table of the five papers that mixtura implements can be computed again from here.
[One page](../docs/reproductions.md) shows all of them beside the published figures, which are in
[published.json](published.json). Every table has fixed settings;
how they were chosen, and how defaults of the library were settled, is in [studies](../studies/README.md).

    pip install -e '.[dev]'                         # from a checkout
    export MIXTURA_DATA=~/mixtura-data              # a folder for the data sets
    python -m reproduce fetch                       # download what is public into it (needs a network)
    python -m reproduce hu21-table1                 # compute what is missing, then write the page
    python -m reproduce hu21-table1 --fresh         # compute everything again
    python -m reproduce hu21-table1 --fresh --seeds 2 --out /tmp/try --jobs 4
    python -m reproduce rptp18-table2 --fresh --device cuda
    python -m reproduce render                      # write all pages from the JSON files

`--seeds N` is the number of seeds, splits or repetitions. `--jobs N` are processes with one thread each, where a table
has them. `--out FOLDER` writes elsewhere than in `results/`. `--quick` runs a small version that only shows that a
script works; the tests run it for every table on generated data.

Every JSON file starts with stamps: the versions of mixtura, torch and Python, and a digest of what a small version of
the table computes (`--quick` on small data, to nine digits: [behaviour.json](behaviour.json)). The tests compute the
small versions again. Where a change of behaviour is meant, `python -m reproduce behaviour TABLE` records it, and the
last table of this page says which results are older. Without `--fresh` runs that a file holds
already are kept, so that a file can have several stamps. With `--fresh` earlier results stay in FILE.before until the
run has ended; one that fails at once leaves them in place, and results of other tables in the same file are kept.
`tests/test_reproduce.py` checks that each page equals what its JSON file renders to.

Settings are chosen on training or validation samples only. Where a candidate entered a search after a test figure had
been seen, the page of the table says so.
"""
FOOT = """## One cell

    python -m reproduce rptp18-table1 --cell "MNIST (pca50), LL"                 # published settings
    python -m reproduce rptp18-table1 --cell "MNIST (pca50), searched, LL+LM"    # settings by validation
    python -m reproduce rptp18-table2 --cell "100: SSL (LM)"
    python -m reproduce kjo03 --cell "synth, svm"
    python -m reproduce hu21-table1 --cell "ripley, rvm"

A wrong name lists the cells. Cells that the results hold are not computed again; with `--out FOLDER` they are.
"""

WORDS = """Published figures that can be computed with the data at hand and that no run has computed so far. Figures
whose data are licensed or not published are not listed; the [page of all tables](../docs/reproductions.md) names them.
"""


DATA = """Sets with "no" below cannot be fetched. Get them from their sources and write the arrays that
[data.py](data.py) names into an archive of this name, with `numpy.savez`.
"""


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
    lines = [HEAD]
    for key, paper in PAPERS.items():
        own = {name: table for name, table in TABLES.items() if table.paper == key}
        lines += [f"## {key}: {paper}", ""]
        lines += ["| TABLE | what | pages | data | device | minutes | deviations |", "|---|---|---|---|---|---|---|"]
        lines += [line for name, table in own.items() for line in entry(name, table)] + [""]
    lines += ["## Data", "", DATA, "| file | source | licence | `fetch` |", "|---|---|---|---|"]
    lines += [
        f"| {source.file} | {source.source} | {source.licence} | {'yes' if source.public else 'no'} |"
        for source in SOURCES.values()
    ]
    lines += ["", FOOT]
    if not_computed():
        lines += ["## Not computed", "", WORDS, "| table | ours | figures | which |", "|---|---|---|---|"]
        lines += [*not_computed(), "", *without_results()]
    lines += ["## Results and behaviour", "", "| TABLE | file | computed with the behaviour |", "|---|---|---|"]
    for name, table in TABLES.items():
        files = [file for file in table.results if (RESULTS / file).exists()]
        lines += [f"| `{name}` | {file} | {state_of(stamps_of(RESULTS / file), name)} |" for file in files]
    return "\n".join(lines) + "\n"


def write() -> None:
    PAGE.write_text(text())
