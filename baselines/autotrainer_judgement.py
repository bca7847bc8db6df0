"""What AutoTrainer's three variants make of a run's symptoms: its judgement, apart from its rules as data.

Source: the tool's public code (branch Stable-Master) for `code`, Table I of Zhang et al. (ICSE 2021) for `paper`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

from baselines.rules import Reading
from baselines.series import RunLog, RunPhases

Variant = Literal["code", "paper", "guarded"]

_KERNELS = ("probe_grad_norm_first", "probe_grad_norm_last")


class Thresholds(Protocol):
    """The parameters of `baselines.autotrainer.AutoTrainer`, where they are explained."""

    form: str
    variant: Variant
    theta: float
    beta_1: float
    beta_2: float
    beta_3: float
    gamma: float
    zeta: float
    eta: float
    delta: float
    gap: int
    warm_up: float
    symptom_checks: int
    loss_limit: float | None
    min_epochs: int


class Symptoms:
    """What is true of each run at each point in time, before any variant's logic: arrays run × time."""

    def __init__(self, shape: tuple[int, int]):
        self.look = np.ones(shape, dtype=bool)  # points at which gradients are looked at
        self.judge = np.ones(shape, dtype=bool)  # points at which accuracy is judged
        self.count = np.ones(shape)  # epochs so far
        self.ratio = self.norm = self.zeros = np.full(shape, np.nan)
        self.train = self.val = np.full(shape, np.nan)
        self.falls = np.zeros(shape)
        self.broken = self.broken_gradient = np.zeros(shape, dtype=bool)
        self.loss = self.val_loss = np.full(shape, np.nan)
        self.explodes = self.vanishes = np.zeros(shape, dtype=bool)


def log_symptoms(log: RunLog, p: Thresholds) -> Symptoms:
    """The symptoms at every epoch; looked at and judged only at the checks."""
    t = np.arange(len(log.times))
    s = Symptoms((len(log.runs), len(t)))
    live = t < log.epochs[:, None]
    s.look = live & (t % p.gap == 0)
    if p.variant == "guarded":
        s.look |= t == log.epochs[:, None] - 1
    s.count = np.broadcast_to(t + 1.0, live.shape)
    s.judge = s.look & ((s.count >= p.warm_up * log.epochs[:, None]) if p.variant != "paper" else True)
    s.train, s.val = log.series("train_accuracy"), log.series("val_accuracy")
    s.loss, s.val_loss = log.series("train_loss"), log.series("val_loss")
    first, last = log.series("probe_grad_norm_first"), log.series("probe_grad_norm_last")
    with np.errstate(divide="ignore", invalid="ignore"):
        s.ratio = first / last
    if p.variant == "guarded":
        s.ratio = np.where(last > 0, s.ratio, np.nan)
    s.norm, s.zeros = first, log.series("probe_grad_exact_zero_share")
    s.broken_gradient = _any_nonfinite(log, _KERNELS) | _positive(log, "gradient_nonfinite_count")
    s.broken = (
        s.broken_gradient
        | _any_nonfinite(log, ("train_loss", "val_loss"))
        | _positive(log, "loss_nonfinite")
        | _positive(log, "weight_nonfinite_count")
    )
    s.falls = np.array([_falls(row, p.zeta, _falls_of(p.variant)) for row in s.train]).reshape(live.shape)
    if p.variant == "paper":
        s.explodes = s.ratio >= p.beta_3
        s.vanishes = (s.ratio <= p.beta_1) & (s.norm <= p.beta_2)
    else:
        s.explodes = s.ratio > p.beta_3
        s.vanishes = (s.ratio < p.beta_1) & (s.norm < p.beta_2)
    return s


