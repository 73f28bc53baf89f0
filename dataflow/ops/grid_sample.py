"""Sampling between elements: at the positions of a grid, and the convolution whose taps are such samples.

An axis has a position, the taps around it and a weight for each; a sample is the sum over the product of all axes'
taps. Taps are whole numbers, and padding says which element a tap outside of the axis reads. That is the same as
padding positions, which PyTorch does, since a reflection maps whole numbers to whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import GradientError
from ..ir.dims import Dim, Shape
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import TensorType
from ..ir.value import Value
from .arithmetic import add, div, floor, mul, sub
from .conv import check_window, window_size
from .infer import alike, builder_for, need, need_float, need_shape, operand, same_dtype
from .linalg import matmul, swapped
from .reduce import reduce_sum
from .shape import concat, reshape, slice_, transpose

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # per axis
PADDINGS = ("zeros", "border", "reflection")
MOST_SPATIAL = 3

# ---- samples at a grid --------------------------------------------------------------------------------


def _check(name: str, x: Shape, grid: TensorType, mode: str, padding: str, **_: Any) -> None:
    """Raises InputError where a grid doesn't fit x of that shape, or an option isn't known."""
    spatial = len(x) - 2
    need(1 <= spatial <= MOST_SPATIAL, f"{name}: x has {len(x)} axes; expected 3 to {2 + MOST_SPATIAL}")
    need(mode in TAPS, f"{name}: mode {mode!r}; expected one of {', '.join(TAPS)}")
    need(padding in PADDINGS, f"{name}: padding {padding!r}; expected one of {', '.join(PADDINGS)}")
    fits = grid.rank >= 2 and (isinstance(grid.shape[-1], Dim) or grid.shape[-1] == spatial)
    need(fits, f"{name}: the grid is {grid}; expected {spatial} numbers per position, behind the samples")
    alike(f"{name}: the samples of x and grid", *(TensorType(grid.dtype, s[:1]) for s in (x, grid.shape)))
    need(not any(not isinstance(n, Dim) and n == 0 for n in x[2:]), f"{name}: x has the shape {x}: no element to read")


def _infer(x: TensorType, grid: TensorType, **how: Any) -> TensorType:
    need_float("grid_sample", x, grid)
    _check("grid_sample", x.shape, grid, **how)
    return TensorType(same_dtype("grid_sample", x, grid), (*x.shape[:2], *grid.shape[1:-1]))


def _gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    x, grid = operand(node, 0), operand(node, 1)
    dx = grid_sample_grad_input(dy, grid, input_shape=x.type.shape, **node.attributes)
    return dx, grid_sample_grad_grid(dy, x, grid, **node.attributes)


def _cost(node: Node) -> int:
    dy = operand(node) if node.op is not grid_sample else node.outputs[0]
    assert dy is not None
    grid = operand(node, 2 if node.op is grid_sample_grad_grid else 1)
    return int(2 * dy.type.elements * TAPS[node.attributes["mode"]] ** int(grid.type.shape[-1]))


_ATTRIBUTES: dict[str, Any] = {"mode": "linear", "padding": "zeros", "align_corners": False, "normalized": True}
grid_sample: Op = Op(
    "grid_sample",
    ("x", "grid"),
    _infer,
    attributes=_ATTRIBUTES,
    gradient=_gradient,
    cost=_cost,
    doc="y (N, C, ...) = x (N, C, spatial...) at the positions grid (N, ..., axes), for the last axis of x first: in "
    "elements, or from -1 to 1 between the ends of x (between the centres of its first and last elements with "
    "align_corners). Outside are zeros, the nearest element (border) or the mirror image (reflection)",
)


def _grad_input_infer(dy: TensorType, grid: TensorType, *, input_shape: Shape, **how: Any) -> TensorType:
    need_float("grid_sample_grad_input", dy, grid)
    need_shape("grid_sample_grad_input", input_shape)
    _check("grid_sample_grad_input", input_shape, grid, **how)
    sampled = TensorType(grid.dtype, (*input_shape[:2], *grid.shape[1:-1]))
    alike("grid_sample_grad_input: dy and the samples", dy, sampled)
    return TensorType(dy.dtype, tuple(input_shape))


def _grad_input_gradient(node: Node, u: Value) -> tuple[Value, Value]:
    """It is the adjoint of sampling: its product with u is that of dy with samples of u."""
    dy, grid = operand(node, 0), operand(node, 1)
    how = {key: value for key, value in node.attributes.items() if key != "input_shape"}
    return grid_sample(u, grid, **how), grid_sample_grad_grid(dy, u, grid, **how)


grid_sample_grad_input: Op = Op(
    "grid_sample_grad_input",
    ("dy", "grid"),
    _grad_input_infer,
    outputs=("dx",),
    attributes={"input_shape": REQUIRED, **_ATTRIBUTES},
    gradient=_grad_input_gradient,
    cost=_cost,
    doc="each dy added to the elements that its sample read, by their weights",
)


def _grad_grid_infer(dy: TensorType, x: TensorType, grid: TensorType, **how: Any) -> TensorType:
    sampled = _infer(x, grid, **how)
    alike("grid_sample_grad_grid: dy and the samples", dy, sampled)
    return grid


# Between two whole positions along an axis a sample is a polynomial of the position t behind the first: that through
# its values at these. Three times its coefficients are exact in every dtype.
NODES = {"linear": (0.0, 1.0), "cubic": (0.0, 0.25, 0.5, 1.0)}


def _basis_slopes(nodes: Sequence[float], order: int) -> list[np.ndarray[Any, Any]]:
    """A derivative of each polynomial that is 3 at one node and 0 at the others: coefficients, the highest first."""
    polynomials = (np.poly([o for o in nodes if o != n]) * 3 / np.prod([n - o for o in nodes if o != n]) for n in nodes)
    return [np.polyder(polynomial, order) for polynomial in polynomials]


def _at(t: Value, polynomial: np.ndarray[Any, Any]) -> Value:
    """A polynomial's value, by Horner."""
    found = mul(t, 0.0)
    for coefficient in polynomial:
        found = add(mul(found, t), float(coefficient))
    return found


