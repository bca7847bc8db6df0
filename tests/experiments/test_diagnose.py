"""Diagnosis with techniques fitted on a toy bench, the cache that keeps them, repairs, and what the command answers."""

import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import joblib
import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from baselines.autotrainer import REPAIRS
from baselines.deepdiagnosis_fixes import FIXES
from baselines.umlaut import Umlaut
from experiments import diagnose as command
from experiments.engine import reference_models
from experiments.engine.diagnosis import diagnose
from experiments.engine.diagnosis_page import to_html, to_json, to_rich
from experiments.engine.own_run import read_run
from experiments.engine.reference_models import Item, fit_reference, stored_verdicts
from experiments.engine.repairs import COMPONENTS, DEEPDIAGNOSIS_FIXES, UMLAUT_HINTS, first_steps
from experiments.engine.source import BenchSource
from features.bench import BenchError
from features.taxonomy import ROOT_CAUSES

KEYS = ["knn", "umlaut-vector", "autotrainer"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, toy_maker):
    """A toy bench on disk, a cache, and a run of the bench's kind with a known fault."""
    folder = tmp_path_factory.mktemp("diagnose")
    bench = toy_maker(n_pairs=4, per_pair=24, n_causes=3)
    path = bench.save(folder / "toy.parquet")
    run = bench.runs[1]
    (bench.X.loc[[run]] + 0.01).rename({run: "mine"}).to_parquet(folder / "mine.parquet")
    return {"folder": folder, "bench": bench, "path": path, "run": folder / "mine.parquet", "like": run}


@pytest.fixture(scope="module")
def reference(place):
    source = BenchSource(str(place["path"]), arch="encoder")
    return fit_reference(source, KEYS, store=place["folder"] / "cache", results=place["folder"] / "none")


@pytest.fixture(scope="module")
def found(place, reference):
    return diagnose(read_run(place["run"]), reference)


def test_names_the_known_fault_with_its_record(place, found):
    row = found.sheet.verdicts.set_index("technique").loc["k-NN"]
    truth = place["bench"].labels.loc[place["like"]]
    assert row["faulty"]
    assert (row["category"], row["root_cause"]) == (truth["category"], truth["root_cause"])
    assert 0.5 < row["confidence_1"] <= 1
    hits, of = map(int, row["hits_2"].split(" of "))
    assert row["confidence_2"] == pytest.approx(hits / of)


def test_the_record_is_that_of_outer_folds(place, reference):
    from baselines.simple import NearestNeighbours
    from experiments.engine.protocol import outer_folds

    bench = place["bench"]
    parts = [
        NearestNeighbours().fit(bench.take(f.train)).predict(bench.take(f.test)).table for f in outer_folds(bench, 4)
    ]
    table = pd.concat(parts).loc[bench.runs]
    np.testing.assert_allclose(reference.calibrations["knn"].values, table["score"])


def test_techniques_that_read_a_log_are_said_not_to_have_run(found):
    assert found.judged == 2
    assert any("AutoTrainer (code, log) reads the per-epoch log" in note for note in found.sheet.notes)


def test_a_run_without_a_log_leaves_out_what_reads_it(place, reference):
    both = replace(reference, techniques={**reference.techniques, "umlaut": Umlaut()})
    made = diagnose(read_run(place["run"]), both)
    assert made.judged == 2
    assert any(note.startswith("Not run") and "UMLAUT (log)" in note for note in made.sheet.notes)


def test_the_nearest_row_is_the_one_the_run_was_made_of(place, found):
    assert found.kind.nearest["run"][0] == place["like"]
    assert not found.kind.out


def test_what_to_look_at_follows_from_the_category(found):
    category = found.sheet.verdicts.set_index("technique").loc["k-NN", "category"]
    first = found.steps.iloc[0]
    assert first["lead"] == category
    assert COMPONENTS[category] in first["try"]


def test_a_run_of_another_kind_is_said_to_be_so_first_and_its_confidences_doubted(place, reference):
    own = read_run(place["run"])
    strange = diagnose(replace(own, X=own.X * 10), reference)
    assert strange.headline[0].startswith("Out of distribution")
    assert "don't trust" in strange.headline[0]
    for text in (_printed(strange), to_html(strange)):
        assert text.index("Out of distribution") < text.index("k-NN")
        assert "%?" in text
    assert "%?" not in to_html(diagnose(own, reference))


