"""python -m reproduce TABLE [--fresh] [--seeds N] [--device cuda]: compute a published table again.

Without --fresh, runs that the results hold already are kept and only missing ones are computed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from mixtura.datasets.downloads import PUBLIC, download_into
from reproduce import stamps
from reproduce.options import Options
from reproduce.registry import TABLES, Table


def listing() -> str:
    width = max(map(len, TABLES))
    lines = [f"{name:{width}}  {table.paper}: {table.title}" for name, table in TABLES.items()]
    others = {"fetch": "download the public data sets into the data folder",
              "render": "write all Markdown files and pages from the JSON files",
              "note": "TABLE WORDS: say why results older than the code are kept"}  # fmt: skip
    return "\n".join([*lines, *(f"{name:{width}}  {text}" for name, text in others.items())])


def compute(table: Table, options: Options, fresh: bool) -> None:
    """Run a table, stamp its results and write its pages."""
    options.out.mkdir(parents=True, exist_ok=True)
    files = [options.out / name for name in table.results]
    if fresh:
        for file in files:
            file.unlink(missing_ok=True)
    before = {file: stamps.stamps_of(file) for file in files if file.exists()}
    table.run(options)
    for file in files:
        if file.exists():
            stamps.add_stamp(file, before.get(file, []), table.sources)
    table.render(options.out)


def render() -> None:
    """All pages from the JSON files."""
    from reproduce import overview, readme

    for table in TABLES.values():
        table.render(stamps.RESULTS)
    overview.write()
    readme.write()


def fetch(parser: argparse.ArgumentParser) -> None:
    """Download what the data folder lacks; say in words what failed, and go on."""
    if not os.environ.get("MIXTURA_DATA"):
        parser.error("fetch needs a folder: set MIXTURA_DATA or pass --data FOLDER")
    for name in PUBLIC:
        path = Path(os.environ["MIXTURA_DATA"]).expanduser() / f"{name}.npz"
        if path.exists():
            print(f"{name}: there already", flush=True)
            continue
        try:
            print(f"{name}: {download_into(path)}", flush=True)
        except (OSError, ValueError) as problem:
            print(f"{name}: not fetched: {problem}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reproduce", description=__doc__, epilog=listing(), formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "table", choices=[*TABLES, "fetch", "render", "note"], metavar="TABLE", help="one of those below"
    )
    parser.add_argument("words", nargs="*", help="of a note: the table and the text")
    parser.add_argument("--fresh", action="store_true", help="compute all runs again")
    parser.add_argument("--seeds", type=int, help="number of seeds, splits or repetitions; default: as committed")
    parser.add_argument("--device", default=Options.device, help="cpu or cuda; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="processes with one thread each, where a table has them")
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: $MIXTURA_DATA")
    parser.add_argument("--out", type=Path, default=stamps.RESULTS, help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="a small version that only shows that the script runs")
    options = parser.parse_args(arguments)
    if options.quick and options.out == stamps.RESULTS:
        parser.error("--quick needs --out FOLDER: its figures mean nothing and must not replace results")
    if options.data is not None:
        os.environ["MIXTURA_DATA"] = str(options.data)
    if options.table == "render":
        render()
    elif options.table == "fetch":
        fetch(parser)
    elif options.table == "note":
        name, *words = options.words
        for file in TABLES[name].results:
            if (stamps.RESULTS / file).exists():
                stamps.add_note(file, " ".join(words), TABLES[name].sources)
    else:
        chosen = Options(options.out, options.seeds, options.device, options.jobs, options.quick)
        compute(TABLES[options.table], chosen, options.fresh)


if __name__ == "__main__":
    main()
