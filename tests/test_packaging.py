"""Packages: bounds of dependencies that were tried, links that lead somewhere, extras that have code."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from mutants import read_mutants

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
USED = [text for name in ("plot",) for text in EXTRAS[name]]
LINK = re.compile(r"\]\(([^)#\s]+)")
CODE = re.compile(r"`[^`\n]+`")  # in a line of text


def pinned(name: str) -> dict[str, Version]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {line.split("==")[0].lower(): Version(line.split("==")[1]) for line in lines if line}


@pytest.mark.parametrize("text", PROJECT["project"]["dependencies"] + USED)
def test_lower_bounds_are_those_that_are_tested(text):
    requirement = Requirement(text)
    lower = [Version(s.version) for s in requirement.specifier if s.operator == ">="]
    assert [pinned("constraints-oldest.txt")[requirement.name]] == lower
    assert pinned("constraints.txt")[requirement.name] in requirement.specifier


@pytest.mark.parametrize("text", PROJECT["project"]["dependencies"])
def test_the_next_major_version_is_excluded(text):
    requirement, newest = Requirement(text), pinned("constraints.txt")
    assert str(newest[Requirement(text).name].major + 1) not in requirement.specifier


def test_the_page_of_versions_names_the_oldest():
    rows = re.findall(
        r"^\| ([\w-]+)[^|]*\| ([\d.]+) \| ([\d.]+) \|", (ROOT / "docs" / "versions.md").read_text(), re.MULTILINE
    )
    oldest = pinned("constraints-oldest.txt")
    named = {name.lower(): Version(version) for name, version, _ in rows if name != "Python"}
    assert named == {
        Requirement(text).name: oldest[Requirement(text).name] for text in PROJECT["project"]["dependencies"] + USED
    }


def test_every_extra_has_code():
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name in set(EXTRAS) - {"dev", "docs", "bench", "slow"}:
        packages = "|".join(Requirement(text).name for text in EXTRAS[name])
        assert re.search(rf"^\s*(import|from) ({packages})\b", sources, re.MULTILINE), name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *sorted(p.name for p in ROOT.glob("docs/*.md"))])
def test_links_lead_to_files_that_are_packed(name):
    page = ROOT / name if (ROOT / name).exists() else ROOT / "docs" / name
    left_out = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"]
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if not link.startswith("http"):
            target = (page.parent / link).resolve()
            assert target.exists(), link
            assert not any(fnmatch(target.relative_to(ROOT).as_posix(), pattern) for pattern in left_out), link


def test_the_page_of_the_package_index_has_no_links_into_the_repository():
    page = ROOT / PROJECT["project"]["readme"]
    assert all(link.startswith("https://") for link in LINK.findall(page.read_text()))
    assert "urls" not in PROJECT["project"]  # none is invented


def test_mistakes_of_make_mutants_are_still_possible():
    assert len(read_mutants()) >= 80  # it raises where a text is gone
