"""DEFault++ as a technique: what to train, on which rows, and where its weights come from.

Source: DEFault++ manuscript (May 2026), §4.3. Where the manuscript is silent, the choice is argued beside the
parameter. The network is in `model`, its objective in `losses`, its optimisation in `training`, the way from a
bench to a trained model in `fitting`, its verdicts in `diagnoser`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pandas as pd
import torch

from baselines.defaultpp import authors, checkpoint
from baselines.defaultpp.diagnoser import Diagnoser
from baselines.defaultpp.fitting import fit_diagnoser
from baselines.technique import Technique, Verdicts
from features.bench import Bench, BenchError
from features.routing import route
from features.threads import torch_threads


class DefaultPlusPlus(Technique):
    """Hierarchical, prototype-based diagnosis over feature groups joined by the fault propagation graph.

    Parameters
    ----------
    source : "train" learns from the runs given to `fit`; "checkpoint" loads a model of ours from `weights`; "authors"
        loads the weights that the authors' package ships (optional extra `defaultplusplus`).
    weights : for "checkpoint" a file written by `checkpoint.save`, or a folder of them, from which the one trained
        on exactly the runs given to `fit` is taken; for "authors" a .pt file, by default the installed package's.
    coverage_floor : with "authors", the share of the model's input columns that a bench must carry. Below one half,
        most of what the model sees would be filled in rather than measured.
    graph : "fpg" passes messages along the propagation graph; "none" passes none (the −FPG ablation); "rewired"
        (same degrees) and "random" (same number of edges) are its twins, drawn with `graph_seed`.
    separation : False drops the contrastive and the prototype term (β = γ = 0, the −Sep ablation).
    grouping : "schema" gives every feature group an encoder of its own; "random" deals the columns to groups of the
        same sizes by chance (with `graph_seed`), so that only the meaning of the groups is lost; "flat" has one
        encoder over all columns, as the authors' released checkpoints.
    selection : how the number of epochs is chosen. "grouped" holds out one fifth of the training pairs, stops early
        on them and keeps the best epoch's weights: it asks for what the outer test asks for, pairs never seen.
        "pooled" trains all five inner splits side by side, scores each epoch on all held-out rows together, and
        trains once more on all rows with the learning rates and the number of epochs found: steadier, at six times
        the cost. "published" trains the five one after the other and keeps the model that scored best on its own
        held-out rows, as the authors' code does; those scores are of different rows and don't compare.
    detection_weights : "balanced" weights Level 1 by inverse frequency; None doesn't.
    oversample_correct : healthy rows are repeated by chance until they are this share of the faulty ones. The
        authors' code uses 0.5. The default is 0, because weights do in expectation the same without repeated rows.
    hidden, embedding, rounds, dropout, alpha, lam, beta, gamma, temperature, learning_rate, weight_decay, batch_size,
    max_epochs, clip : as in the manuscript (h, e, rounds of messages, α, λ, β, γ, τ, ...).
    min_steps : steps that an epoch makes at least, passing over the rows again where they are few. On the manuscript's
        bench a training part of 2,557 rows makes 10 steps an epoch and 1,500 in 150; on a tenth of the rows, 150
        passes would leave the network all but untrained. 1 makes an epoch one pass again.
    prototype_temperature : τ_p over G·h; with 1, L_pm compares mean squared differences per entry of H. The manuscript
        gives no value. With τ_p = 1, a sum over hundreds of entries goes into a softmax, and with message passing the
        loss runs away: to 5.9e5 on the embedded bench, at .13 to .15 less on inner validation rows than with G·h.
    patience, plateau_patience, plateau_factor : the manuscript names early stopping and a plateau schedule only.
    seed, device, threads : "auto" takes a GPU where there is one. A network of this size gains nothing from a
        second thread, and folds run side by side.

    After `fit`, `diagnoser_` judges runs, `notes_` says what was left out, and, when trained here, `history_` has one
    row per epoch.
    """

    levels = (1, 2, 3)
    needs = "vector"
    family = "learned"
    tool = "DEFault++"
    reference = "DEFault++ manuscript, 2026: hierarchical fault detection and diagnosis for transformer architectures"

    def __init__(
        self,
        source: Literal["train", "checkpoint", "authors"] = "train",
        weights: str | Path | None = None,
        coverage_floor: float = 0.5,
        graph: Literal["fpg", "none", "rewired", "random"] = "fpg",
        graph_seed: int = 0,
        separation: bool = True,
        grouping: Literal["schema", "random", "flat"] = "schema",
        selection: Literal["grouped", "pooled", "published"] = "grouped",
        detection_weights: Literal["balanced"] | None = "balanced",
        oversample_correct: float = 0.0,
        hidden: int = 32,
        embedding: int = 64,
        rounds: int = 3,
        dropout: float = 0.1,
        alpha: float = 1.0,
        lam: float = 1.0,
        beta: float = 0.5,
        gamma: float = 0.3,
        temperature: float = 0.1,
        prototype_temperature: float = 1.0,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        batch_size: int = 256,
        min_steps: int = 10,
        max_epochs: int = 150,
        patience: int = 20,
        plateau_patience: int = 8,
        plateau_factor: float = 0.5,
        clip: float = 5.0,
        seed: int = 0,
        device: str = "auto",
        threads: int = 1,
    ):
        self.source = source
        self.weights = weights
        self.coverage_floor = coverage_floor
        self.graph = graph
        self.graph_seed = graph_seed
        self.separation = separation
        self.grouping = grouping
        self.selection = selection
        self.detection_weights = detection_weights
        self.oversample_correct = oversample_correct
        self.hidden = hidden
        self.embedding = embedding
        self.rounds = rounds
        self.dropout = dropout
        self.alpha = alpha
        self.lam = lam
        self.beta = beta
        self.gamma = gamma
        self.temperature = temperature
        self.prototype_temperature = prototype_temperature
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.min_steps = min_steps
        self.max_epochs = max_epochs
        self.patience = patience
        self.plateau_patience = plateau_patience
        self.plateau_factor = plateau_factor
        self.clip = clip
        self.seed = seed
        self.device = device
        self.threads = threads

    @property
    def name(self) -> str:
        """ "DEFault++" and what is taken away from it or replaced."""
        changes = {
            "−FPG": self.graph == "none",
            "−Sep": not self.separation,
            f"{self.graph} graph": self.graph in ("rewired", "random"),
            "random groups": self.grouping == "random",
            "flat": self.grouping == "flat",
            "(checkpoint)": self.source == "checkpoint",
            "(authors' weights)": self.source == "authors",
        }
        return " ".join(["DEFault++", *(change for change, made in changes.items() if made)])

    def unsupported(self, bench: Bench) -> str | None:
        """Groups and graph are those of transformers; the authors' weights also need the authors' columns."""
        if bench.arch is None:
            return f"{self.name} needs an encoder or decoder bench, and {bench.name!r} is neither"
        if self.source == "authors":
            return authors.unsupported(bench, self.weights, self.coverage_floor)
        if route(bench.X.columns).group.isna().all():
            return f"{self.name} needs columns that belong to a feature group, and none of {bench.name!r} does"
        return None

    def fit(self, bench: Bench) -> DefaultPlusPlus:
        """Learn from the runs of `bench`, or load the weights of `source`.

        Raises BenchError if the bench lacks healthy or faulty runs, or doesn't fit the weights.
        """
        if reason := self.unsupported(bench):
            raise BenchError(reason)
        if self.source == "checkpoint":
            self.diagnoser_ = checkpoint.load_for(self.weights, bench, _device(self.device))
            self.notes_ = ()
        elif self.source == "authors":
            self.diagnoser_ = authors.load(bench.arch, self.weights)
            self.notes_ = (self.diagnoser_.coverage_note(bench.X.columns),)
        else:
            if bench.faulty.nunique() < 2:
                raise BenchError(f"bench {bench.name!r}: {self.name} needs healthy and faulty runs to learn from")
            with torch_threads(self.threads):
                fitted = fit_diagnoser(bench, self, _device(self.device))
            self.diagnoser_, self.history_, self.notes_ = fitted.diagnoser, fitted.history, fitted.notes
        self.fitted_on_ = bench.fingerprint()
        return self

    def predict(self, bench: Bench) -> Verdicts:
        """One verdict a run: probability of a fault, category, nearest root cause in it, groups that speak for it."""
        self._refuse_seen(bench)
        with torch_threads(self.threads):
            return self.diagnoser_.judge(bench.X).verdicts()

    def explain(self, bench: Bench) -> pd.DataFrame:
        """Δ_g and w_g of every group for every run; see `Judgement.explanation`."""
        with torch_threads(self.threads):
            return self.diagnoser_.judge(bench.X).explanation()

    def margins(self, bench: Bench) -> pd.Series:
        """The prototype margin of every run: d(nearest alternative) − d(predicted)."""
        return self.explain(bench)[("verdict", "margin")].rename("margin")

    def deletion_margins(self, bench: Bench, deleted: pd.DataFrame, at: str = "input") -> pd.Series:
        """The margin of every run once the groups marked in `deleted` (run × group, bool) are zeroed.

        See `Diagnoser.deletion_margins` for the two places (`at`) where a group can be zeroed.
        """
        if not isinstance(self.diagnoser_, Diagnoser):
            raise BenchError(f"{self.name}: the pieces of that model are no feature groups, so none can be deleted")
        with torch_threads(self.threads):
            return self.diagnoser_.deletion_margins(bench.X, deleted, at)

    def search_space(self, trial) -> dict:
        """What the manuscript fixes without a sweep of its own: optimisation, and the weights of separation.

        An ablation has none: it stands beside the full model at the full model's defaults, so that the two differ in
        one thing.
        """
        if self.graph != "fpg" or not self.separation or self.grouping != "schema":
            return {}
        return {
            "learning_rate": trial.suggest_float("learning_rate", 3e-4, 3e-3, log=True),
            "weight_decay": trial.suggest_float("weight_decay", 1e-5, 1e-2, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.4),
            "beta": trial.suggest_float("beta", 0.1, 1.0),
            "gamma": trial.suggest_float("gamma", 0.1, 1.0),
            "prototype_temperature": trial.suggest_float("prototype_temperature", 0.1, 10.0, log=True),
        }

    def _refuse_seen(self, bench: Bench) -> None:
        """A checkpoint trained on other rows than `fit` was given must not judge pairs that it has learned from."""
        provenance = getattr(self.diagnoser_, "provenance", None)
        if provenance is None or provenance.fingerprint == self.fitted_on_:
            return
        seen = sorted(set(provenance.pairs).intersection(bench.pair))
        if seen:
            raise BenchError(
                f"{self.weights}: this model has learned from runs of {seen[0]!r} ({len(seen)} such pairs here), so "
                "its verdicts on them say nothing; give a folder with one checkpoint per fold"
            )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BenchError(f"device {name!r}: PyTorch sees no CUDA device here; use --device cpu or auto")
    return torch.device(name)
