"""Rules about the source itself: imports point down, files and functions are short, every module imports."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "mixtura"

# From the bottom up. A file may import from its own level and from those below it.
LEVELS = [
    {"roles", "moments", "checks", "linalg", "scratch", "cached", "ends"},
    {"covariances", "objectives", "priors"},
    {
        "passes", "evaluator", "pieces", "decisions", "frames", "workers", "shards", "mixture", "log_linear",
        "sparse_mixture", "bases", "initialise", "spreading", "warp",
    },
    {"solvers"},
    {"reduction"},
    {
        "estimators", "nn", "ensembles", "selection", "model_files", "datasets", "plotting", "cli",
        "__init__", "__main__",
    },
]  # fmt: skip
TOP = LEVELS[-1]
ROLE_FOLDERS = {"covariances", "objectives", "priors", "solvers"}

# Packages that only some parts may import.
RESTRICTED = {"sklearn": TOP, "matplotlib": {"plotting"}}

# Packages that need not be installed: those of the extras, and the compiler of the fused kernels.
OPTIONAL = {"matplotlib", "typer", "rich", "pandas", "pyarrow", "optuna", "dask", "distributed", "triton"}

MAX_FILE_LINES = 600
MAX_BODY_LINES = 60


def level_of(part: str) -> int | None:
    return next((level for level, parts in enumerate(LEVELS) if part in parts), None)


def part_of(path: Path) -> str:
    """The first name below the package: `covariances` for `covariances/full.py`, `mixture` for `mixture.py`."""
    return path.parts[0].removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`, which nothing runs."""
    yield node
    children = node.orelse if is_type_checking(node) else ast.iter_child_nodes(node)
    for child in children:
        yield from runtime_nodes(child)


