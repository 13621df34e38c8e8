"""Names that have left the package are importable for one release, and say where they are."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mixtura
from mixtura import GaussianMixture, cli

MOVED = {
    "mixtura.tune": "examples/search_with_optuna.py of a source checkout",
    "mixtura.plotting.Curve": "examples/demo.py of a source checkout",
    "mixtura.plotting.demo_picture": "examples/demo.py of a source checkout",
    "mixtura.plotting.plot_bases": "reproduce.figures.plot_bases of a source checkout",
    "mixtura.plotting.plot_features": "studies.heads.plot_features of a source checkout",
    "mixtura.datasets.load_usps": 'reproduce.data.load("usps") of a source checkout',
    "mixtura.cli.demo": "examples/demo.py of a source checkout",
}


@pytest.mark.parametrize("name", MOVED)
def test_a_moved_name_says_where_it_is(name):
    module, _, last = name.rpartition(".")
    if module == "mixtura.plotting":
        pytest.importorskip("matplotlib")
    moved = getattr(importlib.import_module(module), last)
    text = f"`{name}` has left the package; got a call of it. Use {MOVED[name]}."
    with pytest.raises(ImportError, match=f"^{re.escape(text)}$"):
        moved(1, of="any kind")


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match=r"^module 'mixtura' has no attribute 'tuna'$"):
        importlib.import_module("mixtura").tuna  # noqa: B018


def test_the_command_line_says_where_the_demo_is(capsys):
    pytest.importorskip("typer")
    assert cli.main(["demo", "--output", "demo.png"]) == 2
    text = "mixtura: The demo has left the package; run examples/demo.py of a source checkout, or make demo.\n"
    assert capsys.readouterr().err == text


def run_python(code):
    known = {**os.environ, "PYTHONPATH": str(Path(mixtura.__file__).parent.parent)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=known)


def test_the_package_is_imported_without_torch_and_still_shows_its_names():
    code = "import sys, mixtura; assert 'torch' not in sys.modules; assert set(mixtura.__all__) <= set(dir(mixtura))"
    code += "; from mixtura import *; print(MixtureClassifier.__name__, mixtura.nn.MixtureHead.__name__)"
    result = run_python(code)
    assert (result.stdout, result.stderr) == ("MixtureClassifier MixtureHead\n", "")


def test_a_model_file_is_read_where_nothing_else_was_imported(tmp_path):
    model = GaussianMixture(2, random_state=0).fit(np.arange(20.0).reshape(10, 2))
    model.save(tmp_path / "model.mixtura")
    result = run_python(f"import mixtura; print(mixtura.load({str(tmp_path / 'model.mixtura')!r}).n_components)")
    assert (result.stdout, result.stderr) == ("2\n", "")
