"""Tables from stored results: every cell traces to a stored number, and LaTeX that holds together."""

import json
import re
import shutil
import subprocess
from math import isnan

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments.engine.stored import load_ablations, load_paper, load_stored
from experiments.engine.tables import IN_MANUSCRIPT, NOT_IN_MANUSCRIPT, OWN, origin_notes, side_by_side
from experiments.engine.typeset import cell_text, csv, escape, latex, latex_document, markdown, notes, wide
from experiments.tables import app, write_tables
from features.bench import BenchError

PAPER = load_paper()
LEVELS = {OWN: (1, 2, 3), "LightGBM (flat)": (1, 2, 3), "UMLAUT (vector)": (1,), "AutoTrainer (code, vector)": (1,)}


def write_comparison(results, name="made", architectures=("encoder",), command="compare.py", bench="tiny"):
    """A stored comparison with invented but recognisable numbers, as compare.py lays it out."""
    for arch in architectures:
        folder = results / name / arch
        folder.mkdir(parents=True)
        board, classes = [], []
        for t, (technique, levels) in enumerate(LEVELS.items()):
            for level in levels:
                for protocol, shift in (("path", 0.0), ("paper", 0.05)):
                    f1 = 0.9 - 0.1 * level - 0.02 * t + shift
                    scores = {"f1": f1, "precision": f1 + 0.01, "recall": f1 - 0.01}
                    bounds = {"low": f1 - 0.1, "high": f1 + 0.1}
                    rates = {"auroc": 0.8, "false_alarm_rate": 0.1} if level == 1 else {}
                    row = {"technique": technique, "level": level, "protocol": protocol, **scores, **bounds, **rates}
                    board.append({"bench": bench, "arch": arch, "key": technique, "family": "learned", **row})
                    names = {
                        1: ["faulty"],
                        2: ["correct", "ffn", "masking"],
                        3: ["correct", "ffn/regularization", "ffn/weight_scaling", "masking/dynamic_mask"],
                    }[level]
                    for i, name_ in enumerate(n for n in names if protocol == "path" or n != "correct"):
                        value = 0.1 * level + 0.2 * i
                        row = {"class": name_, "f1": value, "precision": value, "recall": value, "support": 10 + i}
                        classes.append(
                            {**row, "arch": arch, "technique": technique, "level": level, "protocol": protocol}
                        )
        pd.DataFrame(board).to_csv(folder / "leaderboard.csv", index=False)
        pd.DataFrame(classes).to_csv(folder / "classes.csv", index=False)
        cost = {"seconds_tune": 0.0, "seconds_fit": 1.0, "seconds_predict": 0.5, "peak_memory_mib": 100.0}
        costs = [{"arch": arch, "technique": t, "fold": f, **cost} for t in LEVELS for f in (0, 1)]
        pd.DataFrame(costs).to_csv(folder / "costs.csv", index=False)
        tests = [
            {"level": 1, "role": "best", "reference": OWN, "technique": t, "difference": -0.1, "p": p, "p_holm": p}
            | {"effect": -0.5, "mean_rank": 2.0, "pairs": 6}
            for t, p in (("LightGBM (flat)", 0.5), ("UMLAUT (vector)", 0.01))
        ]
        pd.DataFrame(tests).to_csv(folder / "comparisons.csv", index=False)
        record = {
            "command": command,
            "settings": {"folds": 2, "split": "grouped", "seed": 0, "trials": 0},
            "benches": [{"name": bench, "arch": arch, "runs": 50, "columns": 3, "fingerprint": "abc"}],
            "git": "0123456789abcdef",
            "code": "x",
            "python": "3.11",
            "packages": {"numpy": "2"},
            "machine": {"cores": 2, "system": "Linux", "processor": "x86_64"},
        }
        (folder / "manifest.json").write_text(json.dumps(record))
    return results


@pytest.fixture
def results(tmp_path):
    return write_comparison(tmp_path)


@pytest.fixture
def tables(results):
    return {t.number: t for t in side_by_side(load_stored(results, "made"), PAPER)}


def cell(table, row, arch, measure, section=None):
    cells = table.cells
    found = cells[(cells["row"] == row) & (cells["arch"] == arch) & (cells["measure"] == measure)]
    if section is not None:
        found = found[found["section"].str.startswith(section)]
    assert len(found) == 1
    return found.iloc[0]


