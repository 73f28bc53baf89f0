"""``dataflow finetune``: options as texts and numbers become a Trainer and a run."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..adapters.adapter import AdaptedModel
from ..errors import InputError
from ..host import checks
from ..model import Model
from ..plugin.registry import registry_of
from ..train.callbacks import Callback, EarlyStop
from ..train.data.batch import Request
from ..train.data.dataset import Dataset
from ..train.data.reading import recalled
from ..train.history import History
from ..train.losses import NLL, CrossEntropy
from ..train.losses.loss import LABELS
from ..train.names import Names
from ..train.parallel.collectives import collectives_of, in_job
from ..train.rate_finder import RateCurve
from ..train.trainer import Trainer
from ..train.watch.charts import require_matplotlib
from ..train.watch.loggers import CSV, JSONLines, TensorBoard
from .adapter_options import adapted, dropping
from .optimizer_options import names_in, optimizing
from .options import renames

_log = logging.getLogger("dataflow")
_FEW = 3  # epochs, of which there is no curve


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line gives, each as its help says."""

    data: str
    val: str | None
    val_split: float
    classes: int | None
    trainable: Sequence[str]
    losses: Sequence[str]
    value: str | None
    epochs: int
    batch_size: int
    accumulate: int
    memory: str | None
    update: Literal["together", "as_ready"]
    batch_norm: Literal["fixed", "update"]
    metrics: Sequence[str]
    callbacks: Sequence[str]
    seed: int
    shard: Literal["optimizer", "gradients"] | None
    renames: Sequence[str]
    class_weights: str | None
    patience: int | None
    checkpoint: str | None
    resume: str | None
    log: str | None
    tensorboard: str | None
    plot: str | None
    execution: Mapping[str, Any]
    reading: Mapping[str, Any]
    adapters: Mapping[str, Any]
    optimizer: Mapping[str, Any]


def finetune(model: Model, write: Callable[[Model], None], options: Options) -> dict[str, Any] | None:
    """The figures of the epoch whose weights are written, the last or the best; ``write`` got the trained model.

    Where mpirun began several processes, they train together, and the one of rank 0 writes; None in the others.

    Args:
        model: what to train.
        write: saves a model; also called when the run is interrupted without a checkpoint folder.
        options: of the command.

    Raises:
        InputError: options that don't fit the model, the data or each other.
    """
    if options.patience is not None and options.val is None and not options.val_split:
        raise InputError("--patience needs --val or --val-split")
    if options.plot not in (None, "-"):
        checks.writable_file("--plot", options.plot)
        require_matplotlib(options.plot)
    if not in_job():  # one process of a job writes, on its own machine
        _check_written(options)
    model, trainer, dataset = _prepared(model, options)
    validation = None if options.val is None else dataset.like(options.val)
    callbacks: list[Callback | str] = [*options.callbacks]
    leads = trainer.leads
    if options.log is not None and leads:
        log = CSV if options.log.endswith(".csv") else JSONLines
        callbacks.append(log(options.log, append=options.resume is not None))
    if options.tensorboard is not None and leads:
        callbacks.append(TensorBoard(options.tensorboard))
    try:
        history = trainer.fit(
            dataset,
            validation,
            val_split=options.val_split,
            epochs=options.epochs,
            batch_size=options.batch_size,
            callbacks=callbacks,
            checkpoint=options.checkpoint,
            resume=options.resume,
            early_stop=None if options.patience is None else EarlyStop(patience=options.patience),
        )
    except KeyboardInterrupt:
        if options.checkpoint is None and trainer.steps and leads:
            trainer.close()
            write(model)
            _log.warning("interrupted after %d optimizer steps; the model was written as it is", trainer.steps)
        raise
    trainer.close()
    if not leads:
        return None
    write(model)
    if options.plot is not None:
        _plot(history, options.plot)
    return {
        "epochs": len(history.epochs.get("epoch", ())),
        "steps": trainer.steps,
        "trained": list(trainer.trainable),
        "classes": {key: list(names) for key, names in trainer.classes.items()},
        "figures": {name: column[history.kept] for name, column in history.epochs.items() if column},
    }


