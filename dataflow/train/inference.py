"""Predicting and evaluating without training: ``df.predict`` and ``df.evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..execute.execution import Execution
from ..host import checks
from ..host.keywords import passed_on
from ..ir.types import Array
from ..model import Model
from ..plugin.registry import registry_of
from ..session import Session
from .data.reading import as_in_training
from .evaluator import Evaluator
from .losses.loss import LABELS
from .names import Names
from .objective import LossChoice, MetricChoice, Objective
from .optimizers.updates import Updates
from .prediction import BATCH_SIZE, chosen_outputs, predictions

_OPTIONS = ("fold", "fuse", "precision", "algorithms", "pin", "registry", "limits")  # of a Session, for ``evaluate``


def predict(
    model: Model | Session,
    data: Any,
    *,
    batch_size: int | None = None,
    outputs: Sequence[str] | str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> dict[str, Array]:
    """The outputs of a model for all samples of a dataset, by name.

    Args:
        model: a Model, or a Session of one.
        data: a Dataset or what one is made of; one array where the model has one input. Labels in it aren't read.
        batch_size: samples per run, 32 by default; a model with a fixed batch has its own.
        outputs: names of results, inner values too; the model's outputs by default. The first axis counts samples.
        progress: False shows nothing, True a bar; None a bar in terminals and notebooks, lines elsewhere.
        options: of the Session that is made of a Model.

    Raises:
        InputError: data that doesn't fit, or an output without an axis of samples.
    """
    passed_on(predict, options, Session)
    if isinstance(model, Session):
        if options:
            raise InputError(f"predict: {', '.join(options)} can't be set: the session is made already")
        session = model
    else:
        session = Session(checks.instance("model", model, Model), **options)
    graph = session.model.graph
    metadata = session.model.metadata if isinstance(session.model, Model) else {}
    if isinstance(session.model, Model) and session.model.forms:
        raise InputError("predict: a model with sequences or optionals has no batches of samples; use run()")
    known = {name: value.type for name, value in graph.outputs.items()}
    names = chosen_outputs(known, outputs)
    types = {name: known[name] if name in known else graph.find(name).type for name in names}
    try:
        given = as_in_training(data, metadata, labels=False)
        return predictions(
            lambda arrays: session.run(arrays, names), graph.inputs, types, given, (LABELS,), batch_size, progress
        )
    finally:
        if session is not model:
            session.close()


def evaluate(
    model: Model,
    data: Any,
    loss: LossChoice = "cross_entropy",
    metrics: Sequence[MetricChoice] | None = None,
    *,
    output: str | None = None,
    batch_size: int = BATCH_SIZE,
    devices: Any = None,
    threads: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The loss and metrics of a model over data, in inference mode; nothing is trained, and weights aren't changed.

    Args:
        model: any; also one that has nothing to train.
        data: a Dataset or what one is made of.
        loss: as for Trainer.
        metrics: as for Trainer.
        output: as for Trainer.
        batch_size: samples per run.
        devices: as for Session.
        threads: as for Session.
        options: further ones of Session: fold, fuse, precision, algorithms, pin, registry, limits.

    Returns:
        Figures by name; means have their standard error under ``..._error``, a metric of several numbers is an array.

    Raises:
        InputError: data or options that don't fit.
    """
    passed_on(evaluate, options, _OPTIONS)
    twin = checks.instance("model", model, Model).copy()  # a Trainer may own the other
    execution = Execution(devices, threads, **options)
    names = Names(registry_of(execution.registry).named)
    objective = Objective(twin, loss, output, metrics, names)
    updates = Updates(names.optimizer("sgd"), (), {}, (None,), {})  # of nothing
    with Evaluator(twin, objective, updates, (), {}, execution, batch_norm="fixed", draws=None) as evaluator:
        evaluator.classes = {} if model.classes is None else {LABELS: model.classes}
        evaluator.numbered = True
        return evaluator.evaluate(data, batch_size=batch_size)
