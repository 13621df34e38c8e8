"""The language of the library: public docstrings are in numpydoc format, and some words are not used."""

import ast
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from test_docs import comments_and_strings

GUIDES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]

# Users call the methods of these; the methods of parts (covariances, objectives, solvers) are described in roles/.
MODULES_WITH_METHODS = ("mixtura", "mixtura.nn", "mixtura.datasets", "mixtura.plotting", "mixtura.priors")
MODULES = (*MODULES_WITH_METHODS, "mixtura.objectives", "mixtura.covariances", "mixtura.solvers")

SECTIONS = {"Parameters", "Returns", "Yields", "Attributes", "Raises", "Notes", "References", "Examples", "See Also"}

# Phrases with a better word in the field, and names that say how a value came about and not what it is.
PHRASES = {
    r"\b(missing|observed|filled|removed) cells?\b": "missing values, observed values",
    r"\brows? kept out\b": "held-out samples",
    r"\bmended\b": "repaired, and how",
    r"\b(is|are|be) bent\b|\bbends\b": "transformed",
    r"\b\d+ a class\b": "per class",
    r"\bproper Gaussians?\b": "normalised Gaussian densities",
    r"\bwhole numbers?\b": "integer",
    r"\btold apart\b": "separated",
    r"\bnothing of size\b": "no array of size",
    r"\bleft to itself\b": "unpenalised",
    r"\bpseudo-rows?\b": "pseudo-observations",
    r"\basked for\b": "requested",
    r"\b(goes|go|gone) through (the )?(rows|samples|batches)\b|\bgone through\b": "pass over the rows, iterate",
    r"\b[Ww]hoever\b": "say who",
    r"\bagain and again\b": "repeatedly",
    r"\banew\b": "again",
    r"\bclosed (update|M-step)\b": "closed-form update",
    r"\b(do|does) not fit together\b": "inconsistent",
    r"\bput right\b": "corrected",
    r"\bhand(s|ed)? (back|over)\b": "returned, given",
    r"\b[Ww]hat is known of\b": "labels",
    r"\b(tell|tells) (\w+ )?apart\b": "separate, distinguish",
    r"\b(came|comes) to rest\b|\bto rest\b": "converge",
    r'^\W*"""What\b': "a noun for the thing",
    r"\bby chance\b": "at random",
    r"^\s*(Arguments|Returns|Raises|Examples|Parameters|Attributes):\s*$": "numpydoc sections, underlined with dashes",
}
NAMES = {"found", "made", "taken", "placed", "grown", "mended"}


# ---- numpydoc ----------------------------------------------------------------------------------------------------


def sections(text: str) -> dict[str, list[str]]:
    """The lines of each section of a docstring, by its heading; those before the first heading under an empty one."""
    lines, heading = text.splitlines(), ""
    parts: dict[str, list[str]] = {heading: []}
    for number, line in enumerate(lines):
        if set(line) == {"-"} and number and len(lines[number - 1]) == len(line):
            parts[heading].pop()
            heading = lines[number - 1]
            parts[heading] = []
        else:
            parts[heading].append(line)
    return parts


def entries(lines: list[str]) -> dict[str, list[str]]:
    """Names in a section of parameters, with their lines: a head `name : type`, then an indented description."""
    parts: dict[str, list[str]] = {}
    for line in lines:
        if line and not line.startswith(" "):
            names, _, kind = line.partition(" : ")
            current = [kind]
            parts.update(dict.fromkeys(names.split(", "), current))
        elif line:
            current.append(line)
    return parts


def arguments(call: Any) -> list[str]:
    """Names of the arguments of a function or class, as numpydoc writes them."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(call).parameters.values()
    names = [stars.get(part.kind, "") + part.name for part in parameters]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def docstring_faults(name: str, call: Any, text: str | None, returns: bool = False) -> list[str]:
    """What a docstring lacks, in words."""
    if not text:
        return [f"{name} has no docstring"]
    parts, faults = sections(text), []
    if not text.splitlines()[0].endswith((".", ")")):
        faults.append(f"{name}: the first line is not a sentence: {text.splitlines()[0]!r}")
    faults += [f"{name}: unknown section {heading!r}" for heading in parts if heading and heading not in SECTIONS]
    documented = entries(parts.get("Parameters", []))
    if list(documented) != arguments(call):
        faults.append(f"{name}: documents {list(documented)}, but takes {arguments(call)}")
    for argument, lines in documented.items():
        if not lines[0] or (len(lines) < 2 and argument not in ("X", "y", "sample_weight")):
            faults.append(f"{name}: {argument} needs a type and a description")
    if returns and "Returns" not in parts:
        faults.append(f"{name}: has no section Returns")
    return faults


def public_parts(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        part = getattr(module, name)
        if (inspect.isclass(part) and not issubclass(part, Enum)) or inspect.isfunction(part):
            yield f"{module.__name__}.{name}", part


def public_methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that this library defines, also those that are available under a condition."""
    seen = set()
    for owner in cls.__mro__:
        for name, value in vars(owner).items():
            if name.startswith("_") or name in seen or not owner.__module__.startswith("mixtura"):
                continue
            seen.add(name)
            value = getattr(value, "fn", value)  # scikit-learn's available_if
            value = getattr(value, "__func__", value)  # of class methods
            if inspect.isfunction(value) or isinstance(value, property):
                yield f"{cls.__name__}.{name}", value