def _check_written(options: Options) -> None:
    """Says before long work which files of a run couldn't be written; raises InputError."""
    if options.log is not None:
        checks.writable_file("--log", options.log)
    for name, folder in {"--tensorboard": options.tensorboard, "--checkpoint": options.checkpoint}.items():
        if folder is not None:
            checks.writable_folder(name, folder)


def find_lr(model: Model, options: Options) -> RateCurve | None:
    """The sweep of learning rates for these options; raises InputError and gives None as ``finetune``."""
    _, trainer, dataset = _prepared(model, options)
    with trainer:
        curve = trainer.find_lr(dataset, batch_size=options.batch_size)
    return curve if trainer.leads else None


def _prepared(model: Model, options: Options) -> tuple[Model, Trainer, Dataset]:
    """The model as it is trained, its Trainer, and the data."""
    rename = renames(options.renames)
    reading = options.reading if rename else recalled(model.metadata, options.data, options.reading, labels=True)
    dataset = Dataset(options.data, rename=rename, **reading)
    if options.classes is not None:
        from ..head_replacement import replace_head

        model = replace_head(model, classes=options.classes, seed=options.seed)
    if options.trainable and options.adapters["adapters"] is not None:
        raise InputError("--adapters goes on with what was saved; it doesn't fit --trainable")
    also = options.trainable or (["head"] if options.classes is not None else [])
    model = adapted(model, options.adapters, also, options.seed)
    given = (*options.losses, *names_in(options.optimizer), *options.metrics, *options.callbacks)
    if any(":" in name for name in given):
        sys.path.append(str(Path.cwd()))  # a script installed in another folder doesn't have it
    names = Names(registry_of(None).named)
    collectives = collectives_of("data") if in_job() else None
    if collectives is not None and collectives.rank:
        _log.setLevel(logging.WARNING)  # what one process says is enough
    trainer = Trainer(
        model,
        _losses(names, options.losses, options.class_weights, dataset),
        output=options.value,
        metrics=list(options.metrics) or None,
        trainable=None if isinstance(model, AdaptedModel) else list(options.trainable) or None,
        **dropping(model, options.adapters),
        accumulate=options.accumulate,
        memory=options.memory,
        update=options.update,
        batch_norm=options.batch_norm,
        parallel=collectives,
        shard=options.shard,
        seed=options.seed,
        **optimizing(names, options.optimizer),
        **options.execution,
    )
    return model, trainer, dataset


def _plot(history: History, path: str) -> None:
    """Draws the steps' curves where there are too few epochs for any; ``-`` writes text to stderr."""
    steps = len(history.epochs.get("epoch", ())) < _FEW
    if path == "-":
        sys.stderr.write(history.text(steps=steps) + "\n")
    else:
        history.plot(path, steps=steps)


def _losses(names: Names, given: Sequence[str], class_weights: str | None, data: Dataset) -> list[Any]:
    """The losses; those of classes with these weights."""
    losses = [names.loss(name) for name in given]
    if class_weights is None:
        return losses
    if not any(isinstance(loss, (CrossEntropy, NLL)) for loss in losses):
        raise InputError(f"--class-weights fits the losses cross_entropy and nll, not {', '.join(given)}")
    try:
        weights = _balanced(data) if class_weights == "balanced" else [float(w) for w in class_weights.split(",")]
    except ValueError:
        raise InputError(f"--class-weights {class_weights}: expected numbers between commas, or balanced") from None
    return [
        dataclasses.replace(loss, class_weights=weights) if isinstance(loss, (CrossEntropy, NLL)) else loss
        for loss in losses
    ]


def _balanced(data: Dataset) -> list[float]:
    """Samples / (classes * samples of the class): rare classes weigh more, and the mean over samples is 1."""
    labels = data.bound(Request({}, (LABELS,), raw=True)).column(LABELS)
    if labels is None or labels.dtype.kind not in "iu":
        raise InputError("--class-weights balanced needs 'labels' of an integer type in the data")
    counts = np.bincount(labels[labels >= 0].ravel().astype(np.int64))
    if not counts.all():
        raise InputError(f"--class-weights balanced: no sample has the class {int(np.argmin(counts))}")
    return [float(w) for w in counts.sum() / (len(counts) * counts)]
