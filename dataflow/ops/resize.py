"""Resizing: every axis by itself, each result a weighted sum of a few elements.

``resize`` is decomposed into a ``resample`` per axis, whose tables of indices and weights are constants once the sizes
are bound; nearest elements of other dtypes than floats are gathered. The conventions are those of ONNX Resize,
version 19.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..host.limits import poll
from ..host.system_memory import require_memory
from ..ir.dims import Dim, Shape, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import Array, TensorType
from ..ir.value import Value
from .infer import alike, need, need_float, need_shape, normal_axis

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
MODES = ("nearest", "linear", "cubic")
ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

_Number = float | np.floating[Any]

LEAST_SCALE = 1e-12  # smaller ones, and their inverses, lead to coordinates that are not finite
BLOCK = 1 << 16  # results of an axis whose taps are computed at a time
LEAST_SIZE = 0.25  # elements of an unrounded result of antialiasing

# ---- one axis -----------------------------------------------------------------------------------------


def _table(name: str, x: TensorType, index: TensorType, weight: TensorType, axis: int) -> int:
    need_float(name, x)
    need(index.dtype.name == "int64" and index.rank == 2, f"{name}: index is {index}; expected int64 (results, taps)")
    need(weight.shape == index.shape and weight.dtype == x.dtype, f"{name}: weight is {weight}, index {index}")
    return normal_axis(name, axis, x.rank)


def _resample_infer(x: TensorType, index: TensorType, weight: TensorType, *, axis: int) -> TensorType:
    at = _table("resample", x, index, weight, axis)
    return TensorType(x.dtype, (*x.shape[:at], index.shape[0], *x.shape[at + 1 :]))


def _resample_gradient(node: Node, dy: Value) -> tuple[Value, None, None]:
    x, index, weight = node.inputs
    assert x is not None
    axis = normal_axis("resample", node.attributes["axis"], x.type.rank)
    return resample_grad(dy, index, weight, axis=axis, size=x.type.shape[axis]), None, None


def _taps_cost(node: Node) -> int:
    x, index = node.inputs[:2]
    assert x is not None and index is not None and node.outputs[0] is not None
    return 2 * max(x.type.elements, node.outputs[0].type.elements) * int(index.type.shape[1])


resample: Op = Op(
    "resample",
    ("x", "index", "weight"),
    _resample_infer,
    attributes={"axis": REQUIRED},
    gradient=_resample_gradient,
    cost=_taps_cost,
    doc="y[..., o, ...] = sum over t of weight[o, t] x[..., index[o, t], ...]; the weights have no gradient",
)


def _resample_grad_infer(dy: TensorType, index: TensorType, weight: TensorType, *, axis: int, size: Size) -> TensorType:
    at = _table("resample_grad", dy, index, weight, axis)
    results = (TensorType(dy.dtype, (n,)) for n in (dy.shape[at], index.shape[0]))
    alike(f"resample_grad: axis {axis} of dy and the rows of index", *results)
    return TensorType(dy.dtype, (*dy.shape[:at], size, *dy.shape[at + 1 :]))


resample_grad: Op = Op(
    "resample_grad",
    ("dy", "index", "weight"),
    _resample_grad_infer,
    outputs=("dx",),
    attributes={"axis": REQUIRED, "size": REQUIRED},
    gradient=lambda n, g: (resample(g, *n.inputs[1:], axis=n.attributes["axis"]), None, None),
    cost=_taps_cost,
    doc="dx[..., index[o, t], ...] += weight[o, t] dy[..., o, ...]",
)

# ---- tables -------------------------------------------------------------------------------------------


def coordinates_of(
    at: Array, size: int, result: int, scale: _Number, how: str, begin: _Number = 0.0, end: _Number = 1.0
) -> Array:
    """Where in an axis of ``size`` elements the elements ``at`` of ``result`` ones lie, in their precision."""
    if how == "align_corners":
        span = scale * size - 1  # of the unrounded result
        return at * (size - 1) / span if result > 1 and span > 0 else at * 0.0
    if how == "asymmetric":
        return at / scale
    if how == "tf_crop_and_resize":
        if result > 1:
            return begin * (size - 1) + at * (end - begin) * (size - 1) / (result - 1)
        return np.full(at.shape, 0.5 * (begin + end) * (size - 1))
    if how == "pytorch_half_pixel" and result == 1:
        return at * 0.0
    # In ONNX's order of operations: where this is a whole number, rounding decides which element is nearest.
    if how == "tf_half_pixel_for_nn":  # TensorFlow's nearest element: what lies half a step further on is rounded down
        return np.asarray((at + 0.5) / scale)
    shift = size / 2 * (1 - result / (scale * size)) if how == "half_pixel_symmetric" else 0.0
    found: Array = np.asarray(shift + (at + 0.5) / scale - 0.5)
    return found


def _triangle(distance: Array) -> Array:
    found: Array = np.clip(1 - np.abs(distance), 0.0, 1.0)
    return found


def _cubic(a: float) -> Callable[[Array], Array]:
    """Keys' kernel (1981)."""

    def kernel(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return kernel


def taps(
    size: int,
    result: int,
    scale: float,
    *,
    mode: str,
    coordinates: str,
    nearest: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    crop: tuple[float, float] = (0.0, 1.0),
) -> tuple[Array, Array]:
    """The elements that each result of one axis is made of.

    Computed for ``BLOCK`` results at a time, since the steps between hold several times what is returned.

    Returns:
        Indices (int64) and weights (float64), each (result, taps); see ``resize`` for the options.

    Raises:
        OutOfMemoryError, LimitExceeded: for as many results.
    """
    if size == 1 and coordinates != "tf_crop_and_resize":
        require_memory(2 * 8 * result, f"the table of a resize from {size} to {result}")
        return np.zeros((result, 1), np.int64), np.ones((result, 1))  # the weights of an element with itself
    at_once = min(result, BLOCK)
    width = 1.0 if mode == "nearest" or not antialias else min(scale, 1.0)
    count = 1 if mode == "nearest" else 2 * math.ceil((1 if mode == "linear" else 2) / width) + (1 if width < 1 else 0)
    what = f"the table of a resize from {size} to {result}"
    require_memory(8 * count * (2 * result + 6 * at_once), what)
    index, weight = np.empty((result, count), np.int64), np.ones((result, count))
    # A scale of a file has the precision of float32. Where a coordinate chooses an element it is computed in that, too,
    # as PyTorch and onnxruntime do: 3 / 0.6 is 5 for whoever wrote it, but less for the float32 next to 0.6 in float64.
    # So has a region: 0.3 times 5 lies between two elements.
    given = mode == "nearest" and (scale != result / size or coordinates == "tf_crop_and_resize")
    real = np.float32 if given and coordinates != "half_pixel_symmetric" else np.float64
    for begin in range(0, result, BLOCK):
        poll(what)
        rows = slice(begin, min(begin + BLOCK, result))
        numbers = np.arange(rows.start, rows.stop, dtype=real)
        at = coordinates_of(numbers, size, result, real(scale), coordinates, real(crop[0]), real(crop[1]))
        if mode == "nearest":
            nearby = ROUNDINGS[nearest](at.astype(np.float32 if given else real).astype(np.float64))[:, None]
        else:
            kernel = _triangle if mode == "linear" else _cubic(cubic_a)
            nearby = np.floor(at)[:, None] + np.arange(count)[None] - (count - 1) // 2
            block = kernel((nearby - at[:, None]) * width)
            if exclude_outside:
                block = np.where((nearby >= 0) & (nearby < size), block, 0.0)
            if exclude_outside or width < 1:
                block = block / block.sum(axis=1, keepdims=True)
            weight[rows] = block
        index[rows] = np.clip(nearby, 0, size - 1)
    used = (weight != 0).any(axis=0)
    used[0] |= not used.any()
    return (index, weight) if used.all() else (index[:, used], weight[:, used])


# ---- all axes -----------------------------------------------------------------------------------------


def _resize_infer(x: TensorType, *, sizes: Shape, **how: Any) -> TensorType:
    if how["mode"] != "nearest":
        need_float("resize", x)
    need_shape("resize", sizes)
    need(len(sizes) == x.rank, f"resize: {len(sizes)} sizes for {x}")
    need(how["mode"] in MODES, f"resize: mode {how['mode']!r}; expected one of {', '.join(MODES)}")
    need(how["coordinates"] in COORDINATES, f"resize: coordinates {how['coordinates']!r} are not known")
    need(how["nearest"] in ROUNDINGS, f"resize: nearest {how['nearest']!r}; expected one of {', '.join(ROUNDINGS)}")
    for name, per_axis in (("scales", 1), ("roi", 2)):
        listed = how[name]
        need(len(listed) in (0, per_axis * x.rank), f"resize: {name} {listed} for {x.rank} axes")
    fine = all(LEAST_SCALE <= s <= 1 / LEAST_SCALE for s in how["scales"])
    need(fine, f"resize: scales {how['scales']}; expected {LEAST_SCALE} to {1 / LEAST_SCALE}")
    need(all(abs(r) <= 1 / LEAST_SCALE for r in how["roi"]), f"resize: roi {how['roi']} is beyond {1 / LEAST_SCALE}")
    if how["antialias"] and how["scales"]:  # a result reads 1 / scale elements
        known = [(d, s) for d, s in zip(x.shape, how["scales"], strict=True) if not isinstance(d, Dim) and d]
        fine = all(size * scale >= LEAST_SIZE for size, scale in known)
        need(fine, f"resize: an axis of {x} by scales {how['scales']} gets less than {LEAST_SIZE} elements")
    return TensorType(x.dtype, tuple(sizes))


def _resize(
    x: Value,
    *,
    sizes: Shape,
    scales: tuple[float, ...],
    mode: str,
    coordinates: str,
    nearest: str,
    cubic_a: float,
    exclude_outside: bool,
    antialias: bool,
    roi: tuple[float, ...],
) -> Value:
    from .gather import full, gather

    builder = x.builder
    assert builder is not None
    rank, old = x.type.rank, x.type.shape
    chosen = []
    for axis, (size, result) in enumerate(zip(old, sizes, strict=True)):
        if isinstance(size, Dim) or isinstance(result, Dim):
            same = size == result and coordinates != "tf_crop_and_resize" and (not scales or scales[axis] == 1.0)
            need(same, f"resize: axis {axis} is resized from {size} to {result}, which must be numbers for its table")
            continue
        scale = scales[axis] if scales else 1.0 if size == result else result / max(size, 1)
        if (size != result or scale != 1.0 or coordinates == "tf_crop_and_resize") and size and result:
            chosen.append((result / size, axis, scale, size, result))
    y = x
    for _, axis, scale, size, result in sorted(chosen):  # what shrinks comes first
        crop = (roi[axis], roi[axis + rank]) if roi else (0.0, 1.0)
        index, weight = taps(
            size, int(result), scale, mode=mode, coordinates=coordinates, nearest=nearest, cubic_a=cubic_a,
            exclude_outside=bool(exclude_outside), antialias=bool(antialias), crop=crop,
        )  # fmt: skip
        if x.type.dtype.is_float:
            tables = builder.constant(index), builder.constant(weight.astype(x.type.dtype.numpy))
            y = resample(y, *tables, axis=axis)
        else:
            y = gather(y, builder.constant(index[:, 0]), axis=axis)
    if y.type.shape != tuple(sizes):  # an axis without elements
        return builder.add(full, (), {"shape": tuple(sizes), "value": 0.0, "dtype": x.type.dtype}).outputs[0]  # type: ignore[return-value]
    from .arithmetic import copy

    return y if chosen else copy(x)


resize: Op = Op(
    "resize",
    ("x",),
    _resize_infer,
    attributes={
        "sizes": REQUIRED,
        "scales": (),
        "mode": "nearest",
        "coordinates": "half_pixel",
        "nearest": "round_prefer_floor",
        "cubic_a": -0.75,
        "exclude_outside": False,
        "antialias": False,
        "roi": (),
    },
    decompose=_resize,
    doc="x at ``sizes``, by axis: nearest elements, or of floats linear or cubic (Keys 1981) interpolation; ``scales`` "
    "where they aren't the ratios of the sizes, ``roi`` (starts..., ends...) for tf_crop_and_resize",
)

OPS = (resample, resample_grad, resize)
