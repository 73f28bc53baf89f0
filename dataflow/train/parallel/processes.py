"""What a training step does together with the other processes of its job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...errors import DataflowError
from ...execute.marks import last_uses
from ...ir.types import Array
from ..joint import ACCUMULATOR
from ..programs import Programs
from .collectives import Collectives, Sharding
from .gradient_sums import GradientSums, agreed_buckets
from .interrupts import InterruptsNoted
from .shards import Shards, send_from_owners


class Processes:
    """The other processes of a job, and what was agreed with them.

    Each method is called by all of them at the same point of training.

    Args:
        collectives: the processes.
        programs: those of the training.
        sizes: bytes of each parameter.
        shards: who keeps the optimizer's state of which parameter; None: everyone of all.

    Attributes:
        stopped: they agreed to end, since one of them was interrupted.
    """

    def __init__(
        self, collectives: Collectives, programs: Programs, sizes: Mapping[str, int], shards: Shards | None
    ) -> None:
        self.collectives, self.shards = collectives, shards
        self._programs, self._sizes = programs, sizes
        self._sums: GradientSums | None = None
        self._summed = False
        self._interrupts = InterruptsNoted()
        self.stopped = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A context of training in which Ctrl-C waits for the end of a micro-batch; other errors end all processes."""
        noted = self._interrupts = InterruptsNoted()
        self.stopped = False
        try:
            with noted:
                yield
        except BaseException as error:
            if not self.stopped:
                self.collectives.abort(error)  # the others wait for this process for ever
            self.collectives.gather("")  # rank 0 has saved
            raise
        finally:
            self._interrupts = InterruptsNoted()
        if noted.arrived:
            raise KeyboardInterrupt("it came when the last micro-batch was over")

    # ---- a micro-batch --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self, last: bool = False, counts: bool = True) -> Iterator[None]:
        """A context whose errors, and Ctrl-C, end it in all processes.

        Args:
            last: runs backward for the last micro-batch before the update: sums of gradients begin as these complete.
            counts: this process has samples of it.

        Raises:
            DataflowError: another process failed; its own error is raised in that one.
            KeyboardInterrupt: one of them was interrupted.
        """
        sums = self._sums if last and self._is_current() else None
        error: BaseException | None = None
        try:
            if sums is not None:
                sums.adds, sums.absent = self._summed, False
                if counts:
                    sums.open()
            yield
        except BaseException as failed:
            error = failed
        if sums is not None:
            self._finish(sums, counts and error is None)
        try:
            agree(self.collectives, error, self._interrupts.arrived)
        except KeyboardInterrupt:
            self.stopped = True
            raise
        if last and sums is None and self._programs.passes_gradients:
            self._finish(self._newly_agreed(), counts)

    def _finish(self, sums: GradientSums, present: bool) -> None:
        """Ends the sums of a micro-batch, to which this process has something to add where it is ``present``."""
        sums.adds = self._summed and self._programs.passes_gradients
        sums.absent = not present and self._programs.passes_gradients
        self._programs.set_squares(sums.finish())
        self._summed = True

    def joined(self, terms: Mapping[str, Array], kept: Iterable[str] = ()) -> dict[str, Array]:
        """The terms of all shares of a micro-batch; those ``kept`` stay those of this process."""
        names = [name for name in terms if name not in kept]
        given = [np.asarray(terms[name], np.float64) for name in names]
        found = np.concatenate([term.ravel() for term in given])
        self.collectives.sum(found)
        split = np.split(found, np.cumsum([term.size for term in given])[:-1])
        joined = {name: numbers.reshape(term.shape) for name, numbers, term in zip(names, split, given, strict=True)}
        return {**terms, **joined}

    def discard(self) -> None:
        """Forgets that the gradients of the logical batch are summed."""
        self._summed = False

    # ---- the update -----------------------------------------------------------------------------------

    def sum_gradients(self) -> None:
        """Replaces the gathered gradients by their sums over all processes, where that isn't done."""
        if not self._summed:
            self._finish(self._sums if self._sums is not None and self._is_current() else self._newly_agreed(), True)
        if self._programs.passes_gradients:
            squares = np.array([self._programs.squares()])  # of those of this process
            self.collectives.sum(squares)
            self._programs.set_squares(float(squares[0]))

    def send_parameters(self) -> None:
        """Gives the parameters that their owners updated to all processes."""
        if self.shards is None:
            return
        assert isinstance(self.collectives, Sharding)
        owner = {name: self.shards.owner[name] for name in self._programs.trained}
        send_from_owners(self.collectives, owner, self._programs.view, self._programs.set_tensor)

    def _is_current(self) -> bool:
        return self._sums is not None and self._sums.trained == self._programs.trained

    def _newly_agreed(self) -> GradientSums:
        """Sums of the gradients that there are now, in an order that all processes agree on."""
        if self._sums is not None:
            self._sums.close()
        programs, plan = self._programs, self._programs.joint_plan()
        trained = programs.trained
        uses = last_uses(plan, {ACCUMULATOR + name for name in trained})
        completed = sorted(trained, key=lambda name: uses.get(ACCUMULATOR + name, (0, 0)))

        def held(name: str) -> Array:
            return programs.view(ACCUMULATOR + name)

        if programs.passes_gradients:
            programs.allocate_own()
        self._sums = programs.sums = GradientSums(
            self.collectives,
            trained,
            agreed_buckets(self.collectives, completed, self._sizes, self.shards),
            {name: programs.gradient_type(name) for name in trained},
            programs.passed if programs.passes_gradients else held,
            held,
            lambda name, array: programs.set_tensor(ACCUMULATOR + name, array),
        )
        return self._sums

    # ---- state ----------------------------------------------------------------------------------------

    def state(self, *, copies: bool = True) -> dict[str, Array]:
        """What training changes, of all processes; in those that aren't of rank 0 perhaps less.

        Args:
            copies: otherwise arrays on the host are where they lie, and change with the next step.
        """
        if self.shards is None:
            return self._programs.state(copies=copies)
        assert isinstance(self.collectives, Sharding)
        owner = {slot: self.shards.owner[name] for slot, name in self._programs.slots().items()}
        others = {slot for slot, rank in owner.items() if rank != self.shards.rank}
        state = self._programs.state(others, copies=copies)
        keep = state.__setitem__ if self.shards.rank == 0 else lambda name, array: None
        send_from_owners(self.collectives, owner, self._programs.view, keep)
        return state


def agree(collectives: Collectives, error: BaseException | None, interrupted: bool = False) -> None:
    """Raises in all processes where one failed or was interrupted.

    Args:
        collectives: the processes.
        error: of this one.
        interrupted: Ctrl-C arrived in this one.

    Raises:
        DataflowError: another one failed; in that one its own error.
        KeyboardInterrupt: none failed, and one was interrupted.
    """
    stopped = interrupted or isinstance(error, KeyboardInterrupt)
    failed = error is not None and not isinstance(error, KeyboardInterrupt)
    found = np.array([float(failed), float(stopped)])
    collectives.sum(found)
    if found[0]:
        texts = collectives.gather(f"{type(error).__name__}: {error}" if failed else "")
        if error is not None:
            raise error
        raise DataflowError("; ".join(f"rank {rank} failed: {text}" for rank, text in enumerate(texts) if text))
    if found[1]:
        raise error or KeyboardInterrupt("a process of the job was interrupted")
