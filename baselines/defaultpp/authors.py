"""The weights that the authors' package ships (optional extra `defaultplusplus`), read without running its code.

What ships is not the manuscript's model: a flat encoder without groups or graph, whose hidden layer is cut into eight
pieces named after groups, with an older label space. It reads 2,108 (encoder) or 3,117 (decoder) columns of the
authors' own tables, so it runs only on benches that carry them, and says what share of them was supplied.

The .pt files hold one object of the package's own, so that `torch.load(weights_only=True)` refuses them. `read` keeps
that mode, which builds nothing but what is on a list, and puts on the list: NumPy's array constructors, and, in the
place of the package's class, `_Inert`, which holds data and has no methods. No code of the package is imported.
"""

from __future__ import annotations

import _codecs
import importlib.util
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from baselines.defaultpp.diagnoser import Judgement
from baselines.defaultpp.labels import LabelSpace
from baselines.defaultpp.prototypes import group_distances, margins_between
from features.bench import Bench, BenchError
from features.spellings import translate

PACKAGE = "defaultplusplus"
FORMAT_VERSION = "1"


class _Inert:
    """Stands in for the package's feature processor: takes its state, does nothing."""


@dataclass(frozen=True, eq=False)
class AuthorsModel:
    """The authors' released network and the preparation stored with it.

    columns : raw columns it reads; filler : the value each takes where it is not supplied, the median of the clean
        runs as the package's own runtime fills it, or 0 where the package ships no such medians.
    logged, families, inputs : columns sent through sign(x)·log1p|x|; per-layer columns replaced by their mean,
        standard deviation, minimum and maximum; and what the network then reads, in its order.
    """

    arch: str
    columns: tuple[str, ...]
    filler: np.ndarray
    logged: tuple[str, ...]
    families: dict[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    categories: tuple[str, ...]
    classes: tuple[tuple[str, str], ...]
    prototypes: np.ndarray
    state: dict[str, torch.Tensor]

    @property
    def groups(self) -> tuple[str, ...]:
        """The pieces of the hidden layer. The file names them after feature groups that they have no tie to."""
        return tuple(f"piece_{i}" for i in range(self.prototypes.shape[1]))

    @property
    def space(self) -> LabelSpace:
        """Its label space in the taxonomy's words, where two of its classes can share a name.

        A class without a counterpart there keeps its name, which matches no label of a bench.
        """
        older = pd.DataFrame(self.classes, columns=["category", "root_cause"]).assign(faulty=True)
        named = translate(older)[0]
        classes = tuple(zip(named["category"], named["root_cause"], strict=True))
        return LabelSpace(tuple(sorted(named["category"].unique())), classes)

    def coverage(self, columns) -> float:
        """The share of the columns it reads that are among `columns`."""
        return float(pd.Index(self.columns).isin(list(columns)).mean())

    def coverage_note(self, columns) -> str:
        """One sentence on how much of its input a bench supplies."""
        share = self.coverage(columns)
        return (
            f"the authors' {self.arch} weights read {len(self.columns)} columns, of which the bench supplies "
            f"{share:.1%}; the rest are filled with the median of the authors' clean runs. They were trained on the "
            "published tables, so verdicts on those are of runs they have learned from"
        )

    def judge(self, X: pd.DataFrame) -> Judgement:
        """Judge runs by raw columns. The root cause is that of the category's head, as the package reports it."""
        with torch.no_grad():
            hidden = self._layers("encoder.net", self.prepare(X))
            z = self._linear("encoder.projection", hidden)
            score = torch.softmax(self._layers("detection_head", z), dim=1)[:, 1].numpy()
            category = self._layers("category_head", z).argmax(dim=1).numpy()
            logits = torch.cat([self._layers(f"rootcause_heads.{c}", z) for c in self.categories], dim=1).numpy()
        by_group = group_distances(hidden.unflatten(1, self.prototypes.shape[1:]).numpy(), self.prototypes)
        own = np.array([self.categories.index(c) for c, _ in self.classes]) == category[:, None]
        predicted = np.where(own, logits, -np.inf).argmax(axis=1)
        own[np.arange(len(X)), predicted] = False  # what is left are the rivals; every category has some
        alternative = np.where(own, by_group.sum(axis=2), np.inf).argmin(axis=1)
        space = self.space
        margins = margins_between(by_group, predicted, alternative)
        return Judgement(X.index, self.groups, space, score, space.category_of_class[predicted], margins)

    def prepare(self, X: pd.DataFrame) -> torch.Tensor:
        """The network's standardised inputs, (n, D) float32. Values that are missing or infinite are filled."""
        raw = X.reindex(columns=list(self.columns)).astype(np.float64)
        raw = raw.where(np.isfinite(raw), pd.Series(self.filler, index=raw.columns), axis=1)
        raw = raw.astype(np.float32).astype(np.float64)
        logged = list(self.logged)
        raw[logged] = np.sign(raw[logged]) * np.log1p(raw[logged].abs())
        made = {}
        for family, members in self.families.items():
            layers = raw[list(members)].to_numpy()
            made[f"{family}__agg_mean"], made[f"{family}__agg_std"] = layers.mean(axis=1), layers.std(axis=1)
            made[f"{family}__agg_min"], made[f"{family}__agg_max"] = layers.min(axis=1), layers.max(axis=1)
        table = pd.concat([raw, pd.DataFrame(made, index=raw.index)], axis=1)[list(self.inputs)]
        values = table.to_numpy().astype(np.float32).astype(np.float64)
        return torch.from_numpy(((values - self.mean) / self.scale).astype(np.float32))

    def _layers(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Linear, ReLU, (dropout, off), linear: how every part of the released network is built."""
        return self._linear(f"{name}.3", torch.relu(self._linear(f"{name}.0", x)))

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]


def unsupported(bench: Bench, weights: Path | str | None, floor: float) -> str | None:
    """Why the authors' weights can't judge this bench, as a sentence; None if they can."""
    try:
        model = load(bench.arch, weights)
    except BenchError as error:
        return str(error)
    share = model.coverage(bench.X.columns)
    if share < floor:
        return (
            f"the authors' {bench.arch} weights read {len(model.columns)} columns and bench {bench.name!r} supplies "
            f"{share:.1%} of them, below the floor of {floor:.0%}; lower coverage_floor to run them nevertheless"
        )
    return None


def load(arch: str, weights: Path | str | None = None) -> AuthorsModel:
    """Read the weights of an architecture, by default those of the installed package. Raises BenchError."""
    path = Path(weights) if weights is not None else _shipped(arch)
    stored = read(path)
    if stored.get("format_version") != FORMAT_VERSION or stored.get("model_kwargs", {}).get("mode") != "flat":
        raise BenchError(f"{path}: format {stored.get('format_version')!r}, only flat models of format 1 are known")
    if stored["arch"] != arch:
        raise BenchError(f"{path}: holds {stored['arch']} weights, the bench is {arch}")
    processor = vars(stored["extra"]["feature_processor"])
    columns = tuple(stored["extra"]["raw_feature_names"])
    classes = [(c, cause) for c in stored["category_names"] for cause in stored["rootcause_names"][c]]
    scale = np.asarray(stored["scaler_scale"])
    return AuthorsModel(
        arch=arch,
        columns=columns,
        filler=_medians(path.with_name(f"{path.stem}_reference.npz"), len(columns)),
        logged=tuple(processor["_log_cols"]),
        families={name: tuple(c for _, c in members) for name, members in processor["_layer_families"].items()},
        inputs=tuple(stored["feature_names"]),
        mean=np.asarray(stored["scaler_mean"]),
        scale=np.where(scale > 1e-12, scale, 1.0),
        categories=tuple(stored["category_names"]),
        classes=tuple(classes),
        prototypes=torch.cat([stored["prototypes"][c] for c in stored["category_names"]]).double().numpy(),
        state=stored["model_state_dict"],
    )


def read(path: Path) -> dict:
    """The contents of a .pt file of the package, with `_Inert` in the place of its feature processor."""
    constructors = [
        (_Inert, "defaultplusplus.processing.feature_processor.FeatureProcessor"),
        np._core.multiarray._reconstruct,
        np.ndarray,
        np.dtype,
        np.dtypes.Float64DType,
        _codecs.encode,
    ]
    try:
        with torch.serialization.safe_globals(constructors):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BenchError(f"{path}: no such file") from None
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise BenchError(f"{path}: holds more than tensors and plain data, not read ({error})") from None


def _shipped(arch: str) -> Path:
    """Where the installed package keeps its weights; finding it imports nothing."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise BenchError(f"the authors' weights come with the package {PACKAGE!r}; install the extra of that name")
    return Path(found.submodule_search_locations[0]) / "pretrained" / "weights" / f"{arch}.pt"


def _medians(path: Path, n: int) -> np.ndarray:
    if not path.exists():
        return np.zeros(n)
    with np.load(path, allow_pickle=False) as reference:
        medians = reference["median"].astype(np.float64)
    if len(medians) != n:
        raise BenchError(f"{path}: holds {len(medians)} medians for {n} columns")
    return medians
