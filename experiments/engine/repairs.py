"""What to try first on a run that was called faulty: each published tool's own suggestion, and where to look.

AutoTrainer tries repairs in a fixed order per problem (Zhang et al., ICSE 2021), UMLAUT gives a hint per heuristic
(Schoop et al., CHI 2021, public code), DeepDiagnosis a fix per symptom (Wardat et al., ICSE 2022). Learned techniques
name a category; what to look at there follows from the faults of that category. All in our own words.
"""

from __future__ import annotations

import json

import pandas as pd

STEP_COLUMNS = ("lead", "because", "try")

UMLAUT_HINTS = {
    "lr_high": "lower the learning rate: with Adam between 1e-5 and 1e-2, 1e-3 to begin with",
    "lr_low": "raise the learning rate: with Adam between 1e-5 and 1e-2, 1e-3 to begin with",
    "overfitting": "more dropout or a smaller model, if validation loss goes on rising: a single rise may be noise",
    "overconfident_val": "check labels, overlap of training and validation data, and that both are prepared alike; "
    "then test on data held out from both",
}

DEEPDIAGNOSIS_FIXES = {
    "normalise the data": "scale the inputs",
    "weight initialisation": "initialise the weights differently, so that their variance is neither tiny nor large",
    "learning rate": "change the learning rate: updates are out of proportion to the weights",
    "activation": "change the activation function of that layer (after the last layer: what the loss expects)",
    "loss": "change the loss function",
    "optimizer": "change the optimiser",
    "layers": "change the layers: remove or add one, or put dropout in",
}

COMPONENTS = {
    "masking": "the attention mask: zeros where padding is, that it reaches every layer, which axis it runs along",
    "qkv": "the query, key and value projections: values after loading, none swapped or shared, all in the optimiser, "
    "heads times head size equal to the width",
    "score": "the attention scores: division by the root of the head size, dropout after softmax and not before, "
    "the precision they are computed in",
    "positional": "the positions: position_ids (padding shifts them), the first index, sequences beyond the last one",
    "kernel": "the attention kernel that really runs, its dropout and precision: compare eager and sdpa on one batch",
    "variant": "the attention variant: causal or not, and how many heads have an effect",
    "kv_cache": "the key/value cache: length, position, no cache of another request: compare decoding without it",
    "embedding": "the input: tokeniser and embedding of one vocabulary, no rows zeroed or permuted, token types",
    "ffn": "the feed-forward blocks: activation function, scale of the weights after loading, neurons that never fire, "
    "weight decay",
    "layernorm": "layer normalisation: gains and biases after loading, epsilon, whether weight decay acts on them",
    "residual": "the residual stream: skip connections there and unscaled, dropout on them, norm of gradient clipping",
    "output": "the output head: scale of the logits, number and order of classes, initial values",
}
"""Category → what to look at."""


def first_steps(verdicts: pd.DataFrame) -> pd.DataFrame:
    """What to try, columns `STEP_COLUMNS`: categories that most tools name first, then the tools' own repairs.

    `verdicts` holds one row per technique: technique (its name), tool, faulty, category, probability (that the run is
    faulty, by its record) and evidence (JSON). Techniques that call the run correct suggest nothing.
    """
    called = verdicts[verdicts["faulty"].astype(bool)]
    return pd.DataFrame([*_places(called), *_repairs(called)], columns=list(STEP_COLUMNS))


def _places(called: pd.DataFrame) -> list[tuple[str, str, str]]:
    named = called[called["category"].isin(COMPONENTS)]
    # Variants of one tool agree by construction, so tools are counted.
    votes = named.groupby("category")["tool"].nunique().sort_values(ascending=False, kind="stable")
    of = named["tool"].nunique()
    rows = []
    for category, count in votes.items():
        own = named[named["category"] == category]
        because = f"named by {count} of {of} tools: {', '.join(own['tool'].unique())}"
        if (worth := own["probability"].max()) < 0.5:
            because += f"; a weak lead, such alarms are right in {100 * worth:.0f} %"
        rows.append((category, because, f"Look at {COMPONENTS[category]}."))
    return rows


def _repairs(called: pd.DataFrame) -> list[tuple[str, str, str]]:
    found: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for row in called.sort_values("probability", ascending=False, kind="stable").itertuples():
        for because, step in _of_tool(row.tool, json.loads(row.evidence)):
            found.setdefault((because, step), (row.probability, []))[1].append(row.technique)
    return [(", ".join(names), because, step) for (because, step), (_, names) in found.items()]


def _of_tool(tool: str, evidence: dict) -> list[tuple[str, str]]:
    """(finding, suggestion) of one rule-based verdict."""
    rules = [row["rule"] for row in evidence.get("rules", [])]
    if "repairs" in evidence:
        return [(evidence["problem"], f"In this order: {'; '.join(evidence['repairs'])}.")]
    if tool == "UMLAUT":
        return [(rule, _sentence(UMLAUT_HINTS[rule])) for rule in rules if rule in UMLAUT_HINTS]
    fixes = [(row["rule"], row.get("fix")) for row in evidence.get("rules", [])]
    return [(rule, _sentence(DEEPDIAGNOSIS_FIXES[fix])) for rule, fix in fixes if fix in DEEPDIAGNOSIS_FIXES]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
