"""python -m studies NAME [--quick --out FOLDER]: compute what a study lacks, and write its page.

`python -m studies render` writes what compares all tables: docs/reproductions.md, and figures in README and docs.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from reproduce.options import Options
from studies import documents, overview

STUDIES = ("hybrid-figures",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    parser.add_argument("study", choices=(*STUDIES, "render"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one fit, which only shows that the script runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args()
    if chosen.study == "render":
        overview.write()
        documents.write()
        return
    options = Options(chosen.out, chosen.seeds, "cpu", chosen.jobs, chosen.quick)
    module = import_module(f"studies.{chosen.study.replace('-', '_')}")
    options.out.mkdir(parents=True, exist_ok=True)
    module.compute(options)
    for file, text in module.pages(options.out).items():
        (options.out / file).write_text(text)


if __name__ == "__main__":
    main()
