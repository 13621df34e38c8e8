"""The commands, their arguments and exit codes.

0: done. 1: an unexpected error. 2: the input is at fault, said in one sentence. 130: interrupted. No file is written in
the last three cases.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from mixtura import __version__
from mixtura.cli.output import Answer, check_metric, check_place, check_table

UNEXPECTED, WRONG_INPUT, INTERRUPTED = 1, 2, 130
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
WIDTH = 120  # of text that does not go to a terminal

app = typer.Typer(
    name="mixtura",
    help="Classification with Gaussian mixtures.",
    epilog="Exit codes: 0 done, 1 unexpected error, 2 wrong input, 130 interrupted.",
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # names that the terminal has no characters for
    try:
        code = app(arguments, prog_name="mixtura", standalone_mode=False)
    except typer.TyperException as error:
        if error.format_message():  # none where the help was shown
            print(f"mixtura: {' '.join(error.format_message().split())}", file=sys.stderr)
        return WRONG_INPUT
    except typer.Abort:  # between two commands; inside of one `_answer` says so
        return INTERRUPTED
    return code if isinstance(code, int) else 0


# ---- Arguments -------------------------------------------------------------------------------------------------------


def _seconds(text: str) -> float:
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "s"
    try:
        seconds = float(number) * UNITS[unit]
    except (KeyError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise typer.BadParameter(f"must be a positive time such as 60s, 5m or 1h; got {text!r}.")
    return seconds


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mixtura {__version__}")
        raise typer.Exit


Data = Annotated[Path, typer.Argument(help="CSV or Parquet file; - is the standard input.", show_default=False)]
LabeledData = Annotated[
    Path, typer.Argument(help="CSV or Parquet file with the target; - is the standard input.", show_default=False)
]
Model = Annotated[Path, typer.Argument(help="Model file of `mixtura fit`.", show_default=False)]
Target = Annotated[str, typer.Option(help="Name of the column with the classes.", show_default=False)]
Drop = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Leave a column out (may be repeated).")]
Sep = Annotated[str | None, typer.Option(metavar="CHARACTER", help="Delimiter of a CSV file, if not detected.")]
Groups = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column such as a patient: its rows are never both in training and held out."),
]
Budget = Annotated[Any, typer.Option(parser=_seconds, metavar="TIME", help="Time budget, such as 60s or 5m.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="NUMBER", help="Seed of every random choice.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")]


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Classification with Gaussian mixtures."""


# ---- Commands --------------------------------------------------------------------------------------------------------


@app.command()
def fit(
    data: LabeledData,
    target: Target,
    out: Annotated[Path, typer.Option(help="Model file to write.")] = Path("model.mixtura"),
    budget: Budget = "60s",
    drop: Drop = None,
    groups: Groups = None,
    method: Annotated[
        str, typer.Option(help="Classifier: a mixture that `mixtura compare` names.")
    ] = "MixtureClassifier",
    metric: Annotated[
        str,
        typer.Option(
            help="Metric by which the threshold of the positive class is set: log-loss and error set none; "
            "balanced-error, f1, cost:10 (a missed row costs ten false alarms), precision:0.9."
        ),
    ] = "log-loss",
    positive: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Class of decisions and thresholds (default: the rarer of two).")
    ] = None,
    select: Annotated[bool, typer.Option("--select", help="Leave near-useless features out.")] = False,
    sep: Sep = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Fit a classifier to a table and write a model file."""

    def command() -> Answer:
        check_table(data)
        check_place(out, data)
        check_metric(metric)
        from mixtura.cli.fitting import FitOptions, run_fit

        options = FitOptions(budget, drop or [], seed, method, metric, positive, select, sep, groups)
        return run_fit(data, target, out, options)

    _answer(command, as_json, traceback)


@app.command()
def predict(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="CSV file to write; - is the standard output.")] = Path("predictions.csv"),
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMNS", help="Columns of the table to copy, such as id,name.")
    ] = None,
    proba: Annotated[bool, typer.Option(help="Write the probabilities of all classes.")] = True,
    explain: Annotated[bool, typer.Option("--explain", help="Write the three main reasons of every row.")] = False,
    outliers: Annotated[bool, typer.Option(help="Flag rows that are unlike the training rows.")] = True,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="SHARE", help="Probability from which on the positive class is predicted."),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="SHARE", help="Smallest probability to predict a class; other rows get none."
        ),
    ] = 0.0,
    false_alarm: Annotated[
        float,
        typer.Option(min=0, max=1, metavar="SHARE", help="Share of ordinary rows that may be flagged as outliers."),
    ] = 0.01,
    sep: Sep = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Predict the rows of a table with a model file."""

    def command() -> Answer:
        check_table(data)
        check_place(out, model, data)
        from mixtura.cli.fitting import PredictOptions, run_predict

        kept = [name.strip() for part in keep or [] for name in part.split(",")]
        options = PredictOptions(confidence, false_alarm, threshold, kept, proba, explain, outliers, sep)
        return run_predict(model, data, out, options)

    _answer(command, as_json, traceback)


