"""python -m reproduce TABLE [--fresh] [--seeds N] [--device cuda]: compute a published table again.

Without --fresh, runs that the results hold already are kept and only missing ones are computed.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from reproduce import behaviour, readme, stamps
from reproduce.data import PUBLIC, download_into
from reproduce.options import Options, UnknownCellError
from reproduce.registry import SOURCES, TABLES, Source, Table, entries_of_others


def listing() -> str:
    width = max(map(len, TABLES))
    lines = [f"{name:{width}}  {table.paper}: {table.title}" for name, table in TABLES.items()]
    others = {"fetch": "download the public data sets into the data folder",
              "render": "write all Markdown files and pages from the JSON files",
              "behaviour": "[TABLE ...]: record what the small versions of the tables compute now"}  # fmt: skip
    return "\n".join([*lines, *(f"{name:{width}}  {text}" for name, text in others.items())])


def compute(table: Table, options: Options, fresh: bool) -> None:
    """Run a table, stamp its results and write its pages.

    With `fresh`, earlier results stay beside the new ones, as FILE.before, until the run has ended. A run that fails
    before its first result leaves the earlier ones in place.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    files = [options.out / name for name in table.results]
    before = {file: stamps.stamps_of(file) for file in files if file.exists()}
    if fresh:
        before = {file: codes for file, codes in before.items() if set_aside(file, table)}
    try:
        table.run(options)
    except BaseException:
        if fresh:
            for file in files:
                restore(file, table)
        raise
    code = "" if options.quick else behaviour.stamp_of(next(name for name in TABLES if TABLES[name] is table))
    for file in files:
        if file.exists():
            stamps.add_stamp(file, before.get(file, []), code)
        if fresh:
            earlier(file).unlink(missing_ok=True)
    table.render(options.out)
    if options.out.resolve() == stamps.RESULTS:
        readme.write()


def earlier(file: Path) -> Path:
    return file.with_suffix(".json.before")


def set_aside(file: Path, table: Table) -> bool:
    """Rename a result file, and keep a copy of what other tables have in it; whether there is any."""
    entries = entries_of_others(json.loads(file.read_text()), table, file.name)
    if earlier(file).exists():  # of a fresh run that was stopped: the complete results are the older ones
        file.unlink()
    else:
        file.rename(earlier(file))
    if entries:
        stamps.write_json(file, entries)
    return bool(entries)


def restore(file: Path, table: Table) -> None:
    """Put an earlier file back if a failed run added nothing; otherwise say where it is."""
    if not earlier(file).exists():
        return
    entries = json.loads(file.read_text()) if file.exists() else {}
    if set(entries) <= {"stamps", *entries_of_others(entries, table, file.name)}:
        earlier(file).replace(file)
    else:
        print(f"{file} holds the new runs so far; earlier results are in {earlier(file)}", flush=True)


def render() -> None:
    """All pages from the JSON files."""
    for table in TABLES.values():
        table.render(stamps.RESULTS)
    readme.write()


def missing_data(table: Table) -> list[Source]:
    """Data files that a table needs and the data folder lacks."""
    folder = os.environ.get("MIXTURA_DATA")
    needed = [SOURCES[key] for key in table.data if key != "generated"]
    return [source for source in needed if not folder or not any(Path(folder).expanduser().glob(source.file))]


def check_data(parser: argparse.ArgumentParser, name: str) -> None:
    """Stop if data are missing; go on without files that cannot be fetched if the table has other data, too."""
    table = TABLES[name]
    missing = missing_data(table)
    lines = [
        f"  {source.file}: " + ("python -m reproduce fetch" if source.public else f"from its source, {source.source}")
        for source in missing
    ]
    if any(source.public for source in missing) or len(missing) == len(table.data):
        folder = os.environ.get("MIXTURA_DATA")
        where = f"{folder} lacks" if folder else "set MIXTURA_DATA or pass --data FOLDER, a folder with"
        parser.error("\n".join([f"{name} needs data files; {where}", *lines]))
    if missing:
        print("\n".join(["Without these files, so that their rows are left out:", *lines]), flush=True)


