"""Tools of all scripts: tasks in several processes, means with their standard errors, and pages from templates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from joblib import Parallel, delayed

TEMPLATES = Path(__file__).parent / "pages"


def finished(work: Callable[..., Any], tasks: Sequence[tuple], n_jobs: int) -> Iterator[tuple[Any, Any]]:
    """Tasks and what work(*task) gave, in the order in which they end; each of several processes has one thread."""

    def one(task: tuple) -> tuple[tuple, Any]:
        if n_jobs > 1:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
        return task, work(*task)

    jobs = Parallel(n_jobs, return_as="generator_unordered")(delayed(one)(task) for task in tasks)
    return cast(Iterator[Any], jobs)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, NaN for a single value."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(np.mean(values)), error


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The same as text, such as "3.10 ± 0.05"."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" + (f" ± {error:.{digits}f}" if len(values) > 1 else "")


def row(*cells: Any) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def machine_of(results: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in results["machine"].items())


def page(name: str, **parts: Any) -> str:
    """The page of a template; parts that are lists are lines."""
    texts = {key: "\n".join(part) if isinstance(part, list) else part for key, part in parts.items()}
    return (TEMPLATES / name).read_text("utf-8").format(**texts)
