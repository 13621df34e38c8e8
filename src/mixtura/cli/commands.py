"""The commands, their arguments and exit codes.

0: done. 1: an unexpected error. 2: the input is at fault, said in one sentence. 130: interrupted. No file is written in
the last three cases.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mixtura import __version__
from mixtura.cli.demo import add_demo, seed_of

UNEXPECTED, WRONG_INPUT, INTERRUPTED = 1, 2, 130
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(arguments)
    return options.command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mixtura", description="Classification with Gaussian mixtures.")
    parser.add_argument("--version", action="version", version=f"mixtura {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_fit(commands)
    _add_predict(commands)
    _add_compare(commands)
    _add_report(commands)
    add_demo(commands)
    return parser


def _add_fit(commands: Any) -> None:
    fit = commands.add_parser("fit", help="fit a classifier to a table and write a model file")
    fit.add_argument("data", type=Path, help="CSV or Parquet file")
    _add_target(fit)
    fit.add_argument("--out", type=Path, default=Path("model.mixtura"), help="model file (default: %(default)s)")
    _add_budget(fit)
    _add_common(fit)
    fit.set_defaults(command=_guarded("fitting", "run_fit"))


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser("predict", help="predict the rows of a table with a model file")
    predict.add_argument("model", type=Path, help="model file of `mixtura fit`")
    predict.add_argument("data", type=Path, help="CSV or Parquet file")
    predict.add_argument("--out", type=Path, default=Path("predictions.csv"), help="CSV file (default: %(default)s)")
    predict.add_argument(
        "--confidence",
        type=_share,
        default=0.0,
        help="smallest probability of a class that is answered; below it the class stays empty (default: 0)",
    )
    predict.add_argument(
        "--false-alarm", type=_share, default=0.01, help="share of ordinary rows that may be flagged as outliers"
    )
    _add_common(predict, seed=False)
    predict.set_defaults(command=_guarded("fitting", "run_predict"))


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser("compare", help="compare mixtures with other classifiers on held-out rows of a table")
    compare.add_argument("data", type=Path, help="CSV or Parquet file")
    _add_target(compare)
    _add_budget(compare)
    _add_common(compare)
    compare.set_defaults(command=_guarded("comparing", "run_compare"))


def _add_report(commands: Any) -> None:
    report = commands.add_parser("report", help="write a report on a model as one HTML file")
    report.add_argument("model", type=Path, help="model file of `mixtura fit`")
    report.add_argument("data", type=Path, help="CSV or Parquet file with labels, such as the training data")
    report.add_argument("--out", type=Path, default=None, help="HTML file (default: name of the model, in this folder)")
    report.add_argument("--no-data", action="store_true", help="leave single rows of the data out of the report")
    _add_common(report)
    report.set_defaults(command=_guarded("reporting", "run_report"))


def _add_target(parser: Any) -> None:
    parser.add_argument("--target", required=True, help="name of the column with the classes")
    parser.add_argument(
        "--drop", action="append", default=[], metavar="COLUMN", help="leave a column out (may be repeated)"
    )


def _add_budget(parser: Any) -> None:
    parser.add_argument(
        "--budget",
        type=_seconds,
        default=60.0,
        metavar="TIME",
        help="time for the choice of a model, such as 60s or 5m (default: 60s)",
    )


def _add_common(parser: Any, seed: bool = True) -> None:
    if seed:
        parser.add_argument("--seed", type=seed_of, default=0, help="seed of every random choice (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--traceback", action="store_true", help="show where an unexpected error came from")


def _seconds(text: str) -> float:
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "s"
    try:
        seconds = float(number) * UNITS[unit]
    except (KeyError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive time such as 60s, 5m or 1h; got {text!r}")
    return seconds


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to below 1; got {text!r}")
    return value


# ---- Running a command -----------------------------------------------------------------------------------------------


def _guarded(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """A command that prints its answer, or one sentence about what went wrong."""

    def run(options: argparse.Namespace) -> int:
        try:
            answer = _answer(module, name, options)
        except KeyboardInterrupt:
            return _failed("Interrupted; no file was written.", INTERRUPTED, options)
        except (ValueError, TypeError, OSError) as error:
            if options.traceback:
                raise
            return _failed(_sentence(error), WRONG_INPUT, options)
        except ModuleNotFoundError as error:
            fix = "install it with: pip install 'mixtura[cli]'"
            return _failed(f"This command needs the package {error.name}; {fix}.", WRONG_INPUT, options)
        except Exception as error:
            if options.traceback:
                raise
            text = f"Unexpected error ({_sentence(error)}); --traceback shows where it came from."
            return _failed(text, UNEXPECTED, options)
        print(json.dumps(answer.facts, indent=2, default=str) if options.json else answer.text)
        return 0

    return run


def _answer(module: str, name: str, options: argparse.Namespace) -> Any:
    import importlib  # the commands need pandas, the demo does not

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = getattr(importlib.import_module(f"mixtura.cli.{module}"), name)(options)
    for text in dict.fromkeys(str(warning.message) for warning in caught if _concerns_user(warning)):
        print(f"Warning: {text}", file=sys.stderr)
    return answer


def _concerns_user(warning: warnings.WarningMessage) -> bool:
    return not issubclass(warning.category, DeprecationWarning | FutureWarning | PendingDeprecationWarning)


def _sentence(error: BaseException) -> str:
    """The message of an error on one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {str(error.filename)!r}."
    return " ".join(str(error).split()) or type(error).__name__


def _failed(text: str, code: int, options: argparse.Namespace) -> int:
    print(f"mixtura: {text}", file=sys.stderr)
    if options.json:
        print(json.dumps({"error": text, "exit_code": code}))
    return code
