"""Trainer: the user's handle for training."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from ..errors import InputError
from ..execute.execution import Execution
from ..host import checks
from ..host.class_names import with_class_names
from ..host.keywords import answering
from ..host.limits import Limits
from ..host.numbers import integer
from ..ir.edits import is_by_hand
from ..ir.types import float16
from ..layers.dropout import dropout_sites
from ..model import Model
from ..planning.algorithms import Algorithms
from ..planning.memory_goal import memory_goal
from ..plugin.device import Precision
from ..plugin.registry import Registry, registry_of
from .callbacks import Callback, EarlyStop
from .changing import Changing
from .checkpoint import fingerprint
from .data.dataset import Dataset, as_dataset
from .data.reading import as_in_training, with_reading
from .history import History
from .joint import check_batch_statistics
from .loop import Fit, Saving
from .loss_scale import LossScaleChoice, loss_scale_of
from .losses.class_axis import check_names
from .losses.loss import LABELS
from .metrics import Gathered, Metric
from .names import Names
from .objective import LossChoice, MetricChoice, Objective
from .optimizers.averages import Average
from .optimizers.protocol import Optimizer
from .optimizers.updates import resolve
from .parallel.collectives import Parallel, check_alike, collectives_of, report_job, threads_of
from .parallel.shards import shards_of
from .parameters import select, warn_of_absent
from .prediction import check_batches
from .rate_finder import RateCurve, find_rate
from .storage import Storage, has_float16, storage_of
from .tied_weights import find_ties, repeated
from .watch.statistics import Statistics
from .watch.tensors import tensor_statistics

_log = logging.getLogger("dataflow")


@answering()
class Trainer(Changing):
    """Trains parameters of a model; owns its weights until closed.

    Calls from several threads run one after the other.

    Args:
        model: what to train.
        loss: a name, perhaps with settings (``"focal:gamma=2"``), a df.losses object, a list of these or of
            ``(loss, label_key, weight)``, a dict of them by output, a function ``(g, outputs, batch) -> Value``, or
            ``df.losses.output(name)``.
        optimizer: a df.optim object; a name or ``"module:object"`` as on the command line; AdamW by default.
        output: the value that the loss reads, inner ones too; needed when the model has several outputs.
        trainable: names and patterns, see ``train.trainable.select``; by default what the model says.
        metrics: names, ``"module:object"``, df.metrics objects and functions; by default what fits the loss.
        devices, threads, fuse, precision, algorithms, pin, registry, limits: as for Session; seconds are of a step.
        accumulate: micro-batches per optimizer step.
        clip_norm: the largest norm of the averaged gradient of all parameters whose groups have none of their own.
        clip_value: the largest absolute value of an element of it, after ``clip_norm``.
        average: df.optim.EMA or SWA, or a name as on the command line: a mean of the weights, see ``averaged``.
        seed: of the order of the data and the split.
        batch_norm: ``fixed`` statistics, or ``update`` them with those of the batches.
        dropout: the model's dropout nodes drop in training, by ``seed`` and the number of the micro-batch. A number
            is the share that more of them drop, behind the layers that ``dropout_at`` names, see ``df.dropout``.
        dropout_at: names and patterns of these layers.
        tie: stored tensors that are equal bit for bit, directly, transposed or repeated, and not of one value train as
            one: an embedding and the output layer that exporters wrote apart. All copies follow. None: in models of
            files; who builds one says by using a value twice what is one.
        storage: the dtype in which values wait between forward and backward: ``"float32"``, or ``"bfloat16"`` or
            ``"float16"``, which take half; None: that of most values of the model. Parameters that the model stores
            in 16 bits have masters of float32, whatever this says.
        loss_scale: the factor on the loss whose gradients are computed: ``"dynamic"``, a df.optim.LossScale, or a
            number, a power of two; None: dynamic where float16 is stored, otherwise 1.
        memory: the most that the values between forward and backward may take: bytes (``"200M"``), or a part of what
            they take where nothing is computed again (``"0.5x"``). To keep to it, what forward computed runs again
            where backward reads it; results are the same bit for bit. None: whatever costs at most 1% more work;
            ``"1x"``: nothing is computed again.
        update: ``"together"``: once all gradients are known to be finite. ``"as_ready"``: each parameter as soon as its
            gradient is complete, which needn't be kept then; a batch of finite loss whose gradients aren't spoils the
            parameters. Not with ``accumulate``, a norm to clip, a loss scale or ``parallel``, for which they are kept.
        parallel: ``"data"``: the processes that mpirun began train together, each on its share of every micro-batch,
            with the losses of one process; or an object with the collectives, see ``train.parallel.collectives``.
        shard: with ``parallel``: ``"optimizer"``: each process keeps the optimizer's state of some parameters, takes
            their steps and sends them to the others (ZeRO 1); ``"gradients"``: it alone gets their summed gradients
            too (ZeRO 2). None: each keeps all.

    Raises:
        InputError: an option doesn't fit, or another Trainer owns the model.
    """

    def __init__(
        self,
        model: Model,
        loss: LossChoice = "cross_entropy",
        optimizer: Optimizer | str | None = None,
        *,
        output: str | None = None,
        trainable: Sequence[str] | str | None = None,
        metrics: Sequence[MetricChoice] | None = None,
        devices: Any = None,
        threads: int | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        average: Average | str | None = None,
        seed: int = 0,
        batch_norm: Literal["fixed", "update"] = "fixed",
        dropout: bool | float = False,
        dropout_at: Sequence[str] | str | None = None,
        tie: bool | None = None,
        fuse: bool = True,
        precision: Precision = "float32",
        algorithms: Algorithms | None = None,
        pin: Mapping[str, str] | None = None,
        registry: Registry | None = None,
        limits: Limits | None = None,
        storage: Storage | None = None,
        loss_scale: LossScaleChoice = None,
        memory: str | int | None = None,
        update: Literal["together", "as_ready"] = "together",
        parallel: Parallel = None,
        shard: Literal["optimizer", "gradients"] | None = None,
    ) -> None:
        self._closed = True  # until it owns the weights
        accumulate, seed = integer("accumulate", accumulate), integer("seed", seed, 0)
        for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if limit is not None and not (isinstance(limit, (int, float, np.number)) and limit > 0):
                raise InputError(f"{name} is {limit!r}; expected a number above 0")
        checks.instance("model", model, Model)
        checks.text("batch_norm", batch_norm, ("fixed", "update"))
        checks.text("update", update, ("together", "as_ready"))
        checks.optional("tie", tie, bool, np.bool_)
        checks.instance("fuse", fuse, bool, np.bool_)
        checks.optional("output", output, str)
        for metric in checks.optional("metrics", metrics, list, tuple) or ():
            if not isinstance(metric, (str, Metric, Gathered)) and not callable(metric):
                raise InputError(f"metrics: {checks.shown(metric)} is neither a name nor a function")
        sites = dropout_sites(model, dropout, dropout_at)
        collectives = collectives_of(parallel)
        if collectives is not None and batch_norm == "update":
            raise InputError("batch_norm='update' takes statistics of a complete batch, and parallel= shares it out")
        check_batch_statistics(model.graph, batch_norm == "update")
        warn_of_absent(model)
        if shard is not None and parallel is None:
            _log.warning("shard=%r: it shares state out among processes, and without parallel= there is one", shard)
        ties = find_ties(model) if tie or (tie is None and not is_by_hand(model.source)) else {}
        algorithms = Algorithms() if algorithms is None else algorithms
        goal = memory_goal(memory)
        kept = storage_of(model, storage)
        names = Names(registry_of(registry).named)
        made = names.optimizer("adamw" if optimizer is None else optimizer)
        mean = None if average is None else names.average(average)
        objective = Objective(model, loss, output, metrics, names)
        chosen = select(model, trainable)
        if trainable is None and tie is None and (apart := repeated(model, ties)):
            _log.warning(
                "%s has equal rows, as a parameter that an exporter repeated for each sample: it isn't trained by "
                "default, since each row would train by itself; export the model with a free batch size", apart[0]
            )  # fmt: skip
            chosen = tuple(name for name in chosen if name not in apart)
        trained = tuple(dict.fromkeys(ties[name].of if name in ties else name for name in chosen))
        updates = resolve(made, model, trained, ties, names.optimizer, clip_norm, clip_value, mean)
        scaling = loss_scale_of(loss_scale, kept == float16 or has_float16(model, trained))
        together = {"accumulate": accumulate > 1, "a norm to clip": updates.clips, "parallel": collectives is not None}
        together["a loss scale"] = scaling is not None
        if update == "as_ready" and any(together.values()):
            needs = " and ".join(name for name, there in together.items() if there)
            raise InputError(f'update="as_ready" keeps no gradients; they are kept for {needs}: leave either out')
        parameters = model.parameters
        sizes = {name: parameters[name].type.nbytes for name in trained}
        super().__init__(
            model,
            objective,
            updates,
            trained,
            ties,
            names,
            Execution(
                devices,
                threads_of(collectives, threads),
                True,
                bool(fuse),
                precision,
                algorithms,
                pin,
                registry,
                limits,
                goal,
                kept,
            ),
            accumulate=accumulate,
            seed=seed,
            batch_norm=batch_norm,
            dropout=bool(dropout),
            sites=sites,
            collectives=collectives,
            shards=shards_of(shard, collectives, updates, sizes),
            loss_scale=scaling,
            as_ready=update == "as_ready",
        )
        if collectives is not None:
            settings = {"model": fingerprint(model.graph), "trained parameters": trained, "accumulate": accumulate}
            check_alike(
                collectives,
                {**settings, "optimizer": type(made).__name__, "seed": seed, "clip_norm": clip_norm, "shard": shard},
            )
            report_job(collectives)

    def find_lr(
        self, data: Any, *, lowest: float = 1e-7, highest: float = 1.0, steps: int = 100, batch_size: int = 32
    ) -> RateCurve:
        """The loss at learning rates from ``lowest`` to ``highest``, and a suggestion; printed it is a drawing.

        Training stays where it is: parameters, the optimizer's state and statistics come back.

        Args:
            data: a Dataset or what one is made of.
            lowest: the first rate.
            highest: the last one; the sweep ends sooner where the loss grows fourfold.
            steps: optimizer steps.
            batch_size: samples per micro-batch.

        Raises:
            InputError: arguments or data that don't fit, or micro-batches wait for the optimizer.
        """
        self._check_open()
        return find_rate(self, self._dataset(data), lowest, highest, steps, batch_size)

    def statistics(
        self,
        of: Literal["parameters", "gradients", "values"] = "parameters",
        names: Sequence[str] | str = "*",
        batch: Mapping[str, Any] | None = None,
    ) -> dict[str, Statistics]:
        """Norm, mean, deviation, least and most of tensors, by name; ``.histogram()`` of each counts its numbers.

        Args:
            of: the trained ``parameters``; their averaged ``gradients``, those of the last step where no micro-batch
                waits; or ``values`` that nodes of the model make.
            names: names and patterns.
            batch: for ``values``, as for ``step``; training stands afterwards where it stood.

        Raises:
            InputError: nothing matches a pattern, or there are no gradients yet.
        """
        return tensor_statistics(self, of, names, batch)

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a Trainer can't be pickled or copied: it holds memory of devices and plans; send its model, "
            "trainer.model, or go on from a checkpoint with fit(resume=) or resume()"
        )

    def fit(
        self,
        data: Any,
        validation: Any = None,
        *,
        val_split: float = 0.0,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        callbacks: Iterable[Callback | str] = (),
        checkpoint: str | Path | None = None,
        every: Literal["epoch"] | int = "epoch",
        keep: int = 3,
        resume: str | Path | None = None,
        early_stop: EarlyStop | None = None,
        progress: bool | None = None,
    ) -> History:
        """The figures of training on ``data`` for some epochs.

        Args:
            data: a Dataset or what one is made of.
            validation: the same, evaluated after each epoch; figures ``val_...``.
            val_split: the part of ``data`` that is validation instead, chosen at random by seed.
            epochs: passes over the data.
            batch_size: samples per micro-batch; the optimizer sees ``batch_size * accumulate``.
            shuffle: a new order in each epoch, by seed and epoch; those of earlier calls count too.
            callbacks: called with each Event; names and ``"module:object"`` too.
            checkpoint: folder for checkpoints.
            every: ``"epoch"``, or a number of optimizer steps between checkpoints.
            keep: how many of them stay.
            resume: ``"auto"`` goes on from the newest checkpoint that can be read, when there is one; or a file.
            early_stop: when to end before the last epoch.
            progress: False shows nothing, True a bar; None a bar in terminals and notebooks, lines elsewhere.

        Raises:
            InputError: data or options that don't fit, or a checkpoint of another model.
            NonFiniteLoss: the loss or a gradient became NaN or infinite.
        """
        self._check_open()
        checks.number("val_split", val_split, 0.0, 1.0)
        checks.optional("early_stop", early_stop, EarlyStop)
        given = checks.entries("callbacks", callbacks, "a list of functions of an event, e.g. [df.callbacks.CSV(path)]")
        called = [self.names.callback(callback) for callback in given]
        for callback in called:
            if isinstance(callback, EarlyStop):
                raise InputError("callbacks: EarlyStop is given as early_stop=, since it decides with what is restored")
            if not callable(callback):
                raise InputError(f"callbacks: {checks.shown(callback)} can't be called; expected functions of an event")
        source = as_dataset(as_in_training(data, self.model.metadata, labels=True))
        dataset = self._dataset(source)
        if LABELS in dataset.classes:
            for entry in self.objective.weighted_losses:
                if entry.keys[:1] == (LABELS,) and "accuracy" in entry.loss.metrics:  # its outputs are of classes
                    check_names(self.objective.graph.outputs[entry.output].type, dataset.classes[LABELS])
        self.model.metadata = with_reading(self.model.metadata, source, self._request(self.classes))
        self.classes = {**self.classes, **dataset.classes}
        if LABELS in dataset.classes:  # the saved model knows them
            self.model.metadata = with_class_names(self.model.metadata, dataset.classes[LABELS])
        held: Dataset | None = None
        if validation is not None:
            if val_split:
                raise InputError("fit: give validation= or val_split=, not both")
            held = self._dataset(validation)
        elif val_split:
            dataset, held = dataset.split(val_split, self.seed)
        if held is None and self.objective.waiting:
            _log.info("%s: computed on validation data, and there is none", ", ".join(self.objective.waiting))
        if checkpoint is None and resume == "auto":
            raise InputError("fit: resume='auto' needs checkpoint=, the folder to look in")
        check_batches("fit", self._inputs, dataset, batch_size, training=True)
        if held is not None:
            check_batches("fit: validation", self._inputs, held, batch_size, training=False)
        saving = None if checkpoint is None else Saving(Path(checkpoint), every, keep)
        fit = Fit(self, dataset, held, epochs, batch_size, shuffle, called, saving, early_stop, progress)
        return fit.run(resume)