def returns_something(function: Any) -> bool:
    return inspect.signature(function).return_annotation not in (None, "None", inspect.Signature.empty)


def faults_of_part(name: str, part: Any, with_methods: bool) -> list[str]:
    faults = docstring_faults(name, part, inspect.getdoc(part), inspect.isfunction(part) and returns_something(part))
    for method, value in public_methods(part) if inspect.isclass(part) and with_methods else ():
        if isinstance(value, property) or value.__name__ == "extra_repr":
            faults += [] if value.__doc__ else [f"{method} has no docstring"]
        else:
            faults += docstring_faults(method, value, inspect.getdoc(value), returns_something(value))
    return faults


@pytest.mark.parametrize("name", MODULES)
def test_public_docstrings_are_in_numpydoc_format(name):
    pytest.importorskip("matplotlib" if name == "mixtura.plotting" else "torch")
    module = importlib.import_module(name)
    parts = list(public_parts(module))
    assert parts
    faults = [fault for part in parts for fault in faults_of_part(*part, name in MODULES_WITH_METHODS)]
    assert not faults, "\n".join(faults)


def complete(x: int, *others: int, scale: float = 1.0) -> int:
    """Do something.

    Parameters
    ----------
    x : int
        A number.
    *others : int
        More numbers.
    scale : float, default=1.0
        A factor.

    Returns
    -------
    y : int
    """
    return x


def incomplete(x: int, y: int) -> int:
    """do something

    Arguments
    ---------
    x : int
        A number.

    Parameters
    ----------
    x : int
    """
    return x


def test_checker_of_docstrings():
    assert docstring_faults("f", complete, inspect.getdoc(complete), returns=True) == []
    assert docstring_faults("f", incomplete, inspect.getdoc(incomplete), returns=True) == [
        "f: the first line is not a sentence: 'do something'",
        "f: unknown section 'Arguments'",
        "f: documents ['x'], but takes ['x', 'y']",
        "f: x needs a type and a description",
        "f: has no section Returns",
    ]
    assert docstring_faults("f", complete, None) == ["f has no docstring"]


# ---- words -------------------------------------------------------------------------------------------------------


def phrase_faults(name: str, text: str) -> list[str]:
    return [
        f"{name}: {match.group().strip()!r}; better: {better}"
        for phrase, better in PHRASES.items()
        for match in re.finditer(phrase, text, re.M)
    ]


def name_faults(name: str, source: str) -> list[str]:
    """Variables, arguments and functions of the names to avoid."""
    nodes = list(ast.walk(ast.parse(source)))
    used = [(node.lineno, node.id) for node in nodes if isinstance(node, ast.Name)]
    used += [(node.lineno, node.arg) for node in nodes if isinstance(node, ast.arg)]
    used += [(node.lineno, node.name) for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [f"{name}:{line}: {word!r} does not say what it holds" for line, word in used if word in NAMES]


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "reproduce", "studies", "examples"])
def test_words_of_the_code(folder):
    faults, paths = [], sorted((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        faults += name_faults(name, path.read_text("utf-8"))
        if path != Path(__file__):  # which lists the phrases
            faults += phrase_faults(name, comments_and_strings(path))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_words_of_the_guides(path):
    faults = phrase_faults(path.name, path.read_text("utf-8"))
    assert not faults, "\n".join(faults)


def test_checker_of_words():
    assert phrase_faults("f", "its missing cells were mended") == [
        "f: 'missing cells'; better: missing values, observed values",
        "f: 'mended'; better: repaired, and how",
    ]
    assert name_faults("f", "def g(taken):\n    found = 1") == [
        "f:2: 'found' does not say what it holds",
        "f:1: 'taken' does not say what it holds",
    ]
    assert name_faults("f", "scores = candidates") == []
