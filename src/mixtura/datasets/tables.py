"""The one real table that ships with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load_penguins() -> tuple[Any, Any]:
    """Load the Palmer penguins: 344 penguins of three species, with two categorical features and missing values.

    Returns
    -------
    X : pandas data frame of shape (344, 7)
        island, bill_length_mm, bill_depth_mm, flipper_length_mm, body_mass_g, sex and year.
    y : pandas series of shape (344,)
        The species: Adelie, Chinstrap or Gentoo.

    References
    ----------
    Gorman, Williams and Fraser (2014), PLoS ONE 9(3): e90081; Horst, Hill and Gorman (2020), palmerpenguins (CC0).

    Examples
    --------
    >>> from mixtura.datasets import load_penguins
    >>> X, y = load_penguins()
    >>> X.shape, sorted(y.unique())
    ((344, 7), ['Adelie', 'Chinstrap', 'Gentoo'])
    """
    try:
        import pandas as pd
    except ImportError as error:
        text = "`load_penguins` returns a pandas data frame; install pandas with: pip install 'mixtura[cli]'"
        raise ModuleNotFoundError(text, name="pandas") from error
    table = pd.read_csv(Path(__file__).with_name("penguins.csv"), dtype={"island": "category", "sex": "category"})
    return table.drop(columns="species"), table["species"]
