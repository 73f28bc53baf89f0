"""A fixed batch size made free: of the inputs, and where exporters baked it into constants.

What the constants mean can't be known for sure, so a freed model is accepted only after runs: see ``free_check``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataflow import Dim, TensorType, Value, ops
from dataflow.errors import ModelError
from dataflow.plugin import GraphBuilder, Size, dtype

from .emit import along, iota
from .file.records import Array, GraphRecord
from .free_rows import computed, row_of, steps_of
from .operands import Operands
from .shape_eval import product
from .tensor import Tensor

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

    def constant(self, builder: GraphBuilder, name: str | None, array: Array) -> Tensor | None:
        """A stored tensor that has a row for each sample, with as many as there are; None where it is none, or few are.

        Numbers of samples, and what is counted by them, grow by the same step from row to row; all else is repeated.
        The states that recurrences begin with have the samples on their second axis.

        Args:
            builder: of the main graph.
            name: of the tensor; a row that is repeated is stored under it. None: another has it.
            array: its data.
        """
        old, rank = self.old, array.ndim
        if old < 2 or not rank or array.dtype.kind not in "iubf":
            return None
        second = rank == 3 and array.shape[1] == old and (array.shape[0] != old or not array.any())
        if second and (array == array[:, :1]).all():
            return self._stored_once(builder, name, array[:, :1], (array.shape[0], self.dim, array.shape[2]))
        if rank == 1 and array.dtype.kind == "i" and array.size > _FEW and array.size % old == 0:
            rows = self._counted(builder, array.reshape(old, -1))  # numbers of rows, one sample behind the other
            return None if rows is None else Tensor("", ops.reshape(rows, shape=(array.size // old * self.dim,)))
        if rank < 2 or array.shape[0] != old or (array.dtype.kind == "f" and rank < 3):
            return None
        if (array == array[:1]).all():
            return self._stored_once(builder, name, array[:1], (self.dim, *array.shape[1:]))
        counted = self._counted(builder, array) if array.dtype.kind == "i" else None
        return None if counted is None else Tensor("", counted)

    def _stored_once(self, builder: GraphBuilder, name: str | None, row: Array, shape: Sequence[Size]) -> Tensor:
        """A row of the file's, repeated; it is what is trained and saved."""
        value = builder.constant(row) if name is None else builder.initializer(name, row)
        kept = None if name is None else Tensor(name, value, row)
        return Tensor("", ops.broadcast_to(value, shape=tuple(shape)), stored=kept)

    def _counted(self, builder: GraphBuilder, array: Array) -> Value | None:
        """Rows of which each is the one before and a step; None where they aren't."""
        step = steps_of(array, self.old)
        if step is None or not step.any():
            return None
        samples = along(iota(builder, self.dim, dtype(array)), 0, array.ndim)
        found: Value = ops.add(builder.constant(array[:1]), ops.mul(samples, builder.constant(step)))
        return found

    def input(self, type_: TensorType) -> TensorType:
        """The type of an input."""
        return TensorType(type_.dtype, (self.dim, *type_.shape[1:])) if type_.rank else type_

    def fixed(self, type_: TensorType) -> TensorType:
        """A type, for the batch size of the file."""
        return type_.bind({NAME: self.old})

    def _fixed(self, size: Size) -> Size:
        """A size, for the batch size of the file."""
        return size.bind({NAME: self.old}) if isinstance(size, Dim) else size

    def reshaped(self, builder: GraphBuilder, value: Value, wanted: Sequence[Size]) -> list[Any]:
        """A stored target of a reshape, with the batch where the source has it.

        Samples lie one behind the other between the sizes before and behind them, and a reshape moves no element: the
        batch belongs to the axis of the target that lies around the same elements.
        """
        source, sizes = value.type.shape, list(wanted)
        axis = batch_axis(source)
        if axis is None or batch_axis(sizes) is not None or (axis < len(sizes) and sizes[axis] == 0):
            return sizes
        was = self._was(source, sizes)
        before = product(source[:axis]) * _within(builder, value, source[axis])
        if was is None or isinstance(before, Dim):
            return sizes
        chosen = self._around(was, before)
        if chosen is not None and sizes[chosen] != -1:  # else it is worked out
            sizes[chosen] = was[chosen] // self.old * self.dim
        return sizes

    def _was(self, source: Sequence[Size], wanted: Sequence[Size]) -> list[Any] | None:
        """A target as the file means it, for a source of the old batch size; None where it doesn't fit one."""
        total = product([self._fixed(n) for n in source])
        found: list[Any] = []
        for axis, size in enumerate(wanted):
            if isinstance(size, Dim) or size != 0:
                found.append(size)
            elif axis < len(source):
                found.append(source[axis])
            else:
                return None
        if found.count(-1) == 1:
            rest = -product(found)
            if not isinstance(rest, Dim) and rest == 0:
                return None
            found[found.index(-1)] = total // rest
        return found if product(found) == total else None

    def _around(self, sizes: Sequence[Any], before: int) -> int | None:
        """The axis that has the samples, of a shape in which so many rows lie before each; None: there is none.

        Batches of one leave it open, if axes end and begin there: it is one of size 1, or else the one that begins
        there, or ends there if that is the last, since features rather than rows lie last.
        """
        passed: Any = 1
        found = []
        for axis, size in enumerate(sizes):
            if isinstance(passed, Dim) or isinstance(size, Dim) or passed * size == 0:
                break
            if before % passed == 0 and size % (before // passed * self.old) == 0:
                found.append(axis)
            passed *= size
        if len(found) > 1:
            single = [axis for axis in found if sizes[axis] == 1 and product(sizes[:axis]) == before]
            if single:
                return single[0]
            return found[0] if found[-1] == len(sizes) - 1 else found[-1]
        return found[0] if found else None

    def resized(self, source: Sequence[Size], wanted: Sequence[Size]) -> list[Any]:
        """Stored sizes of a result whose axes are those of ``source``: the batch is the same."""
        sizes = list(wanted)
        axis = batch_axis(source)
        if axis is not None and axis < len(sizes) and sizes[axis] == self._fixed(source[axis]):
            sizes[axis] = source[axis]
        return sizes

    def expanded(self, own: Sequence[Size], wanted: Sequence[Size]) -> list[Any]:
        """A stored target of an expansion of an operand."""
        found = list(wanted)
        if self.old > 1 and found and found[0] == self.old and len(found) >= len(own):
            found[0] = self.dim
        return self.resized([1] * (len(found) - len(own)) + list(own), found)

    def tiled(self, own: Sequence[Size], counts: Sequence[Any]) -> list[Any]:
        """Stored numbers of copies: of what has one sample there are as many as samples."""
        found = list(counts)
        if self.old > 1 and found and found[0] == self.old and batch_axis(own) is None:
            found[0] = self.dim
        return found

    def sliced(self, size: Size, at: Any) -> Any:
        """A stored end of a slice along an axis of this size: of rows of all samples there are as many for each."""
        if batch_axis((size,)) is None or isinstance(at, Dim) or isinstance(self._fixed(size), Dim):
            return at
        return at // self.old * self.dim if 0 < at <= self._fixed(size) and at % self.old == 0 else at

    def indexed(self, c: Operands, x: Value, axis: int, indices: Value) -> Value:
        """Indices into rows of all samples, one sample behind the other, with those of as many as there are."""
        axis %= x.type.rank
        size = x.type.shape[axis]
        if batch_axis(x.type.shape) != axis or not indices.type.rank or indices.type.shape[0] != self.old:
            return indices
        array, each = computed(c, indices), size // self.dim
        if array is None or isinstance(each, Dim) or _within(c.builder, x, size) != 1:
            return indices
        step = steps_of(array, self.old)
        if step is None or (self.old > 1 and (step != each).any()) or array.min() < 0 or array[:1].max() >= each:
            return indices
        samples = along(iota(c.builder, self.dim, dtype(array)), 0, array.ndim)
        found: Value = ops.add(c.builder.constant(array[:1]), ops.mul(samples, each))
        return found

    def aligned(self, c: Operands, *values: Value, last: int = 0) -> list[Value]:
        """Operands that broadcast, apart from their last axes; what is the same for all samples fits any number."""
        found = list(values)
        for other in values:
            at = batch_axis(other.type.shape)
            if at is None or other.type.rank - at <= last:
                continue
            for index, value in enumerate(found):
                axis = value.type.rank - other.type.rank + at
                if axis >= 0 and value.type.shape[axis] != 1:
                    found[index] = self.repeated(c, value, axis, other.type.shape[at])
        return found

    def alike(self, c: Operands, values: Sequence[Value], axis: int) -> list[Any]:
        """Operands whose sizes differ along one axis, as of a concat; those of one sample for all are repeated."""
        found: list[Any] = list(values)
        for other in values:
            at = batch_axis(other.type.shape)
            if at is not None and at != axis % other.type.rank:
                found = [self.repeated(c, value, at, other.type.shape[at]) for value in found]
        return found

    def repeated(self, c: Operands, value: Value, axis: int, size: Size) -> Value:
        """A value that is the same for all samples, along an axis as often as there are samples; else the value itself.

        Args:
            c: importer of the graph.
            value: has one sample, or as many that are alike as the file has.
            axis: of the samples.
            size: of this axis where others have the batch in it.
        """
        shape = value.type.shape
        if axis >= len(shape) or isinstance(shape[axis], Dim) or not isinstance(size, Dim):
            return value
        row: Value | None = value
        if shape[axis] != 1:
            row = row_of(c, value, axis, self.old) if shape[axis] == self._fixed(size) else None
        if row is None:
            return value
        found: Value = ops.broadcast_to(row, shape=(*shape[:axis], size, *shape[axis + 1 :]))
        return found


def _within(builder: GraphBuilder, value: Value, size: Size) -> Any:
    """How many rows lie before each sample within an axis that has the batch as a factor of its size.

    A reshape decided it, and the nodes behind that kept the axis.
    """
    if not isinstance(size, Dim) or size == Dim(NAME):
        return 1
    node = builder.producer(value)
    while node is not None and node.op is not ops.reshape:
        value = next((v for v in node.inputs if v is not None and size in v.type.shape), value)
        before, node = node, builder.producer(value)
        if node is before:  # none of its operands has the axis
            return 1
    if node is None or node.inputs[0] is None:
        return 1
    source = node.inputs[0].type.shape
    axis = batch_axis(source)
    passed = product(value.type.shape[: value.type.shape.index(size)])
    if axis is None or passed == 0:
        return 1
    return product(source[:axis]) * _within(builder, node.inputs[0], source[axis]) // passed


def repeated_types(freed: Freed | None, tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, TensorType]:
    """Types in the file of tensors that it has a row of for each sample, and a graph of a free batch size once."""
    if freed is None:
        return {}
    found = {name: tensors[name] for name in names if name in tensors}
    return {n: freed.fixed(t.type) for n, t in found.items() if t.stored is not None and t.stored.name == n}


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


def batch_axis(shape: Sequence[Size]) -> int | None:
    """The first axis whose size depends on the batch size."""
    return next((i for i, n in enumerate(shape) if isinstance(n, Dim) and NAME in n.names), None)
