"""A sample: one use of an op on random operands."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.op import AnyOp
from ..ir.types import Array, DType, bool_, float32, float64, int64
from ..ir.value import Value
from .layouts import Layouts

Kind = Literal["normal", "positive", "unit", "away", "distinct", "bool", "range"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A random operand.

    Attributes:
        shape: its sizes.
        dtype: its element type.
        kind: ``normal``; ``positive`` (0.5 to 2); ``unit`` (-0.9 to 0.9); ``away`` from zero by 0.2 at least;
            ``distinct`` (no two equal); ``bool``; ``range`` (whole numbers from ``low`` to before ``high``).
        value: the array itself, instead.
    """

    shape: tuple[int, ...]
    dtype: DType = float32
    kind: Kind = "normal"
    low: int = 0
    high: int = 1
    value: Any = None

    def array(self, random: np.random.Generator) -> Array:
        """The data."""
        if self.value is not None:
            return np.asarray(self.value, self.dtype.numpy).reshape(self.shape)
        if self.kind == "bool" or self.dtype == bool_:
            return random.random(self.shape) < 0.5
        if self.kind == "range" or self.dtype.is_int:
            return random.integers(self.low, max(self.high, self.low + 1), self.shape).astype(self.dtype.numpy)
        count = int(np.prod(self.shape))
        found: Array = random.standard_normal(self.shape)
        if self.kind == "positive":
            found = random.uniform(0.5, 2.0, self.shape)
        elif self.kind == "unit":
            found = random.uniform(-0.9, 0.9, self.shape)
        elif self.kind == "away":
            found = np.where(found >= 0, found + 0.2, found - 0.2)
        elif self.kind == "distinct":
            found = (random.permutation(count) - count / 2).reshape(self.shape) * (2.0 / max(count, 1) + 0.01)
        return np.asarray(found).astype(self.dtype.numpy)


@functools.lru_cache(maxsize=2)  # the kit asks for those of one sample for each variant
def _drawn(sample: Sample, other: int = 0) -> tuple[Array | None, ...]:
    """The operands' data; read-only. ``other``: of another draw."""
    random = np.random.default_rng(sample.seed + other)
    found = tuple(None if operand is None else np.asarray(operand.array(random)).view() for operand in sample.inputs)
    for array in found:
        if array is not None:
            array.flags.writeable = False
    return found


@functools.lru_cache(maxsize=1 << 14)  # of every sample: the kit asks for it several times
def _node_of(sample: Sample) -> Node:
    (node,) = sample.build().nodes
    return node


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One use of an op.

    Attributes:
        op: the declaration.
        inputs: an operand each; None where an optional one is left out.
        attributes: by name.
        gradient: indices of inputs by which it is differentiated in the gradient check.
        bodies: for ops that carry graphs.
        tolerance: relative, for float32; None: that of the dtype. A larger one needs a reason where it is given.
    """

    op: AnyOp
    inputs: tuple[Operand | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    gradient: tuple[int, ...] = ()
    bodies: tuple[Graph, ...] = ()
    tolerance: float | None = None

    @property
    def name(self) -> str:
        """Readable and unique but for equal rows, e.g. ``add-f32-3x5-f32-5``."""
        fields = [self.op.name]
        for operand in self.inputs:
            if operand is None:
                fields.append("none")
            else:
                fields += [operand.dtype.short, "x".join(map(str, operand.shape)) or "scalar"]
        fields += [f"{key}={_short(value)}" for key, value in self.attributes.items() if not isinstance(value, DType)]
        return "-".join(fields)

    @property
    def seed(self) -> int:
        """Of its random data."""
        return zlib.crc32(self.name.encode())

    @property
    def node(self) -> Node:
        """The node of ``build()``."""
        return _node_of(self)

    def arrays(self, layouts: Layouts = ()) -> list[Array | None]:
        """The operands' data, of which layouts may repeat a part; the same at every call, read-only."""
        found = list(_drawn(self))
        for index, layout in enumerate(layouts):
            array = found[index]
            if layout is not None and array is not None:
                found[index] = layout.operand(array)
        return found

    def build(self, layouts: Layouts = ()) -> Graph:
        """A graph of this one node, with inputs ``x0`` ... and outputs ``y0`` ..., extra ones too.

        Args:
            layouts: of the operands; None, or none at all, where an operand is an input as it is.
        """
        g = GraphBuilder(self.name)
        operands: list[Value | None] = []
        for index, operand in enumerate(self.inputs):
            layout = layouts[index] if layouts else None
            if operand is None:
                operands.append(None)
            elif layout is not None:
                operands.append(layout.view(g, f"x{index}", operand.dtype, operand.shape))
            else:
                operands.append(g.input(f"x{index}", operand.dtype, operand.shape))
        node = g.add(self.op, operands, self.attributes, bodies=self.bodies)
        for index, value in enumerate(node.outputs):
            if value is not None:
                g.output(f"y{index}", value)
        return g.build()

    def feeds(self, layouts: Layouts = (), other: int = 0) -> dict[str, Array]:
        """Data for the graph that ``build`` makes; ``other``: of another draw."""
        found = {}
        for index, array in enumerate(_drawn(self, other)):
            layout = layouts[index] if layouts else None
            if array is not None:
                found[f"x{index}"] = array if layout is None else layout.input(array)
        return found


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


