"""The micro-batches of a logical batch: how they are begun, shared between processes, checked and counted."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InputError
from ...execute.execution import Execution
from ...host.quick_init import quick_init
from ...ir.types import Array
from ...model import Model
from ...passes.random_keys import may_draw
from ..data.batch import Batch
from ..evaluator import Evaluator
from ..freezing import Freezing
from ..graphs import Draws
from ..joint import SQUARES
from ..loss_scale import LossScale, Scaling
from ..metrics import RunningMean
from ..metrics.sample_moments import with_moments
from ..names import Names
from ..nonfinite import NonFiniteLoss, first_bad
from ..objective import Objective
from ..optimizers.searching import search_of
from ..optimizers.updates import Updates
from ..parallel.collectives import Collectives
from ..parallel.processes import Processes
from ..parallel.shards import Shards
from ..parallel.shares import share_of
from ..tied_weights import Tie


@dataclass(frozen=True, slots=True, eq=False)
class Forwarded:
    """A micro-batch whose forward program ran, and whose backward program did not yet."""

    terms: Mapping[str, Array]
    batch: Batch
    arguments: Mapping[str, Array]


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A micro-batch that runs with its update; ``means`` get its figures."""

    batch: Batch
    arguments: Mapping[str, Array]
    means: Mapping[str, RunningMean]


