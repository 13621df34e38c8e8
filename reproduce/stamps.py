"""Which code a result was computed with: a stamp in every JSON file, and notes on results older than the code.

A stamp holds the version of mixtura and a digest of the code of the method. The digest leaves out docstrings, comments
and blank lines, so that an edit of the text does not make a result look old. A file that several runs added to has
several stamps. Results from before stamps existed have the code "unstamped".
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import mixtura

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
NOTES = Path(__file__).parent / "notes.json"
UNSTAMPED = "unstamped"


def code_lines(text: str) -> list[str]:
    """Lines of a Python file without docstrings, comment lines and blank lines."""
    hidden: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                hidden.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = (line.rstrip() for number, line in enumerate(text.splitlines(), 1) if number not in hidden)
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def digest(sources: Iterable[str]) -> str:
    """Eight hexadecimal digits for the code of files and folders under src/mixtura."""
    total = hashlib.sha256()
    for source in sources:
        path = ROOT / "src" / "mixtura" / source
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert files, f"no code in {path}"
        for file in files:
            total.update("\n".join([file.name, *code_lines(file.read_text())]).encode())
    return total.hexdigest()[:8]


def stamp(sources: Iterable[str]) -> dict[str, str]:
    """The stamp of a result computed now."""
    versions = {"mixtura": mixtura.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"code": digest(sources), **versions}


def stamps_of(path: Path) -> list[dict[str, str]]:
    return json.loads(path.read_text()).get("stamps", [{"code": UNSTAMPED}])


def add_stamp(path: Path, before: list[dict[str, str]], sources: Iterable[str]) -> None:
    """Record in a result file that this code computed it, or added to what earlier code computed."""
    results: dict[str, Any] = json.loads(path.read_text())
    now = stamp(sources)
    write_json(path, {**results, "stamps": [*(old for old in before if old != now), now]})


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write with the stamps first, and large files without spaces."""
    results = {"stamps": results.get("stamps", [{"code": UNSTAMPED}]), **results}
    text = json.dumps(results, indent=1)
    path.write_text((text if len(text) < 1e6 else json.dumps(results, separators=(",", ":"))) + "\n")


def notes() -> dict[str, dict[str, str]]:
    """File -> code of a stamp -> words on why results of that code are kept."""
    return json.loads(NOTES.read_text())


def add_note(file: str, words: str, sources: Iterable[str]) -> None:
    """Give a note to every stamp of a file that is not that of the code as it is."""
    known, now = notes(), digest(sources)
    codes = {old["code"] for old in stamps_of(RESULTS / file)} - {now}
    known[file] = {**known.get(file, {}), **dict.fromkeys(sorted(codes), words)}
    NOTES.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def drop_notes(files: Iterable[str]) -> None:
    """Take away notes on code that computed nothing of a file any more."""
    known = notes()
    for file in (file for file in files if file in known and (RESULTS / file).exists()):
        codes = {stamp["code"] for stamp in stamps_of(RESULTS / file)}
        known[file] = {code: words for code, words in known[file].items() if code in codes}
    NOTES.write_text(json.dumps({file: codes for file, codes in sorted(known.items()) if codes}, indent=1) + "\n")
