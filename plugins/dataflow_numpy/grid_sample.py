"""Reference of sampling between elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from dataflow.plugin import affine_positions, tap_positions

from .arrays import Array, Attributes, Code, upcast

_A = -0.75  # of Keys' cubic kernel (1981)
_FAR = 4  # positions as far outside of an axis read padding alone


def _position(attributes: Attributes, coordinate: Array, size: int) -> tuple[Array, Array]:
    """The position in elements, and whether it is no number.

    One so far outside that taps would overflow is replaced by one that reads the same, no number by the lowest.
    """
    at = coordinate
    if attributes["normalized"]:
        at = (at + 1) / 2 * (size - 1) if attributes["align_corners"] else ((at + 1) * size - 1) / 2
    if attributes["padding"] == "reflection":
        period = _period(attributes, size)
        with np.errstate(invalid="ignore"):
            at = np.where(np.abs(at) > period, np.fmod(at, period), at)
        return np.where(np.isfinite(at), at, 0.0).astype(at.dtype), np.isnan(at)
    return np.where(at > -_FAR, np.minimum(at, size + _FAR), -_FAR).astype(at.dtype), np.isnan(at)


def _period(attributes: Attributes, size: int) -> int:
    """After how many elements reflections repeat."""
    return max(2 * (size - 1), 1) if attributes["align_corners"] else 2 * size


def _element(attributes: Attributes, tap: Array, size: int) -> Array:
    """The element that a tap reads; -1 for zero."""
    if attributes["padding"] == "zeros":
        return np.where((tap >= 0) & (tap < size), tap, -1)
    if attributes["padding"] == "border":
        return np.clip(tap, 0, size - 1)
    period = _period(attributes, size)
    within = tap % period
    mirrored = period - within - (0 if attributes["align_corners"] else 1)
    return np.minimum(np.where(within < size, within, mirrored), size - 1)


def _cubic(t: Array) -> tuple[list[Array], list[Array]]:
    """Weights of the elements at -1, 0, 1 and 2 for a position t behind 0, and their derivatives."""
    weights, slopes = [], []
    for sign, d in ((1, t + 1), (1, t), (-1, 1 - t), (-1, 2 - t)):
        far = d > 1
        near = ((_A + 2) * d - (_A + 3)) * d * d + 1
        weights.append(np.where(far, ((_A * d - 5 * _A) * d + 8 * _A) * d - 4 * _A, near))
        slope = np.where(far, (3 * _A * d - 10 * _A) * d + 8 * _A, (3 * (_A + 2) * d - 2 * (_A + 3)) * d)
        slopes.append(sign * slope)
    # At d = 1 both formulas agree.
    return weights, slopes


Taps = list[tuple[Array, Array, Array]]


def _taps(attributes: Attributes, coordinate: Array, size: int) -> Taps:
    """Element, weight and slope of each tap of an axis.

    What is interpolated at no number is none, as PyTorch's is: only the nearest element, and lines within edges, take
    the lowest position.
    """
    at, lost = _position(attributes, coordinate, size)
    if attributes["mode"] == "nearest":
        return [(_element(attributes, np.rint(at).astype(np.int64), size), np.ones_like(at), np.zeros_like(at))]
    first = np.floor(at)
    t = at - first
    if attributes["padding"] == "zeros" or attributes["mode"] == "cubic":
        t[lost] = np.nan
    below = first.astype(np.int64)
    if attributes["mode"] == "linear":
        rows = [(below, 1 - t, -np.ones_like(t)), (below + 1, t, np.ones_like(t))]
    else:
        rows = [(below - 1 + i, w, s) for i, (w, s) in enumerate(zip(*_cubic(t), strict=True))]
    return [(_element(attributes, tap, size), weight, slope) for tap, weight, slope in rows]


def _combined(attributes: Attributes, grid: Array, sizes: Sequence[int]) -> Iterator[tuple[Array, Array, list[Array]]]:
    """Per product of taps: flat elements (N, positions), -1 for zero, their weights, and slopes along each axis."""
    spatial = len(sizes)
    flat = grid.reshape(len(grid), int(np.prod(grid.shape[1:-1])), spatial)
    axes = [_taps(attributes, flat[..., spatial - 1 - axis], size) for axis, size in enumerate(sizes)]
    for taps in itertools.product(*axes):
        element = np.zeros(flat.shape[:2], np.int64)
        outside = np.zeros(flat.shape[:2], bool)
        for (tap, _, _), size in zip(taps, sizes, strict=True):
            element = element * size + tap
            outside |= tap < 0
        weight = np.prod([w for _, w, _ in taps], axis=0)
        slopes = [
            np.prod([s if i == axis else w for i, (_, w, s) in enumerate(taps)], axis=0) for axis in range(spatial)
        ]
        yield np.where(outside, -1, element), weight, slopes


def _read(x: Array, element: Array) -> Array:
    """(N, C, positions) of x at flat elements."""
    planes = x.reshape(*x.shape[:2], int(np.prod(x.shape[2:])))
    found = np.take_along_axis(planes, np.maximum(element, 0)[:, None], axis=2)
    return np.where(element[:, None] < 0, np.zeros((), x.dtype), found)


def _grid_sample(attributes: Attributes, x: Array, grid: Array) -> Array:
    raised = upcast(x)
    y = np.zeros((*x.shape[:2], int(np.prod(grid.shape[1:-1]))), raised.dtype)
    for element, weight, _ in _combined(attributes, upcast(grid), x.shape[2:]):
        y += _read(raised, element) * weight[:, None]
    return y.reshape(*x.shape[:2], *grid.shape[1:-1]).astype(x.dtype)


def _grad_input(attributes: Attributes, dy: Array, grid: Array) -> Array:
    N, C, *sizes = attributes["input_shape"]
    raised = upcast(dy).reshape(N, C, int(np.prod(grid.shape[1:-1])))
    dx = np.zeros((N, C, int(np.prod(sizes))), raised.dtype)
    for element, weight, _ in _combined(attributes, upcast(grid), sizes):
        sample, position = np.nonzero(element >= 0)
        rows = raised[sample, :, position] * weight[sample, position][:, None]
        np.add.at(dx, (sample[:, None], np.arange(C)[None], element[sample, position][:, None]), rows)
    return dx.reshape(N, C, *sizes).astype(dy.dtype)


def _grad_grid(attributes: Attributes, dy: Array, x: Array, grid: Array) -> Array:
    sizes, raised = x.shape[2:], upcast(grid)
    spatial = len(sizes)
    out = np.zeros((len(grid), int(np.prod(grid.shape[1:-1])), spatial), raised.dtype)
    cotangent = upcast(dy).reshape(*dy.shape[:2], out.shape[1])
    for element, _, slopes in _combined(attributes, raised, sizes):
        along = (_read(upcast(x), element) * cotangent).sum(axis=1)
        for axis, slope in enumerate(slopes):
            out[..., spatial - 1 - axis] += along * slope
    if attributes["normalized"]:
        lengths = [n - 1 if attributes["align_corners"] else n for n in reversed(sizes)]
        out *= np.array(lengths, raised.dtype) / 2
    return out.reshape(grid.shape).astype(grid.dtype)


def _affine_grid(attributes: Attributes, theta: Array) -> Array:
    N, _, *sizes = attributes["size"]
    positions = affine_positions(sizes, bool(attributes["align_corners"]))
    mapped = positions @ np.swapaxes(upcast(theta), 1, 2)
    return mapped.reshape(N, *sizes, len(sizes)).astype(theta.dtype)


_LINEAR = {"mode": "linear", "padding": "zeros", "align_corners": False, "normalized": False}


def _deform_conv(
    attributes: Attributes, x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None
) -> Array:
    window = {key: attributes[key] for key in ("strides", "pads", "dilations")}
    (N, C, *sizes), (M, _, *kernel), (height, width) = x.shape, w.shape, offset.shape[2:]
    G, groups, taps = attributes["offset_groups"], attributes["groups"], kernel[0] * kernel[1]
    moved = upcast(offset).reshape(N * G, *kernel, 2, height, width)
    grid = np.moveaxis(moved, 3, -1)[..., ::-1] + tap_positions(kernel, (height, width), **window)
    samples = _grid_sample(_LINEAR, upcast(x).reshape(N * G, C // G, *sizes), grid)
    if mask is not None:
        samples = samples * upcast(mask).reshape(N * G, 1, *kernel, height, width)
    columns = samples.reshape(N, groups, C // groups * taps, height * width)
    y = (upcast(w).reshape(groups, M // groups, -1) @ columns).reshape(N, M, height, width)
    return (y if bias is None else y + upcast(bias).reshape(-1, 1, 1)).astype(x.dtype)


KERNELS: dict[str, Code] = {
    "grid_sample": _grid_sample,
    "grid_sample_grad_input": _grad_input,
    "grid_sample_grad_grid": _grad_grid,
    "affine_grid": _affine_grid,
    "deform_conv": _deform_conv,
}