def _slope_gradient(node: Node, v: Value) -> tuple[Value, Value, Value]:
    """Along an axis the slope is a sum of samples at fixed positions, each times a slope of a polynomial."""
    dy, x, grid = (operand(node, i) for i in range(3))
    how = dict(node.attributes)
    if any(isinstance(n, Dim) for n in x.type.shape[2:]):
        raise GradientError(f"{node.describe()}: second derivatives need fixed sizes; x is {x.type}")
    sizes, rank = list(reversed(x.type.sizes[2:])), grid.type.rank  # in the order of the grid's numbers
    if how["mode"] == "nearest":
        return mul(dy, 0.0), mul(x, 0.0), mul(grid, 0.0)
    normalized, aligned = how["normalized"], how["align_corners"]
    steps = [((n - 1 if aligned else n) / 2) if normalized else 1.0 for n in sizes]  # elements per unit of the grid
    begins = [((n - 1) / 2) if normalized else 0.0 for n in sizes]
    how["normalized"] = False
    columns = [_column(grid, k) for k in range(len(sizes))]
    at = [add(mul(c, step), begin) for c, step, begin in zip(columns, steps, begins, strict=True)]
    ddy: Value = mul(dy, 0.0)
    dx: Value = mul(x, 0.0)
    slopes: list[Value] = [mul(c, 0.0) for c in columns]
    nodes = NODES[how["mode"]]
    for k, step in enumerate(steps):
        first = floor(at[k])
        t, weight = sub(at[k], first), div(mul(_column(v, k), step), 3.0)
        for number, slope, bend in zip(nodes, _basis_slopes(nodes, 1), _basis_slopes(nodes, 2), strict=True):
            moved = concat(*[add(first, number) if i == k else a for i, a in enumerate(at)], axis=rank - 1)
            samples = grid_sample(x, moved, **how)
            factor = _per_sample(mul(weight, _at(t, slope)))
            ddy = add(ddy, mul(samples, factor))
            dx = add(dx, grid_sample_grad_input(mul(dy, factor), moved, input_shape=x.type.shape, **how))
            along = grid_sample_grad_grid(mul(dy, factor), x, moved, **how)
            shared = reshape(reduce_sum(mul(dy, samples), axes=(1,), keepdims=False), shape=weight.type.shape)
            bent = mul(mul(mul(shared, weight), _at(t, bend)), step)
            slopes = [add(s, bent if i == k else mul(_column(along, i), steps[i])) for i, s in enumerate(slopes)]
    return ddy, dx, concat(*slopes, axis=rank - 1)