def test_a_row_of_the_bench_itself_is_recognised(place, reference, tmp_path):
    place["bench"].X.iloc[[0]].to_parquet(tmp_path / "same.parquet")
    notes = diagnose(read_run(tmp_path / "same.parquet"), reference).sheet.notes
    assert any(place["bench"].runs[0] in note and "learned from it" in note for note in notes)


def test_a_run_that_no_technique_can_judge_is_refused(place, reference):
    for techniques in ({"umlaut": Umlaut()}, {}):
        with pytest.raises(BenchError, match=r"no technique can judge this run .*log"):
            diagnose(read_run(place["run"]), replace(reference, techniques=techniques))


def test_all_forms_say_the_same(found):
    held = json.loads(to_json(found))
    text, page = _printed(found), to_html(found)
    for verdict in held["verdicts"]:
        assert verdict["technique"].split(" (")[0] in text
        assert verdict["technique"] in page
    assert held["nearest"][0]["run"] in page
    assert held["out_of_distribution"] is False
    assert max(map(len, text.splitlines())) <= 100


def test_the_page_fetches_nothing_and_escapes_what_it_is_given(place, reference):
    own = read_run(place["run"])
    renamed = {part: getattr(own, part).rename({"mine": "<b>x"}) for part in ("X", "labels", "meta", "pair")}
    page = to_html(diagnose(replace(own, **renamed), reference))
    assert "&lt;b&gt;x" in page
    assert "<b>x" not in page
    tags = _Tags()
    tags.feed(page)
    assert not tags.found & {"script", "link", "img", "iframe"}
    assert "http" not in page


def test_models_are_kept_and_read_back(place, reference, monkeypatch):
    monkeypatch.setattr(reference_models, "_fit", None)
    again = fit_reference(reference.source, KEYS, store=place["folder"] / "cache", results=place["folder"] / "none")
    run = reference.bench.take([place["like"]])
    for key in ("knn", "umlaut-vector"):
        a, b = (r.techniques[key].predict(run).table for r in (reference, again))
        pd.testing.assert_frame_equal(a, b)


def test_other_data_are_fitted_anew(place, tmp_path):
    other = place["bench"].take(range(48)).save(tmp_path / "other.parquet")
    folders = {Item(BenchSource(str(p), arch="encoder"), "knn").folder(tmp_path) for p in (place["path"], other)}
    assert len(folders) == 2


def test_a_model_of_another_user_is_not_read(place, reference, monkeypatch):
    monkeypatch.setattr(reference_models.os, "getuid", lambda: -1)
    monkeypatch.setattr(joblib, "load", lambda path: pytest.fail("read it"))
    with pytest.raises(BenchError, match="another user"):
        fit_reference(reference.source, ["knn"], store=place["folder"] / "cache", results=place["folder"] / "none")


def test_stored_verdicts_of_another_bench_are_not_taken(place, tmp_path):
    bench = place["bench"]
    record = {"benches": [{"fingerprint": "other"}], "settings": {"split": "grouped"}}
    (tmp_path / "verdicts").mkdir()
    table = pd.DataFrame({"score": 0.0, "faulty": False}, index=bench.runs[::-1])
    table.to_parquet(tmp_path / "verdicts" / "knn.parquet")
    (tmp_path / "manifest.json").write_text(json.dumps(record))
    assert stored_verdicts(tmp_path, "knn", bench) is None
    record["benches"][0]["fingerprint"] = bench.fingerprint()
    (tmp_path / "manifest.json").write_text(json.dumps(record))
    assert stored_verdicts(tmp_path, "knn", bench).index.equals(bench.runs)


def test_every_category_and_every_published_fix_has_words():
    assert COMPONENTS.keys() == ROOT_CAUSES.keys()
    assert DEEPDIAGNOSIS_FIXES.keys() == set(FIXES)
    judged = {"lr_high", "lr_low", "overfitting", "overconfident_val"}
    assert UMLAUT_HINTS.keys() == judged <= {rule.name for rule in Umlaut().rules}


def _row(technique, tool, evidence=None, category=None, faulty=True, probability=0.5):
    return {
        "technique": technique,
        "tool": tool,
        "faulty": faulty,
        "category": category,
        "probability": probability,
        "evidence": json.dumps(evidence or {}),
    }


