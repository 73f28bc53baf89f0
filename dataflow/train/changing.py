"""What may change in mid-training: the rate, which parameters are frozen, and all of it, to what a checkpoint has."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataflowError, InputError
from ..host import checks
from ..host.numbers import integer
from ..ir.types import Array
from ..version import VERSION
from . import checkpoint as files
from .checkpoint import Checkpoint
from .freezing import Freezing, check_some_left, counting, kept_of_averages, named
from .history import History
from .interrupts import InterruptsHeld
from .parallel.collectives import check_alike
from .record import BEST, Record, slot_names
from .stepper import Stepper

_log = logging.getLogger("dataflow")


class Changing(Stepper):
    """A stepper whose rate, frozen parameters and state may change between its steps; arguments as for Stepper."""

    _goes_on: Path | None = None  # the folder whose newest whole checkpoint it goes on from

    @property
    def lr_factor(self) -> float:
        """By which the learning rate is multiplied, beside the schedule; it can be assigned to at any time."""
        return self._lr_factor

    @lr_factor.setter
    def lr_factor(self, factor: float) -> None:
        factor = checks.number("lr_factor", factor)
        if factor == 0.0:
            raise InputError("lr_factor is 0; expected a number above it; freeze() stops parameters")
        self._lr_factor = factor

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the frozen parameters."""
        return tuple(self.freezing.since)

    def freeze(self, patterns: Sequence[str] | str) -> None:
        """From the next step on parameters stay as they are, with the optimizer's tensors, and cost no gradient.

        Args:
            patterns: names and patterns among the trained parameters, as for ``trainable=``.

        Raises:
            InputError: a pattern matches none of them, none would be left, or micro-batches wait for the optimizer.
        """
        names = named(self.model, patterns, self.trainable, self.ties)
        self.apply_freezing(self.freezing.frozen(names, self.steps))

    def unfreeze(self, patterns: Sequence[str] | str = "*") -> None:
        """Parameters change again, their moments and counts of steps where they stood; arguments as for ``freeze``.

        Averages of weights (EMA, SWA) take them in as what they were at each of the steps between.
        """
        names = named(self.model, patterns, self.trainable, self.ties)
        with self.model.lock:
            still = {name: self.freezing.since[name] for name in names if name in self.freezing.since}
            self.apply_freezing(self.freezing.unfrozen(names, self.steps, self._own_updates))
            with InterruptsHeld():
                for name, keep in kept_of_averages(self._own_updates, still, self.steps).items():
                    self.programs.stood_still(name, keep)

    def apply_freezing(self, freezing: Freezing, steps: int | None = None) -> None:
        """Freezes what ``freezing`` says, and nothing else, after so many steps; raises InputError as ``freeze``."""
        with self.model.lock:
            self._check_open()
            self.check_idle("freeze")
            if self._search is not None and freezing != self.freezing:
                raise InputError("freeze: LBFGS keeps changes of all parameters together; use another optimizer")
            if self._pending:
                raise InputError(f"freeze: {self._pending} micro-batches wait for update(), and would lose gradients")
            updates = counting(self._own_updates, freezing.missed)
            check_some_left(updates, freezing, self.trainable, self.steps if steps is None else steps)
            if freezing != self.freezing:
                with InterruptsHeld():
                    self.programs.freeze(frozenset(freezing.since), updates)
                    self.freezing, self.updates = freezing, updates

    def checkpoint(self, folder: str | Path, *, keep: int = 3) -> Path:
        """Writes where training stands between two optimizer steps, for ``resume``; the path of the file.

        It has the parameters, the optimizer's tensors, averages, statistics, what is frozen, the count of steps and
        factors, not the data or where the loop stands in it. ``fit(resume=)`` takes it too. Of several processes all
        call it, and the first writes.

        Args:
            folder: made where it isn't there; the file is called by the number of optimizer steps.
            keep: how many files up to this one stay.

        Raises:
            InputError: micro-batches wait for the optimizer, another run writes there, or a checkpoint of a later step
                lies there, which would be taken for the newest.
            DataflowError: a tensor isn't finite.
            OSError: the file can't be written.
        """
        self._check_between("checkpoint")
        folder, keep = Path(checks.path("checkpoint: folder", folder)), integer("checkpoint: keep", keep)
        with self.model.lock:
            tensors = self.state(copies=False)
            if not self.leads:
                return files.path_of(folder, self.steps)
            with files.Claim(folder):
                later = None if folder.resolve() == self._goes_on else files.later(folder, self.steps)
                if later is not None:
                    raise InputError(
                        f"checkpoint: {later} is of a later step than {self.steps}, where training stands, and would "
                        "be taken for its newest checkpoint; resume(folder) goes on from there; otherwise choose "
                        "another folder, or move it away"
                    )
                return written(self, folder, keep, tensors)

    def resume(self, path: str | Path) -> int:
        """Goes on where a checkpoint stands; the number of optimizer steps done.

        What keeps it from having the same bits, another number of threads for instance, is said in the log.

        Args:
            path: a file, or a folder, whose newest whole file counts; 0 comes of a folder without any.

        Raises:
            InputError: micro-batches wait for the optimizer; or the file is damaged, or of another model, optimizer or
                choice of what is trained.
        """
        self._check_between("resume")
        path = Path(checks.path("resume: path", path))
        folder = None if path.is_file() else path.resolve()
        if folder is not None and path.suffix == ".safetensors" and not path.is_dir():
            raise InputError(f"resume: there is no file {path}")
        found = (path, files.load(path)) if folder is None else files.newest(path, Record.of)
        check_same(self, found)
        if found is None:
            return 0
        path, state = found
        record = Record.of(state, path)
        check(self, path, state, record)
        with self.model.lock:
            go_on(self, path, state, record)
        self._goes_on = folder
        if changed := changed_origin(self, record):
            _log.warning("%s: not bit for bit, since these changed: %s", path, ", ".join(changed))
        return self.steps

    def _check_between(self, name: str) -> None:
        self._check_open()
        self.check_idle(name)
        if self.pending:
            raise InputError(f"{name}: {self.pending} micro-batches wait for the optimizer; call update()")


