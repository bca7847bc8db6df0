"""The page: rows that trace to stored numbers, readable colours, nothing from the network."""

import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.engine.report import board_rows, caveats, contrast, heat_cell, heat_map, inline_svg, rule_rows
from experiments.engine.stored import load_stored
from experiments.report import SECTIONS, app

_spec = importlib.util.spec_from_file_location("stored_comparison", Path(__file__).with_name("test_tables.py"))
_tables = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tables)
OWN, write_comparison = _tables.OWN, _tables.write_comparison

VOID = {"meta", "br", "hr", "img", "input", "link", "line", "path", "use", "rect", "circle", "image"}


class Balance(HTMLParser):
    """Open elements in order, the ids seen, and every address that the page refers to."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.addresses, self.tags = [], set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value)
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                self.addresses.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = write_comparison(tmp_path_factory.mktemp("report"), architectures=("encoder", "decoder"))
    (results / "rules").mkdir()
    shares = {"faulty": 0.5, "correct": 0.25, "ffn": 0.9, "masking": 0.1}
    rows = [
        {"technique": "UMLAUT (vector)", "rule": rule, "category": c, "share": s * factor}
        for rule, factor in (("overfitting", 1.0), ("never", 0.0))
        for c, s in shares.items()
    ]
    pd.DataFrame(rows).to_csv(results / "rules" / "tiny-encoder.csv", index=False)
    (results / "rules" / "tiny-encoder.json").write_text(json.dumps({"benches": [{"fingerprint": "abc"}]}))
    return results


@pytest.fixture(scope="module")
def page(results):
    done = CliRunner().invoke(app, ["--results", str(results), "--name", "made"])
    assert done.exit_code == 0, done.output
    return (results / "made" / "report.html").read_text()


def test_page_is_well_formed_and_every_section_is_linked(page):
    found = Balance()
    found.feed(page)
    assert found.open == []
    assert {id for id, _ in SECTIONS} <= found.ids
    assert {f"#{id}" for id, _ in SECTIONS} <= set(found.addresses)


def test_page_needs_no_network_and_no_script(page):
    found = Balance()
    found.feed(page)
    assert all(a.startswith(("#", "data:")) for a in found.addresses)
    assert not {"script", "link", "iframe"} & set(found.tags)
    assert not re.search(r"url\((?!#|['\"]?data:|['\"]?#)|@import", page)


def test_page_shows_stored_numbers_and_commands(page):
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert ".800" in text  # DEFault++, level 1, path
    assert ".70–.90" in text  # its interval
    assert "overfitting 50.0 25.0 ffn 90 %" in text
    assert "python experiments/ablate.py" in text
    assert "python experiments/rules_table.py" in text
    assert "nan" not in text.lower().split()


def test_page_says_what_was_not_run(results, tmp_path):
    bare = write_comparison(tmp_path)
    done = CliRunner().invoke(app, ["--results", str(bare), "--name", "made"])
    assert done.exit_code == 0, done.output
    text = (bare / "made" / "report.html").read_text()
    assert "no training history" in text and "Not run." in text and "no ranks" in text


def test_board_rows_mark_best_and_ties(results):
    rows = {r.technique: r for r in board_rows(load_stored(results, "made"), "encoder")}
    assert rows[OWN].path[0].best and not rows[OWN].path[0].tied
    assert rows["LightGBM (flat)"].path[0].tied
    assert not rows["UMLAUT (vector)"].path[0].tied
    assert rows["UMLAUT (vector)"].path[1:] == (None, None)
    assert rows[OWN].paper == pytest.approx((0.85, 0.75, 0.65))
    assert rows[OWN].seconds == pytest.approx(3.0)


def test_heat_map_averages_root_causes(results):
    stored = load_stored(results, "made")
    level2, level3 = heat_map(stored, "encoder", 2), heat_map(stored, "encoder", 3)
    assert level2.columns == ("masking", "ffn", "correct")
    assert level2.sizes == (12, 11, 10)
    values = dict(zip(level3.columns, [c.value for c in dict(level3.rows)[OWN]], strict=True))
    # Protocol path at level 3: correct 0.3, ffn 0.5 and 0.7, masking 0.9.
    assert values == pytest.approx({"masking": 0.9, "ffn": 0.6, "correct": 0.3})
    assert heat_map(stored, "encoder", 4) is None


@given(st.floats(0, 1))
def test_heat_cells_are_readable_at_every_value(value):
    cell = heat_cell(value)
    rgb = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (cell.background, cell.ink)]
    assert contrast(*rgb) >= 4.5


@given(st.floats(0, 1), st.floats(0, 1))
def test_heat_cells_darken_with_the_value_in_grey_too(one, other):
    def grey(value):
        return np.dot([int(heat_cell(value).background[i : i + 2], 16) for i in (1, 3, 5)], [0.299, 0.587, 0.114])

    if one - other > 0.02:
        assert grey(one) < grey(other)


def test_contrast_of_black_and_white_is_21():
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    assert contrast([119, 119, 119], [255, 255, 255]) == pytest.approx(4.48, abs=0.01)  # W3C's example of a near miss


def test_rules_that_never_fire_are_left_out():
    table = pd.DataFrame(
        [
            ("A", rule, c, share)
            for rule, shares in {"x": (0.2, 0.1, 0.5), "y": (0.0, 0.0, 0.0), "z": (0.0, 0.4, 0.0)}.items()
            for c, share in zip(("faulty", "correct", "ffn"), shares, strict=True)
        ],
        columns=["technique", "rule", "category", "share"],
    )
    assert [(r["rule"], r["top"]) for r in rule_rows(table)] == [("x", "ffn 50 %"), ("z", "ffn 0 %")]


def test_svg_follows_the_theme(tmp_path):
    path = tmp_path / "f.svg"
    paths = '<path style="fill: #ffffff"/><path style="stroke: #000000"/>'
    path.write_text(f'<?xml version="1.0"?><svg><metadata>m</metadata>{paths}</svg>')
    svg = inline_svg(path, 'a "label"')
    assert svg.startswith("<svg role") and "metadata" not in svg
    assert "fill: none" in svg and "stroke: currentColor" in svg
    assert "a &#34;label&#34;" in svg


def test_caveats_about_the_embedded_bench_stand_only_where_it_was_used():
    assert set(caveats({"published"})) < set(caveats({"embedded", "published"}))