def phase_symptoms(phases: RunPhases, p: Thresholds) -> Symptoms:
    """The symptoms at every phase, each a check; validation accuracy stands in for training accuracy if need be."""
    s = Symptoms((len(phases.runs), len(phases.times)))
    if p.variant != "paper":
        # The early phase is the first third of training, which the warm-up leaves unjudged.
        s.judge[:, 0] = False
    s.count = np.broadcast_to(np.arange(1.0, 5.0), s.judge.shape)
    s.val = phases.series("val_accuracy")
    s.train = phases.series("train_accuracy") if phases.has("train_accuracy") else s.val
    s.loss, s.val_loss = phases.series("train_loss"), phases.series("val_loss")
    s.ratio, s.norm = phases.series("gradient_exploding"), phases.series("grad_norm_total")
    s.zeros = phases.series("grad_zero_share")
    s.broken = phases.nonfinite("train_loss") | phases.nonfinite("val_loss")
    s.broken_gradient = phases.nonfinite("grad_norm_total")
    s.explodes = s.ratio > 0
    s.vanishes = s.norm <= p.beta_2 if p.variant == "paper" else s.norm < p.beta_2
    return s


def judge(s: Symptoms, p: Thresholds) -> list[Reading]:
    """The variants' logic over the symptoms; only the first point with a problem counts."""
    best = {"train": np.fmax.accumulate(s.train, axis=1), "val": np.fmax.accumulate(s.val, axis=1)}
    code, paper = p.variant == "code", p.variant == "paper"
    low = best["train"] <= p.theta if paper else (best["train"] < p.theta) | (best["val"] < p.theta)
    low &= s.judge
    rise = _rise(s, best, p.variant)
    enough = s.count >= {"code": 1, "paper": 2, "guarded": p.min_epochs}[p.variant]
    flat = s.judge & enough & (rise <= p.delta if paper else rise < p.delta)
    swings = s.falls / s.count
    swinging = s.judge & (swings >= p.eta) & (s.falls >= (2 if p.variant == "guarded" else 1))
    dying = s.zeros >= p.gamma
    extreme = {"explode": s.ratio, "vanish": s.ratio, "dying": s.zeros}
    limit = {"code": 1e5, "paper": np.inf, "guarded": 1e3}[p.variant] if p.loss_limit is None else p.loss_limit

    if code:
        low, flat, swinging = (np.logical_or.accumulate(a, axis=1) for a in (low, flat, swinging))
        gate = low | flat
        relu, explode, vanish = (
            gate & (np.cumsum(s.look & a, axis=1) >= p.symptom_checks) for a in (dying, s.explodes, s.vanishes)
        )
        explode &= ~relu
        vanish &= ~relu & ~explode
        slow = flat & ~relu & ~explode & ~vanish
        swinging &= ~gate
        broken = np.logical_or.accumulate(s.broken | s.broken_gradient, axis=1) | (s.val_loss >= limit)
        broken = np.logical_or.accumulate(broken & s.look, axis=1)
        extreme = {
            "explode": np.fmax.accumulate(s.ratio, axis=1),
            "vanish": np.fmin.accumulate(s.ratio, axis=1),
            "dying": np.fmax.accumulate(s.zeros, axis=1),
        }
    else:
        relu, explode, vanish = (low & a for a in (dying, s.explodes, s.vanishes))
        slow = flat if paper else flat & low
        broken = s.broken_gradient & low if paper else s.broken | s.broken_gradient | (s.loss >= limit)
        broken = broken if paper else np.logical_or.accumulate(broken | (s.val_loss >= limit), axis=1)

    not_finite = np.logical_or.accumulate(s.broken | s.broken_gradient, axis=1)
    largest = np.where(not_finite, np.nan, np.fmax(s.loss, s.val_loss))
    fired = {
        "explode_nan": (broken, largest, limit if np.isfinite(limit) else "finite"),
        "explode_ratio": (explode, extreme["explode"], p.beta_3 if p.form == "log" else 0.0),
        "dying_relu": (relu, extreme["dying"], p.gamma),
        "vanish": (vanish, extreme["vanish"] if p.form == "log" else s.norm, _vanish_threshold(p)),
        "slow_convergence": (slow, rise, p.delta),
        "oscillation": (swinging, swings, p.eta),
    }
    any_problem = np.logical_or.reduce([f & s.look for f, _, _ in fired.values()])
    first = any_problem & (np.cumsum(any_problem, axis=1) == 1)
    return [Reading(rule, f & first, observed, threshold) for rule, (f, observed, threshold) in fired.items()]