def test_all_tables_are_there_in_the_manuscripts_order(tables):
    assert list(tables) == ["2", "5", "6", "7a", "7b", "8", "9", "10", "11", "12", "15"]


def test_overall_holds_both_sides_and_the_interval(tables):
    found = cell(tables["6"], OWN, "encoder", "f1", "Level 2")
    assert (found["paper"], found["ours"]) == (0.8497, pytest.approx(0.75))
    assert (found["low"], found["high"]) == (pytest.approx(0.65), pytest.approx(0.85))
    assert cell(tables["6"], f"{OWN}, protocol path", "encoder", "f1", "Level 2")["ours"] == pytest.approx(0.70)
    assert isnan(cell(tables["6"], "LightGBM (flat)", "encoder", "f1", "Level 3")["paper"])


def test_what_was_not_run_names_its_command_and_has_no_value(tables):
    for number in ("2", "5", "6", "7a", "7b", "8"):
        decoder = tables[number].cells.query("arch == 'decoder'")
        assert decoder["ours"].isna().all()
        assert (decoder["missing"] == "python experiments/compare.py --arch decoder --name made").all()
    for number in ("9", "10", "11"):
        assert set(tables[number].cells["missing"]) == {"python experiments/ablate.py"}
    assert "make it by `python experiments/ablate.py`" in markdown(tables["9"])


def test_root_causes_of_a_category_are_averaged(tables):
    # Protocol paper at level 3: ffn/regularization 0.3, ffn/weight_scaling 0.5; masking/dynamic_mask 0.7.
    assert cell(tables["7b"], "ffn", "encoder", "f1")["ours"] == pytest.approx(0.4)
    assert cell(tables["7b"], "masking", "encoder", "recall")["ours"] == pytest.approx(0.7)
    assert cell(tables["7b"], "average", "encoder", "f1")["ours"] == pytest.approx(0.65)
    assert not (tables["7b"].cells.query("arch == 'encoder'")["row"] == "kv_cache").any()


def test_counts_come_from_the_scored_runs(tables):
    assert cell(tables["2"], "ffn", "encoder", "killed")["ours"] == 11
    assert cell(tables["2"], "ffn", "encoder", "killed")["paper"] == 254
    assert cell(tables["2"], "qkv", "encoder", "killed")["ours"] == 0
    assert cell(tables["2"], "total", "encoder", "killed")["ours"] == 23
    assert cell(tables["5"], "correct", "encoder", "number")["ours"] == 50 - 23
    assert cell(tables["5"], "pairs", "encoder", "number")["ours"] == 6


def test_detection_puts_the_manuscripts_techniques_first(tables):
    sections = dict(tables["8"].cells[["row", "section"]].itertuples(index=False))
    assert sections[OWN] == sections["AutoTrainer (code, vector)"] == IN_MANUSCRIPT
    assert sections["UMLAUT (vector)"] == sections["LightGBM (flat)"] == NOT_IN_MANUSCRIPT
    assert cell(tables["8"], "AutoTrainer (code, vector)", "encoder", "f1")["paper"] == 0.2840
    # The manuscript scores DeepFD; this comparison did not run it.
    assert cell(tables["8"], "DeepFD", "encoder", "f1")["missing"]


def test_a_technique_that_does_not_serve_a_level_is_a_dash_not_a_lack(tables):
    rows = tables["6"].cells
    assert not rows[rows["row"].str.startswith("UMLAUT") & rows["section"].str.startswith("Level 2")].size
    assert not rows.query("arch == 'encoder'")["missing"].any()


@pytest.mark.parametrize(
    ("command", "bench", "note"),
    [
        ("compare.py", "tiny", "embedded bench"),
        ("compare.py --bench my.parquet", "tiny", "bench “tiny”"),
        ("compare.py --bench x.csv --map published", "x", None),
        ("compare.py --bench tables/encoder_dataset.csv", "encoder_dataset", None),
    ],
)
def test_footnote_only_where_the_runs_are_others(tmp_path, command, bench, note):
    notes_ = origin_notes(load_stored(write_comparison(tmp_path, command=command, bench=bench), "made"), PAPER)
    assert notes_ == () if note is None else note in notes_[0]