def absolute_names(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[str]:
    """Dotted names that an import statement in `path` (relative to the package) asks for."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    folder = ("mixtura", *path.parent.parts)
    base = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
    module = ".".join(filter(None, [base, node.module]))
    if module == "mixtura":  # `from mixtura import linalg` asks for a part, `from mixtura import load` for __init__
        for alias in node.names:
            yield f"mixtura.{alias.name if level_of(alias.name) is not None else '__init__'}"
    else:
        yield module


def complaint(name: str, path: Path) -> str | None:
    """Why `path` may not import `name`, or None."""
    here = part_of(path)
    package, _, rest = name.partition(".")
    if package != "mixtura":
        allowed = RESTRICTED.get(package)
        if allowed is not None and here not in allowed:
            return f"imports {name}, which is for {', '.join(sorted(allowed))}"
        return None
    there = rest.partition(".")[0] or "__init__"
    own_level, other_level = level_of(here), level_of(there)
    if other_level is None:
        return f"imports {name}, which has no level: give it one in LEVELS"
    if own_level is not None and other_level > own_level:
        return f"imports {name}, which is above it"
    if here != there and {here, there} <= ROLE_FOLDERS and own_level == other_level:
        return f"imports {name}, a part of another role"
    return None


def import_faults(source: str, path: Path) -> list[str]:
    """Every import of `source` that breaks a rule, as text that names file, line and import."""
    faults = []
    if level_of(part_of(path)) is None:
        faults.append(f"{path}: has no level: give it one in LEVELS")
    for node in runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            complaints = (complaint(name, path) for name in absolute_names(node, path))
            faults.extend(f"{path}:{node.lineno} {text}" for text in complaints if text)
    return faults


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last, the docstring left out."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def length_faults(source: str, path: Path) -> list[str]:
    """The file and every function in it that are too long, as text."""
    faults = []
    n_lines = len(source.splitlines())
    if n_lines > MAX_FILE_LINES:
        faults.append(f"{path}: {n_lines} lines, at most {MAX_FILE_LINES}: split it by idea")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > MAX_BODY_LINES:
            faults.append(
                f"{path}:{node.lineno} {node.name}: body of {body_lines(node)} lines, at most {MAX_BODY_LINES}"
            )
    return faults


def source_files() -> list[Path]:
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def faults_of_package(check) -> list[str]:
    return [fault for path in source_files() for fault in check((PACKAGE / path).read_text("utf-8"), path)]


def test_imports_point_down():
    faults = faults_of_package(import_faults)
    assert not faults, "\n".join(faults)


def test_files_and_functions_are_short():
    faults = faults_of_package(length_faults)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", [path for path in source_files() if path.name != "__main__.py"], ids=str)
def test_module_imports_or_lacks_only_an_optional_package(path):
    name = ".".join(["mixtura", *path.with_suffix("").parts]).removesuffix(".__init__")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {missing}")
    assert module.__name__ == name


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("moments.py", "import math\nimport torch\nfrom . import linalg"),
        ("roles.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .mixture import Mixture"),
        ("covariances/tied.py", "from .diagonal import Diagonal\nfrom ..linalg import safe_cholesky"),
        ("covariances/__init__.py", "from .full import Full\nfrom mixtura.covariances import tied"),
        ("passes.py", "def run():\n    from . import evaluator\n    from .mixture import Mixture"),
        ("solvers/em.py", "from .loop import run\nfrom ..passes import summary\nfrom mixtura.priors import PRIORS"),
        ("estimators.py", "import sklearn.base\nfrom . import __version__\nfrom .solvers.em import EM"),
        ("estimators/base.py", "from sklearn.base import BaseEstimator\nfrom ..solvers import SOLVERS"),
        ("plotting.py", "import matplotlib.pyplot as plt"),
    ],
)
def test_checker_accepts_imports_that_point_down(path, source):
    assert import_faults(source, Path(path)) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        (
            "linalg.py",
            "import torch\nfrom .mixture import Mixture",
            "linalg.py:2 imports mixtura.mixture, which is above it",
        ),
        ("mixture.py", "from mixtura import solvers", "mixture.py:1 imports mixtura.solvers, which is above it"),
        ("mixture.py", "import mixtura.solvers.em", "mixture.py:1 imports mixtura.solvers.em, which is above it"),
        ("mixture.py", "from . import load", "mixture.py:1 imports mixtura.__init__, which is above it"),
        ("mixture.py", "import mixtura", "mixture.py:1 imports mixtura, which is above it"),
        (
            "solvers/em.py",
            "def late():\n    from ..estimators import GaussianMixture",
            "solvers/em.py:2 imports mixtura.estimators, which is above it",
        ),
        (
            "covariances/full.py",
            "from ..priors.conjugate import Conjugate",
            "covariances/full.py:1 imports mixtura.priors.conjugate, a part of another role",
        ),
        (
            "objectives/hybrid.py",
            "from .. import covariances",
            "objectives/hybrid.py:1 imports mixtura.covariances, a part of another role",
        ),
        (
            "priors/sparse.py",
            "from ..solvers.newton import Newton",
            "priors/sparse.py:1 imports mixtura.solvers.newton, which is above it",
        ),
        (
            "cli.py",
            "import matplotlib.pyplot",
            "cli.py:1 imports matplotlib.pyplot, which is for plotting",
        ),
        (
            "shards.py",
            "from .strange import thing",
            "shards.py:1 imports mixtura.strange, which has no level: give it one in LEVELS",
        ),
        ("strange.py", "import torch", "strange.py: has no level: give it one in LEVELS"),
        (
            "roles.py",
            "if TYPE_CHECKING:\n    import sklearn\nelse:\n    from .mixture import Mixture",
            "roles.py:4 imports mixtura.mixture, which is above it",
        ),
    ],
)
def test_checker_names_a_wrong_import(path, source, fault):
    assert import_faults(source, Path(path)) == [fault]


@pytest.mark.parametrize("path", ["initialise.py", "solvers/em.py", "checks/general.py"])
def test_checker_keeps_scikit_learn_at_the_top(path):
    (fault,) = import_faults("from sklearn.cluster import KMeans", Path(path))
    assert fault.startswith(f"{path}:1 imports sklearn.cluster, which is for ")
    assert "estimators" in fault


def function_of(n_lines: int) -> str:
    return "def f():\n" + '    """One.\n\n    Two."""\n' + "    x = 1\n" * n_lines


def test_checker_counts_the_body_without_its_docstring():
    assert length_faults(function_of(MAX_BODY_LINES), Path("mixture.py")) == []
    (fault,) = length_faults(function_of(MAX_BODY_LINES + 1), Path("mixture.py"))
    assert fault == "mixture.py:1 f: body of 61 lines, at most 60"


def test_checker_looks_into_methods():
    source = "class C:\n" + "".join(f"    {line}\n" for line in function_of(MAX_BODY_LINES + 1).splitlines())
    (fault,) = length_faults(source, Path("mixture.py"))
    assert fault == "mixture.py:2 f: body of 61 lines, at most 60"


def test_checker_counts_the_lines_of_a_file():
    assert length_faults("x = 1\n" * MAX_FILE_LINES, Path("mixture.py")) == []
    (fault,) = length_faults("x = 1\n" * (MAX_FILE_LINES + 1), Path("mixture.py"))
    assert fault == "mixture.py: 601 lines, at most 600: split it by idea"