def _vanish_threshold(p: Thresholds) -> float:
    return p.beta_1 if p.form == "log" else p.beta_2


def _rise(s: Symptoms, best: dict[str, np.ndarray], variant: Variant) -> np.ndarray:
    """How much accuracy rises, n × time: the larger of training and validation; NaN where neither was measured."""
    if variant == "paper":
        return _largest_step(np.abs(np.diff(s.train, axis=1)), s.train)
    if variant == "code":
        parts = [_largest_step(np.maximum(np.diff(a, axis=1), 0.0), a) for a in (s.train, s.val)]
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = [(b - b[:, :1]) / (s.count - 1.0) for b in best.values()]
    return np.fmax(*parts)


def _largest_step(steps: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Running maximum of the steps, 0 before the first; NaN while no accuracy has been measured."""
    start = np.where(np.isnan(accuracy[:, :1]), np.nan, 0.0)
    running = np.fmax.accumulate(np.concatenate([start, steps], axis=1), axis=1)
    measured = np.logical_or.accumulate(~np.isnan(accuracy), axis=1)
    return np.where(measured, np.fmax(running, 0.0), np.nan)


def _falls_of(variant: Variant) -> Callable[[list[float]], list[tuple[float, int]]]:
    return _adjacent_falls if variant == "guarded" else _paired_falls


def _falls(accuracy: np.ndarray, zeta: float, find: Callable) -> np.ndarray:
    """Falls of at least zeta that can be seen by each epoch, (T,) counts; NaN epochs are passed over."""
    places = np.flatnonzero(~np.isnan(accuracy))
    count = np.zeros(len(accuracy))
    for size, seen in find(accuracy[places].tolist()):
        if size >= zeta:
            count[places[seen]] += 1
    return np.cumsum(count)


def _paired_falls(a: list[float]) -> list[tuple[float, int]]:
    """The tool's pairs: i-th interior maximum minus i-th interior minimum, plateaus being both; with the index at
    which the later of the two is known to be one."""
    inner = range(1, len(a) - 1)
    maxima = [i for i in inner if a[i] >= a[i - 1] and a[i] >= a[i + 1]]
    minima = [i for i in inner if a[i] <= a[i - 1] and a[i] <= a[i + 1]]
    return [(a[i] - a[j], max(i, j) + 1) for i, j in zip(maxima, minima, strict=False)]


def _adjacent_falls(a: list[float]) -> list[tuple[float, int]]:
    """Falls from each turning point at the top to the next at the bottom, plateaus counted once."""
    turns: list[tuple[float, int]] = []  # value at the turn, index at which it shows
    kept = [0] if a else []
    for i in range(1, len(a)):
        if a[i] == a[kept[-1]]:
            continue
        if len(kept) > 1 and (a[kept[-1]] - a[kept[-2]]) * (a[i] - a[kept[-1]]) < 0:
            turns.append((a[kept[-1]], i))
        kept.append(i)
    return [(top - bottom, seen) for (top, _), (bottom, seen) in pairwise(turns) if top > bottom]


def _any_nonfinite(log: RunLog, metrics: tuple[str, ...]) -> np.ndarray:
    found = np.zeros((len(log.runs), len(log.times)), dtype=bool)
    for metric in metrics:
        found |= log.nonfinite(metric).any(axis=2)
    return found


def _positive(log: RunLog, metric: str) -> np.ndarray:
    return log.series(metric) > 0
