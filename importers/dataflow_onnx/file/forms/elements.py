"""Forms of elementwise ops, products and casts."""

from __future__ import annotations

import numpy as np

from dataflow import Node
from dataflow.errors import ModelError

from ..value_types import CODE_OF
from .writer import Form, Writer, operand, same


def matmul(w: Writer, node: Node) -> None:
    """``MatMul`` of operands of one dtype."""
    a, b = operand(node), operand(node, 1)
    right = w.name(b) if b.type.dtype == a.type.dtype else w.made("Cast", [w.name(b)], to=CODE_OF[a.type.dtype])
    w.add("MatMul", [w.name(a), right], w.outputs(node), node.name)


def cast(w: Writer, node: Node) -> None:
    """``Cast``."""
    a = node.attributes
    fit = {"saturate": 0} if not a["saturate"] and a["to"].name.startswith("float8") else {}
    power = {"round_mode": a["round_mode"]} if a["to"].name == "float8_e8m0fnu" else {}
    w.add("Cast", w.inputs(node), w.outputs(node), node.name, to=CODE_OF[a["to"]], **fit, **power)


def bit_shift(w: Writer, node: Node) -> None:
    """``BitShift``."""
    if not operand(node).type.dtype.name.startswith("uint"):
        raise ModelError("ONNX moves bits of unsigned integers alone")
    direction = "LEFT" if node.attributes["left"] else "RIGHT"
    w.add("BitShift", w.inputs(node), w.outputs(node), node.name, direction=direction)


def is_inf(w: Writer, node: Node) -> None:
    """``IsInf``."""
    if operand(node).type.dtype.name not in ("float32", "float64"):
        w.need(20)
    same("IsInf", {"detect_negative": "detect_negative", "detect_positive": "detect_positive"})(w, node)


def dropout(w: Writer, node: Node) -> None:
    """``Dropout``, which does nothing outside of training."""
    ratio = w.stored(np.float32(node.attributes["ratio"]))
    w.add("Dropout", [w.inputs(node)[0], ratio], w.outputs(node), node.name)


def quantize(kind: str) -> Form:
    """``QuantizeLinear`` or ``DequantizeLinear``."""

    def form(w: Writer, node: Node) -> None:
        scale, zero = operand(node, 1), operand(node, 2)
        if zero.type.dtype.name not in ("int8", "uint8", "int32"):
            w.need(21)
        axis = {"axis": node.attributes["axis"]} if scale.type.rank else {}
        w.add(kind, w.inputs(node), w.outputs(node), node.name, **axis)

    return form
