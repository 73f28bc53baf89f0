"""A fixed batch size made free: of the inputs, and where exporters baked it into constants.

What the constants mean can't be known for sure, so a freed model is accepted only after a run: the results for a batch
of two must be those of its samples alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataflow import Dim, Model, Session, TensorType, Value, ops
from dataflow.errors import DataflowError, ModelError
from dataflow.plugin import GraphBuilder, Size, dtype

from .emit import along, iota
from .file.records import Array, GraphRecord
from .shape_eval import product

NAME = "batch"
_FEW = 8  # as many integers may be axes or sizes


@dataclass(frozen=True, slots=True)
class Freed:
    """A leading size of all inputs that becomes a named one.

    Attributes:
        old: the size.
        dim: its name.
        constants: stored tensors with a row for each sample have as many as there are, too.
    """

    old: int
    dim: Dim
    constants: bool = False

    def constant(self, builder: GraphBuilder, array: Array) -> Value | None:
        """A stored tensor that has a row for each sample, with as many as there are; None where it is none, or few are.

        Numbers of samples, and what is counted by them, grow by the same step from row to row; all else is repeated.
        The states that recurrences begin with have the samples on their second axis.
        """
        old, rank = self.old, array.ndim
        if old < 2 or not rank or array.dtype.kind not in "iubf":
            return None
        if rank == 3 and array.shape[1] == old and not array.any():
            return self._repeated(builder, array[:, :1], (array.shape[0], self.dim, array.shape[2]))
        if rank == 1 and array.dtype.kind == "i" and array.size > _FEW and array.size % old == 0:
            rows = self._counted(builder, array.reshape(old, -1))  # numbers of rows, one sample behind the other
            return None if rows is None else ops.reshape(rows, shape=(array.size // old * self.dim,))
        if rank < 2 or array.shape[0] != old or (array.dtype.kind == "f" and rank < 3):
            return None
        if (array == array[:1]).all():
            return self._repeated(builder, array[:1], (self.dim, *array.shape[1:]))
        return self._counted(builder, array) if array.dtype.kind == "i" else None

    def _repeated(self, builder: GraphBuilder, row: Array, shape: Sequence[Size]) -> Value:
        found: Value = ops.broadcast_to(builder.constant(row), shape=tuple(shape))
        return found

    def _counted(self, builder: GraphBuilder, array: Array) -> Value | None:
        """Rows of which each is the one before and a step; None where they aren't."""
        step = array[1:2] - array[:1]
        numbers = np.arange(self.old, dtype=array.dtype).reshape(-1, *[1] * (array.ndim - 1))
        if not step.any() or not np.array_equal(array, array[:1] + numbers * step):
            return None
        samples = along(iota(builder, self.dim, dtype(array)), 0, array.ndim)
        found: Value = ops.add(builder.constant(array[:1]), ops.mul(samples, builder.constant(step)))
        return found

    def input(self, type_: TensorType) -> TensorType:
        """The type of an input."""
        return TensorType(type_.dtype, (self.dim, *type_.shape[1:])) if type_.rank else type_

    def reshaped(self, source: Sequence[Size], wanted: Sequence[Size]) -> list[Any]:
        """A stored target of a reshape, with the batch where the source has it."""
        axis_of_batch = _batch_axis(source)
        if axis_of_batch is None or any(isinstance(n, Dim) for n in wanted):
            return list(wanted)
        before, sizes = product(source[:axis_of_batch]), list(wanted)
        if isinstance(before, Dim):
            return sizes
        passed = 1
        for axis, size in enumerate(sizes):
            if size in (0, -1) or isinstance(size, Dim):
                return sizes  # copied from the source, or worked out from it
            if passed == before and size % self.old == 0:
                sizes[axis] = size // self.old * self.dim
                return sizes
            passed *= size
        return sizes

    def expanded(self, wanted: Sequence[Size], rank: int) -> list[Any]:
        """A stored target of an expansion to at least the rank of its operand."""
        found = list(wanted)
        if self.old > 1 and found and found[0] == self.old and len(found) >= rank:
            found[0] = self.dim
        return found

    def alike(self, values: Sequence[Value], axis: int) -> list[Any]:
        """Operands of a concat; those of one sample for all are repeated."""
        open_ = [i for v in values for i, n in enumerate(v.type.shape) if isinstance(n, Dim) and NAME in n.names]
        found = []
        for value in values:
            shape = list(value.type.shape)
            for index in set(open_) - {axis % max(len(shape), 1)}:
                if shape[index] == 1:
                    shape[index] = self.dim
            found.append(value if tuple(shape) == value.type.shape else ops.broadcast_to(value, shape=tuple(shape)))
        return found


