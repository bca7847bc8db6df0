"""`python -m features.inject [FAMILY ...]`: prove every operator at every value on every family, live, in a table.

Exit code 1 if a cell that should be effective is without effect or raises.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import transformers
from rich.console import Console
from rich.table import Table

from features.inject.applicability import applicable
from features.inject.fault import Fault
from features.inject.locate import FAMILIES
from features.inject.proof import prove
from features.inject.tiny import tiny_model
from features.taxonomy import OPERATORS, Operator

NAMES = {"bert": "BERT", "roberta": "RoBERTa", "distilbert": "DistilBERT", "gpt2": "GPT-2", "gpt_neo": "GPT-Neo"}
WIDTH = 100


@dataclass(frozen=True)
class Cell:
    """What came of one operator on one family: how many of its values are effective, and what else there is to say."""

    status: str
    text: str


def prove_cell(operator: Operator, family: str, model: transformers.PreTrainedModel) -> Cell:
    """Prove all values of an operator on a family: "effective", "n/a", "no effect" or "error"."""
    if reason := applicable(operator.code, family):
        return Cell("n/a", f"n/a: {reason}")
    absent, effects, kind = [], [], ""
    for value in operator.settings:
        if applicable(operator.code, family, value):
            absent.append(str(value))
            continue
        try:
            proof = prove(Fault(operator.code, value), model)
        except Exception as error:  # any failure is a finding of this table, to be shown in its place
            return Cell("error", f"{value}: {type(error).__name__}: {error}")
        if not proof.effective:
            return Cell("no effect", f"no effect at {value}")
        effects.append(proof.effect)
        kind = proof.evidence
    text = f"{kind} {min(effects):.1g}" + (f" (not {', '.join(absent)}: own)" if absent else "")
    return Cell("effective", text)


def main(arguments: list[str]) -> int:
    """Print the table; `arguments` are those of the command line. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m features.inject", description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="*", help=f"some of {', '.join(FAMILIES)}; default: all")
    families = parser.parse_args(arguments).family or list(FAMILIES)
    if unknown := [f for f in families if f not in FAMILIES]:
        parser.error(f"no family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    transformers.logging.set_verbosity_error()
    models = {family: tiny_model(family) for family in families}
    table = Table(title="Faults proved on tiny models: evidence and smallest effect over the values", width=WIDTH)
    for column in ("", "values", *(NAMES[family] for family in families)):
        table.add_column(column, overflow="fold")
    cells: list[Cell] = []
    styles = {"effective": "green", "n/a": "dim", "no effect": "bold red", "error": "bold red"}
    for operator in OPERATORS:
        row = [prove_cell(operator, family, model) for family, model in models.items()]
        cells += row
        values = " ".join(map(str, operator.values)) or "-"
        table.add_row(operator.code, values, *(f"[{styles[c.status]}]{c.text}[/]" for c in row))
    console = Console(width=WIDTH)
    console.print(table)
    count = {status: sum(c.status == status for c in cells) for status in styles}
    console.print(
        f"{len(cells)} cells: {count['effective']} effective, {count['n/a']} not applicable, "
        f"{count['no effect']} without effect, {count['error']} errors"
    )
    return int(count["no effect"] + count["error"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
