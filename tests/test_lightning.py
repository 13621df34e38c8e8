"""Heads in a LightningModule: trained, written to a checkpoint and read again. Without Lightning they are skipped."""

import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from mixtura.nn import MixtureHead, SparseMixtureHead, WarmUp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # its own deprecations and advice

HEADS = {
    "mixture": lambda: MixtureHead(8, 10, 2),
    "sparse": lambda: SparseMixtureHead(8, 10, 2),
    "density": lambda: MixtureHead(8, 10, density=True),
}


class Classifier(lightning.LightningModule):
    """A small network with a head, and the one line that each kind of head asks for."""

    def __init__(self, kind: str, n_rows: int = 1):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        self.head, self.warm_up = HEADS[kind](), WarmUp(n_rows)
        self.first, self.last = None, None

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        if getattr(self.head, "density", False):
            loss = self.head.hybrid_loss(self.body(x), y)
        else:
            loss = functional.cross_entropy(self(x), y) + self.head.penalty() * self.warm_up(self.current_epoch)
        self.log("loss", loss)
        self.first = self.first if self.first is not None else float(loss.detach())
        self.last = float(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_trains_in_lightning(kind, precision, tmp_path):
    lightning.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(labels)
    rows = DataLoader(TensorDataset(x, y), 128, shuffle=True, drop_last=True)
    model = Classifier(kind, len(x))
    trainer = lightning.Trainer(
        max_epochs=5,
        accelerator="cpu",
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, rows)
    assert model.last < 0.5 * model.first
    trainer.save_checkpoint(tmp_path / "head.ckpt")
    again = Classifier.load_from_checkpoint(tmp_path / "head.ckpt", kind=kind)
    model.eval(), again.eval()
    assert torch.equal(again(x), model(x))
    assert (model(x).argmax(1) == y).float().mean() > 0.9
