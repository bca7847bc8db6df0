"""A `transformers.TrainerCallback` that measures a run without any other change to the training script."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from transformers import TrainerCallback

from features.bench import BenchError, write_parquet
from features.files import write_text
from features.measure.recorder import Recorder

_FIGURES = ("loss", "accuracy", "perplexity", "ece")


class MeasureCallback(TrainerCallback):
    """`Trainer(..., callbacks=[MeasureCallback("out/run.parquet")])` measures the run and writes it at the end.

    Parameters
    ----------
    path : the vector's Parquet file (one row, indexed by the file's stem). The log goes to `<stem>.log.parquet` and
        the report to `<stem>.report.txt` beside it. All are written by temporary name and renamed.
    every, probe : as in `Recorder`.

    With gradient accumulation a step is an optimiser step; its activations are those of the last of its batches.
    Validation figures are those of the last evaluation in, or right after, the epoch: `eval_accuracy` and others
    from `compute_metrics` where given, otherwise what the evaluation's own forward passes show. `recorder` holds
    the Recorder once training has begun. Raises UnsupportedModel when training begins, BenchError for a path that
    doesn't end in .parquet.
    """

    def __init__(self, path: str | Path, every: int = 1, probe: dict[str, Tensor] | None = None):
        self.path = path
        self.every = every
        self.probe = probe

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Attach."""
        if Path(self.path).suffix != ".parquet":
            raise BenchError(f"{self.path}: measurements are written as Parquet; give a path that ends in .parquet")
        self.recorder = Recorder(model, every=self.every, probe=self.probe).__enter__()
        self._figures: dict[str, float] = {}
        self._ended = False

    def on_epoch_begin(self, args, state, control, **kwargs):
        """Close the epoch before, if no evaluation has."""
        self._close()

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        """Measure: the gradients are still there, the parameters have changed."""
        self.recorder.step(optimizer=optimizer)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        """Keep the figures; an evaluation after the last step of an epoch closes it."""
        found = {f"val_{name}": (metrics or {}).get(f"eval_{name}") for name in _FIGURES}
        self._figures = {name: value for name, value in found.items() if value is not None}
        if self._ended:
            self._close()

    def on_epoch_end(self, args, state, control, **kwargs):
        """An evaluation may still follow."""
        self._ended = True

    def on_train_end(self, args, state, control, **kwargs):
        """Detach and write."""
        self._close()
        self.recorder.__exit__(None, None, None)
        path = Path(self.path)
        vector = self.recorder.vector().to_frame(path.stem).T
        vector.index.name = "run"
        write_parquet(vector, path)
        write_parquet(self.recorder.log(run=path.stem), path.with_suffix(".log.parquet"), index=False)
        write_text(path.with_suffix(".report.txt"), str(self.recorder.report()) + "\n")

    def _close(self) -> None:
        if self._ended:
            self.recorder.epoch(**self._figures)
            self._figures, self._ended = {}, False
