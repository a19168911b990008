"""Reports in a real browser: they render without errors, hover works, and text is escaped."""

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from circuits import discover
from circuits.report import write_discovery
from mechheads.observe.patterns import attend
from mechheads.prompts import Pair, Prompts
from mechheads.reports.page import Section, write_markdown, write_page
from mechheads.reports.patterns import draw_patterns_by_head, draw_patterns_summed
from mechheads.reports.theme import escaped
from mechheads.runs.folder import Record

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
TEXT = "Then, Mary and John gave <b>it</b> & went"
EVIL = '<img src=x onerror="window.failed=1">'
WATCH = """<script>window.errors = [];
addEventListener('error', e => errors.push(e.message || 'not loaded'), true);
console.error = (...words) => errors.push(words.join(' '));</script>"""
HOVER = """<script>addEventListener('load', () => setTimeout(() => {
  Plotly.Fx.hover('figure-0', {xval: 2, yval: 1});
  setTimeout(() => {
    const hover = document.querySelector('#figure-0 .hoverlayer');
    document.body.dataset.hover = hover ? hover.textContent : '';
    document.body.dataset.errors = errors.join('; ') + (window.failed ? 'failed' : '');
  }, 500);
}, 1000));</script>"""


@pytest.fixture(scope="module")
def page(planted, tmp_path_factory) -> Path:
    """The report of a task whose prompts and name try to be HTML."""
    names = ["Mary", "John", "Tom", "Anna"]
    pairs = tuple(
        Pair(f"{EVIL} {a} and {b} and", f"{EVIL} {b} and {b} and", (f" {a}",), (f" {b}",))
        for i, a in enumerate(names * 3)
        for b in [names[(i + 1 + i // 4) % 4]]
        if a != b
    )
    prompts = Prompts(f"evil {EVIL}", "logit_diff", pairs)
    folder = tmp_path_factory.mktemp("report")
    found = discover(planted, prompts, draws=2)
    record = Record("discover", {"task": EVIL, "model": "planted"}, found.headline, {"model": EVIL})
    write_discovery(folder, found, record)
    return folder / "report.html"


def test_no_prompt_or_name_becomes_html(page):
    text = page.read_text()
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "<img" not in outside
    assert "&lt;img" in outside
    notes = re.sub(r"^```.*?^```", "", page.with_name("report.md").read_text(), flags=re.S | re.M)
    assert "<img" not in notes
    assert "&lt;img" in notes


def test_reports_need_no_network(page):
    text = page.read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=", text)
    assert "http" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_a_page_is_whole_by_itself_and_escapes_what_it_is_given(tiny, tmp_path):
    patterns = attend(tiny, TEXT)
    sections = [
        Section("<script>alert(1)</script>", TEXT, draw_patterns_summed([patterns])),
        Section("again", figure=draw_patterns_by_head([patterns]), table={"<i>": "<u>"}),
    ]
    page = write_page(tmp_path / "page.html", "<title>", sections).read_text()
    assert "<script>alert(1)" not in page
    assert "<b>it</b>" not in page
    assert "&lt;b&gt;it" in page
    assert "<i>" not in page.split("</script>")[-1]
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    assert page.count("<!doctype html>") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_shows_the_report_without_errors_and_hovers(page, tmp_path):
    watched = tmp_path / "watched.html"
    text = page.read_text().replace("<head>", f"<head>{WATCH}", 1)
    watched.write_text(text.replace("</body>", f"{HOVER}</body>"))
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=8000",
            "--dump-dom",
            str(watched),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.search(r'<body[^>]*data-hover="([^"]*)"', done.stdout)
    assert found, "the page's script did not run to its end"
    assert "L1H2" in found[1]
    assert re.search(r'<body[^>]*data-errors=""', done.stdout)
    assert done.stdout.count('class="main-svg"') >= 4


def test_no_name_becomes_a_link_an_image_or_a_heading_in_markdown(tmp_path):
    bad = "![a](http://x/y.png) [b](http://x) `c` # d | e <b>"
    section = Section(bad, bad, table={bad: bad}, frame=pd.DataFrame({bad: [bad]}))
    text = write_markdown(tmp_path / "report.md", bad, [section], headline=bad).read_text()
    for plain in ("![", " [b", "a](", " `c", " # d", "e <b>"):
        assert plain not in text
    assert text.count("http://x/y.png") == 8


def test_no_name_is_expanded_in_the_hover_text_of_a_figure():
    assert "%{" not in escaped("head %{x} of %{customdata[0]}")
