"""Ops between sizes and data: sizes as a tensor, a size read off a tensor, and as many results as there are hits."""

from __future__ import annotations

from ..ir.dims import Dim, Shape, Size
from ..ir.graph import Graph
from ..ir.op import REQUIRED, MultiOp, Op, View
from ..ir.specialize import Form
from ..ir.types import DType, TensorType, int64
from .infer import need, product


def _sizes_infer(*, values: Shape, shape: Shape, dtype: DType) -> TensorType:
    need(dtype.kind in "iu", f"sizes: dtype {dtype}; expected integers")
    need(product(shape) == len(values), f"sizes: {len(values)} sizes for shape {shape}")
    return TensorType(dtype, tuple(shape))


sizes: Op = Op(
    "sizes",
    (),
    _sizes_infer,
    attributes={"values": REQUIRED, "shape": REQUIRED, "dtype": int64},
    doc="sizes as a tensor of ``shape``; binding makes a constant of it once their names are known",
)


def _read_shape_infer(x: TensorType, *, sizes: Shape) -> TensorType:
    need(x.dtype.name in ("int32", "int64"), f"read_shape: {x} holds no sizes; expected int32 or int64")
    need(not x.is_bound or x.elements == len(sizes), f"read_shape: {x} has not {len(sizes)} elements")
    return x


read_shape: Op = Op(
    "read_shape",
    ("x",),
    _read_shape_infer,
    attributes={"sizes": REQUIRED},
    effects="host",
    gradient=lambda node, dy: None,
    cheap=True,
    view=lambda node, strides: View(0, strides),
    doc="says that the named ``sizes`` are the elements of x, and what has these sizes is planned once they are known: "
    "binding computes them where x depends on other sizes alone; else the graph is cut behind it. y is x",
)


def _require_infer(x: TensorType, *, left: Size, right: Size, equal: bool, text: str) -> TensorType:
    known = not isinstance(left, Dim) and not isinstance(right, Dim)
    need(not known or (left == right) == bool(equal), text)
    return x


require: Op = Op(
    "require",
    ("x",),
    _require_infer,
    attributes={"left": REQUIRED, "right": REQUIRED, "equal": True, "text": REQUIRED},
    gradient=lambda node, dy: dy,
    cheap=True,
    view=lambda node, strides: View(0, strides),
    doc="y = x; once their names are known, sizes ``left`` and ``right`` must be equal, or differ with equal = 0; else "
    "it is an error, ``text``",
)


def _nonzero_infer(x: TensorType, *, count: Size) -> TensorType:
    return TensorType(int64, (x.rank, count))


nonzero: Op = Op(
    "nonzero",
    ("x",),
    _nonzero_infer,
    attributes={"count": REQUIRED},
    doc="(rank, count): the indices of the elements that are not zero, in row-major order; ``count`` is how many they "
    "are, and another number of them is an error",
)

deferred: MultiOp = MultiOp(
    "deferred",
    ("operands*",),
    lambda *operands, dtypes, shapes, why, forms: tuple(map(TensorType, dtypes, shapes)),
    outputs=("results*",),
    attributes={"dtypes": REQUIRED, "shapes": REQUIRED, "why": REQUIRED, "forms": ()},
    effects="host",
    doc="stands for nodes that are made once all sizes, and the values that decide about shapes, are known; ``forms`` "
    "are rows of the name of an input or output of the graph that is no tensor, and its ``Form``",
)


def forms_of(graph: Graph) -> dict[str, Form]:
    """Inputs and outputs of a graph that are no tensors, where it stands for one that is made for each length."""
    rows = (row for node in graph.nodes if node.op is deferred for row in node.attributes["forms"])
    return {name: Form(*form) for name, *form in rows}


def _unique_infer(x: TensorType, *, sorted: bool) -> tuple[TensorType, TensorType]:
    need(x.rank == 2, f"unique: {x} is no matrix; expected a row per entry")
    return TensorType(int64, x.shape[:1]), TensorType(int64, ())


unique: MultiOp = MultiOp(
    "unique",
    ("x",),
    _unique_infer,
    outputs=("ids", "count"),
    attributes={"sorted": True},
    doc="ids (rows,): equal rows of x have one number, from 0 on, in the order of the rows (of their first elements, "
    "of equal ones of the next; NaN is one value, and the largest), or else of their first occurrence; and how many "
    "numbers there are",
)

OPS = (deferred, sizes, read_shape, require, nonzero, unique)
