"""Heads pruned, their relative position bias not: the heads that are left get other heads' bias."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from experiments.cases.case import Case, with_attention
from features.build.base import from_base
from features.build.families import family
from features.build.tasks import task
from features.build.tasks.task import examples
from features.measure.discover import dissect

REACH = 8
"""Distances beyond this share one entry."""
PRUNED = 0
STEPS, BATCH, RATE, BIAS_RATE, SEED = 150, 64, 1e-3, 1e-2, 17_886


def relative_bias(table: Tensor, length: int) -> Tensor:
    """(H, length, length): entry (h, q, k) is head h's value for the distance k - q. `table` is (H, 2 REACH + 1)."""
    place = torch.arange(length, device=table.device)
    return table[:, (place - place[:, None]).clamp(-REACH, REACH) + REACH]


def bias_rows(heads: int, pruned: int, faulty: bool) -> list[int]:
    """The rows of the table that the heads left by pruning use, in their order.

    >>> bias_rows(4, 0, faulty=False), bias_rows(4, 0, faulty=True)
    ([1, 2, 3], [0, 1, 2])
    """
    return list(range(heads - 1)) if faulty else [h for h in range(heads) if h != pruned]


def add_bias(model: nn.Module, table: Tensor) -> None:
    """Give the model a trainable table, shared by its layers, that is added to all attention scores."""
    model.relative_bias = nn.Parameter(table.clone())

    def change(module, hidden, kwargs):
        bias, mask = relative_bias(model.relative_bias, hidden.shape[1])[None], kwargs.get("attention_mask")
        return {"attention_mask": bias if mask is None else mask + bias}

    with_attention(model, change)


@torch.no_grad()
def prune_head(model: nn.Module, head: int) -> None:
    """Take one head out of every layer's query, key, value and output projections."""
    for layer in dissect(model).layers:
        attention, size = layer.attention, layer.attention.attention_head_size
        left = [i for i in range(attention.num_attention_heads * size) if i // size != head]
        for module in layer.qkv:
            module.weight, module.bias = nn.Parameter(module.weight[left]), nn.Parameter(module.bias[left])
            module.out_features = len(left)
        out = layer.attention_out
        out.weight, out.in_features = nn.Parameter(out.weight[:, left]), len(left)
        attention.num_attention_heads -= 1
        attention.all_head_size = len(left)


@cache
def _with_bias(family_name: str, task_name: str) -> tuple[dict[str, Tensor], Tensor]:
    """The base, trained on the task's pretraining stream with a bias: its body's state, and the table (H, 2 REACH + 1).

    Heads start with a preference for the token before, the one after, their own, and none.
    """
    chosen, of_task = family(family_name), task(task_name)
    model = from_base(chosen, SEED).train()
    table = torch.zeros(dissect(model).layers[0].attention.num_attention_heads, 2 * REACH + 1)
    for head, distance in enumerate((-1, 1, 0)):
        table[head, REACH + distance] = 2.0
    add_bias(model, table)
    own = [p for p in model.parameters() if p is not model.relative_bias]
    groups = [{"params": own}, {"params": [model.relative_bias], "lr": BIAS_RATE}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.0, fused=True)
    pool = 4_000
    stream = examples(of_task, "pretraining", pool, chosen.name == "bert")
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(STEPS):
        model(**stream.take(torch.randint(pool, (BATCH,), generator=generator))).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    body = {name: tensor.clone() for name, tensor in model.base_model.state_dict().items()}
    return body, model.relative_bias.detach().clone()


def prepare(model: nn.Module, faulty: bool) -> nn.Module:
    """The base with a learnt bias, one head of every layer pruned, and the bias pruned with it or not as it should."""
    body, table = _with_bias(CASE.family, CASE.task)
    model.base_model.load_state_dict(body)
    heads = len(table)
    prune_head(model, PRUNED)
    add_bias(model, table[bias_rows(heads, PRUNED, faulty)])
    return model


CASE = Case(
    name="transformers-17886",
    issue="huggingface/transformers#17886",
    reported_as="transformers#17886",
    mechanism="Pruning attention heads leaves the relative position bias as it was, with an entry for every head that "
    "there used to be.",
    here="The report's shapes disagree and it stops; the silent form of it trains on: after head 0 is pruned, heads 1 "
    "to 3 take rows 0 to 2 of the bias. The model is the base, first trained a little with a bias of each head's own.",
    family="bert",
    task="sentiment",
    category="positional",
    root_cause="relative_position",
    why="What each head receives is a bias for relative positions that another head learnt.",
    shows="attention_head_similarity",
    prepare=prepare,
)
