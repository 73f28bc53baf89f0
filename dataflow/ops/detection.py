"""What detectors of objects are made of: pooling of regions of interest, and the boxes that don't overlap.

A region is (x1, y1, x2, y2) in the coordinates of the image, of which x (N, C, H, W) is a map at ``spatial_scale``;
``batch`` has the sample of each.
"""

from __future__ import annotations

from typing import Any

from ..ir.dims import Dim, Shape, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, MultiOp, Op
from ..ir.types import TensorType, int64
from ..ir.value import Value
from .infer import alike, need, need_float, need_shape, operand, same_dtype

MOST_SAMPLES = 1 << 15  # of a bin along an axis, so that no region takes forever

# ---- regions ------------------------------------------------------------------------------------------


def _regions(name: str, shape: Shape, rois: TensorType, batch: TensorType, size: Shape) -> Shape:
    """The shape of what is pooled of maps of ``shape``."""
    need_float(name, rois)
    need(len(shape) == 4, f"{name}: the maps have {len(shape)} axes; expected 4")
    need(len(size) == 2 and all(not isinstance(n, Dim) and n >= 1 for n in size), f"{name}: size is {tuple(size)}")
    fits = rois.rank == 2 and (isinstance(rois.shape[1], Dim) or rois.shape[1] == 4)
    need(fits, f"{name}: regions are {rois}; expected 4 numbers each")
    need(batch.dtype == int64, f"{name}: batch is {batch}; expected int64")
    alike(f"{name}: batch and the regions", batch, TensorType(int64, rois.shape[:1]))
    return (rois.shape[0], shape[1], *size)


def _align_infer(
    x: TensorType,
    rois: TensorType,
    batch: TensorType,
    read: TensorType | None = None,
    *,
    size: Shape,
    mode: str,
    sampling_ratio: int,
    **_: Any,
) -> TensorType:
    need(mode in ("avg", "max"), f"roi_align: mode {mode!r}; expected avg or max")
    fits = 0 <= sampling_ratio <= MOST_SAMPLES
    need(fits, f"roi_align: sampling_ratio is {sampling_ratio}; expected 0 to {MOST_SAMPLES}")
    dtype = same_dtype("roi_align", x, rois)
    if read is not None:
        need(mode == "max", "roi_align: only where the largest samples are is another map read")
        alike("roi_align: x and what is read", x, read)
    return TensorType(dtype, _regions("roi_align", x.shape, rois, batch, size))


def _of_read(node: Node, dx: Value) -> tuple[Value | None, ...]:
    """Gradients of the inputs of pooling: ``dx`` is that of the map whose elements the results are."""
    others = (None,) * (len(node.inputs) - 3)
    return (dx, None, None, *others) if (*node.inputs, None)[3] is None else (None, None, None, dx)


def _align_gradient(node: Node, dy: Value) -> tuple[Value | None, ...]:
    """Of what is read: where the largest samples are doesn't change with x."""
    x, rois, batch = (operand(node, i) for i in range(3))
    largest = x if node.attributes["mode"] == "max" else None
    dx = roi_align_grad(dy, rois, batch, largest, input_shape=x.type.shape, **node.attributes)
    return _of_read(node, dx)


_ALIGN: dict[str, Any] = {
    "size": REQUIRED,
    "sampling_ratio": 0,
    "spatial_scale": 1.0,
    "mode": "avg",
    "half_pixel": True,
}
roi_align: Op = Op(
    "roi_align",
    ("x", "rois", "batch", "read?"),
    _align_infer,
    attributes=_ALIGN,
    gradient=_align_gradient,
    doc="(regions, C, *size): each region in bins, a bin the mean (or the largest weighed element: max) of linear "
    "samples of x, sampling_ratio along each axis, or as many as it has elements with 0 (He 2017); half_pixel: the "
    "centre of an element lies at 0.5; without, regions have at least 1 element; read, with max: its elements, with "
    "their weights, where x's are the largest. Regions have no gradient",
)


def _align_grad_infer(
    dy: TensorType,
    rois: TensorType,
    batch: TensorType,
    x: TensorType | None = None,
    *,
    input_shape: Shape,
    size: Shape,
    mode: str,
    **_: Any,
) -> TensorType:
    need_shape("roi_align_grad", input_shape)
    dtype = same_dtype("roi_align_grad", dy, rois)
    pooled = _regions("roi_align_grad", input_shape, rois, batch, size)
    alike("roi_align_grad: dy and the bins", dy, TensorType(dtype, pooled))
    need(mode == "avg" or x is not None, "roi_align_grad: mode max needs x")
    if x is not None:
        alike("roi_align_grad: x and input_shape", x, TensorType(dtype, tuple(input_shape)))
    return TensorType(dy.dtype, tuple(input_shape))