def test_ablations_of_the_same_bench_fill_their_tables(tmp_path):
    results = write_comparison(tmp_path)
    (results / "ablation").mkdir()
    rows = [
        {"bench": bench, "arch": "encoder", "variant": v, "level": level, "protocol": p, "f1": f1, "precision": f1}
        | {"recall": f1, "low": f1 - 0.1, "high": f1 + 0.1, "mate": "", "difference": None}
        for bench, f1 in (("elsewhere", 0.1), ("tiny", 0.6))
        for v in ("full", "no_fpg")
        for level in (1, 2, 3)
        for p in ("path", "paper")
    ]
    pd.DataFrame(rows).to_csv(results / "ablation" / "encoder.csv", index=False)
    stored = load_stored(results, "made")
    for fingerprint in (None, "of another state of the bench"):
        if fingerprint is not None:
            record = {"benches": [{"fingerprint": fingerprint}]}
            (results / "ablation" / "encoder.json").write_text(json.dumps(record))
        assert load_ablations(results, stored) is None
    (results / "ablation" / "encoder.json").write_text(json.dumps({"benches": [{"fingerprint": "abc"}]}))
    made = {t.number: t for t in side_by_side(stored, PAPER, load_ablations(results, stored))}
    assert cell(made["9"], "− graph", "encoder", "f1", "Level 1")["ours"] == 0.6
    assert cell(made["10"], "− separation", "encoder", "f1")["missing"] == "python experiments/ablate.py"
    assert cell(made["11"], "− graph", "encoder", "f1", "Level 3")["paper"] == 0.812


def test_reported_tables_say_that_nothing_was_measured(tables):
    for number in ("12", "15"):
        assert tables[number].cells["ours"].isna().all()
        assert notes(tables[number]) == ["Reported figures only: nothing here was measured by this project."]
    text = markdown(tables["12"])
    assert "| transformers#36096 | not judged | not judged | not judged |" in text
    assert "8 of 11" in text
    assert "24 of 42" in markdown(tables["15"])


def test_reported_totals_follow_from_the_reported_rows():
    """The manuscript's own arithmetic, so that a slip in copying it would show."""
    cases = [c for name, c in PAPER["table12_real_world"].items() if name != "summary"]
    summary = PAPER["table12_real_world"]["summary"]
    assert summary["cases"] == len(cases)
    assert summary["detected"] == sum(bool(c["detected"]) for c in cases)
    assert summary["root_caused"] == sum(bool(c["root_cause_ok"]) for c in cases)
    killed = PAPER["bench"]["table2_killed_by_category"]
    for i, arch in enumerate(("encoder", "decoder")):
        assert sum(v[i] or 0 for v in killed.values()) == PAPER["bench"][arch]["faulty"]
        for table, level in (("table7a_categorization", "categorization"), ("table7b_root_cause", "root_cause")):
            average = PAPER[table]["average"][arch]
            assert PAPER["table6_overall"][level][arch] == pytest.approx(average, abs=6e-4)
            rows = [v[arch][0] for c, v in PAPER[table].items() if c != "average" and v[arch]]
            assert sum(rows) / len(rows) == pytest.approx(average[0], abs=2e-3)


def test_cells_read_as_written():
    base = {"paper": 0.8259, "ours": 0.7, "low": 0.61, "high": 0.784, "missing": ""}
    assert cell_text(base, 3) == "0.826 | 0.700 [0.61–0.78]"
    assert cell_text({**base, "low": float("nan")}, 3) == "0.826 | 0.700"
    assert cell_text({**base, "paper": float("nan"), "ours": float("nan"), "low": float("nan")}, 3) == "– | –"
    assert cell_text({**base, "missing": "python x.py"}, 3) == "0.826 | not run"


