"""Fine-tune a tiny transformer with transformers' Trainer, measured by our callback, and write the run to a folder.

python examples/fine_tuning_with_recorder.py runs/healthy
python examples/fine_tuning_with_recorder.py runs/faulty --fault RRS
python experiments/diagnose.py runs/faulty

Model and text are the embedded bench's own (nothing is downloaded), so that the run is of the bench's kind; of your own
training script, the lines that matter are the two marked "measure". A fault is one of the operators of
`features.taxonomy`, put in for the whole run. Needs the extra `runs`: pip install -e ".[runs]".
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from torch.utils.data import IterableDataset

from experiments.engine.command import one_line_errors
from features.bench import BenchError
from features.build.families import family
from features.build.profile import profile
from features.build.run import PROBE_SIZE, adamw, schedule
from features.build.tasks import task
from features.build.tasks.task import Examples
from features.build.variants import BASE_SETTING
from features.inject import Fault, InjectionError, inject
from features.measure import MeasureCallback
from features.taxonomy import OPERATORS
from features.threads import torch_threads

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Pool(IterableDataset):
    """Rows of a pool without end, shuffled anew whenever it is used up; an iteration gives the next `count` of them."""

    def __init__(self, examples: Examples, count: int, seed: int):
        self.examples, self.count = examples, count
        self.generator = torch.Generator().manual_seed(seed)
        self.waiting: list[int] = []

    def __iter__(self) -> Iterator[dict]:
        for _ in range(self.count):
            if not self.waiting:
                self.waiting = torch.randperm(len(self.examples), generator=self.generator).tolist()
            yield row_of(self.examples, self.waiting.pop())


def row_of(examples: Examples, row: int) -> dict[str, torch.Tensor]:
    """One example as a data set gives it."""
    return {name: tensor[row] for name, tensor in (*examples.inputs.items(), ("labels", examples.labels))}


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    """Rows as a batch, cut to the longest sequence."""
    stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return Examples(stacked, stacked.pop("labels")).take(slice(None))


def accuracy(prediction) -> dict[str, float]:
    """What the callback reads as `eval_accuracy`; of a language model it takes the loss alone."""
    hits = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(hits.mean())} if hits.ndim == 1 else {}


@app.command()
@one_line_errors
def main(
    folder: Annotated[Path, typer.Argument(help="Where the run's vector, log and report go.")],
    fault: Annotated[str | None, typer.Option(help="Operator to put in, such as RRS; default: none.")] = None,
    model: Annotated[str, typer.Option(help="A family of the bench.")] = "bert",
    on: Annotated[str, typer.Option(help="A task of the bench.")] = "sentiment",
    seed: int = 7,
) -> None:
    """Fine-tune once and write what was measured."""
    path = folder / f"{model}-{on}-{fault or 'healthy'}.parquet"
    with torch_threads(1):
        loss = fine_tune(path, chosen_fault(fault, seed), model, on, seed)
    typer.echo(f"validation loss {loss:.3f}; written: {path}")


def chosen_fault(code: str | None, seed: int) -> Fault | None:
    """The operator of this code at its most severe setting. Raises BenchError naming the known ones."""
    if code is None:
        return None
    known = {op.code: op for op in OPERATORS}
    if code not in known:
        raise BenchError(f"no fault {code!r}; known: {', '.join(known)}")
    return Fault(code, known[code].settings[-1], seed=seed)


def fine_tune(path: Path, fault: Fault | None, model_name: str, task_name: str, seed: int) -> float:
    """Train as the bench's runs were trained, but by Trainer; gives the last validation loss."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    try:
        of_family, chosen = family(model_name), task(task_name)
    except KeyError as error:
        raise BenchError(error.args[0]) from None
    if of_family.arch != chosen.arch:
        raise BenchError(f"{model_name} is a {of_family.arch} and {task_name} a task of {chosen.arch}s; choose a pair")
    sizes = profile("embedded")
    steps = sizes.epochs * sizes.steps_per_epoch
    train = sizes.load(of_family, chosen, "train", sizes.train_size or chosen.examples)
    validation = sizes.load(of_family, chosen, "validation", sizes.validation_size)
    model = sizes.start(of_family, seed)
    optimizer = adamw(model, sizes.rate(chosen), sizes.body_rate(chosen))
    measure = MeasureCallback(path, every=sizes.measure_every, probe=train.take(slice(PROBE_SIZE)))  # measure
    with TemporaryDirectory() as output, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = TrainingArguments(
            output_dir=output,
            max_steps=steps,
            per_device_train_batch_size=BASE_SETTING.batch_size,
            per_device_eval_batch_size=len(validation),
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            seed=seed,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Pool(train, BASE_SETTING.batch_size * sizes.steps_per_epoch, seed),
            eval_dataset=[row_of(validation, row) for row in range(len(validation))],
            data_collator=collate,
            compute_metrics=accuracy,
            optimizers=(optimizer, schedule(optimizer, steps, BASE_SETTING.warmup)),
            callbacks=[measure],  # measure
        )
        trainer.remove_callback(PrinterCallback)
        try:
            with nullcontext() if fault is None else inject(model, fault, optimizer=optimizer):
                trainer.train()
                return trainer.evaluate()["eval_loss"]
        except InjectionError as error:
            raise BenchError(f"the fault can't be put into {model_name}: {error}") from None


if __name__ == "__main__":
    app()