def _column(grid: Value, k: int) -> Value:
    """Number k of each position: (N, ..., 1)."""
    shape = grid.type.shape
    starts, stops = (*(0,) * (len(shape) - 1), k), (*shape[:-1], k + 1)
    return slice_(grid, starts=starts, stops=stops, steps=(1,) * len(shape))


def _per_sample(column: Value) -> Value:
    """(N, ..., 1) as (N, 1, ...), for all channels."""
    return reshape(column, shape=(column.type.shape[0], 1, *column.type.shape[1:-1]))


grid_sample_grad_grid: Op = Op(
    "grid_sample_grad_grid",
    ("dy", "x", "grid"),
    _grad_grid_infer,
    outputs=("dgrid",),
    attributes=_ATTRIBUTES,
    gradient=_slope_gradient,
    cost=_cost,
    doc="per position the sum over channels of dy and the slope of x along each axis; zero for nearest elements",
)

# ---- grids of affine maps -----------------------------------------------------------------------------


def _affine_infer(theta: TensorType, *, size: Shape, align_corners: bool) -> TensorType:
    need_float("affine_grid", theta)
    need_shape("affine_grid", size)
    spatial = len(size) - 2
    need(spatial in (2, 3), f"affine_grid: size {tuple(size)} has {len(size)} axes; expected 4 or 5")
    expected = TensorType(theta.dtype, (size[0], spatial, spatial + 1))
    alike("affine_grid: theta and what size asks for", theta, expected)
    return TensorType(theta.dtype, (size[0], *size[2:], spatial))


def affine_positions(sizes: Sequence[int], align_corners: bool) -> np.ndarray[Any, Any]:
    """The positions of all elements in homogeneous coordinates, the last axis first: (elements, axes + 1), float64."""
    axes = []
    for size in sizes:
        at = np.arange(size)
        axes.append(2 * at / max(size - 1, 1) - 1 if align_corners else (2 * at + 1) / size - 1)
    grid = np.meshgrid(*axes, indexing="ij")
    return np.stack([*reversed(grid), np.ones_like(grid[0])], axis=-1).reshape(-1, len(sizes) + 1)


def _affine(theta: Value, *, size: Shape, align_corners: bool) -> Value:
    sizes = [int(n) for n in size[2:]]
    positions = affine_positions(sizes, align_corners).astype(theta.type.dtype.numpy)
    mapped = matmul(builder_for(theta).constant(positions), swapped(theta))
    return reshape(mapped, shape=(size[0], *sizes, len(sizes)))


affine_grid: Op = Op(
    "affine_grid",
    ("theta",),
    _affine_infer,
    attributes={"size": REQUIRED, "align_corners": False},
    decompose=_affine,
    doc="the grid (N, spatial..., axes) that grid_sample takes, for a result of ``size`` (N, C, spatial...): theta "
    "(N, axes, axes + 1) times the position of each element and 1",
)

# ---- deformable convolution ---------------------------------------------------------------------------