def with_special_values(sample: Sample) -> dict[str, Array] | None:
    """The sample's data with NaN, infinities and zeros of both signs among the floats, or None: there are too few."""
    found = dict(sample.feeds())
    changed = False
    for number, (name, array) in enumerate(found.items()):
        if array.dtype in (np.float16, np.float32, np.float64) and array.size >= 2 * len(SPECIAL):
            changed = True
            found[name] = array.copy()
            step = array.size // len(SPECIAL)
            # Each operand's stand elsewhere, and the last element, of a tail, is among them.
            found[name].reshape(-1)[-1 - number :: -step][: len(SPECIAL)] = SPECIAL
    return found if changed else None


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def x(*shape: int, kind: Kind = "normal", dtype: DType = float32) -> Operand:
    """A float operand."""
    return Operand(shape, dtype, kind)


def i(*shape: int, low: int = 0, high: int, dtype: DType = int64) -> Operand:
    """An operand of whole numbers."""
    return Operand(shape, dtype, "range", low, high)


LONG_SUM = 1e-4
"""Tolerance for sums of thousands of elements of either sign."""

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (17,), (3, 0, 5), (3, 5, 7), (2, 33), (70001,))
# Operands that broadcast.
PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 5), ()), ((3, 1, 5), (4, 1)), ((1,), (17,)), ((0, 5), (5,)), ((), ()),
    ((2, 3, 33), (3, 1)), ((70001,), (70001,)), ((70001,), (1,)), ((64, 8, 13, 13), (8, 1, 1)), ((3, 5, 16), (16,)),
    ((3, 5, 16), (3, 1, 1)), ((4, 1, 8), (5, 8)),
)  # fmt: skip


def at_every_shape(op: AnyOp, kind: Kind = "normal", **attributes: Any) -> list[Sample]:
    """A unary op on an operand of ``kind`` of each of ``SHAPES``, differentiated at one; and on float64."""
    found = [
        Sample(op, (x(*shape, kind=kind),), attributes, gradient=(0,) if shape == (3, 5, 7) else ()) for shape in SHAPES
    ]
    return [*found, Sample(op, (x(4, 9, kind=kind, dtype=float64),), attributes)]


def in_double(rows: Iterable[Sample], *names: str, most: int = 6) -> list[Sample]:
    """Samples of float64: at most so many of those of float32 for each of these ops, spread over what there is."""
    found: list[Sample] = []
    listed = list(rows)
    for name in names:
        of = [row for row in listed if row.op.name == name and _floats(row) == {float32}]
        found += [_doubled(row) for row in of[:: max(1, len(of) // most)][:most]]
    return found


def _floats(sample: Sample) -> set[DType]:
    return {operand.dtype for operand in sample.inputs if operand is not None and operand.dtype.is_float}


def _doubled(sample: Sample) -> Sample:
    """The sample with float64 wherever it has float32."""
    given = [i if i is None or i.dtype is not float32 else dataclasses.replace(i, dtype=float64) for i in sample.inputs]
    attributes = {name: float64 if value is float32 else value for name, value in sample.attributes.items()}
    return dataclasses.replace(sample, inputs=tuple(given), attributes=attributes, gradient=(), tolerance=None)
