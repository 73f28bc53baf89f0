"""Forms of ops on shapes, whose operands are sizes, named ones too."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow import Dim, Node

from ..value_types import CODE_OF
from .writer import Writer, operand, result

_FAR = (1 << 63) - 1  # a start or an end that is clamped to the end of the axis


def reshape(w: Writer, node: Node) -> None:
    """Where no size is 0, a named one is copied from the same axis of the operand (0), and one more inferred (-1)."""
    shape, source = node.attributes["shape"], operand(node).type.shape
    named = [isinstance(size, Dim) for size in shape]
    copied = [own and axis < len(source) and source[axis] == shape[axis] for axis, own in enumerate(named)]
    if 0 in shape or sum(own and not same for own, same in zip(named, copied, strict=True)) > 1:
        sizes, kept = w.sizes(shape), {"allowzero": 1}
    else:
        wanted = [0 if copied[axis] else -1 if named[axis] else size for axis, size in enumerate(shape)]
        sizes, kept = w.ints(wanted), {}
    w.add("Reshape", [w.inputs(node)[0], sizes], w.outputs(node), node.name, **kept)


def broadcast(w: Writer, node: Node) -> None:
    """The operand's own named sizes are 1."""
    shape, source = node.attributes["shape"], operand(node).type.shape
    own = (1,) * (len(shape) - len(source)) + tuple(source)
    wanted = [1 if isinstance(n, Dim) and n == have else n for n, have in zip(shape, own, strict=True)]
    w.add("Expand", [w.inputs(node)[0], w.sizes(wanted)], w.outputs(node), node.name)


def slice(w: Writer, node: Node) -> None:
    """Starts, ends, axes and steps; axes that are kept entirely are left out."""
    a = node.attributes
    sizes = zip(operand(node).type.shape, result(node).type.shape, strict=True)
    entries = zip(a["starts"], a["stops"], a["steps"], strict=True)
    rows: list[tuple[Any, Any, int, int]] = []
    for axis, ((size, left), (start, stop, step)) in enumerate(zip(sizes, entries, strict=True)):
        if (start, stop, step) == (0, size, 1):
            continue
        if not isinstance(left, Dim) and left == 0:
            start, stop, step = 0, 0, 1  # -1 is before the first element here, and the last one there
        if step < 0 and start == size - 1:
            start = _FAR
        if not isinstance(stop, Dim) and stop < 0:
            stop = -_FAR
        start, stop = (_from_the_end(at, size) if isinstance(at, Dim) else at for at in (start, stop))
        rows.append((start, stop, axis, step))
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    w.add("Slice", [w.inputs(node)[0], *map(w.sizes, columns)], w.outputs(node), node.name)


def _from_the_end(at: Any, size: Any) -> Any:
    """A named start or end as ONNX counts from the end of an axis; itself where that isn't known."""
    left = size - at
    if isinstance(left, Dim) or left < 0:
        return at
    return -left if left else _FAR


def pad(w: Writer, node: Node) -> None:
    """``Pad``."""
    if node.attributes["mode"] == "wrap":
        w.need(19)
    x, *value = w.inputs(node)
    pads = w.sizes(node.attributes["pads"])
    w.add("Pad", [x, pads, *value], w.outputs(node), node.name, mode=node.attributes["mode"])


def full(w: Writer, node: Node) -> None:
    """``ConstantOfShape``."""
    a = node.attributes
    value = w.tensor(np.full(1, a["value"]).astype(a["dtype"].numpy))
    w.add("ConstantOfShape", [w.sizes(a["shape"])], w.outputs(node), node.name, value=value)


def range(w: Writer, node: Node) -> None:
    """``Range``."""
    a = node.attributes

    def scalar(number: Any) -> str:
        if not isinstance(number, Dim):
            return w.stored(np.asarray(number).astype(a["dtype"].numpy))
        size = w.made("Reshape", [w.sizes([number]), w.ints([])])
        return size if a["dtype"].name == "int64" else w.made("Cast", [size], to=CODE_OF[a["dtype"]])

    operands = [scalar(a[name]) for name in ("start", "limit", "delta")]
    w.add("Range", operands, w.outputs(node), node.name)


def sizes(w: Writer, node: Node) -> None:
    """Sizes as a tensor."""
    a = node.attributes
    found = w.made("Reshape", [w.sizes(a["values"]), w.ints(a["shape"])])
    w.add("Cast", [found], w.outputs(node), node.name, to=CODE_OF[a["dtype"]])