@app.command()
def compare(
    data: LabeledData,
    target: Target,
    out: Annotated[Path | None, typer.Option(help="CSV file to write the scores to.")] = None,
    budget: Budget = "60s",
    drop: Drop = None,
    sep: Sep = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Compare mixtures with other classifiers on held-out rows of a table."""

    def command() -> Answer:
        check_table(data)
        if out is not None:
            check_place(out, data)
        from mixtura.cli.comparing import run_compare

        return run_compare(data, target, budget, drop or [], seed, out, sep)

    _answer(command, as_json, traceback)


@app.command()
def report(
    model: Model,
    data: LabeledData,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write (default: name of the model, in this folder).")
    ] = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Leave single rows of the data out of the report.")
    ] = False,
    sep: Sep = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Write a report on a model as one HTML file."""

    def command() -> Answer:
        check_table(data)
        from mixtura.cli.reporting import run_report

        return run_report(model, data, out, not no_data, seed, sep)

    _answer(command, as_json, traceback)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(as_json: AsJson = False) -> None:
    """Say where the demo is."""
    _fail(
        "The demo has left the package; run examples/demo.py of a source checkout, or make demo.", WRONG_INPUT, as_json
    )


# ---- Running a command -----------------------------------------------------------------------------------------------


def _answer(command: Callable[[], Answer], as_json: bool, traceback: bool) -> None:
    """Print the output of a command, or one sentence about an error."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = command()
    except KeyboardInterrupt:
        _fail("Interrupted; no file was written.", INTERRUPTED, as_json)
    except Exception as error:
        if traceback:
            raise
        if isinstance(error, ModuleNotFoundError):
            text = f"This command needs the package {error.name}; install it with: pip install 'mixtura[cli]'."
        elif isinstance(error, ValueError | TypeError | OSError):
            text = _sentence(error)
        else:
            text = f"Unexpected error ({_sentence(error)}); --traceback shows where it came from."
            _fail(text, UNEXPECTED, as_json)
        _fail(text, WRONG_INPUT, as_json)
    else:
        for text in dict.fromkeys(str(warning.message) for warning in caught if _concerns_user(warning)):
            print(f"Warning: {text}", file=sys.stderr)
        try:
            _print(answer, as_json)
        except OSError as error:  # a full disk
            _fail(f"The output cannot be printed: {_sentence(error)}.", UNEXPECTED, as_json=False)


def _print(answer: Answer, as_json: bool) -> None:
    if sys.stdout is None:  # closed by the caller
        return
    if as_json:
        print(json.dumps(answer.facts, indent=2, default=str))
    else:
        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH)
        for part in answer.parts:
            console.print(part, soft_wrap=isinstance(part, Text))  # the lines of a Text stay as they are
    sys.stdout.flush()


def _concerns_user(warning: warnings.WarningMessage) -> bool:
    return not issubclass(
        warning.category, DeprecationWarning | FutureWarning | PendingDeprecationWarning | ResourceWarning
    )


def _sentence(error: BaseException) -> str:
    """The message of an error on one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {str(error.filename)!r}."
    return " ".join(str(error).split()) or type(error).__name__


def _fail(text: str, code: int, as_json: bool) -> None:
    print(f"mixtura: {text}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": text, "exit_code": code}))
    raise typer.Exit(code)
