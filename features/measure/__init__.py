"""Measure a live training run: `Recorder` for a loop of one's own, `MeasureCallback` for `transformers.Trainer`."""

from importlib import import_module

_HOME = {
    "MeasureCallback": "features.measure.callback",
    "Recorder": "features.measure.recorder",
    "Report": "features.measure.report",
    "UnsupportedModel": "features.measure.discover",
}
__all__ = list(_HOME)


def __getattr__(name: str):
    # Who reads what was measured needs no torch, and who has a loop of one's own no transformers.
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
