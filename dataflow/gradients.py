"""Gradients of a model, once: ``df.vjp``; as a graph: ``df.value_and_grad``; within a graph: ``df.grad``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from .errors import InputError, ModelError
from .execute.arguments import checked_inputs, sizes_of
from .execute.graph_of_inputs import graph_of_inputs
from .host import checks
from .ir.dims import Dim
from .ir.graph import Graph
from .ir.types import Array
from .ir.value import Value
from .model import Model
from .ops.arithmetic import mul
from .passes.autodiff import add_gradients, filled, gradient_graph, vjp_graph
from .plugin.registry import registry_of
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
    stored = model.graph_with_data()
    graph = graph_of_inputs(
        stored, model.specialized, arguments, registry_of(options.get("registry")).reference_kernels,
        lambda graph: Session(graph, **options).run(arguments),
    )  # fmt: skip
    parameters = model.parameters
    wanted = {v.name: v for v in (*stored.inputs, *stored.initializers) if v.type.dtype.is_float}
    wanted = {name: v for name, v in wanted.items() if name in arguments or name in parameters}
    wrt = [v for v in (*graph.inputs, *graph.initializers) if v.name in wanted]
    joint = vjp_graph(graph, wrt)
    session = Session(joint, **options)
    given = {} if cotangents is None else dict(checks.mapping("cotangents", cotangents))
    unknown = [name for name in given if name not in graph.outputs]
    if unknown:
        raise InputError(f"cotangents: there is no output {unknown[0]!r}; there are: {', '.join(graph.outputs)}")
    sizes = sizes_of(graph, arguments)
    for name, value in graph.outputs.items():
        if value.type.dtype.is_float and name not in given:
            given[name] = np.ones(value.type.bind(sizes).sizes, value.type.dtype.cotangent.numpy)
    names = [f"grad.{v.name}" for v in wrt]
    results = session.run({**arguments, **{f"grad.{name}": array for name, array in given.items()}}, names)
    found = {name.removeprefix("grad."): array for name, array in results.items()}
    # what the branch that these inputs take doesn't read has a gradient of zero
    types = {name: v.type.bind(sizes) for name, v in wanted.items() if name not in found}
    zeros = {name: np.zeros(type_.sizes, type_.dtype.cotangent.numpy) for name, type_ in types.items()}
    return {name: found[name] if name in found else zeros[name] for name in wanted}


def value_and_grad(
    source: Graph | Model, wrt: Sequence[str] | str | None = None, *, of: str | None = None, prefix: str = "grad."
) -> Graph:
    """A graph that returns what ``source`` does, and gradients of one of its outputs.

    The result is a graph like any other: it runs, is built upon (``GraphBuilder.adopt``), and has gradients itself
    where its ops do.

    Args:
        source: a graph, or a model whose parameters count as they are now.
        wrt: names of float inputs and stored tensors; by default the trainable parameters, or all float inputs where
            there are none.
        of: name of an output with one element; by default the only one.
        prefix: before the names in ``wrt``, for those of the outputs; not that of gradients which are there already.

    Raises:
        InputError: an output that has several elements, or names that don't fit.
        GradientError: an op between them has no gradient, named with what it is between.
    """
    graph = source.graph_with_data() if isinstance(source, Model) else checks.instance("source", source, Graph)
    names = [*graph.outputs] if of is None else [checks.text("of", of, tuple(graph.outputs))]
    if len(names) != 1:
        raise InputError(f"value_and_grad: the graph has the outputs {', '.join(names)}; name one by of=")
    value = graph.outputs[names[0]]
    if any(size != 1 for size in value.type.shape) or not value.type.dtype.is_float:
        raise InputError(f"value_and_grad: output {names[0]!r} is {value.type}; expected one float, a sum or mean")
    known = {v.name: v for v in (*graph.inputs, *graph.initializers) if v.type.dtype.is_float}
    trainable = [v.name for v, data in graph.initializers.items() if data.trainable and v.name in known]
    default = trainable or [v.name for v in graph.inputs if v.name in known]
    wanted = default if wrt is None else checks.texts("wrt", wrt)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"value_and_grad: {unknown[0]!r} is no float input or stored tensor; there are: {[*known]}")
    taken = [name for name in wanted if prefix + name in graph.outputs]
    if taken:
        raise InputError(f"value_and_grad: there is an output {prefix + taken[0]!r} already; give another prefix=")
    return gradient_graph(graph, value, [known[name] for name in wanted], checks.text("prefix", prefix))


@overload
def grad(of: Value, wrt: Value, cotangent: Value | float | Array | None = None) -> Value: ...
@overload
def grad(of: Value, wrt: Sequence[Value], cotangent: Value | float | Array | None = None) -> tuple[Value, ...]: ...
def grad(
    of: Value, wrt: Value | Sequence[Value], cotangent: Value | float | Array | None = None
) -> Value | tuple[Value, ...]:
    """The gradient of a value by others, of the graph that is being built: its nodes are added there.

    What it gives are values like any other: a loss, a step of an inner loop, or another gradient is made of them.

    Args:
        of: a float; of one with several elements the gradient of their sum, times ``cotangent``.
        wrt: floats of the same graph: inputs, parameters, or values that it computes.
        cotangent: a value, array or number that broadcasts to the shape of ``of``; 1 by default.

    Returns:
        A value of the shape of ``wrt``, or a tuple of them; zeros where ``of`` doesn't depend on it.

    Raises:
        InputError: these are no floats, or of different graphs.
        ModelError: the graph is built already; ``value_and_grad`` differentiates such.
        GradientError: an op between them has no gradient, named with what it is between.
    """
    single = isinstance(wrt, Value)
    values = [wrt] if isinstance(wrt, Value) else list(checks.entries("grad: wrt", wrt, "a value, or a list of them"))
    for value in (of, *values):
        checks.instance("grad: what it is given", value, Value)
        if not value.type.dtype.is_float:
            raise InputError(f"grad: {value.name!r} is {value.type}; expected a float")
        if value.builder is not of.builder:
            raise InputError(f"grad: {of.name!r} and {value.name!r} belong to two graphs; adopt one into the other")
    builder = of.builder
    if builder is None:
        raise ModelError(f"grad: {of.name!r} belongs to a finished graph; df.value_and_grad differentiates such")
    seed = filled(builder, of, 1.0)
    if cotangent is not None:
        seed = mul(seed, cotangent)
        if seed.type != of.type.cotangent:
            named = next((str(size) for size in of.type.shape if isinstance(size, Dim)), None)
            more = "" if named is None else f"; along {named} it has 1, or that size, as an input of that shape has"
            raise InputError(f"grad: the cotangent makes {seed.type} of {of.name!r}, which is {of.type}{more}")
    origin = builder.origin
    try:
        gradients = add_gradients(builder, {of: seed}, values)
    finally:
        builder.origin = origin
    found = [(value, gradients[value]) for value in values]
    results = tuple([filled(builder, value) if gradient is None else gradient for value, gradient in found])
    return results[0] if single else results
