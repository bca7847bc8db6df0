"""What a real-world case is: a fault reported in public, rebuilt on a model of the bench, and the truth about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from features.build.families import family
from features.inject.attention import attention_hook
from features.measure.discover import dissect
from features.taxonomy import ROOT_CAUSES, Architecture


def _as_it_is(model: nn.Module) -> nn.Module:
    return model


def with_attention(model: nn.Module, change: Callable[[nn.Module, Tensor, dict], dict | None]) -> nn.Module:
    """The model, the attention of all its layers called with what `change` makes of the arguments from now on."""
    for layer in dissect(model).layers:
        layer.attention.register_forward_pre_hook(attention_hook(change), with_kwargs=True)
    return model


@dataclass(frozen=True)
class Case:
    """A fault of somebody's, in a faulty and in a fixed version that differ in nothing else.

    Attributes
    ----------
    name : on the command line and in run ids.
    issue : "owner/repository#number" of the public report.
    reported_as : its key in the manuscript's Table 12 (`results/paper.yaml`, `table12_real_world`).
    mechanism : one sentence of our own on what goes wrong there.
    here : one sentence on how it is rebuilt here, and where that departs from the report.
    family, task : of the bench; model, base weights, data, steps and probes are the bench's.
    category, root_cause : the truth, in the words of `features.taxonomy`; `why` says why this root cause.
    shows : metric of the log that should show the fault, for a reader who doubts it.
    prepare : `prepare(model, faulty)` gives the model to train, made from a fresh fine-tuning model of the family.
    served : how the trained model is used in validation, a module with the same forward; itself by default.

    Raises ValueError if the root cause isn't one of the category's.
    """

    name: str
    issue: str
    reported_as: str
    mechanism: str
    here: str
    family: str
    task: str
    category: str
    root_cause: str
    why: str
    shows: str
    prepare: Callable[[nn.Module, bool], nn.Module]
    served: Callable[[nn.Module], nn.Module] = _as_it_is

    def __post_init__(self):
        if self.root_cause not in ROOT_CAUSES[self.category]:
            raise ValueError(f"case {self.name}: {self.category} has no root cause {self.root_cause!r}")

    @property
    def arch(self) -> Architecture:
        return family(self.family).arch
