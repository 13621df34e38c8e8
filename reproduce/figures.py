"""The figure of LZZ06: bases of images."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure


def plot_bases(model: Any, codes: np.ndarray, parts: np.ndarray, shape: tuple[int, int], n_shown: int = 24) -> Figure:
    """Plot the bases of a `NonnegativeMixtureClassifier` fitted to codes of images.

    The upper plot shows the parts that code columns stand for, the middle one the bases and the lower one the share of
    every class in every basis. A basis is drawn as the image sum_u theta_u part_u: positive evidence is blue,
    negative evidence red. Coefficients are per standard deviation of a code, minus their median over the bases (which
    changes no probability), and every part has maximum one."""
    shares = model.mixture_.shares.cpu().numpy()  # (C, J)
    order = np.lexsort((-shares.max(0), shares.argmax(0)))[:n_shown]
    parts = parts / parts.max(1, keepdims=True).clip(1e-300)
    bases = (model.bases_ - np.median(model.bases_, 0)) * codes.std(0)
    figure = plt.figure(figsize=(10, 10), layout="constrained")
    upper, middle, lower = np.asarray(figure.subfigures(3, 1, height_ratios=(1, 1.1, 1.2)))
    title = f"Parts: image that each code column stands for ({min(n_shown, len(parts))} of {len(parts)} columns)"
    _draw_images(upper, parts[:n_shown], shape, title, "Greys", centred=False)
    names = [str(model.classes_[c]) for c in shares.argmax(0)[order]]
    names = [f"{place}: class {name}" for place, name in enumerate(names)]
    title = "Bases: where ink is evidence for (blue) or against (red) the class named above, compared with other bases"
    _draw_images(middle, bases[order] @ parts, shape, title, "RdBu", True, names)
    ax = lower.subplots()
    image = ax.imshow(shares[:, order], cmap="Greys", vmin=0, vmax=1, aspect="auto")
    ax.set(xlabel="basis (numbers as above)", ylabel="class", title="Weights: which classes use which basis")
    ax.title.set_fontsize(10)
    ax.set_xticks(range(len(order)))
    ax.set_yticks(range(len(model.classes_)), [str(c) for c in model.classes_])
    figure.colorbar(image, ax=ax, label="share of the class in the basis")
    return figure


def _draw_images(
    place: Any, images: np.ndarray, shape: tuple[int, int], title: str, colours: str, centred: bool, names: Any = None
) -> None:
    place.suptitle(title, fontsize=10)
    n_columns = 12
    axes = place.subplots(-(-len(images) // n_columns), n_columns, squeeze=False).ravel()
    shown = None
    for number, ax in enumerate(axes):
        ax.set(xticks=[], yticks=[])
        ax.set_visible(number < len(images))
        if number < len(images):
            own = np.abs(images[number]).max() or 1.0
            shown = ax.imshow(images[number].reshape(shape), cmap=colours, vmin=-own if centred else 0, vmax=own)
            if names is not None:
                ax.set_title(names[number], fontsize=7)
    if centred and shown is not None:
        low, high = shown.get_clim()  # every image has its own scale
        bar = place.colorbar(shown, ax=axes, ticks=[low, 0, high], shrink=0.8)
        bar.ax.set_yticklabels(["against", "neutral", "for"], fontsize=8)