def fetch(parser: argparse.ArgumentParser) -> None:
    """Download what the data folder lacks; say in words what failed, and go on."""
    if not os.environ.get("MIXTURA_DATA"):
        parser.error("fetch needs a folder: set MIXTURA_DATA or pass --data FOLDER")
    folder, failed = Path(os.environ["MIXTURA_DATA"]).expanduser(), 0
    for name in PUBLIC:
        path = folder / f"{name}.npz"
        if path.exists():
            print(f"{name}: there already", flush=True)
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of attempts that are repeated
                print(f"{name}: {download_into(path)}", flush=True)
        except (OSError, ValueError) as problem:
            failed += 1
            print(f"{name}: not fetched: {problem}", flush=True)
    for source in SOURCES.values():
        if not source.public and not (folder / source.file).exists():
            print(f"{source.file}: cannot be fetched; its source is {source.source}", flush=True)
    if failed:
        parser.exit(1, f"{failed} of {len(PUBLIC)} data sets were not fetched\n")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number


def checked_device(text: str) -> str:
    """A device that torch knows and this machine has."""
    try:
        torch.empty(1, device=text)
    except (RuntimeError, AssertionError) as problem:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {str(problem).splitlines()[0]}") from None
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reproduce", description=__doc__, epilog=listing(), formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", choices=[*TABLES, "fetch", "render", "behaviour"], metavar="TABLE", help="one below")
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], metavar="TABLE", help="of behaviour; default: all")
    parser.add_argument("--fresh", action="store_true", help="compute all runs again")
    parser.add_argument(
        "--seeds", type=positive, metavar="N", help="number of seeds, splits or repetitions; default: as committed"
    )
    parser.add_argument(
        "--device", type=checked_device, default=Options.device, help="cpu or cuda; default: %(default)s"
    )
    parser.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="processes with one thread each, where a table has them"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder of the data sets; default: $MIXTURA_DATA")
    parser.add_argument(
        "--out", type=Path, default=stamps.RESULTS, metavar="FOLDER", help="folder of the results; default: %(default)s"
    )
    parser.add_argument(
        "--cell", metavar="NAME", help='one cell alone, such as "MNIST (pca50), LL"; a wrong name lists them'
    )
    parser.add_argument("--quick", action="store_true", help="a small version that only shows that the script runs")
    options = parser.parse_args(arguments)
    if options.quick and options.out.resolve() == stamps.RESULTS:
        parser.error("--quick needs --out FOLDER: its figures mean nothing and must not replace results")
    if options.data is not None:
        os.environ["MIXTURA_DATA"] = str(options.data)
    if options.tables and options.table != "behaviour":
        parser.error(f"{options.table} takes no further words; got {' '.join(options.tables)}")
    if options.cell and not (options.table in TABLES and TABLES[options.table].cells):
        parser.error(f"{options.table} has no cells: all of its rows are computed together. Leave --cell out")
    if options.cell and options.fresh and options.out.resolve() == stamps.RESULTS:
        parser.error("--fresh with --cell needs --out FOLDER: one cell must not replace the committed results")
    if options.seeds and options.fresh and options.out.resolve() == stamps.RESULTS:
        parser.error("--fresh with --seeds needs --out FOLDER: fewer seeds must not replace the committed results")
    if options.table == "render":
        render()
    elif options.table == "behaviour":
        behaviour.record(options.tables)
        readme.write()
    elif options.table == "fetch":
        fetch(parser)
    else:
        if not options.quick:
            check_data(parser, options.table)
        chosen = Options(options.out, options.seeds, options.device, options.jobs, options.quick, options.cell)
        try:
            compute(TABLES[options.table], chosen, options.fresh)
        except (FileNotFoundError, UnknownCellError) as problem:
            parser.error(f"{options.table} stopped: {problem}")


if __name__ == "__main__":
    main()
