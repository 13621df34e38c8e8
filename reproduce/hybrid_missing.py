"""Figure 3a of RPTP18, missing values: python -m reproduce rptp18-figure3."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from reproduce import hybrid as base
from reproduce.options import Options

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def holes(rows: torch.Tensor, share: float, seed: int = 0) -> torch.Tensor:
    """The same number of values removed at random from every row."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(rows.shape, generator=generator).to(rows.device)
    n_missing = round(share * rows.shape[1])
    gone = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, keys.argsort(1)[:, :n_missing], True)
    return torch.where(gone, torch.nan, rows)


def nearest_filled(rows: torch.Tensor, known_rows: torch.Tensor, n_neighbours: int = 5) -> torch.Tensor:
    """Missing values from the nearest training rows by the observed values."""
    observed = (~rows.isnan()).to(rows.dtype)
    filled = torch.nan_to_num(rows)
    out = []
    for part, seen in zip(filled.split(2000), observed.split(2000), strict=True):
        distances = seen @ known_rows.square().T - 2 * part @ known_rows.T
        nearest = distances.topk(n_neighbours, dim=1, largest=False).indices
        out.append(torch.where(seen > 0, part, known_rows[nearest].mean(1)))
    return torch.cat(out)


def compute(options: Options) -> None:
    """Figure 3a: the pixel rows of table 1 with 0 to 90 % of the values removed; imputations for comparison."""
    data, cell = base.data_of("MNIST", options.device), base.PUBLISHED["MNIST"]["LL+LM"]
    assert cell.settings is not None
    models = {"1": base.start_of("MNIST", cell.start, 0, options)[0]}
    for tradeoff in (cell.settings.tradeoff, 0.0, 0.5):
        own, epochs = replace(cell.settings, tradeoff=tradeoff), 1 if options.quick else base.EPOCHS
        models[f"{tradeoff:g}"] = base.hybrid(data, models["1"], own, 0, epochs, test=False)[0]
    x, y = data["test"]
    means = data["train"][0].mean(0)
    for share in SHARES:
        rows, per_cent = holes(x, share), round(100 * share)
        figures = {f"tradeoff {name}": base.error(model, (rows, y)) for name, model in models.items()}
        filled = {
            "mean": torch.where(rows.isnan(), means, rows),
            "nearest rows": nearest_filled(rows, data["train"][0]),
        }
        for name, whole in filled.items():
            figures[f"cells from {name}, tradeoff 0"] = base.error(models["0"], (whole, y))
        for row, test_error in figures.items():
            base.keep(options, "missing", row, per_cent, {"test": test_error})
    if not options.quick:
        boosting(options)
    draw_missing(base.known(options), options.out)


def boosting(options: Options) -> None:
    """The further curve of figure 3a: gradient boosting with missing values in training, too."""
    data = {name: (x.cpu(), y.cpu()) for name, (x, y) in base.pixels("cpu").items()}
    x, y = data["train"][0][:20_000], data["train"][1][:20_000]
    shown = torch.cat(
        [holes(part, share, 1) for part, share in zip(x.split(4000), (0.0, 0.2, 0.4, 0.6, 0.8), strict=True)]
    )
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(shown.numpy(), y.numpy())
    for share in SHARES:
        wrong = model.predict(holes(data["test"][0], share).numpy()) != data["test"][1].numpy()
        base.keep(options, "missing", "gradient boosting", round(100 * share), {"test": 100 * float(wrong.mean())})


def draw_missing(results: dict[str, Any], folder: Path) -> None:
    """Figure 3a."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
    for row, runs in results.get("missing", {}).items():
        shares = sorted(int(share) for share in runs)
        style = "-" if row.startswith("tradeoff") else "--"
        axis.plot(shares, [runs[str(s)]["test"] for s in shares], style, marker=".", label=row)
    axis.set(
        yscale="log", xlabel="values removed from test samples, %", ylabel="test error, %", title="MNIST, 784 pixels"
    )
    axis.set_yticks([2, 5, 10, 20, 50, 90], ["2", "5", "10", "20", "50", "90"])
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(folder / "hybrid_missing.png", dpi=90)
    plt.close(figure)
