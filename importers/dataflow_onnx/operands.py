"""What converters read of the operands of nodes: values of the graph, stored data, sizes, elements of sequences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Self

import numpy as np

from dataflow import Dim, GraphBuilder, Value, ops
from dataflow.errors import ModelError
from dataflow.plugin import Given, SizeValues, default_registry
from dataflow.plugin import dtype as as_dtype

from .emit import slice_axis, stack
from .file.functions import MOST_NODES
from .file.records import Array, GraphRecord, ModelRecord, NodeRecord, names_read
from .roles import is_finite, is_mask
from .shape_eval import MOST_KNOWN, Known
from .tensor import Tensor


class Undetermined(ModelError):
    """A node can't be converted before a value is known, which depends on sizes or data.

    Attributes:
        value: in the graph, or in that of a body.
        repeats: an iteration of a loop wants it, and others may want more.
    """

    def __init__(self, text: str, value: Value, repeats: bool = False) -> None:
        super().__init__(text)
        self.value, self.repeats = value, repeats


@contextlib.contextmanager
def repeating() -> Iterator[None]:
    """Says of what is wanted within that iterations want it."""
    try:
        yield
    except Undetermined as error:
        error.repeats = True
        raise


class Operands:
    """The tensors of a graph of the file, and what is known of them.

    Attributes:
        record: the file.
        builder: where nodes go.
        node: the one that is being converted.
        around: of a body, the importer of the graph around it.
        scope: of a body whose nodes stand among those of the graph around it, the importer of that.
        values: what is known of values that are computed, for one form of the inputs.
        types: of the inputs, where the graph is made for these alone.
        tensors: by the name that they have in the file.
        roles: of stored tensors by name, and whether they are trained; see ``weight``.
        claimed: values that have their name from the file.
    """

    node: NodeRecord

    def __init__(
        self, record: ModelRecord, around: Self | None, values: Mapping[str, Array], types: Mapping[str, Given]
    ) -> None:
        self.record, self.around, self.values, self.types = record, around, values, types
        self.scope: Self | None = None
        self.builder = GraphBuilder(record.graph.name or "onnx")
        self.tensors: dict[str, Tensor] = {}
        self.roles: dict[str, tuple[str, bool]] = {}
        self.claimed: set[Value] = set()
        self._of_file: frozenset[str] | None = None
        self._reads = self.returned = frozenset[str]()  # by the file, by the caller
        self._sizes_named: set[str] = set()  # names of sizes that are read
        self._static: tuple[GraphBuilder, SizeValues] | None = None

    @property
    def outermost(self) -> Self:
        """The importer of the main graph."""
        around = self.around if self.scope is None else self.scope
        return self if around is None else around.outermost

    def is_used(self, name: str) -> bool:
        """Whether a node of the file, or of a body in it, reads what has the name, or a graph returns it."""
        self._reads = self._reads or frozenset(names_read(self.outermost.record.graph)) - {""}
        return name in self._reads or name in self.outermost.returned

    def value(self, tensor: Tensor | None) -> Value:
        """The graph's value for a tensor; stored data becomes an initializer, once."""
        if tensor is None:
            raise ModelError("an input that the operator needs is left out")
        if tensor.value is None:
            array = tensor.array
            if array is None:
                tensor.value = self._sizes_as_data(tensor)
            else:
                known = self.tensors.get(tensor.name)
                if known is not None and known is not tensor and known.value is not None:
                    tensor.value = known.value
                else:
                    # Of the main graph's tensors a body may be the first reader: their data is followed by their names.
                    main = self.scope is None or self.outermost.tensors.get(tensor.name) is tensor
                    name = tensor.name if main else self.builder.free_name(tensor.name)
                    tensor.value = self.builder.initializer(name, array)
            self.claimed.add(tensor.value)
        return tensor.value

    def data(self, tensor: Tensor) -> Value:
        """As ``value``; of a sequence whose tensors are alike, their stack."""
        return self.value(tensor) if tensor.rows is None else tensor.rows

    def elements(self, sequence: Tensor) -> tuple[Tensor, ...]:
        """Those of a sequence.

        Raises:
            ModelError: it is a tensor, or absent.
            Undetermined: it isn't known how many there are.
        """
        if sequence.elements is not None:
            return sequence.elements
        rows = sequence.rows
        if rows is None:
            what = "an optional without an element" if sequence.is_absent else f"a tensor, {sequence.type}"
            raise ModelError(f"{sequence.name!r} is {what}; expected a sequence")
        count, shape = rows.type.shape[0], rows.type.shape[1:]
        if isinstance(count, Dim):
            self.ask(Tensor(sequence.name, rows), "the number of tensors in", repeats=True)
        if count > MOST_NODES:
            raise ModelError(f"{sequence.name!r} has {count} tensors; at most {MOST_NODES} become nodes")
        slices = (slice_axis(rows, 0, index, index + 1) for index in range(count))
        names = (f"{sequence.name}.{index}" for index in range(count))
        return tuple(Tensor(name, ops.reshape(row, shape=shape)) for name, row in zip(names, slices, strict=True))

    def rows(self, sequence: Tensor) -> Value | None:
        """The tensors of a sequence, stacked; None where they aren't alike, or there is none."""
        if sequence.rows is not None:
            return sequence.rows
        values = [self.value(element) for element in self.elements(sequence)]
        found: Value | None = stack(values) if len({value.type for value in values}) == 1 else None
        return found

    def _sizes_as_data(self, tensor: Tensor) -> Value:
        """Known sizes as a value: a constant, or a node that binding makes one of."""
        tensor.check()
        assert tensor.known is not None
        numbers, dtype = tensor.known.numbers, tensor.known.dtype
        listed = list(numbers.reshape(-1))
        if not any(isinstance(n, Dim) for n in listed):
            return self.builder.constant(numbers.astype(dtype.numpy), tensor.name)
        attributes = {"values": tuple(listed), "shape": numbers.shape, "dtype": dtype}
        (value,) = self.builder.add(ops.sizes, (), attributes).outputs
        assert value is not None
        return value

    def is_of_file(self, name: str) -> bool:
        """Whether a stored tensor is the same for all inputs: in a graph for some alone, others may depend on them."""
        if self._of_file is None:
            self._of_file = stored_names(self.record.graph)
        return not self.types or name in self._of_file

    def constant(self, tensor: Tensor) -> Array | None:
        """The data of a tensor that is stored, or computed from stored ones alone; else None."""
        if tensor.array is not None:
            return tensor.array
        if tensor.known is not None:
            numbers = tensor.known.numbers
            if not any(isinstance(n, Dim) for n in numbers.reshape(-1)):
                return numbers.astype(tensor.known.dtype.numpy)
            given = self.outermost.values
            return given.get(self.outer_value(tensor).name) if given else None
        given = self.outermost.values
        if given and (array := given.get(self.outer_value(tensor).name)) is not None:
            return array
        value = self.value(tensor)
        if not self.static.is_static(value):
            return None
        return self.static.compute(value, {}, default_registry().reference_kernels)

    def weight(self, tensor: Tensor, trainable: bool = True, role: str = "parameter", single: bool = True) -> Value:
        """The value of a tensor that, if stored, is a parameter; ``single``: also one of one element, if no scalar."""
        value = self.value(tensor)
        if tensor.outer is not None and self.around is not None:
            self.around.weight(tensor.outer, trainable, role, single)
        source = tensor if tensor.array is not None else tensor.stored
        if source is not None and source.outer is not None and self.around is not None:
            self.around.weight(source.outer, trainable, role, single)
        if source is not None and source.array is not None and source.array.dtype.kind in "fV":
            array, name = source.array, self.value(source).name
            if name in self.roles or name != source.name:  # the file has it under another name, or several of them
                return value
            if not self.outermost.is_of_file(name):
                return value
            if role == "statistic":
                self.roles[name] = role, False
            elif (array.size > 1 or self._is_learned(name, array, single)) and is_finite(array):
                other = role != "parameter" or name in self.record.noted.buffers or is_mask(name, array)
                self.roles[name] = role, trainable and not other
        return value

    def _is_learned(self, name: str, array: Array, single: bool) -> bool:
        """Whether a tensor of one element is a weight, and no literal that an exporter stored."""
        return array.size == 1 and ((single and array.ndim > 0) or name in self.record.noted.named)

    def sizes(self, tensor: Tensor, what: str) -> list[Any]:
        """The integers and dims of a tensor; those that are computed get names, and are read before what has them runs.

        Raises:
            Undetermined: they depend on data, in a body.
        """
        found = self.known_sizes(tensor)
        if found is None:
            tensor.known = self.read_sizes(tensor, what)
            found = list(tensor.known.numbers.reshape(-1))
        return found

    def known_sizes(self, tensor: Tensor) -> list[Any] | None:
        """The integers and dims of a tensor, where they are known without reading it while the model runs."""
        if tensor.known is None:
            array = self.constant(tensor)
            if array is None or array.dtype.kind not in "iu" or array.size > MOST_KNOWN:
                return None
            tensor.known = Known(array.astype(object), as_dtype(array))
        return list(tensor.known.numbers.reshape(-1))

    def read_sizes(self, tensor: Tensor, what: str) -> Known:
        """Named dims for the elements of a computed tensor, and a node that reads them."""
        value = self.value(tensor)
        if self.around is not None and not self.static.is_static(value):
            raise Undetermined(f"{what} {tensor.name!r} depends on data", value)  # iterations may be nodes then
        if value.type.rank == 1 and not value.type.is_bound:
            self.ask(tensor, what)  # how many sizes there are
        if value.type.rank > 1 or value.type.dtype.name not in ("int32", "int64"):
            raise ModelError(f"{what} {tensor.name!r} is computed and {value.type}; expected a list of sizes")
        if value.type.elements > MOST_KNOWN:
            text = f"{what} {tensor.name!r} is computed and has {value.type.elements} elements; expected at most"
            raise ModelError(f"{text} {MOST_KNOWN}")
        name = self.outermost.unique_size(tensor.name)
        dims = [Dim(f"{name}.{i}") for i in range(value.type.elements)]
        self.builder.add(ops.read_shape, (value,), {"sizes": tuple(dims)})
        numbers = np.array(dims, object).reshape(value.type.sizes)
        return Known(numbers, value.type.dtype)

    def outer_value(self, tensor: Tensor) -> Value:
        """The value of a tensor; of one that a body captures, that of the graph around it."""
        if tensor.outer is not None and self.around is not None:
            return self.around.outer_value(tensor.outer)
        return self.value(tensor)

    def is_read(self, size: Any) -> bool:
        """Whether a size is known only once nodes have run."""
        read = self.outermost._sizes_named
        return isinstance(size, Dim) and any(name.rpartition(".")[0] in read for name in size.names)

    def unique_size(self, name: str) -> str:
        """``name``, with marks behind it where other sizes have it."""
        while name in self._sizes_named:
            name += "'"
        self._sizes_named.add(name)
        return name

    @property
    def static(self) -> SizeValues:
        """What depends on sizes and stored tensors alone, so far."""
        if self.scope is not None and self.scope.builder is self.builder:
            return self.scope.static  # what is known of the graph that the nodes stand in
        if self._static is None or self._static[0] is not self.builder:
            self._static = self.builder, SizeValues.building(self.builder, _Captured(self))
        return self._static[1]

    def count(self, value: Value, what: str) -> Dim:
        """A name for the only element of a computed value, a size."""
        known = self.read_sizes(Tensor(f"{what} of {self.node.describe()}", value), what)
        dim = known.numbers.reshape(-1)[0]
        assert isinstance(dim, Dim)
        return dim

    def ints(self, tensor: Tensor, what: str) -> tuple[int, ...]:
        """As ``sizes``, for what must be integers when a node is converted.

        Raises:
            Undetermined: one depends on sizes or data.
        """
        if tensor.known is None and self.constant(tensor) is None:
            self.ask(tensor, what)
        found = self.sizes(tensor, what)
        if any(isinstance(n, Dim) for n in found):
            found = list(self.numbers(tensor, what).reshape(-1))
        return tuple(int(n) for n in found)

    def scalar(self, tensor: Tensor, what: str) -> float:
        """A number that is stored, computed from stored ones, or a size.

        Raises:
            Undetermined: it depends on sizes or data.
        """
        if tensor.known is not None and tensor.known.numbers.size == 1:
            return self.ints(tensor, what)[0]
        array = self.constant(tensor)
        if array is None:
            self.ask(tensor, what)
        if array.size != 1:
            raise ModelError(f"{what} {tensor.name!r} is {tensor.type}; expected one number")
        return float(array.reshape(()))

    def numbers(self, tensor: Tensor, what: str) -> Array:
        """The data of a tensor that must be known when its node is converted."""
        array = self.constant(tensor)
        if array is None:
            self.ask(tensor, what)
        return array

    def ask(self, tensor: Tensor, what: str, *, repeats: bool = False) -> NoReturn:
        """Says that a node can't be converted before a tensor is known.

        Args:
            tensor: this one.
            what: it is to the node.
            repeats: see ``Undetermined``.

        Raises:
            Undetermined: always.
        """
        raise Undetermined(f"{what} {tensor.name!r} depends on sizes or data", self.outer_value(tensor), repeats)


def stored_names(graph: GraphRecord) -> frozenset[str]:
    """Names of what a graph of the file and its bodies store: initializers and constants."""
    found = {*graph.initializers, *(n for node in graph.nodes if node.op == "Constant" for n in node.outputs)}
    return frozenset(found.union(*(stored_names(body) for node in graph.nodes for body in node.bodies)))


class _Captured(Mapping[Value, "tuple[SizeValues, Value]"]):
    """By input of a body, the value of the graph around it that it is."""

    def __init__(self, inner: Operands) -> None:
        self._inner = inner

    def __getitem__(self, value: Value) -> tuple[SizeValues, Value]:
        around, tensor = self._inner.around, self._inner.tensors.get(value.name)
        if around is None or tensor is None or tensor.outer is None or tensor.value is not value:
            raise KeyError(value)
        return around.static, around.value(tensor.outer)

    def __iter__(self) -> Iterator[Value]:
        return (t.value for t in self._inner.tensors.values() if t.outer is not None and t.value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
