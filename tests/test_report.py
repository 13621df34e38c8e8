"""The report: one page that needs nothing else, opened in a browser where there is one."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'mixtura[cli]'")
pytest.importorskip("typer", reason="typer is not installed: pip install 'mixtura[cli]'")

import mixtura  # noqa: E402
from mixtura.cli import main  # noqa: E402
from mixtura.cli.held_out_rows import choose_rows  # noqa: E402

HOSTILE = "<script>document.title='stolen'</script>"
TITLES = [
    "The model and its selection",
    "Classes and components",
    "Confusions",
    "Calibration",
    "Decisions",
    "Missing values",
    "Features that matter",
    "Typical values",
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
        links = [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "action")]
        self.loads += [link for link in links if not link.startswith(("#", "data:image/png"))]
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
    assert main(["fit", str(folder / "t.csv"), "--target", "t", "--out", model, "--budget", "20s"]) == 0
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
    assert not re.search(r" src=|url\((?!#)|@import", text)


def test_hostile_names_are_text(folder):
    text = (folder / "all.html").read_text("utf-8")
    assert HOSTILE not in text
    page = Page(text)
    assert page.tags.count("script") == 2
    samples = json.loads(re.search(r"id='samples'>(.*?)</script>", text, re.S).group(1))
    drawn = re.findall(r'<g id="class-\d">(.*?)</g>\s*</g>', text, re.S)
    assert len(samples) == 80
    assert sum(group.count("<use") for group in drawn) == 80
    assert all(HOSTILE in [name for name, _ in sample["values"]] for sample in samples)


def test_rows_have_the_numbers_of_the_table(folder):
    text = (folder / "all.html").read_text("utf-8")
    samples = json.loads(re.search(r"id='samples'>(.*?)</script>", text, re.S).group(1))
    table = pd.read_csv(folder / "t.csv")
    for sample in samples:
        row = table.iloc[sample["row"] - 1]
        assert sample["label"] == row["t"]
        assert dict(sample["values"])["size"] == ("missing" if pd.isna(row["size"]) else f"{row['size']:.4g}")


def test_the_code_prints_the_log_loss_of_the_report(folder, monkeypatch, capsys):
    text = (folder / "all.html").read_text("utf-8")
    code = html.unescape(re.search(r"<pre>(.*?)</pre>", text, re.S).group(1))
    monkeypatch.chdir(folder)
    exec(code, {})
    shown = float(capsys.readouterr().out)
    assert f"prints {shown:.3f}, the log-loss" in text
    assert "cli" not in code


def test_fit_and_report_state_one_log_loss(folder, capsys):
    about = mixtura.load(folder / "m.mixtura").about_
    arguments = [
        "report",
        str(folder / "m.mixtura"),
        str(folder / "t.csv"),
        "--out",
        str(folder / "again.html"),
        "--json",
    ]
    assert main(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rows"] == about["held_out_rows"]
    for name in ("held_out_log_loss", "held_out_error", "cross_validation_log_loss"):
        assert facts[name] == about[name]


def test_rare_classes_keep_their_rows():
    labels = pd.Series(["rare"] * 30 + ["single"] + ["often"] * 6000)
    chosen, sizes = choose_rows(labels, seed=0)
    assert chosen.value_counts().to_dict() == sizes == {"often": 1492, "rare": 30}
    assert choose_rows(labels[:400], seed=0)[1] == {}


def test_without_data_no_row_is_shown(folder):
    text = (folder / "less.html").read_text("utf-8")
    assert Page(text).titles == [title for title in TITLES if title != "Doubtful rows"]
    assert "data-sample" not in text
    assert 'id="class-' not in text
    assert "<script" not in text


CLICK = """
<script>window.addEventListener('load', function () {
  var points = document.querySelectorAll('#rows [id^=class-] use'), box = document.getElementById('detail'), seen = [];
  function look() { seen.push(box.querySelector('h3').textContent) }
  points[0].dispatchEvent(new Event('mouseenter')); look();
  document.getElementById('rows').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'})); look();
  document.querySelectorAll('button[data-sample]').forEach(function (button) { button.click(); look() });
  document.body.dataset.seen = JSON.stringify(seen);
  document.body.dataset.sizes = [innerWidth, document.documentElement.scrollWidth].join();
})</script></body>"""
QUIET = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"
)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("size", ["1200,900", "390,800"])
def test_a_browser_shows_the_page_and_the_row_under_the_pointer(folder, size, tmp_path):
    opened = tmp_path / "opened.html"
    opened.write_text((folder / "all.html").read_text("utf-8").replace("</body>", CLICK), "utf-8")
    command = ["chromium", *QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}"]
    shown = subprocess.run(
        [*command, "--dump-dom", opened.as_uri()], capture_output=True, text=True, timeout=120
    ).stdout
    seen = json.loads(html.unescape(re.search(r'data-seen="(.*?)"', shown).group(1)))
    assert len(seen) >= 2
    assert all(re.fullmatch(r"Row \d+: .+", title) for title in seen)
    assert seen[0] != seen[1]
    window, needed = map(int, re.search(r'data-sizes="(\d+),(\d+)"', shown).groups())
    assert needed <= window  # nothing wider than the page
    assert "<title>Report on m.mixtura</title>" in shown  # the script in the names did not run
