"""Messages about rows that are read in parts: files, batches, partitions."""

from __future__ import annotations

from mixtura.checks.arguments import shape_of


class SourceError(ValueError):
    """Rows could not be read, or changed between two passes. An interrupted fit keeps its last model."""


def no_rows() -> ValueError:
    """Batches, or the part of a process, without rows."""
    return ValueError("X has no rows: it has no batches, or all of them are empty. Pass at least one row.")


def other_number_of_rows(before: int, now: int) -> SourceError:
    """Batches that changed between two passes."""
    return SourceError(
        f"The batches held {before} rows when they were first read and {now} rows now; a fit reads them many times and "
        "needs the same rows each time."
    )


def read_once(kind: str) -> SourceError:
    """Batches that cannot be iterated repeatedly."""
    return SourceError(
        f"X is a {kind}, which can be iterated only once, but a fit makes many passes over the rows; pass a list of "
        "batches or an object whose __iter__ starts again."
    )


def unread(what: str, error: Exception) -> SourceError:
    """A part of the rows that could not be read; `what` names it."""
    return SourceError(f"{what} could not be used: {error}")


def other_columns(what: str, wanted: list[str], columns: list[str]) -> SourceError:
    """A file without some of the columns that are read."""
    absent = [name for name in wanted if name not in columns]
    return SourceError(
        f"{what} has no column {absent[0]!r}; its columns are {columns}. All files must have the same columns."
    )


def no_numbers(what: str, column: str, kind: str, is_text: bool) -> SourceError:
    """A file with features that are neither numbers nor text, or not what they are in other files."""
    wanted = "text as in the first file" if is_text else "numeric"
    return SourceError(
        f"{what} has values of type {kind} in column {column!r}, but features must be {wanted}; leave the column out "
        "of features, or encode it."
    )


def changed_file(path: str) -> SourceError:
    """A file that another program wrote to during a fit."""
    return SourceError(
        f"The file {path!r} has changed since it was first read; a fit reads its rows many times and needs the "
        "same rows each time. Write new rows to a new file."
    )


def unlike_partitions(name: str, n_partitions: int, wanted: int) -> ValueError:
    """Labels or weights whose partitions differ from those of the rows."""
    return ValueError(
        f"X has {wanted} partitions and {name} has {n_partitions}; both must be divided at the same rows: take them "
        "from the same data frame, or rechunk them."
    )


def not_in_memory(name: str, kind: str) -> ValueError:
    """An estimator that needs all rows in memory."""
    return ValueError(
        f"{name} needs all rows in memory here; got {kind}. Pass X.compute(). fit and the predictions of "
        "GaussianMixture and MixtureClassifier take distributed rows."
    )


def now_and_then_numbers(position: int) -> ValueError:
    """A feature that holds categories in some parts of the samples and numbers in others."""
    return ValueError(
        f"Feature {position} holds text or categories in some batches and numbers in others. Name it in "
        "categorical_features, or give it the same type in every batch."
    )


def not_one_table(name: str, kind: str) -> ValueError:
    """Batches where one table is expected."""
    return ValueError(
        f"{name} got an X of batches ({kind}) where it needs all samples at once; pass an array, a data frame or a "
        "memory map. Batches are for predictions, and for fit of GaussianMixture and MixtureClassifier without y, with "
        "the labels in the batches, as (X, y)."
    )


def in_one_place(what: str) -> ValueError:
    """A solver that needs all rows in one process."""
    return ValueError(
        f"The rows are distributed over {what}, but this solver needs them in one process; use solver='em' or "
        "'baum_welch', which need only sums over the rows."
    )


def common_seed(random_state: object) -> ValueError:
    """Processes that would start from different initialisations."""
    return ValueError(
        f"random_state must be an integer and the same in all processes if X is Sharded; got {random_state!r}."
    )


def lost_scheduler(error: BaseException) -> SourceError:
    """A Dask cluster that was lost."""
    return SourceError(
        f"The Dask scheduler or its workers were lost during a pass ({type(error).__name__}: {error}); the model of "
        "the last complete iteration (if any) is kept. Start a cluster and fit again with warm_start=True to continue."
    )


def lost_process(error: BaseException) -> SourceError:
    """A process that was lost."""
    return SourceError(
        f"Another process was lost during a pass ({error}); the model of the last complete iteration (if any) is "
        "kept. Start the processes again, and fit with warm_start=True to continue."
    )


def same_columns(rows: object, expected: int, name: str) -> None:
    """A part without rows must have the columns of the others."""
    shape = shape_of(rows)
    if len(shape) == 2 and shape[1] != expected:
        raise ValueError(f"X has {shape[1]} features, but {name} is expecting {expected} features as input.")


def same_widths(n_features: tuple[int, ...]) -> None:
    """Check that the rows of all processes have the same number of features."""
    for rank, n in enumerate(n_features):
        if n != n_features[0]:
            raise ValueError(
                f"Process {rank} has rows of {n} features, but process 0 has rows of {n_features[0]}. Pass the same "
                "features in all processes."
            )


def one_batch(kind: str) -> ValueError:
    """Rows in parts where one batch is expected."""
    return ValueError(
        f"partial_fit takes one batch, as an array or a data frame; got {kind}. Call it once for every batch, or pass "
        "all of them to fit."
    )


def not_over_time(covariance_type: str) -> str:
    """Covariances whose moments are projections that change from step to step."""
    return (
        f"partial_fit cannot be used with covariance_type={covariance_type!r}: its moments are projections that change "
        "with every step, so moments of earlier and later samples cannot be added; use 'full', 'tied', 'diag' or "
        "'spherical'"
    )
