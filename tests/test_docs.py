"""The documents: equation names are those of the code, links lead somewhere, examples run."""

import importlib
import io
import re
import tokenize
import types
from pathlib import Path

import pytest

import mixtura
from conftest import ROOT

SOURCE = ROOT / "src" / "mixtura"
THEORY = ROOT / "docs" / "theory.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
WITH_EXAMPLES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/choosing.md",
    "docs/deployment.md",
    "docs/few_labels.md",
    "docs/gpu.md",
    "docs/heads.md",
    "docs/missing.md",
    "docs/outliers.md",
    "docs/quick_start.md",
    "docs/rare_class.md",
    "docs/reading.md",
    "docs/regularised.md",
)

NAME = r"[a-z]+(?:-[a-z]+)*"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def comments_and_strings(path: Path) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
    return "\n".join(token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING))


def names_in_code() -> dict[str, set[str]]:
    """Words with hyphens in parentheses in comments and docstrings, and the files that hold them."""
    actual: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name in re.findall(r"\(([a-z]+(?:-[a-z]+)+)\)", comments_and_strings(path)):
            actual.setdefault(name, set()).add(path.relative_to(SOURCE).as_posix())
    return actual


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.M)


def equation_names() -> list[str]:
    return re.findall(rf"^### \(({NAME})\)$", THEORY.read_text("utf-8"), re.M)


# ---- equations ---------------------------------------------------------------------------------------------------


def test_every_equation_named_in_the_code_is_in_the_theory():
    missing = {name: sorted(files) for name, files in names_in_code().items() if name not in equation_names()}
    assert not missing, f"give these a heading '### (name)' in docs/theory.md, or take the parentheses away: {missing}"


def test_the_table_of_the_theory_lists_every_equation_and_where_it_is():
    rows = re.findall(rf"^\| \[\(({NAME})\)\]\(#({NAME})\) \|.*\| `(\S+)` \|$", THEORY.read_text("utf-8"), re.M)
    assert sorted(name for name, _, _ in rows) == sorted(equation_names())
    assert len(set(equation_names())) == len(rows)
    for name, anchor, file in rows:
        assert name == anchor
        assert f"({name})" in comments_and_strings(SOURCE / file), f"({name}) is not in a comment of {file}"


# ---- links -------------------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    words = re.sub(r"[^\w\- ]", "", heading.lower())
    return words.replace(" ", "-")


