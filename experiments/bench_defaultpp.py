"""How long DEFault++ takes to train, beside the same training written as loops over runs.

python experiments/bench_defaultpp.py                      # embedded bench, first outer fold
python experiments/bench_defaultpp.py --rows 1500 --arch encoder   # random numbers of the bench's shape

The loop driver is the plain way to write the method down: one run at a time through one small network per group, one
head per category, one term of the loss after the other. It starts from the same weights, sees the same batches, and
its first losses are checked against ours before anything is timed. Dropout is off in both, whose masks would differ.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
import typer
from rich.console import Console
from torch import Tensor

from baselines.defaultpp.fitting import adjacency_of, lay_out
from baselines.defaultpp.labels import LabelSpace
from baselines.defaultpp.losses import Objective, Targets, inverse_frequency
from baselines.defaultpp.model import Layout, Network, Output
from baselines.defaultpp.prototypes import Prototypes
from baselines.defaultpp.training import Plan, Rows, run_epoch
from experiments.engine.command import one_line_errors
from experiments.engine.protocol import outer_folds
from experiments.engine.source import BenchSource
from features.bench import Bench
from features.preparation import Preparation
from features.schema import columns
from features.taxonomy import CORRECT, Architecture, root_causes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
PLAN = Plan(1e-3, 1e-4, 256, 1, 1, 1, 1, 0.5, 5.0)


class LoopNetwork(torch.nn.Module):
    """The same weights and the same answers as `Network`, one run, one group and one category at a time."""

    def __init__(self, network: Network):
        super().__init__()
        self.network = network
        self.layout = network.layout

    def forward(self, x: Tensor) -> Output:
        """Outputs of a batch, run by run."""
        return Output(*(torch.stack(part) for part in zip(*map(self._one, x), strict=True)))

    def embed(self, x: Tensor) -> Tensor:
        """Group embeddings of a batch, run by run."""
        return torch.stack([self._embed(row) for row in x])

    def _one(self, row: Tensor) -> Output:
        network = self.network
        H = self._embed(row)
        z = network.projection(H.flatten())
        heads, half = network.root_cause_heads, self.layout.embedding // 2
        logits = []
        for k, category in enumerate(self.layout.category_of_class):
            own = slice(category * half, (category + 1) * half)
            hidden = torch.relu(heads.first.weight[own] @ z + heads.first.bias[own])
            logits.append(heads.second_weight[k] @ hidden + heads.second_bias[k])
        return Output(H, z, network.detection_head(z), network.category_head(z), torch.stack(logits))

    def _embed(self, row: Tensor) -> Tensor:
        encoder, start, parts = self.network.encoder, 0, []
        for g, width in enumerate(self.layout.widths):
            weight = encoder.first_weight[start : start + width]
            hidden = torch.relu(row[start : start + width] @ weight + encoder.first_bias[g])
            parts.append(hidden @ encoder.second_weight[g] + encoder.second_bias[g])
            start += width
        H = torch.stack(parts)
        if self.network.messages is not None:
            for weight in self.network.messages.weights:
                H = torch.relu(self.network.messages.adjacency @ H @ weight)
        return H


def loop_objective(fast: Objective, output: Output, targets: Targets, prototypes: Prototypes) -> Tensor:
    """The objective of `losses`, term by term and run by run."""
    faulty, category, classes = (part.tolist() for part in targets)
    of_class = fast.category_of_class.tolist()
    detect, detect_norm, cat, cat_norm, causes, pulls, contrast = 0.0, 0.0, 0.0, 0.0, [], [], []
    weights = [1.0, 1.0] if fast.detection_weights is None else fast.detection_weights
    unit = [h.flatten() / h.norm().clamp(min=1e-12) for h in output.H]
    for i, label in enumerate(faulty):
        detect = detect - weights[label] * torch.log_softmax(output.detection[i], 0)[label]
        detect_norm = detect_norm + weights[label]
        if classes[i] < 0:
            continue
        weight = fast.category_weights[category[i]]
        cat = cat - weight * torch.log_softmax(output.category[i], 0)[category[i]]
        cat_norm = cat_norm + weight
        rivals = [k for k, c in enumerate(of_class) if c == category[i]]
        place = rivals.index(classes[i])
        causes.append(-torch.log_softmax(output.classes[i][rivals], 0)[place])
        far = [((output.H[i] - prototypes.mean[k]) ** 2).sum() for k in rivals]
        pulls.append(-torch.log_softmax(-torch.stack(far) / fast.prototype_temperature, 0)[place])
        others = [j for j, c in enumerate(category) if j != i and c == category[i]]
        positives = [n for n, j in enumerate(others) if classes[j] == classes[i]]
        if positives:
            similar = torch.stack([unit[i] @ unit[j] / fast.temperature for j in others])
            contrast.append(similar.logsumexp(0) - similar[positives].mean())
    total = detect / detect_norm
    if causes:
        total = total + fast.alpha * cat / cat_norm + fast.lam * sum(causes) / len(causes)
        total = total + fast.gamma * sum(pulls) / len(pulls)
    return total + fast.beta * sum(contrast) / len(contrast) if contrast else total


class LoopObjective:
    """`loop_objective` with the face of `Objective`."""

    def __init__(self, fast: Objective):
        self.fast = fast
        self.category_of_class = fast.category_of_class

    def __call__(self, output: Output, targets: Targets, prototypes: Prototypes) -> Tensor:
        """The weighted sum for one batch."""
        return loop_objective(self.fast, output, targets, prototypes)


@app.command()
@one_line_errors
def bench(
    arch: Annotated[str, typer.Option(help="encoder or decoder.")] = "encoder",
    rows: Annotated[int | None, typer.Option(help="Random numbers instead of the embedded bench.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the loop driver; ours runs as many.")] = 1,
    path: Annotated[Path | None, typer.Option("--bench", help="Table to use.")] = None,
    seed: int = 0,
) -> None:
    """Check that both drivers compute the same, time both, print seconds per epoch and the ratio."""
    console = Console()
    torch.set_num_threads(1)
    data = random_bench(arch, rows, seed) if rows else BenchSource(path and str(path), None, arch).load()
    train = data if rows else data.take(outer_folds(data)[0].train)
    tensors, layout, adjacency, objective = prepare(train)
    console.print(f"{train.name} ({arch}): {len(train)} runs × {tensors.x.shape[1]} columns, one thread")
    seconds, losses = {}, {}
    for driver in ("vectorised", "loops"):
        torch.manual_seed(seed)
        network = Network(layout, adjacency)
        if driver == "loops":
            network, terms = LoopNetwork(network), LoopObjective(objective)
        else:
            terms = objective
        optimizer = torch.optim.Adam(network.parameters(), lr=PLAN.learning_rate, weight_decay=PLAN.weight_decay)
        started = time.process_time()
        losses[driver] = [run_epoch(network, optimizer, tensors, PLAN, terms) for _ in range(epochs)]
        seconds[driver] = (time.process_time() - started) / epochs
    if not np.allclose(losses["vectorised"], losses["loops"], rtol=1e-3):
        raise SystemExit(f"the two drivers disagree: {losses}")
    console.print(f"mean loss per epoch, ours and loops: {losses['vectorised'][-1]:.5f}, {losses['loops'][-1]:.5f}")
    ratio = seconds["loops"] / seconds["vectorised"]
    console.print(
        f"CPU seconds per epoch: {seconds['vectorised']:.3f} vectorised, {seconds['loops']:.2f} in loops: "
        f"{ratio:.0f} times; 150 epochs: {150 * seconds['vectorised']:.0f} s against {150 * seconds['loops']:.0f} s"
    )


def prepare(train: Bench) -> tuple[Rows, Layout, Tensor, Objective]:
    """What `fitting` makes of a bench, without the choice of validation rows."""
    prepared = Preparation().fit(train.X, train.faulty).transform(train.X)
    names, widths = lay_out(prepared.columns, train.arch, "schema", 0)
    space = LabelSpace.of(train.labels)
    codes = space.encode(train.labels)
    targets = Targets(*(torch.from_numpy(c) for c in (codes.faulty, codes.category, codes.classes)))
    layout = Layout(tuple(widths.values()), len(space.categories), tuple(space.category_of_class.tolist()), dropout=0.0)
    objective = Objective(
        1.0,
        1.0,
        0.5,
        0.3,
        0.1,
        1.0,
        inverse_frequency(targets.faulty, 2),
        inverse_frequency(targets.category, len(space.categories)),
        torch.tensor(layout.category_of_class),
    )
    x = torch.tensor(prepared[names].to_numpy(dtype=np.float32))
    return Rows(x, targets), layout, adjacency_of(train.arch, tuple(widths), "fpg", 0), objective


def random_bench(arch: Architecture, rows: int, seed: int) -> Bench:
    """Random numbers with the bench's columns and label space, half of them faulty: for timing only."""
    rng = np.random.default_rng(seed)
    index = pd.Index([f"run{i}" for i in range(rows)])
    causes = root_causes(arch)
    drawn = [causes[i] if i >= 0 else (CORRECT, CORRECT) for i in rng.integers(-len(causes), len(causes), rows)]
    labels = pd.DataFrame(drawn, index=index, columns=["category", "root_cause"])
    labels.insert(0, "faulty", labels["category"] != CORRECT)
    X = pd.DataFrame(rng.normal(size=(rows, len(columns(arch)))), index=index, columns=list(columns(arch)))
    return Bench("random numbers", arch, X, labels, pd.Series("none/none", index=index))


if __name__ == "__main__":
    app()
