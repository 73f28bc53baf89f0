"""Converters of operators that read, change and join shapes, and move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Value, int64, ops
from dataflow.errors import ModelError
from dataflow.plugin import broadcast_size, least_size

from ..converters import Collector
from ..dynamic_sizes import (
    clamped_ends,
    ends_of_data,
    expansion_of_data,
    is_taken_for_the_end,
    may_count_from_the_end,
    may_lie_before_the_axis,
    may_not_be_negative,
    required,
    target_of_data,
    window_of_data,
)
from ..emit import slice_axis
from ..importer import Importer
from ..iteration_count import difference
from ..shape_eval import Known, axes_in, axis_in, filled, objects, product
from ..tensor import Tensor

T = Tensor
operator = Collector()


@operator("Shape")
def Shape(c: Importer, x: T, *, start: int = 0, end: int | None = None) -> Any:
    return Known(objects(x.type.shape[start:end]), int64)


@operator("Size")
def Size(c: Importer, x: T) -> Any:
    return Known(filled((), product(x.type.shape)), int64)


@operator("Reshape")
def Reshape(c: Importer, x: T, shape: T, *, allowzero: int = 0) -> Any:
    value = c.value(x)
    wanted = c.known_sizes(shape)
    wanted = target_of_data(c, value, shape, allowzero) if wanted is None else wanted
    if c.freed is not None:
        wanted = c.freed.reshaped(c.builder, value, wanted)
    return reshaped(value, wanted, bool(allowzero))


def reshaped(value: Value, wanted: Sequence[Any], allowzero: bool = False) -> Any:
    """``value`` in a shape where 0 copies a size and -1 is worked out."""
    source = value.type.shape
    shape = list(wanted)
    for axis, size in enumerate(shape):
        if not isinstance(size, Dim) and size == 0 and not allowzero:
            if axis >= len(source):
                raise ModelError(f"shape {shape} copies axis {axis} of {value.type}")
            shape[axis] = source[axis]
    unknown = [i for i, n in enumerate(shape) if not isinstance(n, Dim) and n == -1]
    if len(unknown) > 1:
        raise ModelError(f"shape {shape} leaves more than one size open")
    if unknown:
        rest = product([n for i, n in enumerate(shape) if i != unknown[0]])
        total = product(source)
        if not isinstance(rest, Dim) and rest == 0:
            raise ModelError(f"shape {shape} leaves a size open that any number fits")
        shape[unknown[0]] = total // rest
    shape = [n if isinstance(n, Dim) else int(n) for n in shape]
    if any(not isinstance(n, Dim) and n < 0 for n in shape):
        raise ModelError(f"shape {shape} has a negative size")
    return ops.reshape(value, shape=tuple(shape))


@operator("Flatten")
def Flatten(c: Importer, x: T, *, axis: int = 1) -> Any:
    value = c.value(x)
    at = value.type.rank if axis == value.type.rank else axis_in(axis, value.type.rank)
    return ops.reshape(value, shape=(product(value.type.shape[:at]), product(value.type.shape[at:])))


def _squeeze(c: Importer, x: T, axes: Sequence[int] | None) -> Any:
    shape, value = x.type.shape, c.value(x)
    if axes is None:
        gone = {i for i, n in enumerate(shape) if not isinstance(n, Dim) and n == 1}
        for axis, size in enumerate(shape):
            if axis not in gone:
                value = required(value, size, 1, f"axis {axis} of {x.type} must not be 1: give axes", equal=0)
    else:
        gone = set(axes_in(axes, len(shape)))
    if any(not isinstance(shape[i], Dim) and shape[i] != 1 for i in gone):
        raise ModelError(f"axes {tuple(axes or ())} of {x.type} are not all of size 1")
    left = tuple(n for i, n in enumerate(shape) if i not in gone)
    return ops.reshape(value, shape=left)


@operator("Squeeze")
def Squeeze_1(c: Importer, x: T, *, axes: Sequence[int] | None = None) -> Any:
    return _squeeze(c, x, axes)


@operator("Squeeze", 13)
def Squeeze(c: Importer, x: T, axes: T | None = None) -> Any:
    return _squeeze(c, x, None if axes is None else c.ints(axes, "axes"))


def _unsqueeze(c: Importer, x: T, axes: Sequence[int]) -> Any:
    rank = len(x.type.shape) + len(axes)
    new = set(axes_in(axes, rank))
    old = iter(x.type.shape)
    shape = tuple(1 if i in new else next(old) for i in range(rank))
    return ops.reshape(c.value(x), shape=shape)


@operator("Unsqueeze")
def Unsqueeze_1(c: Importer, x: T, *, axes: Sequence[int]) -> Any:
    return _unsqueeze(c, x, axes)


@operator("Unsqueeze", 13)
def Unsqueeze(c: Importer, x: T, axes: T) -> Any:
    return _unsqueeze(c, x, c.ints(axes, "axes"))


@operator("Transpose")
def Transpose(c: Importer, x: T, *, perm: Sequence[int] | None = None) -> Any:
    value = c.value(x)
    rank = value.type.rank  # from which axes below 0 count, as PyTorch's tracing exporter writes permute(0, -2, -1, 1)
    order = tuple(a + rank if -rank <= a < 0 else a for a in (reversed(range(rank)) if perm is None else perm))
    y = ops.transpose(value, perm=order)
    if value in c.blocks and order == (1, 0):
        c.blocks[y] = c.blocks[value].other()
    return y


@operator("Concat", 4)
def Concat(c: Importer, *xs: T, axis: int) -> Any:
    values = [c.value(x) for x in xs]
    if c.freed is not None:
        values = c.freed.alike(c, values, axis)
    return ops.concat(*values, axis=axis) if len(values) > 1 else xs[0]


def _is_learned(x: T) -> bool:
    """Whether a tensor shows a stored one that looks like a token or a table of positions: masks have two values."""
    array = x.array if x.array is not None or x.stored is None else x.stored.array
    floats = np.empty(0) if array is None or array.dtype.kind != "f" else array
    ordered = np.sort(floats.reshape(-1)[:4096])  # np.unique would import numpy.ma, which takes as long as a file
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) > 1


@operator("Expand", 8)
def Expand(c: Importer, x: T, shape: T) -> Any:
    wanted = c.known_sizes(shape)
    wanted = expansion_of_data(c, x, shape) if wanted is None else wanted
    value = c.weight(x) if _is_learned(x) else c.value(x)
    own: list[Any] = list(value.type.shape)
    if c.freed is not None:
        wanted = c.freed.expanded(own, wanted)
    rank = max(len(own), len(wanted))
    own, wanted = [1] * (rank - len(own)) + own, [1] * (rank - len(wanted)) + wanted
    result = [broadcast_size(pair) for pair in zip(own, wanted, strict=True)]
    return ops.broadcast_to(value, shape=tuple(n if isinstance(n, Dim) else int(n) for n in result))


@operator("Tile", 6)
def Tile(c: Importer, x: T, repeats: T) -> Any:
    value, counts = c.value(x), c.known_sizes(repeats)
    counts = list(c.ints(repeats, "repeats")) if counts is None else counts
    shape = value.type.shape
    if c.freed is not None:
        counts = c.freed.tiled(shape, counts)
    if len(counts) != len(shape) or any(not isinstance(n, Dim) and n < 0 for n in counts):
        raise ModelError(f"repeats {counts} for {value.type}: expected one number, not negative, per axis")
    pairs = [(n if isinstance(n, Dim) else int(n), size) for n, size in zip(counts, shape, strict=True)]
    if any(1 not in pair for pair in pairs):  # each axis becomes two, of its copies and of its elements
        value = ops.reshape(value, shape=tuple(n for size in shape for n in (1, size)))
        value = ops.broadcast_to(value, shape=tuple(n for pair in pairs for n in pair))
        return ops.reshape(value, shape=tuple(n * size for n, size in pairs))
    return ops.broadcast_to(value, shape=tuple(n * size for n, size in pairs))


def _slice(c: Importer, x: T, starts: Sequence[Any], ends: Sequence[Any], axes: Any, steps: Any) -> Any:
    shape = x.type.shape
    chosen = axes_in(range(len(starts)) if axes is None else axes, len(shape))
    strides = [1] * len(starts) if steps is None else list(steps)
    if not len(starts) == len(ends) == len(chosen) == len(strides):
        raise ModelError("starts, ends, axes and steps have different lengths")
    begin: list[Any] = [0] * len(shape)
    stop: list[Any] = list(shape)
    step = [1] * len(shape)
    for start, end, axis, stride in zip(starts, ends, chosen, strides, strict=True):
        if stride == 0:
            raise ModelError("a step is 0")
        if c.freed is not None:
            start, end = c.freed.sliced(shape[axis], start), c.freed.sliced(shape[axis], end)
        begin[axis], stop[axis] = clamped_ends(start, end, stride, shape[axis], c.is_read(shape[axis]))
        step[axis] = int(stride)
    value = c.weight(x) if _is_learned(x) else c.value(x)
    for start, end, axis, stride in zip(starts, ends, chosen, strides, strict=True):
        if may_lie_before_the_axis(start, stride, shape[axis]) and not c.is_read(shape[axis]):
            text = f"axis {axis} has {shape[axis]} elements, fewer than the start {start} counts from the last"
            value = required(value, least_size([0, shape[axis] + start]), 0, text)
        for at in (start, end):
            if may_not_be_negative(at) and -at != shape[axis]:
                text = f"{at} is not negative, which counts from the first element"
                value = required(value, least_size([at, -1]), at, text)
            if may_count_from_the_end(at):
                text = f"{at} is negative, which counts from the last element"
                value = required(value, least_size([0, at]), 0, text)
            if is_taken_for_the_end(at, shape[axis]):
                text = f"axis {axis} has {shape[axis]} elements, more than the end {at}, which was taken for the last"
                value = required(value, least_size([at, shape[axis]]), shape[axis], text)
    return ops.slice(value, starts=tuple(begin), stops=tuple(stop), steps=tuple(step))


@operator("Slice")
def Slice_1(c: Importer, x: T, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None) -> Any:
    return _slice(c, x, starts, ends, axes, None)


@operator("Slice", 10)
def Slice(c: Importer, x: T, starts: T, ends: T, axes: T | None = None, steps: T | None = None) -> Any:
    chosen = None if axes is None else c.ints(axes, "axes")
    strides = None if steps is None else c.ints(steps, "steps")
    begin, stop = c.known_sizes(starts), c.known_sizes(ends)
    if begin is None or stop is None:
        forward = strides is None or tuple(strides) == (1,)
        count = difference(c, starts, ends) if c.around is not None and forward and starts.type.elements == 1 else None
        if count is not None and count > 0:
            return window_of_data(c, c.weight(x) if _is_learned(x) else c.value(x), starts, count, chosen)
        begin, stop = ends_of_data(c, x, starts, ends, chosen, strides)
    return _slice(c, x, begin, stop, chosen, strides)


def _split(c: Importer, x: T, axis: int, sizes: Sequence[Any]) -> tuple[Any, ...]:
    value = c.value(x)
    at = axis_in(axis, value.type.rank)
    if len(sizes) != len(c.node.outputs):
        raise ModelError(f"{len(sizes)} sizes for {len(c.node.outputs)} outputs")
    if any(not isinstance(size, Dim) and size < 0 for size in sizes):
        raise ModelError(f"split {list(sizes)} has a negative size")
    total = sum(sizes)
    text = f"axis {at} of {value.type} has the size {value.type.shape[at]}; split {list(sizes)} adds up to {total}"
    value = required(value, value.type.shape[at], total, text)
    results, begin = [], 0
    for size in sizes:
        results.append(slice_axis(value, at, begin, begin + size))
        begin = begin + size
    return tuple(results)


def _even(c: Importer, x: T, axis: int, count: int, uneven: bool = False) -> list[Any]:
    """Sizes of a split into ``count`` equal outputs; with ``uneven`` the last may be smaller."""
    size: Any = x.type.shape[axis_in(axis, len(x.type.shape))]
    if not 0 < count <= len(c.node.outputs):
        raise ModelError(f"num_outputs is {count}; the node has {len(c.node.outputs)} outputs")
    if not isinstance(size, Dim):
        most = -(-size // count)
        return [max(0, min(most, size - i * most)) for i in range(count)]
    if not uneven or size - size // count * count == 0:
        return [size // count] * count
    most = (size + (count - 1)) // count
    return [most] * (count - 1) + [size - most * (count - 1)]


@operator("Split")
def Split_2(c: Importer, x: T, *, axis: int = 0, split: Sequence[int] | None = None) -> Any:
    return _split(c, x, axis, split or _even(c, x, axis, len(c.node.outputs)))


@operator("Split", 13)
def Split(c: Importer, x: T, split: T | None = None, *, axis: int = 0, num_outputs: int | None = None) -> Any:
    count = len(c.node.outputs) if num_outputs is None else num_outputs
    sizes = _even(c, x, axis, count, num_outputs is not None) if split is None else c.sizes(split, "split")
    return _split(c, x, axis, sizes)


@operator("Pad")
def Pad_2(c: Importer, x: T, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
    data = c.value(x)
    return ops.pad(data, c.builder.scalar(value, data.type.dtype), pads=tuple(pads), mode=mode)


@operator("Pad", 11)
def Pad(c: Importer, x: T, pads: T, value: T | None = None, axes: T | None = None, *, mode: str = "constant") -> Any:
    data = c.value(x)
    known = c.known_sizes(pads) if mode == "constant" else None  # named sizes may be pads of zeros
    given, rank = c.ints(pads, "pads") if known is None else known, data.type.rank
    chosen = list(range(rank)) if axes is None else axes_in(c.ints(axes, "axes"), rank)
    if len(given) != 2 * len(chosen):
        raise ModelError(f"{len(given)} pads for {len(chosen)} axes; expected {2 * len(chosen)}")
    all_pads: list[Any] = [0] * (2 * rank)
    for index, axis in enumerate(chosen):
        all_pads[axis], all_pads[axis + rank] = given[index], given[index + len(chosen)]
    fill = None if value is None else c.value(value)
    if fill is not None and fill.type.rank:
        fill = ops.reshape(fill, shape=())
    return ops.pad(data, fill, pads=tuple(all_pads), mode=mode)


@operator("CenterCropPad", 18)
def CenterCropPad(c: Importer, x: T, shape: T, *, axes: Sequence[int] | None = None) -> Any:
    value = c.value(x)
    rank = value.type.rank
    chosen = list(range(rank)) if axes is None else axes_in(axes, rank)
    wanted = list(value.type.shape)
    for axis, size in zip(chosen, c.ints(shape, "the shape"), strict=True):
        wanted[axis] = size
    if any(isinstance(n, Dim) for n in (value.type.shape[a] for a in chosen)):
        raise ModelError(f"its input is {value.type}: the axes that change must have fixed sizes")
    starts, stops, before, after = [0] * rank, list(value.type.shape), [0] * rank, [0] * rank
    for axis in chosen:
        have, want = int(value.type.shape[axis]), int(wanted[axis])
        if want < have:
            starts[axis] = (have - want) // 2
            stops[axis] = starts[axis] + want
        else:
            before[axis] = (want - have) // 2
            after[axis] = want - have - before[axis]
    y = ops.slice(value, starts=tuple(starts), stops=tuple(stops), steps=(1,) * rank)
    return ops.pad(y, pads=(*before, *after), mode="constant") if any((*before, *after)) else y


@operator("DepthToSpace")
def DepthToSpace(c: Importer, x: T, *, blocksize: int, mode: str = "DCR") -> Any:
    value = c.value(x)
    B, C, H, W = value.type.shape
    s = blocksize
    if mode == "DCR":
        value = ops.transpose(ops.reshape(value, shape=(B, s, s, C // (s * s), H, W)), perm=(0, 3, 4, 1, 5, 2))
    else:
        value = ops.transpose(ops.reshape(value, shape=(B, C // (s * s), s, s, H, W)), perm=(0, 1, 4, 2, 5, 3))
    return ops.reshape(value, shape=(B, C // (s * s), H * s, W * s))


@operator("SpaceToDepth")
def SpaceToDepth(c: Importer, x: T, *, blocksize: int, mode: str = "DCR") -> Any:
    value = c.value(x)
    B, C, H, W = value.type.shape
    s = blocksize
    blocks = ops.reshape(value, shape=(B, C, H // s, s, W // s, s))
    blocks = ops.transpose(blocks, perm=(0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return ops.reshape(blocks, shape=(B, C * s * s, H // s, W // s))
