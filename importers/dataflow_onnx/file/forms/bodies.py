"""Loops and branches: a body becomes a subgraph, which reads captured values by their names outside."""

from __future__ import annotations

import numpy as np

from dataflow import Node, Value

from .writer import Writer


def _captured(w: Writer, node: Node, first: int) -> dict[Value, str]:
    """The names outside of the body's inputs from ``first`` on."""
    return {v: w.name(outer) for v, outer in zip(node.bodies[0].inputs[first:], node.inputs[first:], strict=True)}


def scan(w: Writer, node: Node) -> None:
    """``Scan``."""
    (body,), a = node.bodies, node.attributes
    carries, rows = a["n_carries"], a["n_xs"]
    own = body.inputs[: carries + rows]
    results = list(body.outputs.values())
    saved = [i for i, v in enumerate(node.outputs[len(results) :]) if w.reads(v)]  # carries before each iteration
    outputs = [*results, *(body.inputs[i] for i in saved)]
    made = [w.name(v) for v in (*node.outputs[: len(results)], *(node.outputs[len(results) + i] for i in saved))]
    direction = int(a["reverse"])
    w.add(
        "Scan",
        w.inputs(node)[: len(own)],
        made,
        node.name,
        body=w.body(body, _captured(w, node, len(own)), own, outputs),
        num_scan_inputs=rows,
        scan_input_directions=[direction] * rows,
        **({"scan_output_directions": [direction] * (len(made) - carries)} if len(made) > carries else {}),
    )


def branch(w: Writer, node: Node) -> None:
    """``If``."""
    condition, *outer = w.inputs(node)
    subgraphs = [
        w.body(body, dict(zip(body.inputs, outer, strict=True)), (), list(body.outputs.values()))
        for body in node.bodies
    ]
    w.add("If", [condition], w.outputs(node), node.name, then_branch=subgraphs[0], else_branch=subgraphs[1])


def loop(w: Writer, node: Node) -> None:
    """Its iterations are counted by one more carried value; rows are filled up with zeros behind the last."""
    (body,), a = node.bodies, node.attributes
    carries = a["n_carries"]
    own = body.inputs[: 2 + carries]
    subgraph = w.body(body, _captured(w, node, len(own)), own, list(body.outputs.values()), counted=True)
    iterations, *results = [w.name(v) for v in node.outputs]
    finals, rows = results[:carries], results[carries:]
    inner = [w.unique(f"{name}.made") for name in rows]
    operands = w.inputs(node)[: 2 + carries]
    w.add("Loop", [*operands, w.stored(np.int64(0))], [*finals, iterations, *inner], node.name, body=subgraph)
    if rows:
        left = w.made("Sub", [w.stored(np.int64(a["max_iterations"])), iterations])
        behind = w.made("Reshape", [left, w.ints([1])])
    for value, made, name in zip(node.outputs[1 + carries :], inner, rows, strict=True):
        assert value is not None
        rank = value.type.rank
        pads = w.made("Concat", [w.ints([0] * rank), behind, *([w.ints([0] * (rank - 1))] if rank > 1 else [])], axis=0)
        w.add("Pad", [made, pads], [name])
