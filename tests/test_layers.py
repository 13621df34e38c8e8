"""Rules about the source itself: imports point down, files and functions are short, every module imports."""

import ast
import importlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "mixtura"

# From the bottom up. A file may import from its own room and from levels below; late and type-only imports count.
LEVELS = [
    {"numerics"},
    {"files"},
    {"checks"},
    {"values"},
    {"streams", "datasets"},
    {"roles"},
    {"model"},
    {"covariances", "objectives", "priors"},
    {"engine"},
    {"init"},
    {"solvers"},
    {"sparse", "nonnegative"},
    {"selection"},
    {"plotting"},
    {"inspection"},
    {"estimators"},
    {"nn"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
# At the door lie few files; everything else is in a room.
MOST_FILES_AT_THE_DOOR = 6

# Packages that only some parts may import.
RESTRICTED = {
    "sklearn": {"estimators", "selection", "plotting", "cli", "datasets"},
    "matplotlib": {"plotting"},
    "pyarrow": {"streams"},
    "dask": {"engine", "estimators"},
    "distributed": {"engine"},
    "triton": {"numerics"},
}

# Packages that need not be installed: those of the extras.
OPTIONAL = {"dask", "distributed", "matplotlib", "pandas", "pyarrow", "triton"}

MOST_IGNORED = 10  # lines that the type checker skips

MAX_FILE_LINES = 600
MAX_BODY_LINES = 60


def level_of(part: str) -> int | None:
    return next((level for level, parts in enumerate(LEVELS) if part in parts), None)


def part_of(path: Path) -> str:
    """The first name below the package: `covariances` for `covariances/full.py`, `roles` for `roles.py`."""
    return path.parts[0].removesuffix(".py")


def absolute_names(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[str]:
    """Dotted names that an import statement in `path` (relative to the package) asks for."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    folder = ("mixtura", *path.parent.parts)
    base = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
    module = ".".join(filter(None, [base, node.module]))
    if module == "mixtura":  # `from mixtura import checks` asks for a room, `from mixtura import load` for __init__
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
    if own_level is None or here == there or other_level < own_level:
        return None
    return f"imports {name}, which is {'above' if other_level > own_level else 'beside'} it"


def import_faults(source: str, path: Path) -> list[str]:
    """Every import of `source` that breaks a rule, as text that names file, line and import."""
    faults = []
    if level_of(part_of(path)) is None:
        faults.append(f"{path}: has no level: give it one in LEVELS")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            complaints = (complaint(name, path) for name in absolute_names(node, path))
            faults.extend(f"{path}:{node.lineno} {text}" for text in complaints if text)
    return faults


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last, the docstring left out."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def docstring_lines(source: str) -> int:
    """Lines of all docstrings of a file."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    owners = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    docstrings = [owner.body[0] for owner in owners if ast.get_docstring(owner, clean=False) is not None]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in docstrings)


def length_faults(source: str, path: Path) -> list[str]:
    """The file and every function in it that are too long, docstrings not counted, as text."""
    faults = []
    n_lines = len(source.splitlines()) - docstring_lines(source)
    if n_lines > MAX_FILE_LINES:
        faults.append(f"{path}: {n_lines} lines, at most {MAX_FILE_LINES}: split it by idea")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > MAX_BODY_LINES:
            faults.append(
                f"{path}:{node.lineno} {node.name}: body of {body_lines(node)} lines, at most {MAX_BODY_LINES}"
            )
    return faults


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file of the package."""
    return ast.parse((PACKAGE / path).read_text("utf-8"))


def source_files() -> list[Path]:
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def faults_of_package(check) -> list[str]:
    return [fault for path in source_files() for fault in check((PACKAGE / path).read_text("utf-8"), path)]


def says_any(annotation: ast.expr | None) -> bool:
    """Whether an annotation has the name Any in it, also in quotes."""
    if annotation is None:
        return False
    texts = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant)]
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return "Any" in names or any(isinstance(text, str) and re.search(r"\bAny\b", text) for text in texts)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def any_faults(source: str, path: Path) -> list[str]:
    """Every Any outside of the signatures of public functions and methods, as text that names file and line."""
    faults = []

    def look(node: ast.AST, inside: bool) -> None:
        """`inside`: in a private class or in a function, whose own functions are not public."""
        for child in ast.iter_child_nodes(node):
            hidden = inside
            if isinstance(child, ast.ClassDef):
                hidden = inside or is_private(child.name)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                hidden = True
                arguments = [each for each in ast.walk(child.args) if isinstance(each, ast.arg)]
                if (inside or is_private(child.name)) and any(
                    map(says_any, [child.returns, *(argument.annotation for argument in arguments)])
                ):
                    faults.append(f"{path}:{child.lineno} {child.name} has Any in its signature")
            elif isinstance(child, ast.AnnAssign) and says_any(child.annotation):
                faults.append(f"{path}:{child.lineno} {ast.unparse(child.target)} is Any")
            look(child, hidden)

    look(ast.parse(source), False)
    return faults


def test_any_is_in_signatures_of_public_functions_alone():
    faults = faults_of_package(any_faults)
    assert not faults, "\n".join(faults)


def test_the_type_checker_is_on():
    """It is switched off in few lines, and nowhere for a whole file."""
    lines = [line for path in source_files() for line in (PACKAGE / path).read_text("utf-8").splitlines()]
    assert sum("pyright: ignore" in line for line in lines) <= MOST_IGNORED
    assert not [line for line in lines if re.match(r"\s*# (pyright: (basic|off)|type: ignore)", line)]


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {missing}")
    assert module.__name__ == name


def test_files_do_not_import_each_other():
    """No circles, late and type-only imports counted."""
    graph = {path: imported_files(path) - {path} for path in source_files()}
    while True:  # take away what imports nothing that is left
        done = {path for path, others in graph.items() if not others & graph.keys()}
        if not done:
            break
        graph = {path: others for path, others in graph.items() if path not in done}
    assert not graph, f"files in circles, or above one: {sorted(map(str, graph))}"


def imported_files(path: Path) -> set[Path]:
    actual = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mixtura"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("mixtura")]
        else:
            continue
        actual |= {file_of(name) for name in names}
    return actual


@cache
def file_of(name: str) -> Path:
    """The file that a dotted name of a module, or of something in one, leads to."""
    parts = name.split(".")[1:]
    while parts:
        for file in (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")):
            if (PACKAGE / file).exists():
                return file
        parts = parts[:-1]
    return Path("__init__.py")


def test_class_names_are_unique():
    names = Counter(
        node.name for path in source_files() for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]


def callers_of(name: str) -> set[str]:
    """Files with a call of this name."""
    return {
        path.as_posix()
        for path in source_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and name == (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
    }


def test_searches_share_their_table_and_their_hold_out():
    assert callers_of("SearchTable") == {"selection/search.py"}
    assert {path for path in callers_of("randperm") if path.startswith("selection")} == {"selection/splits.py"}
    splitters = ("StratifiedKFold", "StratifiedShuffleSplit", "train_test_split")
    assert all(path.startswith("cli") for name in splitters for path in callers_of(name))


def test_the_page_of_the_architecture_draws_these_rooms():
    page = (PACKAGE.parent.parent / "docs" / "architecture.md").read_text("utf-8")
    drawing = page.split("```text\n")[1].split("```")[0]
    rooms = {path.parts[0] for path in source_files() if len(path.parts) > 1}
    first = [line.split()[0] for line in drawing.splitlines()]
    assert set(re.findall(r"\w+", drawing)) >= rooms
    assert rooms.issuperset(first)
    levels = [level_of(room) for room in first]
    assert levels == sorted(levels)  # in the order of the imports


def defined_names(path: Path) -> set[str]:
    """Names of the classes, functions, arguments, variables and attributes of a file."""
    nodes = [node for top in (tree_of(path),) for node in ast.walk(top)]
    named = {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return named | stored | attributes | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_the_page_of_the_architecture_names_what_there_is_where_it_is():
    page = (PACKAGE.parent.parent / "docs" / "architecture.md").read_text("utf-8")
    every = set().union(*map(defined_names, source_files()))
    for dotted in re.findall(r"`@?([A-Za-z_][\w.]*)`", page):
        if not dotted.endswith(".py"):
            assert set(dotted.split(".")) - {"src", "mixtura", "tests", "cases"} <= every, dotted
    for dotted, link in re.findall(r"`([A-Za-z_][\w.]*)`[^`|]{0,9}\[[\w/.]+\]\(\.\./src/mixtura/([\w/]+\.py)\)", page):
        assert set(dotted.split(".")) <= defined_names(Path(link)), f"{dotted} is not in {link}"


def test_few_files_lie_at_the_door():
    assert sum(len(path.parts) == 1 for path in source_files()) <= MOST_FILES_AT_THE_DOOR


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("values/moments.py", "import math\nimport torch\nfrom mixtura.numerics import linalg"),
        ("covariances/tied.py", "from .diagonal import Diagonal\nfrom ..numerics.linalg import safe_cholesky"),
        ("covariances/__init__.py", "from .full import Full\nfrom mixtura.covariances import tied"),
        ("engine/passes.py", "def run():\n    from . import evaluator\n    from ..model.mixture import Mixture"),
        ("solvers/em.py", "from .loop import run\nfrom ..engine.passes import x\nfrom mixtura.priors import PRIORS"),
        ("estimators/density_estimator.py", "from sklearn.base import BaseEstimator\nfrom ..solvers import SOLVERS"),
        ("cli.py", "from . import __version__\nfrom .solvers.em import EM"),
        ("plotting/figures.py", "import matplotlib.pyplot as plt"),
    ],
)
def test_checker_accepts_imports_that_point_down(path, source):
    assert import_faults(source, Path(path)) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        (
            "numerics/linalg.py",
            "import torch\nfrom ..model.mixture import Mixture",
            "2 imports mixtura.model.mixture, above",
        ),
        ("model/mixture.py", "from mixtura import solvers", "1 imports mixtura.solvers, above"),
        ("model/mixture.py", "import mixtura.solvers.em", "1 imports mixtura.solvers.em, above"),
        ("model/mixture.py", "from mixtura import load", "1 imports mixtura.__init__, above"),
        ("model/mixture.py", "import mixtura", "1 imports mixtura, above"),
        ("solvers/em.py", "def late():\n    from ..estimators import X", "2 imports mixtura.estimators, above"),
        ("covariances/full.py", "from ..priors.conjugate import X", "1 imports mixtura.priors.conjugate, beside"),
        ("objectives/hybrid.py", "from .. import covariances", "1 imports mixtura.covariances, beside"),
        ("sparse/newton.py", "from ..nonnegative.updates import X", "1 imports mixtura.nonnegative.updates, beside"),
        ("roles.py", "if TYPE_CHECKING:\n    from .model.mixture import X", "2 imports mixtura.model.mixture, above"),
    ],
)
def test_checker_names_a_wrong_import(path, source, fault):
    text, where = fault.rsplit(", ", 1)
    assert import_faults(source, Path(path)) == [f"{path}:{text}, which is {where} it"]


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("cli.py", "import matplotlib.pyplot", "cli.py:1 imports matplotlib.pyplot, which is for plotting"),
        (
            "engine/x.py",
            "from ..strange import y",
            "engine/x.py:1 imports mixtura.strange, which has no level: give it one in LEVELS",
        ),
        ("strange.py", "import torch", "strange.py: has no level: give it one in LEVELS"),
    ],
)
def test_checker_names_other_faults(path, source, fault):
    assert import_faults(source, Path(path)) == [fault]


@pytest.mark.parametrize("path", ["init/starts.py", "solvers/em.py", "checks/samples.py"])
def test_checker_keeps_scikit_learn_at_the_top(path):
    (fault,) = import_faults("from sklearn.cluster import KMeans", Path(path))
    assert fault.startswith(f"{path}:1 imports sklearn.cluster, which is for ")
    assert "estimators" in fault


@pytest.mark.parametrize(
    "source",
    [
        "def read(X: Any, y: Any = None) -> Any: ...",
        "class Model:\n    def fit(self, X: Any) -> Model: ...\n    def __call__(self, X: Any) -> Any: ...",
        "def _read(X: object) -> Tensor: ...",
    ],
)
def test_checker_accepts_any_in_public_signatures(source):
    assert any_faults(source, Path("estimators/rows.py")) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def _read(X: Any): ...", "1 _read has Any in its signature"),
        ("def _read(*X: list[Any]): ...", "1 _read has Any in its signature"),
        ("def _read(X) -> 'dict[str, Any]': ...", "1 _read has Any in its signature"),
        ("def read(X):\n    def inner(x: Any): ...", "2 inner has Any in its signature"),
        ("class _Part:\n    def read(self, X: Any): ...", "2 read has Any in its signature"),
        ("class Model:\n    def _fit(self: Any): ...", "2 _fit has Any in its signature"),
        ("class Model:\n    prior: Any = None", "2 prior is Any"),
        ("def read(X):\n    rows: Any = X", "2 rows is Any"),
        ("TABLE: dict[str, Any] = {}", "1 TABLE is Any"),
    ],
)
def test_checker_names_any_elsewhere(source, fault):
    assert any_faults(source, Path("estimators/rows.py")) == [f"estimators/rows.py:{fault}"]


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


def test_checker_counts_files_without_docstrings():
    source = '"""One.\n\nTwo.\n"""\n' + "x = 1\n" * MAX_FILE_LINES
    assert length_faults(source, Path("mixture.py")) == []
    assert len(length_faults(source + "x = 1\n", Path("mixture.py"))) == 1


def test_checker_counts_the_lines_of_a_file():
    assert length_faults("x = 1\n" * MAX_FILE_LINES, Path("mixture.py")) == []
    (fault,) = length_faults("x = 1\n" * (MAX_FILE_LINES + 1), Path("mixture.py"))
    assert fault == "mixture.py: 601 lines, at most 600: split it by idea"
