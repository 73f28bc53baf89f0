"""The form of a sample: one use of an op, with random operands; what the rows of the table are made of."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .. import ops
from ..builder import GraphBuilder
from ..graph import Array, Graph, Value
from ..op import Op
from ..types import DType, bool_, float32, int64

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

    op: Op
    inputs: tuple[Operand | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    gradient: tuple[int, ...] = ()
    bodies: tuple[Graph, ...] = ()
    tolerance: float | None = None

    @property
    def name(self) -> str:
        """Readable and unique but for equal rows, e.g. ``add-f32-3x5-f32-5``."""
        parts = [self.op.name]
        for operand in self.inputs:
            if operand is None:
                parts.append("none")
            else:
                parts += [operand.dtype.short, "x".join(map(str, operand.shape)) or "scalar"]
        parts += [f"{key}={_short(value)}" for key, value in self.attributes.items() if not isinstance(value, DType)]
        return "-".join(parts)

    def arrays(self) -> list[Array | None]:
        """The operands' data; the same at every call."""
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [None if operand is None else operand.array(random) for operand in self.inputs]

    def build(self, spread: int = 0) -> Graph:
        """A graph of this one node, with inputs ``x0`` ... and outputs ``y0`` ..., extra ones too.

        Args:
            spread: when not 0, each operand comes through a view: ``x0`` has the axes in reversed order, and every
                axis ``spread`` times as long, so that with 2 there are gaps between the elements.
        """
        g = GraphBuilder(self.name)
        operands: list[Value | None] = []
        for index, operand in enumerate(self.inputs):
            if operand is None:
                operands.append(None)
            elif spread and operand.shape:
                shape = tuple(spread * d for d in reversed(operand.shape))
                wide = g.input(f"x{index}", operand.dtype, shape)
                turned = ops.transpose(wide, perm=tuple(reversed(range(len(shape)))))
                rank = len(shape)
                ends = tuple(spread * d for d in operand.shape)
                operands.append(ops.slice(turned, starts=(0,) * rank, stops=ends, steps=(spread,) * rank))
            else:
                operands.append(g.input(f"x{index}", operand.dtype, operand.shape))
        node = g.add(self.op, operands, self.attributes, bodies=self.bodies)
        for index, value in enumerate(node.outputs):
            if value is not None:
                g.output(f"y{index}", value)
        return g.build()

    def feeds(self, spread: int = 0) -> dict[str, Array]:
        """Data for the graph that ``build`` makes."""
        found = {}
        for index, array in enumerate(self.arrays()):
            if array is None:
                continue
            if spread and array.shape:
                wide = np.zeros(tuple(spread * d for d in array.shape), array.dtype)
                wide[tuple(slice(None, None, spread) for _ in array.shape)] = array
                array = np.ascontiguousarray(wide.transpose())
            found[f"x{index}"] = array
        return found


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def x(*shape: int, kind: Kind = "normal", dtype: DType = float32) -> Operand:
    """A float operand."""
    return Operand(shape, dtype, kind)


def i(*shape: int, low: int = 0, high: int, dtype: DType = int64) -> Operand:
    """An operand of whole numbers."""
    return Operand(shape, dtype, "range", low, high)


SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (17,), (3, 0, 5), (3, 5, 7), (2, 33), (70001,))
# Operands that broadcast.
PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 5), ()), ((3, 1, 5), (4, 1)), ((1,), (17,)), ((0, 5), (5,)), ((), ()),
    ((2, 3, 33), (3, 1)), ((70001,), (70001,)), ((70001,), (1,)), ((64, 8, 13, 13), (8, 1, 1)), ((3, 5, 16), (16,)),
    ((3, 5, 16), (3, 1, 1)), ((4, 1, 8), (5, 8)),
)  # fmt: skip
