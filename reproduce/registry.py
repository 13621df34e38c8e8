"""Every table that `python -m reproduce` can compute: command, results, code of the method, data, device, time."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

from reproduce.data import PUBLIC
from reproduce.options import Options

ENTRIES = tomllib.loads((Path(__file__).parent / "tables.toml").read_text("utf-8"))
PAPERS: dict[str, str] = ENTRIES["papers"]


@dataclass(frozen=True)
class Source:
    """A data set: its file in the data folder, where it was published, and its licence."""

    file: str
    source: str
    licence: str

    @property
    def public(self) -> bool:
        """Whether `python -m reproduce fetch` gets the file; generated data need none."""
        return self.file == "(generated)" or any(fnmatch(f"{name}.npz", self.file) for name in PUBLIC)


SOURCES = {name: Source(**entry) for name, entry in ENTRIES["sources"].items()}


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    `run` and `pages` are functions of modules of this package, as "module:function". `minutes` are of a
    complete run with the device named. Rows of tables without `cells` share their draws. `entries` are those of a
    result file that several tables share; "" stands for all that no other table names.
    """

    paper: str
    title: str
    run_by: str
    pages_by: str
    results: Sequence[str]
    data: Sequence[str]
    device: str
    minutes: str
    deviations: str
    cells: bool = True
    entries: Sequence[str] = ("",)

    def run(self, options: Options) -> None:
        _function(self.run_by)(options)

    def pages(self, folder: Path) -> dict[str, str]:
        """File names and the Markdown that the JSON files of a folder render to."""
        return _function(self.pages_by)(folder)

    def render(self, folder: Path) -> None:
        for name, text in self.pages(folder).items():
            (folder / name).write_text(text)


def _function(path: str) -> Callable:
    module, _, name = path.partition(":")
    return getattr(import_module(f"reproduce.{module}"), name)


TABLES = {name: Table(**entry) for name, entry in ENTRIES["tables"].items()}

# Results of studies that tables show beside the paper's methods.
OF_STUDIES = (
    "label_spreading.json", "heads_density.json", "heads_small_density.json",
    *(f"heads{stem}_{name}.json" for name in ("mnist_2", "mnist_10", "fashion_10") for stem in ("", "_select")),
)  # fmt: skip


def entries_of_others(results: dict[str, Any], table: Table, file: str) -> dict[str, Any]:
    """The entries of a result file that belong to other tables."""
    others = [other for other in TABLES.values() if other is not table and file in other.results]
    if not others:
        return {}
    named = {entry for other in others for entry in other.entries}
    if "" in table.entries:
        return {key: value for key, value in results.items() if key in named}
    return {key: value for key, value in results.items() if key not in (*table.entries, "stamps")}
