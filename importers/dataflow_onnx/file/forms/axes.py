"""Forms of reductions, norms, sorting and scattering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow import Node
from dataflow.errors import ModelError

from .writer import Form, Writer, numbers, operand


def reduce(kind: str, opset: int) -> Form:
    """A reduction, whose axes are an input from ``opset`` on."""

    def form(w: Writer, node: Node) -> None:
        w.need(opset)  # from there the axes are an input
        a = node.attributes
        w.add(kind, [w.inputs(node)[0], w.ints(a["axes"])], w.outputs(node), node.name, keepdims=a["keepdims"])

    return form


def cumsum(w: Writer, node: Node) -> None:
    """``CumSum``."""
    a = node.attributes
    operands = [w.inputs(node)[0], w.stored(np.int64(a["axis"]))]
    w.add("CumSum", operands, w.outputs(node), node.name, exclusive=a["exclusive"], reverse=a["reverse"])


def topk(w: Writer, node: Node) -> None:
    """``TopK``."""
    a = node.attributes
    kept = {name: a[name] for name in ("axis", "largest", "sorted")}
    w.add("TopK", [w.inputs(node)[0], w.sizes([a["k"]])], w.outputs(node), node.name, **kept)


def one_hot(w: Writer, node: Node) -> None:
    """``OneHot``."""
    a = node.attributes
    ends = w.stored(np.asarray([0, 1]).astype(a["dtype"].numpy))
    w.add("OneHot", [w.inputs(node)[0], w.sizes([a["depth"]]), ends], w.outputs(node), node.name, axis=a["axis"])


def scatter(kind: str, kept: Sequence[str]) -> Form:
    """``ScatterElements`` or ``ScatterND``."""

    def form(w: Writer, node: Node) -> None:
        a = node.attributes
        if a.get("batch_dims"):
            raise ModelError("ONNX scatters by coordinates without batch axes")
        if a["reduction"] in ("max", "min"):
            w.need(18)
        w.add(kind, w.inputs(node), w.outputs(node), node.name, **{name: a[name] for name in kept})

    return form


def dft(w: Writer, node: Node) -> None:
    """``DFT``, whose inverse is divided by the number of points in ONNX."""
    a = node.attributes
    w.need(20)  # from there the axis is an input
    operands = [w.inputs(node)[0], "", w.stored(np.int64(a["axis"]))]
    if not a["inverse"]:
        w.add("DFT", operands, w.outputs(node), node.name)
        return
    (count,) = numbers([operand(node).type.shape[a["axis"]]], "points")  # by which ONNX's inverse is divided
    divided = w.made("DFT", operands, inverse=1)
    factor = w.stored(np.asarray(count).astype(operand(node).type.dtype.numpy))
    w.add("Mul", [divided, factor], w.outputs(node), node.name)


def layer_norm(w: Writer, node: Node) -> None:
    """``LayerNormalization``, with ones where there is no scale."""
    x, scale, *bias = w.inputs(node) if len(node.inputs) > 1 else (*w.inputs(node), "")
    a = node.attributes
    if not scale:
        rows = numbers(operand(node).type.shape[a["axis"] % operand(node).type.rank :], "sizes of a row")
        scale = w.stored(np.ones(rows, operand(node).type.dtype.numpy))
    w.add("LayerNormalization", [x, scale, *bias], w.outputs(node), node.name, axis=a["axis"], epsilon=a["epsilon"])


def batch_norm_train(w: Writer, node: Node) -> None:
    """``BatchNormalization`` in training mode."""
    a = node.attributes
    kept = {"epsilon": a["epsilon"], "momentum": a["momentum"], "training_mode": 1}
    w.add("BatchNormalization", w.inputs(node)[:5], w.outputs(node), node.name, **kept)
