"""Checkpoints: files that let a run go on after the process has ended, and know the fit that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixtura.engine.sources import Source
from mixtura.model.mixture import Mixture
from mixtura.roles import Prior, Solver
from mixtura.solvers.loop import Progress
from mixtura.solvers.problem import Problem
from mixtura.values.encoding import Decoder, Encoder
from mixtura.values.tensor_files import read_tensors, write_tensors

METADATA = "mixtura checkpoint"  # key of the header in the file
MISSING = 0.5772156649  # stands for a missing value in the fingerprint of samples; any number that none of them has


@dataclass(frozen=True)
class FileCheckpoint:
    """A file with the progress of one run, written after every step.

    Parameters
    ----------
    path : str or path-like
        The file.
    settings : dict
        Settings that identify the fit, by the names used in error messages.
    """

    path: Any
    settings: dict[str, Any]

    def write(self, progress: Callable[[], Progress]) -> None:
        encoder = Encoder()
        header = {"progress": encoder.encode(progress(), "progress"), "settings": self.settings}
        write_tensors(self.path, encoder.tensors, METADATA, header)

    def read(self) -> Progress | None:
        """Return the progress in the file; None where there is no file.

        Raises
        ------
        ValueError
            The file is damaged, or belongs to another fit; it is left as it is.
        """
        if not Path(self.path).exists():
            return None
        advice = "name another file in `checkpoint`, or remove this one to begin anew."
        try:
            header, tensors = read_tensors(self.path, METADATA)
            saved, progress = dict(header["settings"]), Decoder(tensors).decode(header["progress"])
            if not isinstance(progress, Progress):
                raise ValueError("it holds no progress")
        except Exception as error:  # whatever a damaged file may cause
            raise ValueError(
                f"{str(self.path)!r} is not a checkpoint of mixtura, or it is damaged ({error}); {advice}"
            ) from error
        changed = [name for name in self.settings if saved.get(name) != self.settings[name]]
        if changed:
            raise ValueError(
                f"The checkpoint {str(self.path)!r} belongs to another fit (other {', '.join(changed)}); {advice}"
            )
        return progress


def fingerprint(solver: Solver, problem: Problem, start: Mixture, held_out: Source | None = None) -> dict[str, Any]:
    """Return the settings that identify a fit in a checkpoint.

    Parameters
    ----------
    solver : Solver
        The solver.
    problem : Problem
        The problem.
    start : Mixture
        Initial mixture.
    held_out : Source, optional
        Held-out samples.

    Returns
    -------
    settings : dict
    """
    settings = {"solver": solver.name}
    settings |= {part.name: _printed(getattr(solver, part.name)) for part in fields(solver) if part.init}  # pyright: ignore[reportArgumentType]
    settings |= {
        "objective": repr(problem.objective),
        "random_state": problem.seed,
        "components or covariances": {
            name: list(part.shape) for name, part in sorted(start.covariance.tensors().items())
        },
        "init": [_printed(start.log_weights), _printed(start.means)],
        "prior": _printed(problem.prior),
        "class_prior": _printed(problem.class_prior),
    }
    return settings | _samples_print(problem.source, "") | _samples_print(held_out, "held-out ")


def _samples_print(source: Source | None, which: str) -> dict[str, Any]:
    blocks = [] if source is None else list(source.blocks())
    return {
        f"{which}samples": [_printed(block.rows) for block in blocks],
        f"{which}labels": [[_printed(block.labels), _printed(block.shares)] for block in blocks],
        f"{which}sample weights": [_printed(block.weights) for block in blocks],
    }


def _printed(value: Any) -> Any:
    """Return a short text of a setting, the same for equal values; of tensors the shape and a weighted sum.

    Other values, or the same in another order, would hardly have that sum. Eight digits, not all bits: standardised
    samples and priors are sums, whose last digits depend on the number of threads.
    """
    if isinstance(value, Tensor):
        flat = value.detach().double().cpu().flatten()
        flat = torch.where(flat.isnan(), MISSING, flat)
        mixed = flat @ torch.arange(1, len(flat) + 1, dtype=torch.float64).sin()
        return [list(value.shape), f"{float(mixed):.7e}"]
    if isinstance(value, Prior):
        public = {name: part for name, part in sorted(vars(value).items()) if not name.startswith("_")}
        return [type(value).__name__, [[name, _printed(part)] for name, part in public.items()]]
    return "a function" if callable(value) else repr(value)
