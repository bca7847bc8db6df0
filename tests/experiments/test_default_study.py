"""The ladder of DEFault's figures: its direction on the published tables, where they are at hand, and its machinery."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from baselines.default_recipe import RecipeForest
from experiments import default_study
from experiments.default_study import LADDER, TABLES, Question, Rung, climb, kept, read_questions, summary
from features.bench import Bench, BenchError
from features.readers import read_bench

TABLE_FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "default_icse25"
with_tables = pytest.mark.skipif(not TABLE_FOLDER.is_dir(), reason="DEFault's published tables are not at hand")

FEATURES = (
    "epoch",
    "train_loss",
    "val_loss",
    "gradient_max",
    "cpu_utilization",
    "gpu_memory_utilization",
    "memory_usage",
)


def question_of(n=400, seed=0) -> Question:
    """Jobs of 20 neighbouring rows: hardware tells the job, the job has one label; the loss tells nothing."""
    rng = np.random.default_rng(seed)
    job = np.arange(n) // 20
    answer = rng.permutation(np.arange(n // 20) % 2 == 0)[job]
    X = pd.DataFrame(rng.normal(size=(n, len(FEATURES))), columns=list(FEATURES), index=[f"r{i}" for i in range(n)])
    for column in FEATURES[-3:]:
        X[column] = 100 * rng.random(n // 20)[job] + 0.01 * X[column]
    X["epoch"] = 24.5
    labels = pd.DataFrame({"faulty": answer, "category": None, "root_cause": None}, index=X.index)
    labels.loc[~answer, ["category", "root_cause"]] = "correct"
    return Question(1, "buggy", Bench("made", None, X, labels, X.index.to_series()), answer)


FAST = RecipeForest(n_estimators=20)


def test_hardware_that_tells_the_job_helps_only_while_jobs_are_split():
    question = question_of()
    score = lambda *rung: climb(question, Rung("r", *rung), FAST)["accuracy"]  # noqa: E731
    assert score("random", "all", "hardware") > 0.9
    assert score("random", "all", "model") < 0.65
    assert score("blocks", "all", "hardware", 20) < 0.75


def test_columns_and_rows_of_a_rung():
    question = question_of()
    assert question.columns("all") == list(FEATURES)
    assert question.columns("model") == ["train_loss", "val_loss", "gradient_max"]
    assert question.columns("hardware") == list(FEATURES[-3:])
    question.bench.X.iloc[5] = question.bench.X.iloc[4]
    question.bench.X.iloc[7:10] = np.nan
    assert len(question.rows("all")) == 400
    assert len(question.rows("measured")) == 397
    assert len(question.rows("distinct")) == 400 - 1 - 2


def test_published_rung_is_the_published_sequence():
    question = question_of()
    X = question.bench.X.astype(float)
    X = X.apply(lambda c: c.clip(c.quantile(0.01), c.quantile(0.99)))
    scaled = StandardScaler().fit_transform(X)
    rows = np.random.RandomState(42).permutation(400)  # what train_test_split(random_state=42) draws
    test, train = rows[:80], rows[80:]
    ranking = RandomForestClassifier(100, random_state=42).fit(scaled[train], question.answer[train])
    best = np.argsort(ranking.feature_importances_)[::-1][:20]
    forest = RandomForestClassifier(20, random_state=42).fit(scaled[train][:, best], question.answer[train])
    expected = forest.score(scaled[test][:, best], question.answer[test])
    row = climb(question, LADDER[0], FAST)
    assert row["accuracy"] == pytest.approx(expected)
    assert np.isnan(row["accuracy_sd"])


def test_blocks_stay_whole_and_the_majority_is_that_of_training():
    question = question_of()
    row = climb(question, Rung("r", "blocks", n_blocks=2), FAST, n_folds=2)
    halves = question.answer[:200], question.answer[200:]
    guess = [np.mean(test == (train.mean() >= 0.5)) for train, test in (halves, halves[::-1])]
    assert row["majority"] == pytest.approx(np.mean(guess))


def test_summary_averages_the_questions_of_a_level():
    rows = [("a", 1, 0.9, 0.5), ("a", 2, 0.8, 0.5), ("a", 2, 0.6, 0.7), ("b", 1, 0.4, 0.5), ("b", 2, 0.5, 0.5)]
    table = summary(pd.DataFrame(rows, columns=["rung", "level", "accuracy", "majority"]))
    assert table.index.tolist() == ["a", "b"]
    assert table.loc["a", "level 2 accuracy"] == pytest.approx(0.7)
    assert table.loc["a", "level 2 majority"] == pytest.approx(0.6)


def test_command_refuses_a_folder_without_the_tables(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        ran = CliRunner().invoke(default_study.app, [str(folder)])
        assert ran.exit_code == 2
        assert str(folder) in ran.stderr.replace("\n", "")


def test_command_writes_tables_and_what_they_were_made_from(tmp_path, monkeypatch):
    monkeypatch.setattr(default_study, "read_questions", lambda folder: [question_of(100)])
    monkeypatch.setattr(default_study, "LADDER", LADDER[:3])
    arguments = [str(tmp_path), "--trees", "5", "--folds", "2", "--results", str(tmp_path / "out")]
    outcome = CliRunner().invoke(default_study.app, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert max(map(len, outcome.output.splitlines())) <= 100
    ladder = pd.read_csv(tmp_path / "out" / "ladder.csv")
    assert ladder["rung"].tolist() == [rung.name for rung in LADDER[:3]]
    text = (tmp_path / "out" / "ladder.md").read_text()
    assert "97.0" in text
    assert question_of(100).bench.fingerprint() in text
    assert '"seed": 0' in (tmp_path / "out" / "manifest.json").read_text()


@with_tables
def test_every_table_asks_for_its_own_label():
    questions = read_questions(TABLE_FOLDER)
    assert [(q.level, q.label) for q in questions] == list(TABLES.values())
    assert [len(q.answer) for q in questions] == [9588, 624, 5142, 2694, 4294, 2480, 506, 3970, 2946]
    assert all(2 * q.answer.sum() == len(q.answer) for q in questions if q.level == 2)
    assert (questions[0].answer.sum(), questions[-1].answer.sum()) == (4791, 890)


@with_tables
def test_direction_of_the_ladder_on_every_third_row():
    file = "level1_undersampled.csv"
    bench = read_bench(TABLE_FOLDER / file, mapping="default-icse25", include_machine_columns=True)
    third = bench.take(np.arange(0, len(bench), 3))
    question = Question(1, "buggy", third, third.faulty.to_numpy(bool))
    wanted = {
        "random folds",
        "epoch and hardware out as well",
        "hardware alone",
        "50 blocks, all columns",
        "10 blocks, all columns",
    }
    accuracy = {r.name: climb(question, r, FAST, n_folds=3)["accuracy"] for r in LADDER if r.name in wanted}
    assert accuracy["random folds"] > 0.88
    # Three readings of the host alone beat all columns about the model, and nearly reach all together.
    assert accuracy["hardware alone"] > accuracy["epoch and hardware out as well"] + 0.1
    assert accuracy["hardware alone"] > accuracy["random folds"] - 0.06
    # With neighbouring rows on one side, what is left falls, and falls further the larger the blocks.
    assert accuracy["random folds"] > accuracy["50 blocks, all columns"] + 0.1
    assert accuracy["50 blocks, all columns"] > accuracy["10 blocks, all columns"] + 0.05


def test_missing_folder_is_a_bench_error():
    with pytest.raises(BenchError, match="no such folder"):
        read_questions(Path("no") / "where")


def test_a_figure_is_computed_once_per_data_and_settings(tmp_path, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return climb(*arguments)

    monkeypatch.setattr(default_study, "climb", counted)
    question = question_of(60)
    first = kept(tmp_path, question, LADDER[2], FAST, 2, 0)
    assert kept(tmp_path, question, LADDER[2], FAST, 2, 0) == first
    assert len(calls) == 1
    kept(tmp_path, question, LADDER[2], FAST, 2, 1)
    kept(tmp_path, question_of(60, seed=1), LADDER[2], FAST, 2, 0)
    assert len(calls) == 3