class LogicalBatch(Evaluator):
    """Micro-batches since the last optimizer step; owns the model's weights until closed.

    Args:
        model: what to train.
        objective: loss and metrics.
        updates: what an optimizer step does.
        trainable: names of parameters.
        ties: stored tensors that are copies of others.
        names: what losses, schedules and the like are called.
        execution: devices, and how they compile and run.
        accumulate: micro-batches per optimizer step.
        seed: of the order of the data and of random numbers.
        batch_norm: ``fixed`` statistics, or ``update`` them with those of the batches.
        dropout: the model's dropout nodes drop in training.
        sites: values behind which there are more of them, each with the share that is dropped.
        collectives: the processes that train together, if there are several.
        shards: which of them keeps the optimizer's state of which parameter.
        loss_scale: how the loss is scaled for its gradients, if it is.
        as_ready: each parameter is updated as soon as its gradient is complete, where a step is one micro-batch.

    Attributes:
        steps: optimizer steps done.
        passes: over data, in runs of ``fit`` that ended; a next one goes on with other orders of the data.
        schedule: the factor of the learning rate by number of steps.
        freezing: which parameters are frozen, and what they missed.
        processes: what is done with the other processes, if there are some.
        scaling: the factor on the loss, where there is one.

    Raises:
        InputError: another Trainer owns the model, or an option doesn't fit it.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        updates: Updates,
        trainable: Sequence[str],
        ties: Mapping[str, Tie],
        names: Names,
        execution: Execution,
        *,
        accumulate: int,
        seed: int,
        batch_norm: str,
        dropout: bool,
        sites: Mapping[str, float],
        collectives: Collectives | None = None,
        shards: Shards | None = None,
        loss_scale: LossScale | None = None,
        as_ready: bool = False,
    ) -> None:
        self.scaling = None if loss_scale is None else Scaling(loss_scale)
        others = {"parallel": collectives is not None, "batch_norm='update'": batch_norm == "update"}
        self._search = search_of(updates, {**others, "loss_scale": loss_scale is not None, "update": as_ready})
        self._batches: list[tuple[Mapping[str, Array], dict[str, int]]] = []  # of a logical batch, where it searches
        super().__init__(
            model,
            objective,
            updates,
            trainable,
            ties,
            execution,
            batch_norm=batch_norm,
            draws=Draws(seed, dropout) if dropout or may_draw(model.graph) else None,
            sites=sites,
            scaled=loss_scale is not None,
            as_ready=as_ready,
        )
        self.names, self.accumulate, self.seed = names, accumulate, seed
        self.collectives = collectives
        self.processes: Processes | None = None
        if collectives is not None:
            self.programs.shards, self.programs.several = shards, True
            parameters = model.parameters
            sizes = {name: parameters[name].type.nbytes for name in trainable}
            self.processes = Processes(collectives, self.programs, sizes, shards)
        self.steps = self.passes = 0
        self.freezing = Freezing()
        self._lr_factor = 1.0
        self._own_updates = updates  # as if nothing had been frozen
        self.schedule = names.schedule(updates.rule.schedule)
        self._pending = 0  # micro-batches since the last optimizer step
        self._sums = (0.0, 0.0)  # of their losses and weights
        self._last_weight = 0.0  # of the last logical batch
        self._forward: Forwarded | None = None
        self._prepared: Prepared | None = None
        self._keeps_gradients = False
        self._stepped: Batch | None = None  # the micro-batch of a step whose gradients aren't known before its update

    def discard(self) -> None:
        """Forgets the micro-batches since the last optimizer step, as if they had not been."""
        self._forget()
        self._forward = self._stepped = self._prepared = None
        self.programs.discard()

    def _forget(self) -> None:
        """Counts from the first micro-batch of a logical batch."""
        self._pending, self._sums, self._batches = 0, (0.0, 0.0), []
        if self.processes is not None:
            self.processes.discard()

    @property
    def pending(self) -> int:
        """Micro-batches since the last optimizer step."""
        return self._pending

    @property
    def _alone(self) -> bool:
        """Whether each micro-batch is a logical batch, whose gradients then lie where they were made."""
        only = self.accumulate == 1 and self.collectives is None
        return only and not self._keeps_gradients and self._search is None

    @property
    def _at_once(self) -> bool:
        """Whether nobody needs to look between a micro-batch and its update, and no limit of time may end them."""
        limits = self.execution.limits
        falls = self.scaling is not None and self.scaling.can_fall
        return self._alone and not falls and (limits is None or limits.seconds is None)

    @property
    def keeps_gradients(self) -> bool:
        """The gradients of the last step stay in memory of their own; else until another program runs, in its memory.

        From the next step on. It is set by ``fit`` where a callback has a true attribute ``reads_gradients``.

        Raises:
            InputError: parameters are updated as their gradients are ready.
        """
        return not self._alone

    @keeps_gradients.setter
    def keeps_gradients(self, keeps: bool) -> None:
        if keeps and self._as_ready:
            raise InputError('update="as_ready" keeps no gradients, and they are to be read; use update="together"')
        self._keeps_gradients = keeps

    @property
    def leads(self) -> bool:
        """Whether this process writes and shows: the only one, or that of rank 0."""
        return self.collectives is None or self.collectives.rank == 0

    @property
    def gradient_weight(self) -> float:
        """By which gradients are divided: of the logical batch so far, or of the last; 0 where there is none."""
        return self._sums[1] if self._pending else self._last_weight

    def _begin(self, what: str, batch: Batch) -> dict[str, Array]:
        """The arguments of a micro-batch that fits; nothing has changed when it doesn't."""
        self._check_open()
        self.check_idle(what)
        arguments = self._arguments(batch)
        if self.scaling is not None and not self._pending:
            self.programs.scale = self.scaling.scale  # of a logical batch, however it changes meanwhile
        return arguments

    def check_idle(self, what: str) -> None:
        """Raises InputError where a forward program waits for its backward program."""
        if self._forward is not None:
            raise InputError(
                f"{what}: a forward() waits for its backward(); call backward(), or discard() to forget the "
                "micro-batches since the last optimizer step"
            )

    @property
    def drawn_by(self) -> int | None:
        """The seed of the random numbers of steps, where there are some."""
        return None if self._draws is None else self.seed

    def _draw(self) -> dict[str, int]:
        """The number of the micro-batch, where random numbers depend on it."""
        if self._draws is None:
            return {}
        number, ranks = self.steps * self.accumulate + self._pending, self.collectives
        return {"draw": number if ranks is None else number * ranks.size + ranks.rank}

    # ---- with other processes -------------------------------------------------------------------------

    def validate(self, data: Any, batch_size: int) -> dict[str, Any]:
        """As ``evaluate``, but each process of a job computes its share of every batch; all of them must call it."""
        alone = self.processes is None or self.objective.gathered()
        return self._evaluated(data, batch_size, self._terms if alone else self._shared_terms)

    def state(self, *, copies: bool = True) -> dict[str, Array]:
        """What training changes, of all processes in that of rank 0; all of them must call it.

        Args:
            copies: otherwise arrays on the host are where they lie, and change with the next step.
        """
        having = self.programs if self.processes is None else self.processes
        return having.state(copies=copies)

    def _together(self, last: bool = False, counts: bool = True) -> contextlib.AbstractContextManager[None]:
        """A context whose errors end it in all processes."""
        return contextlib.nullcontext() if self.processes is None else self.processes.together(last, counts)

    def _share(self, batch: Batch) -> tuple[Batch, bool]:
        """The samples of this process, and whether they count."""
        return (batch, True) if self.collectives is None else share_of(self.collectives, batch)

    def _gradients_of(self, arguments: Mapping[str, Array], counts: bool) -> dict[str, Array]:
        """The terms of a micro-batch whose gradients were added; zeros where it doesn't count."""
        first = self._pending == 0
        if self._alone:
            return self.programs.begin_step(arguments, frozen=self.updates.frozen(self.steps + 1), **self._draw())
        if counts:
            return self.programs.forward_backward(arguments, first=first, **self._draw())
        if self.programs.passes_gradients:  # none of them is sent
            terms = self.programs.forward_backward(arguments, first=first, **self._draw())
            return {name: np.zeros_like(term) for name, term in terms.items()}
        terms, _ = self.programs.forward(arguments, first=first, values=(), **self._draw())
        return {name: np.zeros_like(term) for name, term in (terms | self.programs.backward(0.0)).items()}

    def _joined(self, terms: Mapping[str, Array]) -> Mapping[str, Array]:
        """The terms of the micro-batch of all processes; of what it gives of each sample the moments."""
        terms = with_moments(terms)
        return terms if self.processes is None else self.processes.joined(terms, (SQUARES,))

    def _shared_terms(self, batch: Batch) -> Mapping[str, Array]:
        """The terms of a batch in inference mode, of which each process computes its share."""
        share, counts = self._share(batch)
        with self._together():
            terms = self._terms(share)
        return self._joined(terms if counts else {name: np.zeros_like(term) for name, term in terms.items()})

    def _gather(self, arguments: Mapping[str, Array], terms: Mapping[str, Array]) -> None:
        """Enters a micro-batch whose gradients were added."""
        if self._search is not None:
            self._batches.append(({name: array.copy() for name, array in arguments.items()}, self._draw()))
        self._sums = (self._sums[0] + float(terms["loss"]), self._sums[1] + float(terms["weight"]))
        self._pending += 1

    def _check_loss(self, terms: Mapping[str, Array], batch: Batch, arguments: Mapping[str, Array]) -> None:
        """Raises NonFiniteLoss where the loss of a micro-batch isn't finite."""
        loss = float(terms["loss"])
        if not math.isfinite(loss):
            raise NonFiniteLoss(loss, self.steps, batch.indices, self._first_bad(arguments))

    def _check_gradients(self, terms: Mapping[str, Array], batch: Batch) -> None:
        """Raises NonFiniteLoss where a gradient isn't finite, though the loss is.

        Where a smaller loss scale may help, ``update`` looks instead: all processes then decide alike.
        """
        if SQUARES not in terms:
            self._stepped = batch
            return
        if self.scaling is not None and self.scaling.can_fall:
            return
        bad = self._overflowed(float(terms[SQUARES]))
        if bad is not None:
            raise NonFiniteLoss(float(terms["loss"]), self.steps, batch.indices, None, bad)

    def _overflowed(self, squares: float) -> str | None:
        """What of the gradients isn't finite, given the sum of their squares; None: nothing."""
        if squares <= self.updates.most:
            return None
        gradients = self.programs.gradients()
        bad = next((repr(name) for name, array in gradients.items() if not np.isfinite(array).all()), None)
        if bad is None and (self.updates.clips or self.programs.shards is not None):
            return f"all parameters together, whose norm exceeds {self.updates.dtype.name},"
        return bad

    def _check_updated(self, squares: float, loss: float) -> None:
        """Raises NonFiniteLoss where parameters were updated as their gradients came, and one of these isn't finite."""
        batch, self._stepped = self._stepped, None
        if batch is None or math.isfinite(squares):
            return
        state = self.programs.state()
        moved = [name.partition("/")[2] for name, array in state.items() if not np.isfinite(array).all()]
        if moved:
            raise NonFiniteLoss(loss, self.steps, batch.indices, None, repr(moved[0]), moved=len(moved))

    def _first_bad(self, arguments: Mapping[str, Array]) -> str | None:
        """See ``nonfinite.first_bad``."""
        averaged, self.programs.averaged = self.programs.averaged, False  # what was trained gave the loss
        try:
            return first_bad(self.model, self.trainable, self.execution, arguments, self.steps)
        finally:
            self.programs.averaged = averaged
