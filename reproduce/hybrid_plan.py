"""The stages of RPTP18 in the order in which `python -m reproduce` runs them."""

from __future__ import annotations

import json

from reproduce import few_labels, few_labels_published, hybrid, hybrid_search
from reproduce.hybrid_tables import plot_missing
from reproduce.options import Options

LABELS = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000)
STAGES = ("pca50", "authors", "diagonal", "pixels", "diagonal_pixels", "variants", "diagonal_variants",
          "pixel_variants", "grid", "diagonal_grid", "generative")  # fmt: skip
N_TRIALS = 8  # drawn trials of each row of a search, beside those that are listed


def table_one(options: Options) -> None:
    """Published settings, then settings by validation."""
    hybrid.configure(options)
    if options.quick:
        hybrid.pca50()
        return
    for stage in STAGES:
        hybrid.STAGES[stage]()
    for space in hybrid_search.SPACES:
        rows = list(hybrid_search.ROWS)
        if space.options:
            hybrid_search.generative(space)
        if space.table in hybrid_search.AVERAGED:
            hybrid_search.generative_averaged(space)
        searcher = hybrid_search.Searcher(space)
        for row in rows:
            for number in range(N_TRIALS):
                if not hybrid_search.is_known(f"{space.table}, search", row, number):
                    searcher.trial(row, number)
        searcher.listed(rows, 0, 1)
        searcher.final(["LL", *rows])


def table_two(options: Options) -> None:
    hybrid.configure(options)
    counts = [200] if options.quick else list(LABELS)
    subsets = [few_labels_published.PAPER, *map(str, range(options.n_seeds(3) - 1))]
    few_labels_published.run_all(counts, few_labels_published.ROWS, subsets)
    few_labels.run_all(counts, options.n_seeds(5))


def figure_three(options: Options) -> None:
    hybrid.configure(options)
    hybrid.missing()
    if not options.quick:
        hybrid.boosting()
    plot_missing(json.loads(hybrid.RUN.file.read_text()), options.out)
