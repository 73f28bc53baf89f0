"""Stepper: one training step after another, whole or program by program, and what evaluates between."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, blamed
from ..host import checks
from ..ir.types import Array
from .data.batch import Batch, as_array
from .evaluator import count
from .gradients import Gradients
from .interrupts import InterruptsHeld
from .metrics import RunningMean
from .nonfinite import NonFiniteLoss
from .optimizers.lbfgs import LBFGS
from .optimizers.searching import Vectors
from .step.logical_batch import Forwarded, LogicalBatch, Prepared

if TYPE_CHECKING:
    from ..execute.profile import Profile
    from ..ir.plan import Plan


_ARRAYS, _TEXTS = frozenset({np.ndarray}), frozenset({str})


class Stepper(LogicalBatch):
    """Trains parameters of a model step by step; owns its weights until closed. See ``LogicalBatch`` for the arguments.

    Calls from several threads run one after the other.
    """

    # ---- a step at once -------------------------------------------------------------------------------

    def step(self, batch: Mapping[str, Any]) -> float:
        """The weighted mean loss of one micro-batch, before the update.

        The optimizer runs at every ``accumulate``-th call. A batch that doesn't fit changes nothing. One that fails
        while it runs is discarded, with all micro-batches since the last optimizer step.

        Args:
            batch: the model's inputs, the labels, and perhaps ``sample_weight``; samples first.

        Raises:
            InputError: keys, dtypes, shapes or labels that don't fit.
            NonFiniteLoss: the loss or a gradient is NaN or infinite.
        """
        arrays = _arrays(batch)
        if arrays and all(array.shape[:1] == (0,) for array in arrays.values()):
            raise InputError("step: the batch has no samples")
        loss = RunningMean()
        with self.model.lock:
            self.micro_batch(Batch(arrays, None), {"loss": loss})
            if self._pending >= self.accumulate:
                try:
                    self.update()
                except InputError:
                    if self._alone:  # what waits lies in memory that the next program uses
                        self.discard()
                    raise
        return loss.mean

    def staged(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """Copies of a batch's arrays in memory that a card reads by itself: page-locked, where there is a card.

        Steps and evaluations of such arrays copy nothing on the host. Others can be written into them between the
        calls that read them.

        Args:
            batch: as for ``step``.

        Raises:
            InputError: an entry is no array.
        """
        with self.model.lock:
            self._check_open()
            return {key: self.programs.engine.devices.staged(array) for key, array in _arrays(batch).items()}

    def micro_batch(self, batch: Batch, means: Mapping[str, RunningMean], *, may_wait: bool = True) -> None:
        """Adds the gradients of a micro-batch to those that wait for ``update``, and its figures to ``means``.

        Whoever calls it holds the model's lock until ``update``, where a logical batch is one micro-batch: what waits
        lies in memory that other programs use. Where nobody needs to look in between, ``update`` runs all of it.
        """
        with self.model.lock:
            batch, counts = self._share(batch)
            begun = self.processes is not None  # others may have begun
            try:
                last = self._pending + 1 >= self.accumulate or self.programs.passes_gradients
                with self._together(last, counts):
                    arguments = self._begin("step", batch)
                    begun = True
                    if may_wait and self._at_once and self._prepare(arguments):
                        self._prepared, self._pending = Prepared(batch, arguments, means), 1
                        return
                    with self.objective.naming_samples(batch):
                        terms = self._gradients_of(arguments, counts)
                    self._check_loss(terms, batch, arguments)
                    self._check_gradients(terms, batch)
                joined = self._joined(terms)
                self._gather(arguments, joined)
            except BaseException:
                if begun:
                    self.discard()
                raise
            count(means, joined)

    # ---- program by program ---------------------------------------------------------------------------

    def forward(self, batch: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Runs the forward program on a micro-batch; what its gradients need stays in memory for ``backward``.

        ``forward``, ``backward`` and, after ``accumulate`` of both, ``update`` give what ``step`` gives, bit for bit
        where ``outputs`` is empty. Until ``backward`` no other program can run, since all use the same memory.

        Args:
            batch: as for ``step``.
            outputs: names of outputs and inner values to return too.

        Returns:
            The terms: sums over the micro-batch ``loss``, ``weight``, and ``name:sum`` and ``name:weight`` of each
            metric, of rank 0; and the values asked for.

        Raises:
            InputError: as ``step``; or a forward program waits for ``backward``.
            ModelError: there is no value of a name.
            NonFiniteLoss: the loss is NaN or infinite; the micro-batches since the last optimizer step are discarded.
        """
        given, counts = self._share(Batch(_arrays(batch), None))
        if not counts:
            raise InputError(f"forward: a batch of {given.size} samples has none for each process; call step()")
        names = tuple(dict.fromkeys(checks.texts("outputs", outputs)))
        with self.model.lock, self._together():
            arguments = self._begin("forward", given)
            for name in names:
                if name not in self._graph.outputs:
                    self._graph.find(name)
            try:
                first = self._pending == 0
                with self.objective.naming_samples(given):
                    terms, values = self.programs.forward(arguments, first=first, values=names, **self._draw())
                self._check_loss(terms, given, arguments)
                self._forward = Forwarded(terms, given, arguments)
            except BaseException:
                self.programs.discard()
                self.discard()
                raise
        both = terms.keys() & values.keys()
        if both:
            raise InputError(f"forward: {sorted(both)} are names of terms, which are returned in any case")
        return {**{name: term for name, term in terms.items() if not term.ndim}, **values}

    def backward(self, cotangent: float = 1.0) -> None:
        """Runs the backward program of the last ``forward``: its gradients are added to those that wait for ``update``.

        Args:
            cotangent: of the loss: the gradients of this micro-batch are multiplied by it. Those of another one than 1
                go through the host.

        Raises:
            InputError: no ``forward`` waits for it, or the cotangent is no finite number.
            NonFiniteLoss: a gradient is NaN or infinite; the micro-batches since the last optimizer step are discarded.
        """
        cotangent = checks.number("cotangent", cotangent, -sys.float_info.max)
        with self.model.lock:
            self._check_open()
            forward = self._forward
            if forward is None:
                raise InputError("backward: no forward() waits for it; call forward(batch) before each backward()")
            try:
                with self._together(self.programs.passes_gradients):
                    squares = self.programs.backward(cotangent)
                    self._forward = None
                    self._check_gradients({**forward.terms, **squares}, forward.batch)
                self._gather(forward.arguments, self._joined(forward.terms))
            except BaseException:
                self.discard()
                raise

    @property
    def gradients(self) -> Gradients:
        """The gradients that ``update`` will use, by parameter, as sums; they can be read and assigned to."""
        return Gradients(self.programs, lambda: self._pending)

    def update(self) -> dict[str, float]:
        """Runs the optimizer on what was gathered; its figures: step, loss, lr and gradient_norm.

        The norm is that of the averaged gradient, before clipping. With a loss scale there is ``loss_scale`` too, and
        of L-BFGS how many ``evaluations`` of the loss it took.

        When no sample counted (all labels ignored), or gradients overflowed whose loss was scaled, nothing changes
        and there are no figures. Ctrl-C waits for the end.

        Raises:
            InputError: no gradients wait for it, a forward program waits for ``backward``, or the schedule's factor is
                no finite number.
        """
        with self.model.lock:
            self._check_open()
            self.check_idle("update")
            if not self._pending:
                raise InputError("update: no gradients wait for it; call step(), or forward() and backward(), before")
            loss, weight = self._sums
            if weight == 0.0 and self._prepared is None:
                self.discard()
                return {}
            factor = self._factor()
            lr = self.optimizer.lr * factor
            if self._prepared is not None:
                return self._update_at_once(self._prepared, lr, factor)
            if not math.isfinite(lr):
                raise InputError(f"the learning rate is {lr} after {self.steps} optimizer steps; look at the schedule")
            if self._search is not None:
                return self._searched(self._search, lr, loss / weight, weight)
            with InterruptsHeld():
                if self.processes is not None:
                    self.processes.sum_gradients()
                squares = self.programs.squares()
                scale = 1.0 if self.scaling is None else self.programs.scale
                self._last_weight = weight
                if self.scaling is not None and self.scaling.can_fall and self._overflowed(squares):
                    self.discard()
                    self.scaling.overflowed()
                    return {}
                self._forget()
                step = self.steps + 1
                norm = self.programs.update(self.updates.hyper(step, factor), weight, self.updates.frozen(step))
                if self.processes is not None:
                    self.processes.send_parameters()
                self.steps = step
                if self.scaling is not None:
                    self.scaling.succeeded()
            if self._stepped is not None:
                squares = self.programs.squares()
                self._check_updated(squares, loss)
            norm = norm if self.updates.clips else math.sqrt(squares) / (weight * scale)
            row = {"step": float(self.steps), "loss": loss / weight, "lr": lr, "gradient_norm": norm}
            return row if self.scaling is None else {**row, "loss_scale": scale}

    def _prepare(self, arguments: Mapping[str, Array]) -> bool:
        return self.programs.prepare_step(arguments, frozen=self.updates.frozen(self.steps + 1), **self._draw())

    def _update_at_once(self, prepared: Prepared, lr: float, factor: float) -> dict[str, float]:
        """``update`` of a micro-batch that runs with it. If that changed nothing it runs again, and tells why."""
        step, results = self.steps + 1, None
        with InterruptsHeld():
            try:
                if math.isfinite(lr):
                    results = self.programs.run_step(self.updates.hyper(step, factor))
            finally:
                self.discard()
            if results is not None:
                loss, weight = float(results["loss"]), float(results["weight"])
                self._last_weight, self.steps = weight, step
                if self.scaling is not None:
                    self.scaling.succeeded()
                count(prepared.means, self._joined(results))
        if results is None:
            self.micro_batch(prepared.batch, prepared.means, may_wait=False)
            return self.update()
        scale = 1.0 if self.scaling is None else self.programs.scale
        norm = float(results["norm"]) if self.updates.clips else math.sqrt(self.programs.squares()) / (weight * scale)
        row = {"step": float(step), "loss": loss / weight, "lr": lr, "gradient_norm": norm}
        return row if self.scaling is None else {**row, "loss_scale": scale}

    def _searched(self, search: LBFGS, lr: float, loss: float, weight: float) -> dict[str, float]:
        """The figures of a step that evaluates the logical batch several times."""
        vectors, batches = Vectors(self.programs), self._batches
        start, gradient = vectors.parameters(), vectors.gradient(weight)

        def evaluate(x: Array) -> tuple[float, Array]:
            vectors.assign(x)
            terms = [
                self.programs.forward_backward(arguments, first=index == 0, **draw)
                for index, (arguments, draw) in enumerate(batches)
            ]
            return sum(float(found["loss"]) for found in terms) / weight, vectors.gradient(weight)

        try:
            found = search.minimize(lr, start, loss, gradient, evaluate, vectors.state())
            if not (math.isfinite(found.loss) and np.isfinite(found.x).all()):
                raise NonFiniteLoss(found.loss, self.steps, None, None)
        except BaseException:
            vectors.assign(start)
            self.discard()
            raise
        with InterruptsHeld():
            vectors.assign(found.x)
            vectors.set_state(found.state, search.history)
            self._last_weight = weight
            self.discard()
            self.steps += 1
        figures = {"step": float(self.steps), "loss": loss, "lr": lr, "gradient_norm": float(np.linalg.norm(gradient))}
        return figures | {"evaluations": float(found.evaluations)}

    def _factor(self) -> float:
        """What the schedule says of the next step; raises InputError where that is no number."""
        name = getattr(self.schedule, "__qualname__", type(self.schedule).__name__)
        with blamed(f"the schedule {name} after {self.steps} optimizer steps"):
            factor = self.schedule(self.steps)
        try:
            found = float("no number" if isinstance(factor, str) or np.iscomplexobj(factor) else factor)
        except (TypeError, ValueError):
            given = checks.shown(factor)
            raise InputError(
                f"the schedule gave {given} after {self.steps} optimizer steps; expected a number"
            ) from None
        return found * self._lr_factor

    def plans(self) -> dict[str, Plan]:
        """The plans made so far, by program: the newest for each.

        That of a step whose logical batch is one micro-batch is called ``step``; otherwise forward and backward are
        called ``joint``. Both say in ``again`` what runs twice to need less memory.
        """
        return self.programs.plans()

    def profile(self, batch: Mapping[str, Any], *, rounds: int = 20) -> dict[str, Profile]:
        """The time of each step of a training step's programs, ``joint`` and ``optimizer``; training stays where it is.

        Args:
            batch: as for ``step``.
            rounds: how often everything runs; medians are taken.

        Raises:
            InputError: as ``step``, or gradients of a micro-batch wait for ``update``.
        """
        with self.model.lock:
            self._check_open()
            self.check_idle("profile")
            if self._pending:
                raise InputError(
                    f"profile: {self._pending} micro-batches wait for update(), and it would lose their gradients"
                )
            arguments = self._arguments(Batch(_arrays(batch), None))
            hyper = self.updates.hyper(self.steps + 1, self._factor())
            return self.programs.profile(arguments, hyper, rounds)


def _arrays(batch: Mapping[str, Any]) -> dict[str, Array]:
    """The entries of a batch as arrays."""
    if type(batch) is dict and _ARRAYS.issuperset(map(type, batch.values())) and _TEXTS.issuperset(map(type, batch)):
        return dict(batch)
    return {key: as_array(value, repr(key)) for key, value in checks.mapping("batch", batch).items()}
