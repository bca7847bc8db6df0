"""The verdict sheet: what it says of a run with a known fault, and that all its forms say the same."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from baselines.autotrainer import AutoTrainer
from baselines.defaultpp.estimator import DefaultPlusPlus
from baselines.simple import Forest, NearestNeighbours
from experiments.engine.explanations import Settings
from experiments.engine.verdict_sheet import RULE_COLUMNS, assemble, draw, sections, to_html, to_rich, verdict_sheet
from features.bench import BenchError
from features.fpg import CATEGORY_GROUP

QUICK = {"max_epochs": 20, "patience": 20, "batch_size": 16, "learning_rate": 5e-3}


@pytest.fixture(scope="module")
def halves(toy_maker):
    bench = toy_maker(n_pairs=4, per_pair=24, n_causes=6)
    bench = bench.with_features(bench.X.columns[::8])
    held = bench.pair.isin(sorted(bench.pair.unique())[:1]).to_numpy()
    return bench.take(~held), bench.take(held)


@pytest.fixture(scope="module")
def sheet(halves):
    train, test = halves
    fitted = [Forest(n_estimators=20).fit(train), DefaultPlusPlus(**QUICK).fit(train), NearestNeighbours().fit(train)]
    own = test.labels["category"].map(CATEGORY_GROUP)
    run = test.runs[test.faulty & (own != "attention")][0]  # the only group that several categories share
    return verdict_sheet(test, run, [*fitted, AutoTrainer()], train, settings=Settings(background=4, draws=4))


def test_says_what_is_wrong_how_sure_and_where(sheet, halves):
    _, test = halves
    label = test.labels.loc[sheet.run]
    assert sheet.truth == (label["category"], label["root_cause"])
    assert sheet.verdicts["technique"].tolist() == ["Random forest", "DEFault++", "k-NN"]
    forest = sheet.verdicts.iloc[0]
    assert forest["faulty"]
    assert forest["category"] == label["category"]
    assert 0.5 < forest["confidence_1"] <= 1
    shap = sheet.groups["Random forest: why this category"]
    assert shap.idxmax() == CATEGORY_GROUP[label["category"]]
    assert shap.abs().max() == 1.0


def test_names_the_nearest_prototypes_in_order(sheet):
    assert len(sheet.prototypes) == 5
    assert sheet.prototypes["distance"].is_monotonic_increasing
    assert (sheet.groups["DEFault++: weight of prototypes"] >= 0).all()


def test_says_what_is_missing(sheet):
    assert any("k-NN is no tree ensemble" in note for note in sheet.notes)
    assert any("Not run" in note and "log" in note for note in sheet.notes)


def test_terminal_page_fits_100_columns(sheet):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(to_rich(sheet))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 100
    for word in (sheet.run, "Nearest prototypes", "Random forest", sheet.truth[1]):
        assert word in text


def test_terminal_names_the_strongest_groups_of_each_explanation_whole(sheet):
    values = pd.Series(
        {"attention": 0.1, "residual_stream": -1.0, "ffn_output": 0.4, "qkv_alignment": 0.3, "kernel": 0.2}
    )
    many = replace(sheet, groups=pd.DataFrame({f"technique {i}: why": values for i in range(12)}))
    brief, full = (dict(sections(many, full=f))["Groups (largest = 1)"] for f in (False, True))
    expected = "residual_stream -1.00, ffn_output +0.40, qkv_alignment +0.30, kernel +0.20"
    assert set(brief["strongest groups"]) == {expected}
    assert list(brief["explanation"]) == list(many.groups)
    assert full.shape == (5, 13)


def test_html_is_well_formed_and_escaped(sheet):
    section = ElementTree.fromstring(to_html(sheet))
    assert section.get("class") == "verdict-sheet"
    assert sheet.run in "".join(section.itertext())
    odd = assemble("<run>", "a&b", None, sheet.verdicts, {}, sheet.prototypes, [])
    assert "<run> a&b" in "".join(ElementTree.fromstring(to_html(odd)).itertext())


def test_a_guess_behind_a_verdict_of_correct_stands_in_brackets(sheet):
    verdicts = sheet.verdicts.assign(faulty=False)
    quiet = assemble("r", "m/t", None, verdicts, {}, sheet.prototypes, [])
    assert f"[{verdicts['category'][0]}]" in to_html(quiet)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(to_rich(quiet))
    assert f"[{verdicts['category'][0]}]" in console.export_text()


def test_figure_in_both_formats_also_with_rules_and_without_groups(sheet, tmp_path):
    rules = pd.DataFrame(
        [("run", "exploding", "error", "3", -1, 123.456, np.nan, "AutoTrainer")],
        columns=["run", "rule", "severity", "epoch", "layer", "observed", "threshold", "technique"],
    )
    bare = assemble(sheet.run, sheet.pair, None, sheet.verdicts, {}, sheet.prototypes.head(0), [rules])
    assert list(bare.rules) == list(RULE_COLUMNS)
    for name, one in {"full": sheet, "bare": bare}.items():
        written = draw(one, tmp_path / name)
        assert [p.suffix for p in written] == [".png", ".svg"]
        assert all(p.stat().st_size > 5000 for p in written)
    assert "123" in to_html(bare)


def test_an_unknown_run_is_refused(halves):
    train, test = halves
    with pytest.raises(BenchError, match="no run 'nobody'"):
        verdict_sheet(test, "nobody", [], train)
