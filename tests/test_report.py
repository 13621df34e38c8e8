"""The report: one page that needs nothing else, opened in a browser where there is one."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'mixtura[cli]'")
pytest.importorskip("typer", reason="typer is not installed: pip install 'mixtura[cli]'")

from mixtura.cli import main  # noqa: E402

HOSTILE = "<script>document.title='stolen'</script>"
TITLES = [
    "The model and its selection",
    "Classes and components",
    "Confusion matrix",
    "Reliability",
    "Comparison with other classifiers",
    "Learning curve",
    "Missing values",
    "Feature importances",
    "Components",
    "Doubtful rows",
    "The code that reproduces it",
]


class Page(HTMLParser):
    """Titles of the sections, tags, and attributes that could load something."""

    def __init__(self, text):
        super().__init__()
        self.titles, self.tags, self.loads, self._in_title = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [(tag, name) for name, _ in attrs if name in ("src", "href", "srcset", "action")]
        self._in_title = tag == "h2"

    def handle_data(self, data):
        if self._in_title:
            self.titles.append(data)
            self._in_title = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and its reports, with and without single rows, on a table with hostile names and values."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    labels = np.array(["calm", HOSTILE])[np.arange(80) % 2]
    frame = pd.DataFrame(
        {
            HOSTILE: rng.normal(size=80).round(3) + 2 * (np.arange(80) % 2),
            "kind</script>": np.where(rng.random(80) < 0.5, "<b>a</b>", "</script>b"),
            "size": rng.normal(size=80).round(3),
            "t": labels,
        }
    )
    frame.loc[::4, "size"] = np.nan
    frame.to_csv(folder / "t.csv", index=False)
    model = str(folder / "m.mixtura")
    assert main(["fit", str(folder / "t.csv"), "--target", "t", "--out", model, "--budget", "1s"]) == 0
    arguments = ["report", model, str(folder / "t.csv")]
    assert main([*arguments, "--out", str(folder / "all.html")]) == 0
    assert main([*arguments, "--out", str(folder / "less.html"), "--no-data"]) == 0
    return folder


def test_the_page_is_whole_small_and_loads_nothing(folder):
    text = (folder / "all.html").read_text("utf-8")
    page = Page(text)
    assert page.titles == TITLES
    assert page.loads == []
    assert len(text.encode()) < 3_000_000
    assert not re.search(r"(?:src|href)=|url\(|@import", text)


def test_hostile_names_are_text(folder):
    text = (folder / "all.html").read_text("utf-8")
    assert HOSTILE not in text
    page = Page(text)
    assert page.tags.count("script") == 2
    samples = json.loads(re.search(r"id='samples'>(.*?)</script>", text, re.S).group(1))
    assert len(samples) == text.count("data-sample=") == 80
    assert any(HOSTILE in sample for sample in samples)


def test_without_data_no_row_is_shown(folder):
    text = (folder / "less.html").read_text("utf-8")
    assert Page(text).titles == [title for title in TITLES if title != "Doubtful rows"]
    assert "data-sample" not in text
    assert "<script" not in text


CLICK = """
<script>window.addEventListener('load',function(){var point=document.querySelector('.point');
point.dispatchEvent(new Event('mouseenter'));document.body.setAttribute('data-shown',
document.getElementById('detail').textContent)})</script></body>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("size", ["1200,900", "390,800"])
def test_a_browser_shows_the_page_and_the_sample_under_the_pointer(folder, size, tmp_path):
    opened = tmp_path / "opened.html"
    opened.write_text((folder / "all.html").read_text("utf-8").replace("</body>", CLICK), "utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", opened.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert re.search(r'data-shown="Row \d+: ', shown)
    assert "<title>Report on m.mixtura</title>" in shown  # the script in the names did not run
