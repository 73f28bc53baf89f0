"""Nodes with bodies: loops and branches.

A body has no free variables: what it reads from outside is among its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import GradientError
from ..ir.builder import GraphBuilder
from ..ir.dims import Dim, Size
from ..ir.graph import Graph, Node
from ..ir.op import REQUIRED, Differentiate, MultiOp
from ..ir.types import TensorType, bool_, int64
from ..ir.value import Value
from .arithmetic import add
from .infer import need
from .rules.scan_gradient import scan_gradient
from .rules.subgraph import dtype_and_shape, inline, zeros

# ---- scan ---------------------------------------------------------------------------------------------


def _scan_infer(
    *types: TensorType, n_carries: int, n_xs: int, reverse: bool, bodies: tuple[Graph, ...]
) -> tuple[TensorType, ...]:
    (body,) = bodies
    carries, xs, captures = types[:n_carries], types[n_carries : n_carries + n_xs], types[n_carries + n_xs :]
    need(n_xs >= 1, "scan: without a scanned input the number of iterations is not known; use loop")
    iterations: Size | None = None
    for x in xs:
        need(x.rank >= 1, f"scan: the scanned input {x} has no axis to scan")
        if iterations is None or isinstance(iterations, Dim):
            iterations = x.shape[0]
        need(
            x.shape[0] == iterations or isinstance(x.shape[0], Dim),
            f"scan: scanned inputs have {iterations} and {x.shape[0]} rows",
        )
    assert iterations is not None
    expected = [*carries, *(TensorType(x.dtype, x.shape[1:]) for x in xs), *captures]
    _check_body("scan", body, expected, [v.type for v in body.inputs])
    results = [v.type for v in body.outputs.values()]
    _check_body("scan", body, list(carries), results[:n_carries], "carried value", "comes out")
    rows = [TensorType(t.dtype, (iterations, *t.shape)) for t in results[n_carries:]]
    saved = [TensorType(t.dtype, (iterations, *t.shape)) for t in carries]
    return (*carries, *rows, *saved)


def _check_body(
    name: str,
    body: Graph,
    given: Sequence[TensorType],
    declared: Sequence[TensorType],
    what: str = "input",
    verb: str = "is declared",
) -> None:
    need(len(given) <= len(declared), f"{name}: body {body.name!r} has {len(declared)} {what}s, {len(given)} are given")
    for index, (a, b) in enumerate(zip(given, declared, strict=False)):
        need(
            a == b or not (a.is_bound and b.is_bound),
            f"{name}: {what} {index} of body {body.name!r} is {a} and {verb} as {b}",
        )


scan: MultiOp = MultiOp(
    "scan",
    ("operands*",),
    _scan_infer,
    outputs=("results*",),
    attributes={"n_carries": REQUIRED, "n_xs": REQUIRED, "reverse": False},
    gradient=scan_gradient,
    bodies=("body",),
    doc="operands: carries, scanned values, captures. Iteration t gets the carries and row t and gives new carries and "
    "a row of each stacked result. Results: final carries, stacked rows, and per carry its value before each iteration",
)

# ---- branches -----------------------------------------------------------------------------------------


def _if_infer(condition: TensorType, *captures: TensorType, bodies: tuple[Graph, ...]) -> tuple[TensorType, ...]:
    need(condition == TensorType(bool_, ()), f"if_: the condition is {condition}; expected bool[]")
    results = [[v.type for v in body.outputs.values()] for body in bodies]
    for body in bodies:
        need(
            len(body.inputs) == len(captures),
            f"if_: body {body.name!r} has {len(body.inputs)} inputs, not {len(captures)}",
        )
        _check_body("if_", body, captures, [v.type for v in body.inputs])
    need(len(results[0]) == len(results[1]), "if_: the branches have different numbers of outputs")
    for a, b in zip(*results, strict=True):
        need(a == b or not (a.is_bound and b.is_bound), f"if_: the branches give {a} and {b}")
    return tuple(results[0])


def _if_gradient(node: Node, *cotangents: Value | None, differentiate: Differentiate) -> list[Value | None]:
    """A branch again: each body's vjp under the same condition."""
    condition, *captures = [v for v in node.inputs if v is not None]
    present = [i for i, c in enumerate(cotangents) if c is not None]
    floats = [i for i, v in enumerate(captures) if v.type.dtype.is_float]
    branches = []
    for body in node.bodies:
        g = GraphBuilder(f"{body.name}.backward")
        inputs = [g.input(v.name, *dtype_and_shape(v.type)) for v in body.inputs]
        outputs = list(body.outputs.values())
        given = {i: g.input(g.free_name(f"d.{i}"), *dtype_and_shape(outputs[i].type)) for i in present}
        new = inline(g, body, inputs)
        seeds: dict[Value, Value] = {}
        for i in present:
            value = new[outputs[i]]
            seeds[value] = add(seeds[value], given[i]) if value in seeds else given[i]
        found = differentiate(g, seeds, [inputs[i] for i in floats])
        for i in floats:
            cotangent = found[inputs[i]]
            g.output(f"g{i}", cotangent if cotangent is not None else zeros(g, inputs[i].type))
        branches.append(g.build())
    assert condition.builder is not None
    operands = [condition, *captures, *[cotangents[i] for i in present]]
    made = condition.builder.add(if_, operands, {}, bodies=tuple(branches)).outputs
    results: list[Value | None] = [None] * (len(captures) + 1)
    for i, total in zip(floats, made, strict=True):
        results[i + 1] = total
    return results