def _deform_infer(
    x: TensorType,
    w: TensorType,
    offset: TensorType,
    bias: TensorType | None = None,
    mask: TensorType | None = None,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    offset_groups: int,
) -> TensorType:
    name = "deform_conv"
    given = [t for t in (x, w, offset, bias, mask) if t is not None]
    need_float(name, *given)
    dtype = same_dtype(name, *given)
    need(x.rank == 4 and w.rank == 4, f"{name}: x is {x}, w is {w}; expected two spatial axes")
    need(w.is_bound, f"{name}: w is {w}; its sizes must be fixed")
    check_window(name, 2, ("strides", strides, 1), ("pads", pads, 2), ("dilations", dilations, 1))
    need(groups >= 1 and offset_groups >= 1, f"{name}: {groups} groups and {offset_groups} groups of offsets")
    filters, kernel = w.sizes[0], w.sizes[2:]
    channels = w.sizes[1] * groups
    taken = (TensorType(dtype, sizes) for sizes in (x.shape[1:2], (channels,)))
    alike(f"{name}: the channels of x and those that w takes in {groups} groups", *taken)
    fits = filters % groups == 0 and channels % offset_groups == 0
    need(fits, f"{name}: {filters} filters in {groups} groups, {channels} channels in {offset_groups} of offsets")
    need(0 not in kernel, f"{name}: w is {w}; expected a kernel")
    sizes = tuple(
        window_size(x.shape[2 + i], kernel[i], strides[i], pads[i] + pads[i + 2], dilations[i]) for i in range(2)
    )
    large = all(isinstance(n, Dim) or n > 0 for n in sizes)
    need(large, f"{name}: the kernel {kernel} is larger than the padded input {x}")
    taps = offset_groups * kernel[0] * kernel[1]
    alike(f"{name}: offset and what the windows need", offset, TensorType(dtype, (x.shape[0], 2 * taps, *sizes)))
    if mask is not None:
        alike(f"{name}: mask and what the windows need", mask, TensorType(dtype, (x.shape[0], taps, *sizes)))
    if bias is not None:
        alike(f"{name}: bias and the filters", bias, TensorType(dtype, (filters,)))
    return TensorType(dtype, (x.shape[0], filters, *sizes))


def tap_positions(
    kernel: Sequence[int], sizes: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Where each tap of each window lies in x: (*kernel, *sizes, 2), the last axis of x first, float64."""
    tap, window = np.indices(kernel), np.indices(sizes)
    axes = [
        tap[axis][..., None, None] * dilations[axis] + window[axis] * strides[axis] - pads[axis] for axis in range(2)
    ]
    return np.stack([axes[1], axes[0]], axis=-1).astype(np.float64)


def _deform(
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    offset_groups: int,
) -> Value:
    """A sample per tap and window, weighed by the mask; then a product for each group, as in any convolution."""
    N, C, H, W = x.type.sizes
    M, _, kh, kw = w.type.sizes
    height, width = offset.type.sizes[2:]
    G, taps, windows = offset_groups, kh * kw, height * width
    base = tap_positions((kh, kw), (height, width), strides, pads, dilations)
    moved = transpose(reshape(offset, shape=(N * G, taps, 2, windows)), perm=(0, 1, 3, 2))
    moved = slice_(moved, starts=(0, 0, 0, 1), stops=(N * G, taps, windows, -1), steps=(1, 1, 1, -1))
    constant = builder_for(x).constant(base.reshape(1, taps, windows, 2).astype(x.type.dtype.numpy))
    samples = grid_sample(reshape(x, shape=(N * G, C // G, H, W)), add(moved, constant), normalized=False)
    if mask is not None:
        samples = mul(samples, reshape(mask, shape=(N * G, 1, taps, windows)))
    columns = reshape(samples, shape=(N, groups, C // groups * taps, windows))
    weights = reshape(w, shape=(1, groups, M // groups, C // groups * taps))
    y = reshape(matmul(weights, columns), shape=(N, M, height, width))
    return y if bias is None else add(y, reshape(bias, shape=(M, 1, 1)))


deform_conv: Op = Op(
    "deform_conv",
    ("x", "w", "offset", "bias?", "mask?"),
    _deform_infer,
    attributes={
        "strides": REQUIRED,
        "pads": REQUIRED,
        "dilations": REQUIRED,
        "groups": 1,
        "offset_groups": 1,
    },
    decompose=_deform,
    doc="a convolution whose taps are moved by offset (N, groups of offsets, taps, (row, column), windows...), in "
    "elements, and weighed by mask (N, groups of offsets, taps, windows...); samples are linear, with zeros outside "
    "(Zhu 2019)",
)

OPS = (grid_sample, grid_sample_grad_input, grid_sample_grad_grid, affine_grid, deform_conv)
