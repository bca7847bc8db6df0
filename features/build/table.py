"""From finished configurations to the bench: one row each, the mean over its seeds, labels and what is known beside it.

Four tables per architecture: the bench (killed mutants and as many correct runs), the survivors, the `paired` encoding
of the bench's rows (the vector minus that of the matched clean run), and single runs. The log is that of the first
seed, a real run rather than a mean.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from features.bench import Bench
from features.build.campaign import Campaign
from features.build.outcome import Outcome, verdict
from features.build.profile import profile
from features.build.tasks import task
from features.build.variants import SEEDS
from features.schema import LOG_METRICS, MACHINE_METRICS, metrics
from features.taxonomy import CORRECT, Architecture

SURVIVED = "survived"
SINGLES_EVERY = 4
NOT_RUN_OUT = (
    "a mutant's runs stop at its first seed that is not worse than the clean one: it has survived then, and "
    "n_seeds says how many seeds its row is the mean of"
)


def bench_of(campaign: Campaign, arch: Architecture) -> Bench:
    """Killed mutants and accepted clean settings, at most as many clean ones per pair as killed mutants."""
    outcomes = []
    for pair in _pairs(campaign, arch):
        killed = campaign.killed(pair)
        outcomes += campaign.accepted(pair)[: max(len(killed), 1)] + killed
    return _bench(
        campaign, arch, outcomes, f"embedded-{arch}", ("the log of a row is that of its first seed, a real run",)
    )


def survivors_of(campaign: Campaign, arch: Architecture) -> Bench | None:
    """Mutants that the kill test does not tell from their clean twins, without log; None if there are none."""
    outcomes = [
        outcome
        for pair in _pairs(campaign, arch)
        for outcome in campaign.mutants.get(pair, [])
        if outcome.qualities and not verdict(campaign.reference(outcome.configuration), outcome).killed
    ]
    if not outcomes:
        return None
    return _bench(campaign, arch, outcomes, f"embedded-{arch}-survivors", (NOT_RUN_OUT,), log=False)


def paired_of(campaign: Campaign, bench: Bench) -> pd.DataFrame:
    """The bench in the paired encoding: mutants minus the clean run of their setting.

    A clean setting is compared with the pair's base, and the base with the next accepted setting. Not deployable: who
    has a clean twin of a run needs no diagnosis.
    """
    by_id = {o.id: o for o in _all(campaign)}
    rows = [_mean(by_id[run].vectors - _twin(campaign, by_id[run]).vectors) for run in bench.runs]
    return pd.DataFrame(np.stack(rows), index=bench.runs, columns=bench.X.columns)


def singles_of(campaign: Campaign, bench: Bench) -> pd.DataFrame:
    """The first seed's vector, of every `SINGLES_EVERY`th row of each pair: what a user has, who trains once.

    A mean over five seeds is steadier than any of them, so that what is learned and calibrated on means flatters.
    """
    by_id = {o.id: o for o in _all(campaign)}
    of_pair = pd.Series(np.arange(len(bench)), index=bench.runs).groupby(bench.pair, sort=False)
    runs = bench.runs[of_pair.cumcount().to_numpy() % SINGLES_EVERY == 0]
    rows = [by_id[run].vectors[0] for run in runs]
    return pd.DataFrame(np.stack(rows).astype(np.float32), index=runs, columns=bench.X.columns)


def attempts(campaign: Campaign) -> pd.DataFrame:
    """One line per configuration that was run: pair, category, operator, outcome (killed, survived, ...), reason."""
    lines = []
    for outcome in _all(campaign):
        configuration, fault = outcome.configuration, outcome.configuration.fault
        if outcome.discarded:
            state = "discarded"
        elif fault is None:
            state = "accepted" if outcome in campaign.accepted(configuration.pair) else "rejected"
        else:
            state = "killed" if verdict(campaign.reference(configuration), outcome).killed else SURVIVED
        lines.append(
            {
                "run": outcome.id,
                "arch": configuration.arch,
                "family": configuration.family,
                "task": configuration.task,
                "category": fault.category if fault else CORRECT,
                "root_cause": fault.root_cause if fault else CORRECT,
                "operator": fault.code if fault else None,
                "value": None if fault is None or fault.value is None else str(fault.value),
                "layers": str(fault.layers) if fault else None,
                "outcome": state,
                "runs": len(outcome.qualities),
                "seconds": sum(outcome.seconds),
                "quality": float(np.mean(outcome.qualities)) if outcome.qualities else float("nan"),
                "quality_sd": float(np.std(outcome.qualities, ddof=1)) if len(outcome.qualities) > 1 else float("nan"),
                "reason": outcome.discarded,
            }
        )
    return pd.DataFrame(lines)


def _pairs(campaign: Campaign, arch: Architecture) -> list[str]:
    return [f"{family.name}/{task_name}" for family, task_name in campaign.chosen if family.arch == arch]


def _all(campaign: Campaign) -> list[Outcome]:
    clean = [o for by_number in campaign.clean.values() for o in by_number.values()]
    return clean + [o for of_pair in campaign.mutants.values() for o in of_pair]


def _twin(campaign: Campaign, outcome: Outcome) -> Outcome:
    if outcome.configuration.fault is not None:
        return campaign.reference(outcome.configuration)
    base, *others = campaign.accepted(outcome.configuration.pair)
    return others[0] if outcome.id == base.id and others else base


def _bench(campaign, arch, outcomes: list[Outcome], name: str, notes: tuple[str, ...], log: bool = True) -> Bench:
    ids = pd.Index([o.id for o in outcomes], name="run")
    faults = [o.configuration.fault for o in outcomes]
    labels = pd.DataFrame(
        {
            "faulty": [f is not None for f in faults],
            "category": [f.category if f else CORRECT for f in faults],
            "root_cause": [f.root_cause if f else CORRECT for f in faults],
        },
        index=ids,
    )
    # The mean of what was measured: a value that one seed lacks is no reason to drop it for all.
    with np.errstate(invalid="ignore"):
        rows = [_mean(o.vectors) for o in outcomes]
    return Bench(
        name=name,
        arch=arch,
        X=pd.DataFrame(np.stack(rows), index=ids, columns=list(outcomes[0].columns)),
        labels=labels,
        pair=pd.Series([o.configuration.pair for o in outcomes], index=ids),
        meta=pd.DataFrame([_meta(campaign, o) for o in outcomes], index=ids),
        log=pd.concat([_compact(o) for o in outcomes], ignore_index=True).astype({"metric": "category"})
        if log
        else None,
        notes=notes,
    )


def _mean(vectors: np.ndarray) -> np.ndarray:
    measured = ~np.isnan(vectors)
    count = measured.sum(0)
    total = np.where(measured, vectors, 0).sum(0, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _meta(campaign: Campaign, outcome: Outcome) -> dict:
    configuration, fault = outcome.configuration, outcome.configuration.fault
    setting, sizes = configuration.setting, profile(configuration.profile)
    base = campaign.reference(configuration) if fault else campaign.clean[configuration.pair][0]
    test = verdict(base, outcome)
    return {
        "operator": fault.code if fault else None,
        "parameter": fault.operator.parameter if fault else None,
        "value": None if fault is None or fault.value is None else str(fault.value),
        "layers": str(fault.layers) if fault else None,
        "severity": _severity(fault) if fault else None,
        "seeds": ",".join(str(s) for s in SEEDS[: len(outcome.qualities)]),
        "n_seeds": len(outcome.qualities),
        "n_epochs": sizes.epochs,
        "n_steps": sizes.epochs * sizes.steps_per_epoch,
        "quality": float(np.mean(outcome.qualities)),
        "quality_clean": float(np.mean(base.qualities[: len(outcome.qualities)])),
        "effect": test.effect,
        "effect_size": test.effect_size,
        "p_value": test.p_value,
        "killed": test.killed,
        "setting": setting.number,
        "learning_rate": sizes.rate(task(configuration.task)) * setting.rate_factor,
        "batch_size": setting.batch_size,
        "warmup": setting.warmup,
    }


def _severity(fault) -> str | None:
    """low, medium or high: the place of the value in the operator's list; None where the list has no three entries."""
    values = fault.operator.values
    return dict(zip(values, ("low", "medium", "high"), strict=True))[fault.value] if len(values) == 3 else None


_PER_EPOCH = {m.name for m in LOG_METRICS if m.per == "epoch"}
_PER_STEP = {m.name for m in LOG_METRICS if m.per == "step"}


def _compact(outcome: Outcome) -> pd.DataFrame:
    """What rules read: series by epoch, loss and accuracy of every step, unlayered figures of measured steps."""
    arch = outcome.configuration.arch
    figures = {m.name for m in metrics(arch) if m.resolution != "layer"} - MACHINE_METRICS
    kept = outcome.log[outcome.log["metric"].isin(_PER_EPOCH | _PER_STEP | figures)]
    kept = kept.astype({"epoch": "int16", "step": "int16", "layer": "int8", "value": "float32"})
    kept.insert(0, "run", outcome.id)
    return kept