def _align_second(node: Node, u: Value) -> tuple[Value, None, None, None]:
    """The adjoint, which is pooling: of means, or of what lies where x is the largest."""
    how = {key: value for key, value in node.attributes.items() if key != "input_shape"}
    rois, batch, x = (*node.inputs, None)[1:4]
    y = roi_align(u, rois, batch, **how) if how["mode"] == "avg" else roi_align(x, rois, batch, u, **how)
    return y, None, None, None


roi_align_grad: Op = Op(
    "roi_align_grad",
    ("dy", "rois", "batch", "x?"),
    _align_grad_infer,
    outputs=("dx",),
    attributes={"input_shape": REQUIRED, **_ALIGN},
    gradient=_align_second,
    doc="each dy added to the elements that its bin read, by their weights; to the one that was largest for max",
)


def _max_infer(
    x: TensorType,
    rois: TensorType,
    batch: TensorType,
    read: TensorType | None = None,
    *,
    size: Shape,
    spatial_scale: float,
) -> TensorType:
    dtype = same_dtype("max_roi_pool", x, rois)
    if read is not None:
        alike("max_roi_pool: x and what is read", x, read)
    return TensorType(dtype, _regions("max_roi_pool", x.shape, rois, batch, size))


def _max_gradient(node: Node, dy: Value) -> tuple[Value | None, ...]:
    dx = max_roi_pool_grad(dy, *node.inputs[:3], **node.attributes)
    return _of_read(node, dx)


def _max_second(node: Node, u: Value) -> tuple[Value, None, None, None]:
    """The adjoint: what lies where x is the largest."""
    return max_roi_pool(*node.inputs[1:], u, **node.attributes), None, None, None


_MAX: dict[str, Any] = {"size": REQUIRED, "spatial_scale": 1.0}
max_roi_pool: Op = Op(
    "max_roi_pool",
    ("x", "rois", "batch", "read?"),
    _max_infer,
    attributes=_MAX,
    gradient=_max_gradient,
    doc="(regions, C, *size): each region, its corners rounded, in bins, a bin its largest element; 0 where it has "
    "none (Girshick 2015); read: its elements where x's are the largest. Regions have no gradient",
)


def _max_grad_infer(
    dy: TensorType, x: TensorType, rois: TensorType, batch: TensorType, *, size: Shape, spatial_scale: float
) -> TensorType:
    pooled = _max_infer(x, rois, batch, size=size, spatial_scale=spatial_scale)
    alike("max_roi_pool_grad: dy and the bins", dy, pooled)
    return x


max_roi_pool_grad: Op = Op(
    "max_roi_pool_grad",
    ("dy", "x", "rois", "batch"),
    _max_grad_infer,
    outputs=("dx",),
    attributes=_MAX,
    gradient=_max_second,
    doc="each dy added where the largest element of its bin lies, the first of equals",
)

# ---- boxes that don't overlap -------------------------------------------------------------------------


def _suppression_infer(
    boxes: TensorType,
    scores: TensorType,
    most: TensorType,
    overlap: TensorType,
    least: TensorType | None = None,
    *,
    rows: Size,
    center: bool,
) -> tuple[TensorType, TensorType]:
    name = "non_max_suppression"
    dtype = same_dtype(name, boxes, scores)
    need_float(name, boxes)
    fits = boxes.rank == 3 and (isinstance(boxes.shape[2], Dim) or boxes.shape[2] == 4)
    need(fits, f"{name}: boxes are {boxes}; expected (samples, boxes, 4)")
    need(scores.rank == 3, f"{name}: scores are {scores}; expected (samples, classes, boxes)")
    pairs = (TensorType(dtype, (t.shape[0], t.shape[axis])) for t, axis in ((boxes, 1), (scores, 2)))
    alike(f"{name}: samples and boxes of the boxes and of the scores", *pairs)
    need(most == TensorType(int64, ()), f"{name}: most is {most}; expected one int64")
    for what, given in (("overlap", overlap), ("least", least)):
        need(given is None or given == TensorType(dtype, ()), f"{name}: {what} is {given}; expected one {dtype}")
    need_shape(name, (rows,))
    return TensorType(int64, (rows, 3)), TensorType(int64, (1,))


non_max_suppression: MultiOp = MultiOp(
    "non_max_suppression",
    ("boxes", "scores", "most", "overlap", "least?"),
    _suppression_infer,
    outputs=("selected", "count"),
    attributes={"rows": REQUIRED, "center": False},
    doc="selected (rows, 3): sample, class and box of each box that stays, -1 in rows behind the first count ones; per "
    "sample and class in descending order of scores above ``least``, at most ``most``, none whose intersection with "
    "one before is above ``overlap`` of their union. Boxes are two corners, or x, y, width and height of a center",
)

OPS = (roi_align, roi_align_grad, max_roi_pool, max_roi_pool_grad, non_max_suppression)
