"""reproduce/README.md, rendered from the registry."""

from __future__ import annotations

from reproduce.comparison import BLOCKS, NOT_COMPUTED, counted
from reproduce.registry import PAPERS, SOURCES, TABLES, Table
from reproduce.stamps import RESULTS

PAGE = RESULTS.parent / "README.md"
HEAD = """# Reproductions

Every table of the five papers that mixtura implements can be computed again from here.
[One page](../docs/reproductions.md) shows all of them beside the published figures, which are in
[published.json](published.json).

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

Every JSON file starts with stamps: the versions of mixtura, torch and Python. Without `--fresh` runs that a file holds
already are kept, so that a file can have several stamps. With `--fresh` earlier results stay in FILE.before until the
run has ended; one that fails at once leaves them in place, and results of other tables in the same file are kept.
`tests/test_reproduce.py` checks that each page equals what its JSON file renders to.

Settings are chosen on training or validation samples only. Where a candidate entered a search after a test figure had
been seen, the page of the table says so.
"""
FOOT = """## Several processes

Searches for RPTP18 share their work between processes, each of which writes a file of its own; the options replace
all environment variables of earlier versions:

    python -m reproduce.hybrid_search search "MNIST (pca50)" --rows LM,CLL --first 0 --stride 2 --part _0 --out parts &
    python -m reproduce.hybrid_search search "MNIST (pca50)" --rows LM,CLL --first 1 --stride 2 --part _1 --out parts
    python -m reproduce.hybrid_tables parts/hybrid_*.json        # add their results to results/hybrid.json

## Some rows alone

    python -m reproduce.discriminative svm rlsc --names synth waveform        # missing records of KJO03
    python -m reproduce.nonnegative usps --again "published, 100 iterations"  # rows of LZZ06 again, and missing ones
"""

WORDS = """Published figures that can be computed with the data at hand and that no run has computed so far. Figures
whose data are licensed or not published are not listed; the [page of all tables](../docs/reproductions.md) names them.
"""


COMMANDS_OF = "These commands compute them with one seed; minutes are estimates for an H200:"
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


# Commands that compute the figures that a published table lacks, with one seed, and their minutes on an H200, estimated
# from runs of the same size.
PART = "--device cuda --part _new --out parts"
COUNTS = "100,250,500,1000,2500,5000,10000,25000"
COMMANDS = {
    "RPTP18 table 1": ((f"reproduce.hybrid pixel_variants --seeds 0 {PART}", "5"),),
    "RPTP18 table 2": ((f"reproduce.few_labels_published {COUNTS} {PART}", "20"),),
    "HU21 table 2": (("reproduce hu21-table2-published --device cuda", "15"),),
}
MERGE = """    python -m reproduce.hybrid_tables parts/hybrid_new.json && python -m reproduce render
"""


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


def commands() -> list[str]:
    """Commands for tables that lack figures."""
    tables = {block.table for block in BLOCKS if any(cell.reason == NOT_COMPUTED for cell in counted(block))}
    return [
        f"    python -m {command}  # {minutes} minutes"
        for table, own in COMMANDS.items()
        if table in tables
        for command, minutes in own
    ]


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
        lines += [*not_computed(), "", *without_results(), COMMANDS_OF, "", *commands(), MERGE]
    return "\n".join(lines) + "\n"


def write() -> None:
    PAGE.write_text(text())
