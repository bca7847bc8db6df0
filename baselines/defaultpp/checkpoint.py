"""A trained diagnoser on disk: tensors as safetensors, everything else as JSON beside them. Nothing is pickled.

`save` writes `<stem>.json` (schema, groups, label space, preparation, provenance) and `<stem>.safetensors` (network
weights and prototypes); `load` puts them on any device. A checkpoint trained on a GPU loads on a CPU.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sklearn.base import TransformerMixin

import features.preparation
from baselines.defaultpp.diagnoser import Diagnoser, Provenance
from baselines.defaultpp.labels import LabelSpace
from baselines.defaultpp.model import Layout, Network
from features.bench import Bench, BenchError
from features.files import replacing, write_text
from features.preparation import Preparation
from features.routing import route

FORMAT = "defaultpp-checkpoint-1"


def save(diagnoser: Diagnoser, path: Path | str) -> Path:
    """Write a diagnoser; returns the path of the JSON file. Each file appears under its name only when complete."""
    card = Path(path).with_suffix(".json")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in diagnoser.network.state_dict().items()}
    tensors = {f"network.{name}": tensor for name, tensor in state.items()}
    tensors["prototypes"] = torch.from_numpy(diagnoser.prototypes)
    with replacing(card.with_suffix(".safetensors")) as temporary:
        save_file(tensors, temporary)
        digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
    described = {
        "format": FORMAT,
        "arch": diagnoser.arch,
        "groups": dict(zip(diagnoser.groups, diagnoser.widths, strict=True)),
        "columns": list(diagnoser.columns),
        "label_space": asdict(diagnoser.space),
        "layout": asdict(diagnoser.network.layout),
        "graph": diagnoser.network.messages is not None,
        "preparation": _described(diagnoser.preparation),
        "provenance": asdict(diagnoser.provenance),
        "tensors_sha256": digest,
    }
    write_text(card, json.dumps(described, indent=1, allow_nan=False, default=str))
    return card


def load(path: Path | str, device: torch.device | str = "cpu") -> Diagnoser:
    """Read a diagnoser. Raises BenchError naming the file and what is wrong with it."""
    card = Path(path).with_suffix(".json")
    described = _card(card)
    tensor_file = card.with_suffix(".safetensors")
    if not tensor_file.exists():
        raise BenchError(f"{tensor_file}: missing; it holds the weights that {card.name} describes")
    if hashlib.sha256(tensor_file.read_bytes()).hexdigest() != described["tensors_sha256"]:
        raise BenchError(f"{tensor_file}: not the weights that {card.name} describes; save the checkpoint again")
    try:
        tensors = load_file(tensor_file, device=str(device))
    except SafetensorError as error:
        raise BenchError(f"{tensor_file}: not a readable safetensors file ({error})") from None
    layout = Layout(**{k: tuple(v) if isinstance(v, list) else v for k, v in described["layout"].items()})
    adjacency = torch.zeros(len(layout.widths), len(layout.widths)) if described["graph"] else None
    network = Network(layout, adjacency)  # the adjacency itself is a buffer, so it comes with the weights
    network.load_state_dict({n.removeprefix("network."): t for n, t in tensors.items() if n.startswith("network.")})
    space = described["label_space"]
    provenance = described["provenance"]
    return Diagnoser(
        arch=described["arch"],
        preparation=_rebuilt(described["preparation"]),
        groups=tuple(described["groups"]),
        columns=tuple(described["columns"]),
        space=LabelSpace(tuple(space["categories"]), tuple(map(tuple, space["classes"]))),
        network=network.to(device).eval(),
        prototypes=tensors["prototypes"].cpu().numpy(),
        provenance=Provenance(**{**provenance, "pairs": tuple(provenance["pairs"])}),
    )


def load_for(path: Path | str | None, bench: Bench, device: torch.device | str = "cpu") -> Diagnoser:
    """The checkpoint at `path` if it fits `bench`; in a folder, the one trained on exactly this bench.

    Raises BenchError saying which part differs.
    """
    if path is None:
        raise BenchError("source='checkpoint' needs weights: a checkpoint's .json file, or a folder of checkpoints")
    path = Path(path)
    if path.is_dir():
        cards = sorted(path.glob("*.json"))
        wanted = bench.fingerprint()
        matching = [card for card in cards if _card(card)["provenance"]["fingerprint"] == wanted]
        if not matching:
            raise BenchError(
                f"{path}: none of its {len(cards)} checkpoints was trained on the {len(bench)} runs given "
                f"(data fingerprint {wanted}); train them on these folds first"
            )
        path = matching[0]
    diagnoser = load(path, device)
    if differences := mismatches(diagnoser, bench):
        raise BenchError(f"{path}: doesn't fit bench {bench.name!r}: " + "; ".join(differences))
    return diagnoser


def mismatches(diagnoser: Diagnoser, bench: Bench) -> list[str]:
    """What of a bench the checkpoint can't serve: architecture, schema, groups, label space; empty if it fits."""
    if diagnoser.arch != bench.arch:
        return [f"architecture: trained for {diagnoser.arch}, the bench is {bench.arch}"]
    found = []
    read = list(diagnoser.preparation.feature_names_in_)
    missing = [c for c in read if c not in bench.X]
    if missing:
        found.append(f"schema: {len(missing)} of its {len(read)} columns are not in the bench, {missing[0]!r} first")
    group = route(diagnoser.columns).group
    routed = {name: int(n) for name, n in group.value_counts().items()}
    stored = dict(zip(diagnoser.groups, diagnoser.widths, strict=True))
    if diagnoser.provenance.parameters.get("grouping") != "random" and routed != stored:
        differing = sorted(g for g in routed.keys() | stored.keys() if routed.get(g) != stored.get(g))
        found.append(
            f"groups: {differing[0]!r} has {stored.get(differing[0])} columns there, {routed.get(differing[0])} here"
        )
    faulty = bench.labels.loc[bench.faulty].dropna()
    unknown = sorted(set(zip(faulty["category"], faulty["root_cause"], strict=True)) - set(diagnoser.space.classes))
    if unknown and diagnoser.space.classes:
        found.append(
            f"label space: {len(unknown)} root causes of the bench are unknown to it, {'/'.join(unknown[0])!r} first"
        )
    return found


