"""Every promise of docs/promises.md names tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS.parent / "docs" / "promises.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and "---" not in line and "| test |" not in line]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_guarantee_has_a_test(row):
    named = re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", row.split("|")[-2])
    assert named
    for file, test in named:
        assert f"def {test}" in (TESTS / file).read_text(), f"{file}::{test}"
