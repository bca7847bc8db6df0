"""What training leaves behind, and how it judges runs: `Diagnoser`, and the `Judgement` it gives.

Source: DEFault++ manuscript, §4.3 (decision and explanation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from baselines.defaultpp.labels import LabelSpace
from baselines.defaultpp.model import Network
from baselines.defaultpp.prototypes import Margins, group_distances, margins_between, nearest
from baselines.technique import Verdicts
from features.bench import BenchError
from features.preparation import Preparation

EVIDENCE_GROUPS = 3
"""Groups named in a verdict's evidence; `Judgement.explanation` gives all of them."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a model says of n runs, as arrays.

    score : probability of a fault, (n,).
    category : Level-2 codes, (n,); -1 where the model knows no category.
    margins : the Level-3 decision within that category, and the groups' parts in it.
    """

    runs: pd.Index
    groups: tuple[str, ...]
    space: LabelSpace
    score: np.ndarray
    category: np.ndarray
    margins: Margins

    def verdicts(self) -> Verdicts:
        """Verdicts: faulty from one half on, the nearest root cause of the category, the groups that speak for it."""
        names = np.array([*self.space.categories, None], dtype=object)
        causes = np.array([*(cause for _, cause in self.space.classes), None], dtype=object)
        category_of = np.array([*self.space.category_of_class, -2])
        predicted = self.margins.predicted
        return Verdicts.build(
            self.runs,
            score=self.score,
            faulty=self.score >= 0.5,
            category=names[self.category],
            root_cause=np.where(category_of[predicted] == self.category, causes[predicted], None),
            evidence=self._evidence(),
        )

    def explanation(self) -> pd.DataFrame:
        """Columns ("verdict", predicted | alternative | margin), ("delta", group) = Δ_g and ("weight", group) = w_g.

        The margin is d(alternative) − d(predicted), the sum of the run's Δ_g.
        """
        verdict = {
            "predicted": self._names(self.margins.predicted),
            "alternative": self._names(self.margins.alternative),
            "margin": self.margins.margin,
        }
        tables = {
            "verdict": pd.DataFrame(verdict, index=self.runs),
            "delta": pd.DataFrame(self.margins.delta, index=self.runs, columns=list(self.groups)),
            "weight": pd.DataFrame(self.margins.weight, index=self.runs, columns=list(self.groups)),
        }
        return pd.concat(tables, axis=1)

    def _names(self, codes: np.ndarray) -> np.ndarray:
        names = [f"{category}/{cause}" for category, cause in self.space.classes]
        return np.array([*names, None], dtype=object)[codes]

    def _evidence(self) -> list[dict]:
        top = np.argsort(-self.margins.delta, axis=1, kind="stable")[:, :EVIDENCE_GROUPS]
        predicted, alternative = self._names(self.margins.predicted), self._names(self.margins.alternative)
        return [
            {
                "groups": {
                    self.groups[g]: {
                        "weight": _rounded(self.margins.weight[i, g]),
                        "delta": _rounded(self.margins.delta[i, g]),
                    }
                    for g in top[i]
                },
                "prototype": predicted[i],
                "alternative": alternative[i],
                "margin": _rounded(margin),
            }
            for i, margin in enumerate(self.margins.margin)
        ]


def _rounded(value: float) -> float:
    """To three digits: further ones change with the rows that are judged beside a run, by rounding in products."""
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class Provenance:
    """Where a diagnoser's weights come from: the training bench and how it was trained there."""

    bench: str
    fingerprint: str
    pairs: tuple[str, ...]
    rows: int
    seed: int
    device: str
    best_epoch: int
    parameters: dict
    versions: dict


@dataclass(frozen=True, eq=False)
class Diagnoser:
    """A trained network with everything it needs to judge a run.

    groups, widths : the feature groups, in network order, and the number of columns of each.
    columns : the network's input columns, group by group.
    prototypes : (K, G, h), the class means of H over all training rows, float64.
    """

    arch: str
    preparation: Preparation
    groups: tuple[str, ...]
    columns: tuple[str, ...]
    space: LabelSpace
    network: Network
    prototypes: np.ndarray
    provenance: Provenance

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each group."""
        return self.network.layout.widths

    def judge(self, X: pd.DataFrame) -> Judgement:
        """Judge the runs of `X` (run × raw feature)."""
        H, score, category = self._forward(self.inputs(X))
        margins = nearest(group_distances(H, self.prototypes), category, self.space.category_of_class)
        return Judgement(X.index, self.groups, self.space, score, category, margins)

    def deletion_margins(self, X: pd.DataFrame, deleted: pd.DataFrame, at: str = "input") -> pd.Series:
        """The prototype margin of every run once some of its groups are zeroed.

        `deleted` is a bool table, run × group. The margin stays that between the prototypes that were nearest before
        the deletion. at="input" zeroes the groups' standardised columns (the training mean) and runs the network
        again, so that messages change too; at="embedding" zeroes h_g after message passing. The manuscript says
        "zero the group" and leaves open which.
        """
        deleted = deleted.loc[X.index, list(self.groups)].to_numpy(dtype=bool)
        before = self.judge(X).margins
        x = self.inputs(X)
        if at == "input":
            gone = torch.from_numpy(np.repeat(deleted, self.widths, axis=1)).to(x.device)
            H, _, _ = self._forward(x.masked_fill(gone, 0.0))
        elif at == "embedding":
            H, _, _ = self._forward(x)
            H[deleted] = 0.0
        else:
            raise ValueError(f"at={at!r}: groups are zeroed at 'input' or at 'embedding'")
        after = margins_between(group_distances(H, self.prototypes), before.predicted, before.alternative)
        return pd.Series(after.margin, index=X.index, name="margin")

    def inputs(self, X: pd.DataFrame) -> Tensor:
        """Prepared columns in network order, (n, D), where the network lies."""
        read = list(self.preparation.feature_names_in_)
        missing = pd.Index(read).difference(X.columns)
        if len(missing):
            raise BenchError(
                f"{len(missing)} of the {len(read)} columns it was trained on are missing, {missing[0]!r} first"
            )
        prepared = self.preparation.transform(X[read]).loc[:, list(self.columns)].to_numpy(dtype=np.float32)
        return torch.tensor(prepared, device=next(self.network.parameters()).device)

    def _forward(self, x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.network.eval()
        with torch.no_grad():
            output = self.network(x)
            score = torch.softmax(output.detection.double(), dim=1)[:, 1]
            category = output.category.argmax(dim=1)
        codes = category.cpu().numpy() if self.space.categories else np.full(len(x), -1)
        return output.H.cpu().numpy(), score.cpu().numpy(), codes
