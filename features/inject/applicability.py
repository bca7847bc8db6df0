"""Where an operator can't act, and why: scope, missing parts, and settings that a family has anyway.

>>> applicable("ESS", "distilbert")
'DistilBERT has no segment embeddings'
>>> applicable("FCA", "bert") is None, applicable("FCA", "bert", "gelu")
(True, 'gelu is the activation this family has')
"""

from __future__ import annotations

from torch import nn

from features.inject.ffn import same_activation
from features.inject.locate import FAMILIES, family_of, locate
from features.taxonomy import operator

NOT_APPLICABLE: dict[tuple[str, str], str] = {
    ("SDS", "gpt_neo"): "GPT-Neo never divides its scores by the root of the head size",
    ("ESS", "distilbert"): "DistilBERT has no segment embeddings",
    ("ESS", "gpt2"): "GPT-2 has no segment embeddings",
    ("ESS", "gpt_neo"): "GPT-Neo has no segment embeddings",
}
"""(operator, family) → reason, beyond the scope that the taxonomy gives an operator."""

OWN_ACTIVATION = {"bert": "gelu", "roberta": "gelu", "distilbert": "gelu"}
"""The activation that a family has unless configured otherwise, where FCA offers it."""


def applicable(code: str, model_or_family: nn.Module | str, value: float | int | str | None = None) -> str | None:
    """None if the operator (at this parameter value, if given) can act on the model or family, else the reason.

    Whether a value is what an optimizer or a dropout already has shows only at injection, as a NoEffectError.
    Raises KeyError for an unknown operator, InjectionError for an unknown family.
    """
    scope = operator(code).architectures
    family = family_of(model_or_family)
    if FAMILIES[family] not in scope:
        return f"{scope[0]} only"
    if reason := NOT_APPLICABLE.get((code, family)):
        return reason
    if code == "FCA" and value is not None:
        if isinstance(model_or_family, nn.Module):
            own = any(same_activation(getattr(*x.activation), value) for x in locate(model_or_family).layers)
        else:
            own = OWN_ACTIVATION.get(family) == value
        if own:
            return f"{value} is the activation this family has"
    return None