def test_anchors_are_those_of_github():
    assert [anchor(text) for text in ("(log-joint)", "Which prior?", "Speed and digits")] == [
        "log-joint",
        "which-prior",
        "speed-and-digits",
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, part = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{path.name} links to {target}"
        assert there.is_relative_to(ROOT), f"{path.name} links out of the project: {target}"
        if part:
            known = [anchor(heading) for heading in headings(there.read_text("utf-8"))]
            assert part in known, f"{path.name} links to {target}; the headings there are {known}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_inline_formulas_survive_markdown(path):
    """GitHub takes a backslash before punctuation for an escape, inside $...$ too; ```math blocks are safe."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text("utf-8")))
    broken = [formula for formula in re.findall(r"\$[^$]+\$", text) if re.search(r"\\[^a-zA-Z]", formula)]
    assert not broken, broken


# ---- examples ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run_in_order(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    text = (ROOT / name).read_text("utf-8")
    blocks = [code for language, code in FENCE.findall(text) if language == "python"]
    assert blocks
    if "onnxruntime" in text:
        pytest.importorskip("onnxruntime")
    for code in blocks:
        exec(compile(code, name, "exec"), namespace)


# ---- the site ----------------------------------------------------------------------------------------------------


PUBLIC = ("", ".covariances", ".datasets", ".nn", ".objectives", ".plotting", ".priors", ".solvers", ".streams")


def test_the_api_reference_lists_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = set()
    for module, names in re.findall(r"currentmodule:: (\S+)\n(.*?)(?=\n\.\. currentmodule|\n```)", text, re.S):
        listed |= {f"{module}.{name}" for name in re.findall(r"^   (\w[\w.]*)$", names, re.M)}
    for name in listed:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name
    for part in PUBLIC:
        module = importlib.import_module(f"mixtura{part}")
        public = [name for name in module.__all__ if isinstance(getattr(module, name), type | types.FunctionType)]
        assert {f"mixtura{part}.{name}" for name in public} <= listed


# The lines that each row of the decision table quotes: after a line with the first beginning, one with the second.
WAVEFORM = "## waveform"
QUOTED = {
    "classification; missing values": [],  # rendered, as tests/test_benchmarks.py checks
    "calibrated probabilities": [],
    "embeddings, pixels and other wide features": [("", "docstrings, sentence embeddings |")],
    "texts": [("## Counts of words", "docstrings |")],
    "numeric and categorical features": [
        ("### Evaluation sets, no values removed", f"with categories | {name} |")
        for name in ("random forest", "logistic regression", "histogram boosting")
    ],
    "a quick baseline, quadratic discriminant analysis with shrinkage": [],
    "fewer errors from many samples, with a density": [
        ("| MNIST (pca50) ", "| settings by validation, test |"),
        ("| MNIST (pca50) ", "| average of 5 starts, test |"),
    ],
    "the boundary alone, few parameters": [
        (WAVEFORM, "gmm |"),
        (WAVEFORM, "dgmm |"),
        (WAVEFORM, "logistic |"),
        (WAVEFORM, "svm |"),
    ],
    "a small sample, and an error estimate without a test set": [
        ("", "automatic, held-out log-loss, transforms, averaged, bootstrap |"),
        ("", "unregularised |"),
    ],
    "a model of few numbers": [
        ("", "banana | SparseMixtureClassifier, defaults"),
        ("", "banana | Gaussian process"),
    ],
    "the relevance vector machine": [("", "banana | RelevanceVectorClassifier, gamma by 5-fold")],
    "counts, tf-idf, parts of images": [
        ("", "defaults | 48 per class | shares 1"),
        ("", "logistic regression on pixels"),
    ],
    "the last layer of a network": [
        ("## MNIST, D = 2", "softmax |"),
        ("## MNIST, D = 2", "large-margin softmax |"),
        ("## MNIST, D = 2", "discriminative mixture, `MixtureHead` |"),
    ],
    "a layer that can be pruned": [("## MNIST, D = 2", "SDGM, `SparseMixtureHead` |")],
    "density, clusters, outliers": [("## One EM iteration", "full, N=100,000 D=16 K=32 |")],
}


def test_figures_of_the_decision_table_are_those_of_the_lines_they_quote():
    page = ROOT / "docs" / "which_estimator.md"
    rows = re.findall(r"^\| (.*) \| .* \| (.*) \| \[.*\]\((.*)\) \|$", page.read_text("utf-8"), re.M)
    assert [need for need, *_ in rows] == list(QUOTED)
    for need, measured, source in rows:
        lines = (page.parent / source).read_text("utf-8").splitlines()
        quoted = []
        for heading, start in QUOTED[need]:
            first = next(number for number, line in enumerate(lines) if line.startswith(heading))
            line = next(line for line in lines[first:] if line.startswith(f"| {start}"))
            quoted.append(set(re.findall(r"\d+\.\d+", line)))
        figures = set(re.findall(r"\d+\.\d+", measured))
        assert figures
        assert figures <= set().union(*quoted) or not QUOTED[need], need
        assert all(figures & numbers for numbers in quoted), need


def test_the_citation_has_the_version():
    assert f"version: {mixtura.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"{{{mixtura.__version__}}}" in (ROOT / "docs" / "cite.md").read_text("utf-8")


def test_the_readme_names_every_public_estimator():
    text = (ROOT / "README.md").read_text("utf-8")
    estimators = [name for name in mixtura.__all__ if name[0].isupper()]
    assert all(f"`{name}" in text for name in estimators), estimators


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_entries_of_the_gallery_have_a_picture_and_output(path):
    text = path.read_text("utf-8")
    assert "import matplotlib.pyplot as plt" in text
    assert "print(" in text or re.search(r"\n\n# %%[^%]*\n[a-z_]+[^=\n]*\n", text)  # or a value at the end of a part
