"""The report in a browser: no horizontal scroll at any width, light and dark, all sections open."""

import json
import re

import pytest
from typer.testing import CliRunner

from experiments.report import app

# A window can't be as narrow as a phone, a frame can: the page reports from inside one. All that is folded is opened.
FRAME = """<!DOCTYPE html><title>nothing measured</title><body style="margin:0">
<script>addEventListener("message", e => { document.title = e.data; });</script>
<iframe src="report.html" style="border:0;width:%dpx;height:1800px"></iframe>"""
MEASURE = """<script>
for (const part of document.querySelectorAll("details")) part.open = true;
const brightness = c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 3;
const style = getComputedStyle(document.documentElement);
parent.postMessage(JSON.stringify({
  width: innerWidth,
  content: document.scrollingElement.scrollWidth,
  background: brightness(style.backgroundColor),
  ink: brightness(style.color),
  sticky: getComputedStyle(document.querySelector("tbody th")).position,
  boxes: [...document.querySelectorAll(".scroll")].filter(b => b.scrollWidth > b.clientWidth).length,
}), "*");
</script>"""


@pytest.fixture(scope="module")
def page(compared, tmp_path_factory):
    done = CliRunner().invoke(app, ["--results", str(compared / "results"), "--name", "first"])
    assert done.exit_code == 0, done.output
    html = (compared / "results" / "first" / "report.html").read_text()
    folder = tmp_path_factory.mktemp("page")
    (folder / "report.html").write_text(html.replace("</body>", MEASURE + "</body>"))
    return folder


def measured(chromium, page, width, *options):
    frame = page / f"frame{width}.html"
    frame.write_text(FRAME % width)
    dom = chromium(frame.as_uri(), 1400, "--virtual-time-budget=5000", *options)
    return json.loads(re.search(r"<title>(.*?)</title>", dom).group(1))


@pytest.mark.parametrize("width", [390, 1280])
def test_page_never_scrolls_sideways(chromium, page, width):
    found = measured(chromium, page, width)
    assert found["width"] == width
    assert found["content"] <= width
    assert found["sticky"] == "sticky"
    assert found["background"] > 240 and found["ink"] < 60


def test_wide_tables_scroll_in_boxes_of_their_own_on_a_phone(chromium, page):
    assert measured(chromium, page, 390)["boxes"] > 0


def test_page_follows_a_dark_theme(chromium, page):
    found = measured(chromium, page, 1280, "--blink-settings=preferredColorScheme=0")
    assert found["background"] < 40 and found["ink"] > 200