def _card(path: Path) -> dict:
    try:
        described = json.loads(path.read_text())
    except FileNotFoundError:
        raise BenchError(f"{path}: no such checkpoint") from None
    except ValueError as error:
        raise BenchError(f"{path}: not a checkpoint's JSON file ({error})") from None
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise BenchError(f"{path}: not a checkpoint of format {FORMAT!r}")
    return described


def _described(transformer) -> dict:
    """A fitted transformer of `features.preparation`: its parameters, and what it learned as lists."""
    learned = {}
    for name, value in vars(transformer).items():
        if name == "steps_":
            learned[name] = [_described(step) for step in value]
        elif isinstance(value, np.ndarray):
            items = value.tolist()
            if value.dtype.kind == "f":
                items = [None if np.isnan(item) else item for item in items]
            learned[name] = {"dtype": value.dtype.str if value.dtype.kind != "O" else "object", "items": items}
        elif name.endswith("_"):
            learned[name] = value
    return {"transformer": type(transformer).__name__, "parameters": transformer.get_params(), "learned": learned}


def _rebuilt(described: dict) -> Preparation:
    kind = getattr(features.preparation, described["transformer"], None)
    if not (isinstance(kind, type) and issubclass(kind, TransformerMixin)):
        raise BenchError(f"checkpoint names an unknown transformer {described['transformer']!r}")
    transformer = kind(**described["parameters"])
    for name, value in described["learned"].items():
        if name == "steps_":
            value = [_rebuilt(step) for step in value]
        elif isinstance(value, dict):
            value = np.array([np.nan if item is None else item for item in value["items"]], dtype=value["dtype"])
        setattr(transformer, name, value)
    return transformer