if_: MultiOp = MultiOp(
    "if_",
    ("condition", "captures*"),
    _if_infer,
    outputs=("results*",),
    gradient=_if_gradient,
    bodies=("then", "else"),
    doc="the outputs of one of two bodies, which get the captures",
)

# ---- loops that end by a condition --------------------------------------------------------------------


def _loop_infer(
    *types: TensorType, n_carries: int, max_iterations: int, bodies: tuple[Graph, ...]
) -> tuple[TensorType, ...]:
    (body,) = bodies
    need(len(types) >= 2, "loop: the iteration count and the condition come first")
    count, condition, *rest = types
    need(count == TensorType(int64, ()), f"loop: the iteration count is {count}; expected int64[]")
    need(condition == TensorType(bool_, ()), f"loop: the condition is {condition}; expected bool[]")
    need(max_iterations >= 0, f"loop: max_iterations is {max_iterations}")
    given = [TensorType(int64, ()), TensorType(bool_, ()), *rest]
    _check_body("loop", body, given, [v.type for v in body.inputs])
    results = [v.type for v in body.outputs.values()]
    need(len(results) >= 1 + n_carries, f"loop: body {body.name!r} gives {len(results)} results; expected a condition "
         f"and {n_carries} carried values")  # fmt: skip
    need(results[0] == condition, f"loop: the body's first result is {results[0]}; expected a condition, bool[]")
    _check_body("loop", body, rest[:n_carries], results[1 : 1 + n_carries], "carried value", "comes out")
    rows = [TensorType(t.dtype, (max_iterations, *t.shape)) for t in results[1 + n_carries :]]
    return (TensorType(int64, ()), *rest[:n_carries], *rows)


def _loop_gradient(node: Node, *cotangents: Value | None, differentiate: Differentiate) -> None:
    raise GradientError(
        f"{node.describe()}: a loop whose number of iterations depends on data has no gradient; express it as a scan "
        "over as many rows as it makes iterations"
    )


loop: MultiOp = MultiOp(
    "loop",
    ("operands*",),
    _loop_infer,
    outputs=("iterations", "results*"),
    attributes={"n_carries": REQUIRED, "max_iterations": REQUIRED},
    gradient=_loop_gradient,
    bodies=("body",),
    doc="operands: iteration count, condition, carries, captures. The body gets the iteration's number, the condition, "
    "carries and captures, and gives a condition, carries and rows. More than max_iterations are an error. Results: "
    "the number of iterations, final carries, and rows, zero behind the last iteration",
)

OPS = (scan, if_, loop)
