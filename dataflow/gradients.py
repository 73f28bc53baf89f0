"""Gradients of a model, once: ``df.vjp``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .execute.arguments import checked_inputs
from .host import checks
from .ir.types import Array
from .model import Model
from .passes.autodiff import vjp_graph
from .session import Session


def vjp(model: Model, inputs: Any, cotangents: Mapping[str, Array] | None = None, **options: Any) -> dict[str, Array]:
    """Gradients by name: of every float input and of every float parameter.

    Args:
        model: what is differentiated.
        inputs: as for ``Session.run``.
        cotangents: by output name, of the outputs' shapes; ones where an output is left out.
        options: as for Session, e.g. ``devices``.

    Raises:
        GradientError: an op between them has no gradient.
        InputError: inputs or cotangents don't fit.
    """
    import numpy as np

    checks.instance("model", model, Model)
    arguments = checked_inputs(model.graph.inputs, inputs)
    graph = model.graph_with_data()
    parameters = model.parameters
    wrt = [v for v in (*graph.inputs, *graph.initializers) if v.type.dtype.is_float]
    wrt = [v for v in wrt if v in graph.inputs or v.name in parameters]
    joint = vjp_graph(graph, wrt)
    session = Session(joint, **options)
    given = {} if cotangents is None else dict(checks.mapping("cotangents", cotangents))
    unknown = [name for name in given if name not in graph.outputs]
    if unknown:
        from .errors import InputError

        raise InputError(f"cotangents: there is no output {unknown[0]!r}; there are: {', '.join(graph.outputs)}")
    if len(given) < len(graph.outputs):
        from .execute.arguments import sizes_of

        sizes = sizes_of(graph, arguments)
        for name, value in graph.outputs.items():
            given.setdefault(name, np.ones(value.type.bind(sizes).sizes, value.type.dtype.cotangent.numpy))
    names = [f"grad.{v.name}" for v in wrt if f"grad.{v.name}" in joint.outputs]
    results = session.run({**arguments, **{f"grad.{name}": array for name, array in given.items()}}, names)
    return {name.removeprefix("grad."): array for name, array in results.items()}
