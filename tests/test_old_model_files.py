"""Model files of released versions load, and their models answer as they did."""

import json
import tarfile

import numpy as np
import pandas as pd
import pytest

import mixtura
from conftest import ROOT

ARCHIVES = sorted((ROOT / "tests" / "fixtures").glob("model_files_*.tar.xz"))
CASES = []
for archive in ARCHIVES:
    with tarfile.open(archive) as files:
        facts = json.load(files.extractfile("answers.json"))
    CASES += [
        pytest.param(archive, name, case, id=f"{facts['version']}-{name}") for name, case in facts["models"].items()
    ]


def test_every_estimator_has_a_file():
    with tarfile.open(ARCHIVES[0]) as files:
        headers = [files.extractfile(member).read() for member in files if member.name.endswith(".mixtura")]
    names = [name for name in mixtura.__all__ if isinstance(getattr(mixtura, name), type) and name != "LabeledScorer"]
    assert len(names) >= 12
    for name in [*names, "TableClassifier"]:
        assert any(f'\\"estimator\\": \\"{name}\\"'.encode() in header for header in headers), name


@pytest.mark.parametrize(("archive", "name", "case"), CASES)
def test_an_old_model_answers_as_it_did(archive, name, case, tmp_path, one_thread):
    """Exactly, but for rounding: other processors have other products, and the place of a buffer matters."""
    with tarfile.open(archive) as files:
        files.extract(f"{name}.mixtura", tmp_path, filter="data")
    model = mixtura.load(tmp_path / f"{name}.mixtura")
    columns, rows = case["columns"], case["rows"]
    rows = np.array(rows, dtype=float) if columns is None else pd.DataFrame(rows, columns=columns)
    assert case["answers"]
    for method, expected in case["answers"].items():
        answer = getattr(model, method)
        answer, expected = np.asarray(answer(rows) if callable(answer) else answer), np.array(expected)
        assert answer.shape == expected.shape, method
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(answer, expected, rtol=1e-12, atol=1e-13, err_msg=method)
        else:
            np.testing.assert_array_equal(answer, expected, err_msg=method)
