"""Measure a live training run: `Recorder` for a loop of one's own, `MeasureCallback` for `transformers.Trainer`."""

from features.measure.discover import UnsupportedModel
from features.measure.recorder import Recorder
from features.measure.report import Report

__all__ = ["MeasureCallback", "Recorder", "Report", "UnsupportedModel"]


def __getattr__(name: str):
    # The callback needs transformers; a loop of one's own does not.
    if name == "MeasureCallback":
        from features.measure.callback import MeasureCallback

        return MeasureCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
