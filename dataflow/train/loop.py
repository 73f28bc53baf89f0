"""One call of ``Trainer.fit``: epochs, validation, checkpoints, stopping early."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import Cancelled, DataflowError, InputError
from ..host.numbers import integer
from ..ir.types import Array
from . import checkpoint as files
from .callbacks import Callback, EarlyStop, Event, directed
from .changing import Changing, changed_origin, check, check_same, go_on, written
from .data.dataset import Dataset
from .history import History
from .interrupts import InterruptsHeld
from .metrics import RunningMean, figures
from .progress import progress
from .record import BEST, Record
from .schedules.runs import over
from .watch.clock import Clock

_log = logging.getLogger("dataflow")
_EARLIER = "earlier passes"  # of runs before, in a checkpoint's order


@dataclass(frozen=True, slots=True)
class Saving:
    """Where and how often a run is saved.

    Attributes:
        folder: of the checkpoints.
        every: ``"epoch"``, or a number of optimizer steps.
        keep: how many files stay.
    """

    folder: Path
    every: Literal["epoch"] | int
    keep: int

    def __post_init__(self) -> None:
        integer("fit: keep", self.keep)
        if self.every != "epoch":
            integer("fit: without 'epoch' every", self.every)


@dataclass(slots=True)
class Mark:
    """Where a run stands right after an optimizer step or an epoch: what a checkpoint can go on from.

    Attributes:
        epoch: passes done.
        position: batches of the next pass that are done.
        means: figures of that pass so far.
    """

    epoch: int
    position: int
    means: dict[str, RunningMean]


class Fit:
    """A run. See ``Trainer.fit`` for the arguments."""

    def __init__(
        self,
        trainer: Changing,
        data: Dataset,
        validation: Dataset | None,
        epochs: int,
        batch_size: int,
        shuffle: bool,
        callbacks: Sequence[Callback],
        saving: Saving | None,
        early_stop: EarlyStop | None,
        shown: bool | None,
    ) -> None:
        epochs, batch_size = integer("fit: epochs", epochs), integer("fit: batch_size", batch_size)
        trainer.check_idle("fit")
        if trainer.pending:
            raise InputError(f"fit: {trainer.pending} micro-batches of step() wait for the optimizer; call update()")
        if any(getattr(callback, "reads_gradients", False) for callback in callbacks):
            trainer.keeps_gradients = True
        self.trainer, self.data, self.validation = trainer, data, validation
        self.epochs, self.batch_size, self.shuffle = epochs, batch_size, shuffle
        self.given_batch_size = self.next_batch_size = batch_size  # callbacks change the next one
        self.earlier = trainer.passes  # passes over data of earlier runs: this one's have orders of their own
        modes = trainer.objective.modes
        self.callbacks, self.saving = callbacks, saving
        self.early_stop = directed(early_stop, modes, "EarlyStop")
        self.progress = progress(shown if trainer.leads else False)
        self.history = History()
        self.mark = Mark(0, 0, trainer.means())
        self.saved: Mark | None = None
        self.signature: dict[str, Any] = {}
        self.spoiled: frozenset[str] = frozenset()  # tensors that were not finite before
        self.stopping = self.empty = False
        self.best: float | None = None
        self.best_state: dict[str, Array] = {}
        self.waited = 0
        batches = data.count(batch_size, training=True)
        total = None if batches is None else trainer.steps + -(-batches // trainer.accumulate) * epochs
        schedule = over(trainer.names.schedule(trainer.optimizer.schedule), total)
        self.schedule = directed(schedule, modes, type(schedule).__name__)
        trainer.schedule = self.schedule
        watched = getattr(self.schedule, "monitor", None)
        if validation is None and isinstance(watched, str) and watched.startswith("val_"):
            raise InputError(f"fit: the schedule depends on {watched!r}, so it needs validation= or val_split=")

    def run(self, resume: str | Path | None) -> History:
        """The figures of the run, gone on from a checkpoint where ``resume`` says so."""
        processes, claims = self.trainer.processes, self.saving is not None and self.trainer.leads
        with (
            contextlib.nullcontext() if processes is None else processes.running(),
            files.Claim(self.saving.folder) if self.saving is not None and claims else contextlib.nullcontext(),
        ):
            return self._run(resume)

    def _run(self, resume: str | Path | None) -> History:
        self._begin(resume)
        if self.trainer.leads:
            _log.info("%s", self.trainer.described())
        self.progress.begin(
            self.epochs, self.data.count(self.batch_size, training=True), self.mark.epoch, self.mark.position
        )
        try:
            while self.mark.epoch < self.epochs and not self.stopping:
                self._epoch()
            self._save_last()
        except BaseException as error:
            self.trainer.discard()  # what the mark does not count
            if isinstance(error, (KeyboardInterrupt, Cancelled)):
                self._save_interrupted()
            raise
        finally:
            self.progress.end()
            self.trainer.passes = self.earlier + self.mark.epoch + (self.mark.position > 0)
        self._finish()
        return self.history

    # ---- an epoch -------------------------------------------------------------------------------------

    def _epoch(self) -> None:
        trainer, number, position = self.trainer, self.mark.epoch, self.mark.position
        if not position:
            self.batch_size = self.next_batch_size
        means = copy.deepcopy(self.mark.means)
        clock = Clock()
        batches = self.data.batches(
            self.batch_size,
            seed=trainer.seed,
            epoch=self.earlier + number,
            shuffle=self.shuffle,
            start=position,
            training=True,
        )
        with contextlib.closing(batches):
            for batch in clock.over(batches):
                with trainer.model.lock:
                    trainer.micro_batch(batch, means)
                    position += 1
                    complete = trainer.pending >= trainer.accumulate
                    row = self._update(number, position, means) if complete else {}
                self.progress.batch(number, position, figures(means))
                self._updated(row)
                if self.stopping:
                    return
        if trainer.pending:  # the last logical batch of the epoch is short
            self._updated(self._update(number, position, means))
        if not position:
            raise InputError(f"fit: epoch {number + 1} had no batches")
        self._end_epoch(number + 1, means, clock.figures(trainer.plans()))

    def _update(self, epoch: int, position: int, means: Mapping[str, RunningMean]) -> dict[str, float]:
        """Runs the optimizer; its figures."""
        with InterruptsHeld():  # weights, mark and history advance together
            row = self.trainer.update()
            self.mark = Mark(epoch, position, copy.deepcopy(dict(means)))
            if row:
                self.history.add_step({**row, "epoch": epoch})
        return row

    def _updated(self, row: Mapping[str, float]) -> None:
        """Calls back after an update that has figures, and saves."""
        if not row:
            return
        self._tell("step", self.mark.epoch, row)
        every = self.saving.every if self.saving is not None else None
        if isinstance(every, int) and self.trainer.steps % every == 0:
            self._save()

    def _end_epoch(self, epoch: int, means: Mapping[str, RunningMean], clocked: Mapping[str, float]) -> None:
        row = figures(means)
        if not means["loss"].sums[1] and means["loss"].batches and not self.empty:
            self.empty = True
            _log.warning("epoch %d: the loss is nan, for no label counts: all are ignored, or have weight 0", epoch)
        if self.validation is not None:
            found = self.trainer.validate(self.validation, self.batch_size)
            arrays = [name for name, figure in found.items() if np.ndim(figure)]
            if arrays and not self.history.epochs:
                _log.warning(
                    "%s: an array, which the history of fit doesn't keep; evaluate gives it", ", ".join(arrays)
                )
            row |= {f"val_{name}": figure for name, figure in found.items() if name not in arrays}
        rule = self.early_stop
        better = rule is not None and rule.better(rule.figure(row), self.best)
        weights = self._weights() if rule is not None and better and rule.restore_best else {}
        with InterruptsHeld():  # mark, history and early stop advance together
            self.mark = Mark(epoch, 0, self.trainer.means())
            self.history.add_epoch({"epoch": epoch, **row, **clocked})
            if rule is not None and better:
                self.best, self.waited, self.best_state = rule.figure(row), 0, weights
            elif rule is not None:
                self.waited += 1
            self._judge()
            self._adapt()
        self.progress.epoch(epoch, row)
        self._tell("epoch", epoch, {**row, **clocked})
        if self.saving is not None and self.saving.every == "epoch":
            self._save()

    def _weights(self) -> dict[str, Array]:
        """Copies of the weights, named as those of the best epoch."""
        slots = self.trainer.updates.all_slots()
        kept = {name for name, tensor in slots.items() if tensor.slot.evaluated}
        state = self.trainer.programs.state(slots.keys() - kept, copies=False)
        return {BEST + k: v.copy() for k, v in state.items() if k.startswith("parameters/") or k in kept}

    def _adapt(self) -> None:
        """Lets a schedule that depends on figures go on from those so far."""
        after = getattr(self.schedule, "after", None)
        if after is not None:
            self.trainer.schedule = after(self.history.epochs)

    def _judge(self) -> None:
        """Stops when there was no better epoch for too long, here or before the run was resumed."""
        rule = self.early_stop
        if rule is not None and self.waited >= rule.patience:
            best = "any" if self.best is None else f"{self.best:.6g}"
            _log.info("%s has not become better than %s for %d epochs", rule.monitor, best, self.waited)
            self.stopping = True

    def _save_last(self) -> None:
        """Saves what no checkpoint has yet, before the weights of the best epoch come back."""
        if self.saving is not None and self.saved is not self.mark:
            self._save()

    def _save_interrupted(self) -> None:
        """Saves at the mark; that it could not must not hide the interrupt."""
        processes = self.trainer.processes
        if self.saving is None or (processes is not None and not processes.stopped):
            return
        try:
            self._save()
        except (OSError, DataflowError) as error:
            _log.error("interrupted, and not saved: %s", error)
        else:
            _log.warning("interrupted; saved in %s", self.saving.folder)

    def _finish(self) -> None:
        """The weights of the best epoch come back, and callbacks are called."""
        if self.best_state:
            state = self.trainer.programs.state(copies=False)
            state |= {name.removeprefix(BEST): array for name, array in self.best_state.items()}
            with InterruptsHeld():
                self.trainer.programs.load_state(state)
            self.history.kept = -1 - self.waited
            if self.waited:
                _log.info(
                    "the weights are those of epoch %d, the best", self.history.epochs["epoch"][self.history.kept]
                )
        self._tell("end", self.mark.epoch, {})

    def _tell(self, kind: Literal["step", "epoch", "end"], epoch: int, metrics: Mapping[str, float]) -> None:
        event = Event(kind, self.trainer, self.trainer.steps, epoch, metrics)
        for callback in self.callbacks:
            callback(event)
        self.stopping |= event.stopping
        self.next_batch_size = event.batch_size or self.next_batch_size

    # ---- checkpoints ----------------------------------------------------------------------------------

    def _save(self) -> None:
        assert self.saving is not None
        with self.trainer.model.lock:  # tensors are written from where they lie
            tensors = self.trainer.state(copies=False)
            if self.trainer.leads:
                self._write(self.saving, {**tensors, **self.best_state})
        self.saved = self.mark

    def _write(self, saving: Saving, tensors: Mapping[str, Array]) -> None:
        written(
            self.trainer,
            saving.folder,
            saving.keep,
            tensors,
            self.spoiled,
            epoch=self.mark.epoch,
            position=self.mark.position,
            means=self.mark.means,
            history=self.history,
            best=self.best,
            waited=self.waited,
            order=self._order(self.mark.position),
            data=self.signature,
            batch_sizes={"given": self.given_batch_size, "now": self.batch_size, "next": self.next_batch_size},
        )

    def _begin(self, resume: str | Path | None) -> None:
        """Goes on from a checkpoint where ``resume`` says so; looks at what the run begins with."""
        if resume is None and self.saving is None:
            return
        trainer = self.trainer
        self.signature = self.data.signature()
        if resume is not None:
            self._resume(resume)
        state, parameters = trainer.programs.state(copies=False), trainer.model.parameters
        begun = {
            key: parameters[name].array for name in trainer.trainable if (key := f"parameters/{name}") not in state
        }
        self.spoiled = frozenset(files.not_finite({**begun, **state}))
        later = None if self.saving is None or resume == "auto" else files.later(self.saving.folder, trainer.steps)
        if later is not None:
            raise InputError(
                f"fit: {later} is of a later step than {trainer.steps}, where this run begins, and would be taken "
                "for its newest checkpoint; resume='auto' goes on from there; otherwise choose another folder"
            )

    def _resume(self, resume: str | Path) -> None:
        if resume == "auto":
            assert self.saving is not None
            found = files.newest(self.saving.folder, Record.of)
        else:
            found = Path(resume), files.load(resume)
        check_same(self.trainer, found)
        if found is None:
            return
        trainer, (path, state) = self.trainer, found
        record = Record.of(state, path)
        check(trainer, path, state, record)
        if record.batch_sizes.get("given") == self.given_batch_size:
            self.batch_size = record.batch_sizes.get("now", self.batch_size)
            self.next_batch_size = record.batch_sizes.get("next", self.batch_size)
        earlier = record.order.get(_EARLIER, 0)
        self.earlier = earlier if isinstance(earlier, int) and 0 <= earlier < 1 << 31 else 0
        position = self._position(record, path)
        # Everything fits: from here on the trainer changes.
        same = position and record.means.keys() == self.mark.means.keys()
        go_on(trainer, path, state, record)
        self.mark = self.saved = Mark(record.epoch, position, dict(record.means) if same else trainer.means())
        self.history, self.best, self.waited = record.history, record.best, record.waited
        self.best_state = {k: v for k, v in state.tensors.items() if k.startswith(BEST)}
        self._judge()
        self._adapt()
        _log.info("resumed from %s: step %d, epoch %d", path, trainer.steps, self.mark.epoch)

    def _position(self, record: Record, path: Path) -> int:
        """The batch to go on from, after a word on what changed since the checkpoint.

        Raises:
            InputError: within an epoch, and the data has another length.
        """
        order = {key: value for key, value in self._order(record.position).items() if value != record.order.get(key)}
        if "samples" in order and record.position:
            raise InputError(
                f"{path}: it was saved within an epoch over {record.order.get('samples')} samples, and the data has "
                f"{self.data.length} now, so its order can't go on; give the same data, or resume from a checkpoint of "
                "the end of an epoch"
            )
        data = [
            f"{key} ({record.data[key]} there, {value} here)"
            for key, value in self.signature.items()
            if key in record.data and record.data[key] != value
        ]
        if data:
            _log.warning("%s: the data changed since: %s", path, "; ".join(data))
        origin = changed_origin(self.trainer, record)
        if order and record.position:
            _log.warning("%s: %s changed, so the epoch begins again", path, ", ".join(order))
        if origin or order:
            _log.warning(
                "%s: not bit for bit, since these changed: %s", path, ", ".join(dict.fromkeys([*origin, *order]))
            )
        batches = self.data.count(self.batch_size, training=True)
        if not order and batches is not None and record.position > batches:
            raise InputError(f"{path}: damaged: it is at batch {record.position} of an epoch of {batches}")
        return 0 if order else record.position

    def _order(self, position: int) -> dict[str, Any]:
        """What the order of the data depends on, beside the epoch, at this position in it."""
        trainer = self.trainer
        return {
            "seed": trainer.seed,
            "shuffle": self.shuffle,
            "batch_size": self.batch_size if position else self.next_batch_size,
            "accumulate": trainer.accumulate,
            "samples": self.data.length,
            "sampling": self.data.sampling,
            "lengths": self.signature.get("lengths"),
            **({_EARLIER: self.earlier} if self.earlier else {}),
        }