def test_csv_holds_every_cell_once(tables, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(csv(tables["6"]))
    back = pd.read_csv(path)
    assert len(back) == len(tables["6"].cells)
    assert list(back.columns)[:6] == ["table", "section", "row", "arch", "measure", "paper"]
    assert back["ours"].sum() == pytest.approx(tables["6"].cells["ours"].sum())


def test_markdown_rows_have_the_same_number_of_cells(tables):
    for table in tables.values():
        lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_architectures_stand_together(tables):
    for table in tables.values():
        architectures = [a for a, _ in wide(table).columns]
        assert architectures == sorted(architectures, key=architectures.index)


def latex_faults(text: str, columns_of_rows=True) -> list[str]:
    """What would stop LaTeX: unbalanced braces or environments, characters it can't set, rows of unequal width."""
    faults = [f"not ASCII: {c!r}" for c in set(text) if ord(c) > 126]
    depth = 0
    for c in re.sub(r"\\[{}]", "", text):
        depth += {"{": 1, "}": -1}.get(c, 0)
        if depth < 0:
            break
    faults += ["braces don't balance"] if depth else []
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        elif not stack or stack.pop() != name:
            faults.append(f"environment {name} closes what isn't open")
    faults += [f"{name} stays open" for name in stack]
    faults += ["odd number of $"] if len(re.findall(r"(?<!\\)\$", text)) % 2 else []
    for spec, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        rules = r"\\(toprule|midrule|bottomrule|cmidrule\(lr\)\{[\d-]+\})"
        for row in (r.strip() for r in re.sub(rules, "", body).split(r"\\") if r.strip()):
            spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            if len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) != len(spec):
                faults.append(f"{len(spec)} columns expected: {row}")
        faults += [f"bare {c!r}" for c in "#%_" if re.search(rf"(?<!\\){c}", body)]
    return faults


def test_latex_holds_together(tables):
    for table in tables.values():
        text = latex(table)
        assert latex_faults(text) == []
        assert r"\toprule" in text and r"\bottomrule" in text


@pytest.mark.parametrize("broken", [r"a & b \\ a \\", r"a & 5 % \\", "a & – \\\\", r"a & {b \\", r"a & $b \\"])
def test_the_latex_check_finds_faults(broken):
    assert latex_faults("\\begin{tabular}{lr}" + broken + "\\end{tabular}")


def test_latex_escapes_what_it_must():
    assert escape(r"a_b & 5 % #1 {x} \y ~ ^") == (
        r"a\_b \& 5 \% \#1 \{x\} \textbackslash{}y \textasciitilde{} \textasciicircum{}"
    )


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs a LaTeX engine")
def test_latex_compiles(tables, tmp_path):
    write_tables(list(tables.values()), tmp_path)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_command_writes_every_kind(results):
    done = CliRunner().invoke(app, ["--results", str(results), "--name", "made"])
    assert done.exit_code == 0, done.output
    written = {p.name for p in (results / "made" / "tables").iterdir()}
    assert {"table7a.md", "table7a.tex", "table7a.csv", "tables.md", "tables.tex"} <= written
    document = (results / "made" / "tables" / "tables.tex").read_text()
    inputs = re.findall(r"\\input\{(.+)\}", document)
    assert set(inputs) <= written and len(inputs) == 11
    assert latex_faults(latex_document([])) == []
    assert (results / "made" / "figures" / "adjacency.svg").exists()
    assert "Training curves (Figure 11) left out" in done.output.replace("\n", " ")


def test_absent_comparison_is_one_line_and_exit_code_2(tmp_path):
    with pytest.raises(BenchError, match=r"compare\.py --name nothing"):
        load_stored(tmp_path, "nothing")
    done = CliRunner().invoke(app, ["--results", str(tmp_path), "--name", "nothing"])
    assert done.exit_code == 2


def test_incomplete_comparison_names_the_missing_file(results):
    (results / "made" / "encoder" / "classes.csv").unlink()
    with pytest.raises(BenchError, match=r"classes\.csv"):
        load_stored(results, "made")


def test_without_our_technique_every_own_cell_is_not_run(results):
    path = results / "made" / "encoder"
    for name in ("leaderboard.csv", "classes.csv"):
        table = pd.read_csv(path / name)
        table[table["technique"] != OWN].to_csv(path / name, index=False)
    made = {t.number: t for t in side_by_side(load_stored(results, "made"), PAPER)}
    for number in ("7a", "7b"):
        assert (made[number].cells["missing"] != "").all()
    assert cell(made["2"], "ffn", "encoder", "killed")["ours"] == 11
