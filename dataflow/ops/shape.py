"""Ops that move elements: views, which cost nothing, and those that need a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InputError
from ..ir.dims import Dim, Shape, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op, View
from ..ir.types import TensorType, bool_, contiguous_strides
from ..ir.value import Value
from .gather import index_add
from .infer import builder_for, need, need_number, need_shape, normal_axis, operand, product, varies
from .logic import where
from .rules.padding import elements_read
from .rules.subgraph import zeros

# ---- views --------------------------------------------------------------------------------------------


def _reshape_infer(x: TensorType, *, shape: Shape) -> TensorType:
    need_shape("reshape", shape)
    known = not any(isinstance(d, Dim) for d in (*x.shape, *shape))
    if known and product(x.shape) != product(shape):
        raise InputError(f"reshape: {x} has {product(x.shape)} elements, shape {tuple(shape)} has {product(shape)}")
    return TensorType(x.dtype, tuple(shape))


def _reshape_view(node: Node, strides: tuple[int, ...]) -> View | None:
    """Strides for the new shape where groups of axes that belong together are evenly spaced, else None."""
    assert node.outputs[0] is not None
    old, new = operand(node).type.sizes, node.outputs[0].type.sizes
    if 0 in old:
        return View(0, contiguous_strides(new))
    dims = [(d, s) for d, s in zip(old, strides, strict=True) if d != 1]
    result = [0] * len(new)
    at = 0
    axis = 0
    while at < len(dims) or axis < len(new):
        if axis < len(new) and new[axis] == 1:
            axis += 1
            continue
        if at >= len(dims):
            return None
        total, first = dims[at][0], axis
        last = at
        size = new[axis]
        axis += 1
        while total != size:
            if total < size:
                last += 1
                if last >= len(dims):
                    return None
                total *= dims[last][0]
            else:
                if axis >= len(new):
                    return None
                size *= new[axis]
                axis += 1
        if any(dims[i][1] != dims[i + 1][1] * dims[i + 1][0] for i in range(at, last)):
            return None
        step = dims[last][1]
        for back in range(axis - 1, first - 1, -1):
            result[back] = step
            step *= new[back]
        at = last + 1
    return View(0, tuple(result))


reshape: Op = Op(
    "reshape",
    ("x",),
    _reshape_infer,
    attributes={"shape": REQUIRED},
    gradient=lambda n, dy: reshape(dy, shape=operand(n).type.shape),
    view=_reshape_view,
    cheap=True,
    doc="the elements in row-major order under another shape; every dim is given",
)


def _transpose_infer(x: TensorType, *, perm: Sequence[int]) -> TensorType:
    if sorted(perm) != list(range(x.rank)):
        raise InputError(f"transpose: perm {tuple(perm)} is no order of the {x.rank} axes of {x}")
    return TensorType(x.dtype, tuple(x.shape[p] for p in perm))


def _transpose_gradient(node: Node, dy: Value) -> Value:
    perm = node.attributes["perm"]
    return transpose(dy, perm=tuple(perm.index(i) for i in range(len(perm))))


transpose: Op = Op(
    "transpose",
    ("x",),
    _transpose_infer,
    attributes={"perm": REQUIRED},
    gradient=_transpose_gradient,
    view=lambda node, strides: View(0, tuple(strides[p] for p in node.attributes["perm"])),
    cheap=True,
    doc="y's axis i is x's axis perm[i]",
)


def _broadcast_infer(x: TensorType, *, shape: Shape) -> TensorType:
    need_shape("broadcast_to", shape)
    lead = len(shape) - x.rank
    fits = lead >= 0 and all(
        d in (1, s) or isinstance(d, Dim) or isinstance(s, Dim) for d, s in zip(x.shape, shape[lead:], strict=True)
    )
    if not fits:
        raise InputError(f"broadcast_to: {x} does not broadcast to shape {tuple(shape)}")
    return TensorType(x.dtype, tuple(shape))


def _broadcast_view(node: Node, strides: tuple[int, ...]) -> View:
    assert node.outputs[0] is not None
    old, new = operand(node).type.sizes, node.outputs[0].type.sizes
    lead = len(new) - len(old)
    moved = [0 if d == 1 and n != 1 else s for d, n, s in zip(old, new[lead:], strides, strict=True)]
    return View(0, (0,) * lead + tuple(moved))


broadcast_to: Op = Op(
    "broadcast_to",
    ("x",),
    _broadcast_infer,
    attributes={"shape": REQUIRED},
    gradient=lambda n, dy: dy,  # summed to the shape of x by the walker
    view=_broadcast_view,
    cheap=True,
    doc="x repeated along axes of size one and new leading axes",
)


def _slice_size(start: Size, stop: Size, step: int) -> Size:
    """Elements of a slice whose ends are clamped already."""
    span = stop - start if step > 0 else start - stop
    if isinstance(span, Dim):
        return span if abs(step) == 1 else (span + (abs(step) - 1)) // abs(step)
    return max(0, -(-span // abs(step)))


def _slice_infer(x: TensorType, *, starts: Shape, stops: Shape, steps: Sequence[int]) -> TensorType:
    if not (len(starts) == len(stops) == len(steps) == x.rank):
        raise InputError(
            f"slice: {x} has {x.rank} axes, got {len(starts)} starts, {len(stops)} stops, {len(steps)} steps"
        )
    if 0 in tuple(steps):
        raise InputError(f"slice: steps {tuple(steps)} has a zero")
    for dim, start, stop, step in zip(x.shape, starts, stops, steps, strict=True):
        if isinstance(dim, Dim) or isinstance(start, Dim) or isinstance(stop, Dim):
            continue
        low, high = (0, dim) if step > 0 else (-1, dim - 1)
        nothing = stop <= start if step > 0 else stop >= start  # and clamped to any axis it is nothing, too
        if not nothing and not (low <= start <= high and low <= stop <= high):
            raise InputError(f"slice: {start}:{stop}:{step} leaves an axis of size {dim}; give ends that lie in it")
    return TensorType(x.dtype, tuple(_slice_size(a, b, s) for a, b, s in zip(starts, stops, steps, strict=True)))


def _slice_view(node: Node, strides: tuple[int, ...]) -> View:
    assert node.outputs[0] is not None
    starts, steps, sizes = node.attributes["starts"], node.attributes["steps"], node.outputs[0].type.sizes
    offset = 0 if 0 in sizes else sum(a * s for a, s in zip(starts, strides, strict=True))
    # Along an axis of one element nobody steps, but steps beyond its end, one slice after the other, would overflow.
    return View(offset, tuple(s * step if n > 1 else s for s, step, n in zip(strides, steps, sizes, strict=True)))


def _slice_gradient(node: Node, dy: Value) -> Value:
    return slice_grad(dy, shape=operand(node).type.shape, **node.attributes)


_RANGES = {"starts": REQUIRED, "stops": REQUIRED, "steps": REQUIRED}
slice_: Op = Op(
    "slice",
    ("x",),
    _slice_infer,
    attributes=_RANGES,
    gradient=_slice_gradient,
    view=_slice_view,
    cheap=True,
    doc="every step-th element from start to before stop, per axis; a negative step goes back, stop -1 is before 0; "
    "the ends lie in the axis, or are those of no element",
)


def _slice_grad_infer(dy: TensorType, *, shape: Shape, starts: Shape, stops: Shape, steps: Sequence[int]) -> TensorType:
    need_number("slice_grad", dy)
    x = TensorType(dy.dtype, tuple(shape))
    read = _slice_infer(x, starts=starts, stops=stops, steps=steps)
    fits = not (read.is_bound and dy.is_bound) or read.shape == dy.shape
    if not fits:
        raise InputError(f"slice_grad: got {dy}, the slice of {x} is {read}")
    return x


def _slice_grad_gradient(node: Node, g: Value) -> Value:
    ranges = {key: node.attributes[key] for key in _RANGES}
    return slice_(g, **ranges)


slice_grad: Op = Op(
    "slice_grad",
    ("dy",),
    _slice_grad_infer,
    attributes={"shape": REQUIRED, **_RANGES},
    gradient=_slice_grad_gradient,
    doc="zeros of ``shape`` with dy where slice read",
)

# ---- copies -------------------------------------------------------------------------------------------


PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _pad_infer(
    x: TensorType, value: TensorType | None = None, *, pads: Sequence[Size], mode: str = "constant"
) -> TensorType:
    if len(pads) != 2 * x.rank:
        raise InputError(f"pad: {x} has {x.rank} axes, so {2 * x.rank} pads are needed; got {len(pads)}")
    if mode not in PAD_MODES:
        raise InputError(f"pad: mode {mode!r}; expected one of {', '.join(PAD_MODES)}")
    if not (value is None or (value.rank == 0 and value.dtype == x.dtype)):
        raise InputError(f"pad: the value is a scalar of {x.dtype}")
    sizes = tuple(d + pads[i] + pads[i + x.rank] for i, d in enumerate(x.shape))
    for axis, (dim, size) in enumerate(zip(x.shape, sizes, strict=True)):
        before, after = pads[axis], pads[axis + x.rank]
        if not (isinstance(size, Dim) or size >= 0):
            raise InputError(f"pad: axis {axis} of {x} gets size {size}")
        if isinstance(before, Dim) or isinstance(after, Dim):  # checked when they are bound
            continue
        left = dim + min(before, 0) + min(after, 0)
        if not (isinstance(left, Dim) or left >= 0):
            raise InputError(f"pad: {before} and {after} crop more than axis {axis} of {x} has")
        if not (mode == "constant" or left != 0 or size == 0):
            raise InputError(f"pad: axis {axis} of {x} has no elements to repeat")
        if mode == "reflect" and not isinstance(left, Dim):
            most = max(before, after)
            if not (most < max(left, 1) or most <= 0):
                raise InputError(f"pad: reflecting {most} elements of axis {axis}, which has {left}")
    return TensorType(x.dtype, sizes)


def _pad_gradient(node: Node, dy: Value) -> Value | tuple[Value, Value]:
    """The inverse pad, which crops; mirrored and repeated elements add up by a gather's rule.

    A value that is computed gets the cotangents of what was added.
    """
    pads = node.attributes["pads"]
    rank = operand(node).type.rank
    if node.attributes["mode"] == "constant":
        cropped = pad(dy, pads=tuple(-p for p in pads))
        value = node.inputs[1] if len(node.inputs) > 1 else None
        if value is None or not varies(value):
            return cropped
        builder = builder_for(dy)
        none = zeros(builder, TensorType(bool_, operand(node).type.shape))
        added = pad(none, builder.constant(np.asarray(True)), pads=pads)
        return cropped, where(added, dy, zeros(builder, TensorType(dy.type.dtype, ())))
    for axis in range(rank):
        before, after = pads[axis], pads[axis + rank]
        if before or after:
            size = operand(node).type.shape[axis]
            source = elements_read(builder_for(dy), size, before, after, node.attributes["mode"])
            dy = index_add(source, dy, size=size, axis=axis)
    return dy


pad: Op = Op(
    "pad",
    ("x", "value?"),
    _pad_infer,
    attributes={"pads": REQUIRED, "mode": "constant"},
    gradient=_pad_gradient,
    doc="x with elements added before and after each axis: the value (0 by default), the nearest end (edge), the "
    "mirror image about the ends (reflect) or x repeated (wrap); negative pads crop x first",
)


def _concat_infer(*xs: TensorType, axis: int) -> TensorType:
    need(len(xs) > 0, "concat: no inputs")
    at = normal_axis("concat", axis, xs[0].rank)
    shape = [*xs[0].shape]
    shape[at] = 0
    for number, x in enumerate(xs):
        fits = x.dtype == xs[0].dtype and x.rank == len(shape)
        for i, size in enumerate(x.shape if fits else ()):
            if i == at:
                shape[i] = shape[i] + size
            elif isinstance(shape[i], Dim) and not isinstance(size, Dim):
                shape[i] = size  # what one operand names and another has as a number is that number
            elif not isinstance(size, Dim):
                fits = fits and size == shape[i]
        if not fits:
            before = " and ".join(map(str, xs[:number]))
            raise InputError(f"concat: {x} does not fit {before} along axis {axis}")
    return TensorType(xs[0].dtype, tuple(shape))


def _concat_gradient(node: Node, dy: Value) -> list[Value]:
    axis = normal_axis("concat", node.attributes["axis"], dy.type.rank)
    slices = []
    begin: Size = 0
    for x in node.inputs:
        assert x is not None
        end = begin + x.type.shape[axis]
        starts = tuple(begin if i == axis else 0 for i in range(dy.type.rank))
        stops = tuple(end if i == axis else d for i, d in enumerate(dy.type.shape))
        slices.append(slice_(dy, starts=starts, stops=stops, steps=(1,) * dy.type.rank))
        begin = end
    return slices


concat: Op = Op(
    "concat",
    ("xs*",),
    _concat_infer,
    attributes={"axis": REQUIRED},
    gradient=_concat_gradient,
    doc="the inputs one behind the other along axis",
)

OPS = (reshape, transpose, broadcast_to, slice_, slice_grad, pad, concat)
