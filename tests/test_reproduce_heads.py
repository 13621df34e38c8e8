"""The small version of reproduce/heads.py on the CPU: scikit-learn's digits in the place of both data sets."""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from conftest import ROOT

SMALL = ["--device", "cpu", "--epochs", "1", "--width", "4", "--batch", "50", "--seeds", "1"]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script, its data being digits of 8 x 8 pixels, three times as large and framed."""
    folder = tmp_path_factory.mktemp("heads")
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    large = np.kron(images.reshape(-1, 8, 8) * 15.9, np.ones((3, 3)))
    X, y = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8), labels.astype(np.uint8)
    for name in ("mnist", "fashion_mnist"):
        np.savez(folder / f"{name}.npz", X_train=X[:1500], y_train=y[:1500], X_test=X[1500:], y_test=y[1500:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXTURA_DATA", str(folder))
        patch.syspath_prepend(str(ROOT))
        from reproduce import heads

        patch.setattr(heads, "CANDIDATES", {method: tried[:1] for method, tried in heads.CANDIDATES.items()})
        patch.setattr(heads, "VARIANTS", heads.VARIANTS[:2])
        patch.setattr(heads, "TRADEOFFS", heads.TRADEOFFS[:2])
        options = [*SMALL, "--out", str(folder), "--selected", str(folder), "--images", str(folder)]
        yield lambda *arguments: heads.main([*arguments, *options]), folder


def report(folder):
    from reproduce import head_report

    return head_report.report(folder)


def runs_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text())["runs"]


def test_the_table_is_made_from_settings_chosen_on_training_rows(script):
    run, folder = script
    run("select", "mnist_2")
    run("table", "mnist_2")
    page = report(folder)
    assert {line["training"].get("learning_rate") for line in runs_of(folder, "heads_select_mnist_2")} == {None, 0.003}
    actual = runs_of(folder, "heads_mnist_2")
    assert [line["method"] for line in actual] == ["softmax", "softmax_l1", "large_margin", "mixture", "sparse"]
    for line in actual:
        assert line["nll"] < 2.3, line  # chance is log 10
        assert 0 <= line["ece"] <= 100
    sparse = actual[-1]
    assert sparse["sparsity"] == pytest.approx(100 * (1 - sparse["weights_left"] / sparse["weights"]))
    assert sparse["pruned_difference"] < 1e-3
    assert page.count("SDGM, `SparseMixtureHead`") == 1
    assert f"{sparse['error']:.2f}" in page


def test_features_are_followed_and_drawn(script):
    pytest.importorskip("matplotlib").use("Agg")
    run, folder = script
    actual = np.load(folder / "heads_features.npz")
    assert actual["sparse_moving"].shape == (len(actual["steps"]), 297, 2)
    run("pictures")
    assert (folder / "heads_features.png").stat().st_size > 10_000
    assert (folder / "heads_moving.gif").read_bytes()[:4] == b"GIF8"


def test_the_density_is_compared_with_gaussians_fitted_afterwards(script):
    run, folder = script
    if not (folder / "heads_select_mnist_2.json").exists():  # this test alone, or on another worker
        run("select", "mnist_2")
    (folder / "heads_select_fashion_10.json").write_text((folder / "heads_select_mnist_2.json").read_text())
    run("density", "fashion_10")
    last = runs_of(folder, "heads_density")[-1]
    assert all(0 <= last[key] <= 1 for key in ("auroc", "auroc_density", "auroc_after", "auroc_anew"))
    assert f"{last['auroc_density']:.4f}" in report(folder)


def test_the_document_has_the_results():
    """Errors and pruned weights in docs/heads.md are those of the page that the script wrote."""
    page, document = ((ROOT / path).read_text() for path in ("reproduce/results/heads.md", "docs/heads.md"))
    own_recipe = page.partition("# The paper's recipe")[0]
    rows = [
        line.split(" | ") for line in own_recipe.splitlines() if line.startswith(("| softmax |", "| disc", "| SDGM"))
    ]
    assert len(rows) == 9
    for cells in rows:
        assert f"{cells[2]} ({cells[1]})" in document, cells
        if "SDGM" in cells[0]:
            assert cells[5] in document


def test_quality_is_that_of_hand_made_predictions(script):
    from reproduce.head_training import auroc, quality

    logits = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.4, 0.6]]).log()
    actual = quality(logits, torch.tensor([0, 0, 1, 1]))
    assert actual["error"] == pytest.approx(25)
    assert actual["nll"] == pytest.approx(-np.log([0.8, 0.8, 0.2, 0.6]).mean(), rel=1e-5)
    assert actual["ece"] == pytest.approx(100 * (0.4 + 0.4) / 4, rel=1e-4)  # 2.4 of 3 against 2, and 0.6 of 1 against 1
    assert auroc(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.5])) == 0.75
