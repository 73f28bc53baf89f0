"""Ops between sizes and data: sizes as a tensor, sizes read off one, as many results as there are hits or pixels."""

from __future__ import annotations

from ..ir.dims import Dim, Shape, Size
from ..ir.graph import Graph
from ..ir.op import REQUIRED, MultiOp, Op, View
from ..ir.specialize import Form
from ..ir.types import DType, TensorType, int64, uint8
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


def _keyed_infer(x: TensorType, *, keys: tuple[int, ...] | tuple[str, ...], fed: bool) -> TensorType:
    need(x.rank == 2, f"keyed: {x} is no matrix; expected a row per map")
    fits = x.shape[1] == len(keys) or isinstance(x.shape[1], Dim) or (fed and not keys)
    need(fits, f"keyed: {len(keys)} keys for the columns of {x}")
    need(len(set(keys)) == len(keys), "keyed: some keys are equal")
    return x


keyed: Op = Op(
    "keyed",
    ("x",),
    _keyed_infer,
    attributes={"keys": REQUIRED, "fed": False},
    gradient=lambda node, dy: dy,
    cheap=True,
    view=lambda node, strides: View(0, strides),
    doc="y = x; a session gives a result y of a model as a list of maps, from ``keys``, integers or strings, to the "
    "elements of a row; with ``fed`` = 1 it takes an input x of a model as one, where other keys are left out and "
    "missing ones give zeros or empty strings; no keys are those of the map, in their order",
)

deferred: MultiOp = MultiOp(
    "deferred",
    ("operands*",),
    lambda *operands, dtypes, shapes, why, forms, maps: tuple(map(TensorType, dtypes, shapes)),
    outputs=("results*",),
    attributes={"dtypes": REQUIRED, "shapes": REQUIRED, "why": REQUIRED, "forms": (), "maps": ()},
    effects="host",
    doc="stands for nodes that are made once all sizes, and the values that decide about shapes, are known; ``forms`` "
    "are rows of the name of an input or output of the graph that is no tensor, and its ``Form``, ``maps`` of the name "
    "of one that is a list of maps, and their keys",
)


def forms_of(graph: Graph) -> dict[str, Form]:
    """Inputs and outputs of a graph that are no tensors, where it stands for one that is made for each length."""
    rows = (row for node in graph.nodes if node.op is deferred for row in node.attributes["forms"])
    return {name: Form(*form) for name, *form in rows}


def maps_of(graph: Graph) -> dict[str, tuple[int, ...] | tuple[str, ...]]:
    """Inputs that a session takes, and outputs that it gives, as lists of maps, and their keys."""
    nodes = [node for node in graph.nodes if node.op is keyed]
    made = {node.outputs[0]: node.attributes["keys"] for node in nodes if not node.attributes["fed"]}
    given = [(node.inputs[0], node.attributes["keys"]) for node in nodes if node.attributes["fed"]]
    found = {value.name: keys for value, keys in given if value is not None}
    found |= {name: made[value] for name, value in graph.outputs.items() if value in made}
    return found | {n: keys for node in graph.nodes if node.op is deferred for n, keys in node.attributes["maps"]}


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

# ---- encoded images, which only the host's reference decodes --------------------------------------------

CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}


def _need_bytes(name: str, x: TensorType) -> None:
    need(x.dtype == uint8 and x.rank == 1, f"{name}: x is {x}; expected the bytes of a file, uint8[n]")


def _size_infer(x: TensorType) -> TensorType:
    _need_bytes("image_size", x)
    return TensorType(int64, (2,))


image_size: Op = Op(
    "image_size",
    ("x",),
    _size_infer,
    doc="height and width of the image that decode_image makes of the bytes x; 0 and 0 where they are none",
)


def _decode_infer(x: TensorType, *, height: Size, width: Size, pixel_format: str) -> TensorType:
    _need_bytes("decode_image", x)
    known = pixel_format in CHANNELS
    need(known, f"decode_image: pixel_format is {pixel_format!r}; expected one of {', '.join(CHANNELS)}")
    return TensorType(uint8, (height, width, CHANNELS[pixel_format]))


decode_image: Op = Op(
    "decode_image",
    ("x",),
    _decode_infer,
    attributes={"height": REQUIRED, "width": REQUIRED, "pixel_format": "RGB"},
    doc="(height, width, channels): the first image in x, the bytes of a BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or "
    "WebP file; transparency is left out, more than 8 bits are cut to the first 8",
)

OPS = (deferred, sizes, read_shape, require, keyed, nonzero, unique, image_size, decode_image)
