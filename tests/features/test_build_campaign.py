"""A whole small campaign of real runs: resumption, assembly, and any number of workers."""

import numpy as np
import pandas as pd
import pytest

from features.bench import Bench
from features.build.base import base_path
from features.build.campaign import FIRST_SETTINGS, Campaign, clean
from features.build.families import family
from features.build.outcome import Outcome, Store
from features.build.table import attempts, bench_of, paired_of, singles_of, survivors_of
from features.schema import LOG_COLUMNS, MACHINE_METRICS, columns
from features.taxonomy import CORRECT, categories

pytestmark = pytest.mark.skipif(not base_path(family("distilbert")).exists(), reason="bases not built")

PAIR = [(family("distilbert"), "entailment")]


def _campaign(folder, **options) -> Campaign:
    return Campaign(Store(folder), PAIR, profile="smoke", **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Campaign:
    return _campaign(tmp_path_factory.mktemp("campaign")).run(max_rounds=1)


def _lines(campaign: Campaign) -> pd.DataFrame:
    return attempts(campaign).drop(columns="seconds").sort_values("run", ignore_index=True)


def test_a_round_has_one_mutant_of_every_category_and_clean_settings_before_it(finished):
    lines = _lines(finished)
    assert sorted(lines.loc[lines.category != CORRECT, "category"]) == sorted(categories("encoder"))
    assert (lines.category == CORRECT).sum() >= FIRST_SETTINGS


def test_a_killed_campaign_continues_and_ends_with_the_same_outcomes(finished, tmp_path):
    class Killed(Exception):
        pass

    def kill(done, waiting, outcome):
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        _campaign(tmp_path, report=kill).run(max_rounds=0)
    seen = []
    continued = _campaign(tmp_path, report=lambda done, waiting, outcome: seen.append(outcome.id)).run(max_rounds=0)
    assert len(seen) == FIRST_SETTINGS - 2
    known = _lines(finished).set_index("run")
    columns_ = ["quality", "quality_sd", "outcome"]
    for run, line in _lines(continued).set_index("run").iterrows():
        assert line[columns_].tolist() == known.loc[run, columns_].tolist()


def test_what_is_stored_is_what_was_run(finished):
    outcome = finished.clean["distilbert/entailment"][0]
    again = finished.store.load(outcome.configuration)
    assert again.qualities == outcome.qualities
    np.testing.assert_array_equal(again.vectors, outcome.vectors)
    pd.testing.assert_frame_equal(again.log, outcome.log)
    assert finished.store.load(clean(*PAIR[0], 999, "smoke")) is None


def test_rows_are_means_over_seeds_with_a_real_log(finished, tmp_path):
    bench = bench_of(finished, "encoder")
    assert tuple(bench.X.columns) == columns("encoder")
    first = bench.runs[0]
    outcome = finished.clean["distilbert/entailment"][0]
    column = "train_loss__epoch_mean__phase_final_mean"
    assert bench.X.loc[first, column] == pytest.approx(outcome.vectors[:, outcome.columns.index(column)].mean())
    assert list(bench.log.columns) == list(LOG_COLUMNS)
    assert set(bench.log["run"]) == set(bench.runs)
    assert not set(bench.log["metric"]) & MACHINE_METRICS
    loaded = Bench.load(bench.save(tmp_path / "encoder.parquet"))
    assert loaded.fingerprint() == bench.fingerprint()
    assert (bench.meta.loc[bench.faulty, "p_value"] == 1 / 32).all()
    assert (~bench.faulty).sum() <= max(bench.faulty.sum(), 1)


def test_survivors_stand_apart_and_say_how_many_seeds_they_ran(finished):
    bench, survivors = bench_of(finished, "encoder"), survivors_of(finished, "encoder")
    assert not set(bench.runs) & set(survivors.runs)
    assert survivors.meta["n_seeds"].between(1, 5).all()
    assert not survivors.meta["killed"].any()


def test_paired_encoding_is_mutant_minus_its_own_clean_run(finished):
    bench = bench_of(finished, "encoder")
    paired = paired_of(finished, bench)
    pd.testing.assert_index_equal(paired.index, bench.runs)
    for outcome in finished.killed("distilbert/entailment"):
        twin = finished.reference(outcome.configuration)
        assert twin.configuration.setting == outcome.configuration.setting
        wanted = (outcome.vectors - twin.vectors).mean(0)
        measured = ~np.isnan(wanted)
        np.testing.assert_allclose(paired.loc[outcome.id].to_numpy()[measured], wanted[measured], rtol=1e-4, atol=1e-5)


def test_a_discarded_configuration_is_kept_with_its_reason(tmp_path):
    outcome = Outcome(clean(*PAIR[0], 0), discarded="crashed: on purpose")
    Store(tmp_path).save(outcome)
    assert Store(tmp_path).load(outcome.configuration).discarded == "crashed: on purpose"


@pytest.mark.slow
def test_two_workers_of_a_dask_cluster_give_the_rows_of_one(finished, tmp_path):
    distributed = pytest.importorskip("distributed")
    import joblib

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        on_cluster = _campaign(tmp_path, workers=2).run(max_rounds=0)
    for number, outcome in on_cluster.clean["distilbert/entailment"].items():
        alone = finished.clean["distilbert/entailment"][number]
        assert outcome.qualities == alone.qualities
        measured = [i for i, c in enumerate(alone.columns) if c.split("__")[0] not in MACHINE_METRICS]
        np.testing.assert_array_equal(outcome.vectors[:, measured], alone.vectors[:, measured])


def test_single_runs_are_the_first_seed_of_some_rows_of_every_pair(finished):
    bench = bench_of(finished, "encoder")
    singles = singles_of(finished, bench)
    assert set(bench.pair.loc[singles.index]) == set(bench.pair)
    assert len(singles) == sum(-(-count // 4) for count in bench.pair.value_counts())
    by_id = {o.id: o for of_pair in finished.clean.values() for o in of_pair.values()}
    run = next(r for r in singles.index if r in by_id)
    np.testing.assert_array_equal(singles.loc[run].to_numpy(), by_id[run].vectors[0])
