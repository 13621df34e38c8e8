"""Which versions and which behaviour a result was computed with: stamps in every JSON file.

A file that several runs added to has several stamps. Results from before stamps existed have the code "unstamped", and
those of earlier versions a digest of their source text, which is not compared (reproduce/behaviour.py).
"""

from __future__ import annotations

import json
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch

import mixtura

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
UNSTAMPED = "unstamped"


@cache
def published() -> dict[str, Any]:
    """The figures of the papers, by table."""
    return json.loads((RESULTS.parent / "published.json").read_text())


def stamp(behaviour: str = "") -> dict[str, str]:
    """The stamp of a result computed now; `behaviour` is a digest of what the small version of its table computes."""
    versions = {"mixtura": mixtura.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return versions | ({"behaviour": behaviour} if behaviour else {})


def machine() -> dict[str, str]:
    """Where and with what the numbers were made."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    versions = {"scikit-learn": sklearn.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
    processor = names[0] if names else platform.processor() or platform.machine()
    return {"processor": processor, "threads": str(torch.get_num_threads()), **stamp(), **versions}


def stamps_of(path: Path) -> list[dict[str, str]]:
    return json.loads(path.read_text()).get("stamps", [{"code": UNSTAMPED}])


def add_stamp(path: Path, before: list[dict[str, str]], behaviour: str = "") -> None:
    """Record in a result file that this version computed it, or added to what earlier ones computed."""
    results: dict[str, Any] = json.loads(path.read_text())
    now = stamp(behaviour)
    write_json(path, {**results, "stamps": [*(old for old in before if old != now), now]})


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write with the stamps first, and large files without spaces."""
    results = {"stamps": results.get("stamps", [{"code": UNSTAMPED}]), **results}
    text = json.dumps(results, indent=1)
    path.write_text((text if len(text) < 1e6 else json.dumps(results, separators=(",", ":"))) + "\n")
