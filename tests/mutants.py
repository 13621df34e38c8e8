"""Make the mistakes of mutants.toml in a copy, one at a time, and see whether the tests named for them fail.

python tests/mutants.py [--workers N] [words in names or files ...]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNUSED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "shared", "results")
LEAST = 0.95  # share of the mistakes that tests must notice
SECONDS = 120  # of processor time, after which a mistake that makes tests hang is noticed
PRELOADED = ["torch", "scipy.stats", "sklearn.datasets", "sklearn.model_selection", "pytest"]


@dataclass(frozen=True)
class Mutant:
    """A text of a room of the library, what replaces it, and the tests that should fail then."""

    name: str
    file: Path  # below the root
    text: str
    becomes: str
    tests: str
    survives: str  # why no test notices it; empty if one should


def read_mutants(root: Path = ROOT) -> list[Mutant]:
    """Read the list. A text must occur once in the library or in its room: otherwise the mistake is gone or another."""
    library = root / "src" / "mixtura"
    sources = {path: path.read_text("utf-8") for path in sorted(library.rglob("*.py"))}
    mutants = []
    for group in tomllib.loads((root / "tests" / "mutants.toml").read_text("utf-8"))["group"]:
        for entry in group["mutants"]:
            places = [path for path, source in sources.items() for _ in range(source.count(entry["text"]))]
            if len(places) > 1:
                places = [path for path in places if library / group["room"] in path.parents]
            if len(places) != 1:
                raise ValueError(f"{entry['name']!r}: {entry['text']!r} occurs {len(places)} times in {group['room']}.")
            compile(sources[places[0]].replace(entry["text"], entry["becomes"]), entry["name"], "exec")
            tests, reason = entry.get("tests", group["tests"]), entry.get("survives", "")
            file = places[0].relative_to(root)
            mutants.append(Mutant(entry["name"], file, entry["text"], entry["becomes"], tests, reason))
    return mutants


def run_tests(folder: Path, tests: str) -> str:
    """Run tests in a copy; what pytest prints if one fails, or nothing."""
    os.chdir(folder)

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    import pytest

    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *shlex.split(tests)])
    if status == pytest.ExitCode.NO_TESTS_COLLECTED or status == pytest.ExitCode.USAGE_ERROR:
        raise ValueError(f"pytest {tests} runs no tests.")
    return "" if status == pytest.ExitCode.OK else output.getvalue()


def notice(place: Path, mutant: Mutant) -> bool:
    """Whether the tests fail after the mistake has been made in a copy of the library."""
    folder = Path(tempfile.mkdtemp(dir=place))
    shutil.copytree(place / "copy", folder, dirs_exist_ok=True)
    file = folder / mutant.file
    file.write_text(file.read_text("utf-8").replace(mutant.text, mutant.becomes), "utf-8")
    noticed = bool(run_tests(folder, mutant.tests))
    os.chdir(ROOT)
    shutil.rmtree(folder)
    return noticed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mistakes whose name or file contains one of these")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in read_mutants()
        if not options.words or any(word in f"{mutant.name} {mutant.file}" for word in options.words)
    ]
    every = list(dict.fromkeys(mutant.tests for mutant in mutants))
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    context = multiprocessing.get_context("forkserver")  # every run begins with the packages, and without the library
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as name, context.Pool(options.workers, maxtasksperchild=1) as pool:
        place = Path(name)
        shutil.copytree(ROOT, place / "copy", ignore=UNUSED)
        for failure in pool.imap(partial(run_tests, place / "copy"), every):
            if failure:
                sys.exit(f"{failure[-3000:]}\nTests fail without any mistake.")
        noticed = pool.imap(partial(notice, place), mutants)
        survivors = []
        for mutant, seen in zip(mutants, noticed, strict=True):
            if not seen:
                survivors.append(mutant)
                sys.stdout.write(f"{mutant.file}: {mutant.name}: {mutant.survives or 'survives ' + mutant.tests}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{len(mutants) - len(survivors)} of {len(mutants)} mistakes are noticed.\n")
    sys.exit(len(survivors) > (1 - LEAST) * len(mutants) or any(not mutant.survives for mutant in survivors))


if __name__ == "__main__":
    main()