def test_places_come_by_the_tools_that_name_them_then_repairs_by_their_record():
    problem = {"problem": "vanish", "repairs": list(REPAIRS["vanish"]), "rules": [{"rule": "vanish"}]}
    rows = [
        _row("DEFault++", "DEFault++", category="qkv"),
        _row("DEFault++ −FPG", "DEFault++", category="qkv"),
        _row("Random forest", "Random", category="ffn"),
        _row("k-NN", "k-NN", category="ffn"),
        _row("silent", "silent", category="output", faulty=False),
        _row("AutoTrainer (code, log)", "AutoTrainer", problem, probability=0.6),
        _row("UMLAUT (log)", "UMLAUT", {"rules": [{"rule": "lr_high"}]}, probability=0.9),
        _row("DeepDiagnosis", "DeepDiagnosis", {"rules": [{"rule": "dead_node", "fix": "learning rate"}]}),
    ]
    steps = first_steps(pd.DataFrame(rows))
    assert steps["lead"].tolist()[:4] == ["ffn", "qkv", "UMLAUT (log)", "AutoTrainer (code, log)"]
    assert "2 of 3 tools" in steps["because"][0]
    assert "1 of 3 tools" in steps["because"][1]
    assert steps["try"][3] == "In this order: SELU activation; ReLU activation; batch normalisation."
    assert len(steps) == 5


def test_a_lead_from_alarms_more_often_false_than_true_is_called_weak():
    rows = [
        _row("DEFault++", "DEFault++", category="qkv", probability=0.3),
        _row("DEFault++ −FPG", "DEFault++", category="qkv", probability=0.4),
        _row("Random forest", "Random", category="ffn", probability=0.2),
        _row("k-NN", "k-NN", category="ffn", probability=0.5),
        _row("DEFault", "DEFault", category="kernel", probability=float("nan")),
    ]
    because = first_steps(pd.DataFrame(rows)).set_index("lead")["because"]
    assert because["qkv"].endswith("; a weak lead, such alarms are right in 40 %"), "by the surest of them"
    assert "weak" not in because["ffn"]
    assert "weak" not in because["kernel"], "nothing is known of it"


@pytest.fixture
def run_command(place, monkeypatch):
    monkeypatch.setattr(reference_models, "CACHE", place["folder"] / "cache")

    def run(*arguments):
        return CliRunner().invoke(command.app, [str(a) for a in arguments])

    return run


def test_the_command_prints_and_writes(place, reference, run_command, tmp_path):
    html, data = tmp_path / "d.html", tmp_path / "d.json"
    options = ["--bench", place["path"], "--technique", "knn", "--technique", "umlaut-vector"]
    done = run_command(place["run"], *options, "--html", html, "--json", data)
    assert done.exit_code == 0, done.output
    assert "What to try first" in done.stdout
    assert html.read_text().startswith("<!doctype html>")
    assert json.loads(data.read_text())["run"] == "mine"


def test_several_runs_are_diagnosed_in_one_call(place, reference, run_command, tmp_path):
    other = place["folder"] / "other"
    other.mkdir(exist_ok=True)
    (place["bench"].X.iloc[[0]] + 0.01).rename({place["bench"].runs[0]: "my/other"}).to_parquet(other / "run.parquet")
    done = run_command(place["run"], other, "--bench", place["path"], "--technique", "knn", "--json", tmp_path / "data")
    assert done.exit_code == 0, done.output
    told = {p.name: json.loads(p.read_text())["run"] for p in (tmp_path / "data").iterdir()}
    assert told == {"0-mine.json": "mine", "1-my-other.json": "my/other"}
    assert done.stdout.count("techniques call it faulty") == 2
    alone = run_command(place["run"], "--bench", place["path"], "--technique", "knn", "--json", tmp_path / "alone.json")
    assert alone.exit_code == 0
    assert (tmp_path / "alone.json").read_text() == (tmp_path / "data" / "0-mine.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/absent"], "absent: no such file or folder"),
        (["{run}", "--technique", "magic"], "no technique 'magic'"),
        (["{run}", "--arch", "decoder"], "measured on an encoder"),
        (["{run}", "--bench", "{folder}/none.parquet"], "none.parquet: no such file"),
    ],
)
def test_the_command_answers_wrong_input_with_one_line(place, run_command, arguments, message):
    done = run_command(*(a.format(**{k: place[k] for k in ("folder", "run")}) for a in arguments))
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.output


def _printed(diagnosis) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(to_rich(diagnosis))
    return console.export_text()


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