def freed_of(graph: GraphRecord, path: str) -> Freed | None:
    """What to free; None where the leading size is free already.

    Raises:
        ModelError: the inputs differ in it.
    """
    types = {name: t for name, t in graph.inputs.items() if t is not None and t.rank}
    leading = {t.shape[0] for t in types.values()}
    if all(isinstance(n, Dim) for n in leading):
        return None
    if len(leading) != 1:
        listed = ", ".join(f"{name!r} is {t}" for name, t in types.items())
        raise ModelError(f"{path}: batch='free': the inputs differ in their first size: {listed}")
    (old,) = leading
    if not isinstance(old, int) or old < 1:
        raise ModelError(f"{path}: batch='free': the first size of the inputs is {old}")
    return Freed(old, Dim(NAME))


def check_free(freed: Model, fixed: Model, was: Freed, path: str) -> None:
    """Runs a freed model.

    Raises:
        ModelError: a batch of two isn't what two single runs give, or a batch of the old size what the file gives;
            names the first node whose results differ.
    """
    random = np.random.default_rng(0)
    two = {name: _random(t.bind({NAME: 2}), random) for name, t in freed.inputs.items()}
    ones = [{name: a[i : i + 1] if a.ndim else a for name, a in two.items()} for i in range(2)]
    try:
        session = Session(freed)
        together, apart = session.run(two), [session.run(one) for one in ones]
        old = {name: _random(t.bind({NAME: was.old}), random) for name, t in freed.inputs.items()}
        same = Session(fixed).run(old), session.run(old)
    except DataflowError as error:
        raise ModelError(f"{path}: batch='free': the freed model can't be run: {error}") from None
    wrong = [n for n, a in together.items() if not _is_joined(a, [one[n] for one in apart], freed.outputs[n])]
    wrong += [name for name, array in same[0].items() if not _close(array, same[1][name])]
    if wrong:
        raise ModelError(
            f"{path}: batch='free': the output {wrong[0]!r} for a batch of two is not what its samples give alone, "
            f"from {_first_difference(freed, session, two, ones)} on; export the model with a free batch size instead"
        )


def _first_difference(
    model: Model, session: Session, two: Mapping[str, Array], ones: Sequence[Mapping[str, Array]]
) -> str:
    """The first node whose results differ."""
    values = [(v, n) for n in model.graph.nodes for v in n.outputs if v is not None and n.op.view is None]
    names = [v.name for v, _ in values]
    together, apart = session.run(two, outputs=names), [session.run(one, outputs=names) for one in ones]
    for value, node in values:
        if not _is_joined(together[value.name], [one[value.name] for one in apart], value.type):
            return str(node.origin or node.describe())
    return "its end"


def _random(type_: TensorType, random: np.random.Generator) -> Array:
    """Data that most models take: tokens are 0 and 1."""
    found: Array = random.integers(0, 2, type_.sizes)
    if type_.dtype.is_float:
        found = random.standard_normal(type_.sizes)
    return found.astype(type_.dtype.numpy)


def _batch_axis(shape: Sequence[Size]) -> int | None:
    """The first axis whose size depends on the batch size."""
    return next((i for i, n in enumerate(shape) if isinstance(n, Dim) and NAME in n.names), None)


def _is_joined(together: Array, apart: Sequence[Array], type_: TensorType) -> bool:
    """Whether the result for a batch is those of its samples, along the axis of the batch."""
    axis = _batch_axis(type_.shape)
    if axis is None:
        return all(_close(together, one) for one in apart)
    return _close(together, np.concatenate(apart, axis=axis))


def _close(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype.kind not in "fV":
        return a.shape == b.shape and bool((a == b).all())
    upcast, other = a.astype(np.float64), b.astype(np.float64)
    scale = np.abs(other[np.isfinite(other)]).max(initial=1e-30)
    return bool(np.allclose(upcast, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))