def written(
    trainer: Changing,
    folder: Path,
    keep: int,
    tensors: Mapping[str, Array],
    spoiled: frozenset[str] = frozenset(),
    **run: Any,
) -> Path:
    """The path of the checkpoint that was written of a trainer.

    Args:
        trainer: between two optimizer steps.
        folder: where files lie.
        keep: how many of them stay.
        tensors: what it holds.
        spoiled: names of those that needn't be finite.
        run: what the record has of a run of ``fit``.

    Raises:
        DataflowError: a tensor isn't finite.
        OSError: the file can't be written.
    """
    found = [name for name in files.not_finite(tensors) if name not in spoiled]
    if found:
        raise DataflowError(
            f"{folder}: not saved after {trainer.steps} optimizer steps: {', '.join(found[:3])} not finite, which the "
            "last updates made so; resume from the newest checkpoint with a lower learning rate, or clip_norm"
        )
    of_run: dict[str, Any] = {
        "epoch": 0,
        "position": 0,
        "means": {},
        "history": History(),
        "best": None,
        "waited": 0,
        "order": {},
    }
    record = Record(
        steps=trainer.steps,
        trainable=trainer.trainable,
        slots=slot_names(trainer.updates.all_slots()),
        origin=origin_of(trainer),
        algorithms=trainer.execution.algorithms.used,
        optimizer=trainer.updates.described,
        freezing=trainer.freezing.state(),
        lr_factor=trainer.lr_factor,
        loss_scale={} if trainer.scaling is None else trainer.scaling.state(),
        **(of_run | run),
    )
    checkpoint = Checkpoint(tensors, record.counters(), files.fingerprint(trainer.model.graph))
    return files.save(folder, trainer.steps, checkpoint, keep)


def check_same(trainer: Changing, found: tuple[Path, Checkpoint] | None) -> None:
    """Raises InputError where processes of a job would go on from different checkpoints, or some from none."""
    if trainer.collectives is not None:
        text = "none" if found is None else f"{found[0].name} with digest {found[1].digest()[:12]}"
        check_alike(trainer.collectives, {"checkpoint to go on from; give all of them one folder": text})


def check(trainer: Changing, path: Path, state: Checkpoint, record: Record) -> None:
    """Raises InputError where a checkpoint is of another model, optimizer or choice of what is trained."""
    slots = trainer.updates.all_slots()
    record.check(state, path, trainer.model.graph, trainer.trainable, slots, trainer.updates.described)


def go_on(trainer: Changing, path: Path, state: Checkpoint, record: Record) -> None:
    """The trainer stands where a checkpoint does that was checked."""
    others = trainer.execution.algorithms.adopt(record.algorithms)
    if others:
        _log.warning("%s: not bit for bit, since %d nodes use other algorithms than there", path, len(others))
    with InterruptsHeld():
        if record.freezing:
            trainer.apply_freezing(Freezing.from_state(record.freezing), record.steps)
        trainer.programs.load_state({k: v for k, v in state.tensors.items() if not k.startswith(BEST)})
        trainer.steps, trainer.lr_factor = record.steps, record.lr_factor
        if trainer.scaling is not None:
            trainer.scaling.load_state(record.loss_scale)


def origin_of(trainer: Changing) -> dict[str, Any]:
    """What the bits of a result depend on, beside data and settings."""
    return {
        "version": VERSION,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "devices": str(trainer.execution.devices),
        "threads": trainer.execution.threads,
        "processes": 1 if trainer.collectives is None else trainer.collectives.size,
        **({} if trainer.drawn_by is None else {"seed": trainer.drawn_by}),
    }


def changed_origin(trainer: Changing, record: Record) -> list[str]:
    """What of it is something else where a checkpoint is from."""
    origin = origin_of(trainer)
    return [key for key in origin if key in record.origin and origin[key] != record.origin[key]]
