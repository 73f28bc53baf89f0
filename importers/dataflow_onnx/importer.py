"""Records -> Graph: one converter per operator; shape computations are resolved at once.

The result of a shape computation (Shape, Gather, Concat, ... of sizes) is known as integers and named dims, so
Reshape, Slice and the like get it as attributes; nothing else is folded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from dataflow import Dim, Graph, GraphBuilder, TensorType, Value, ops
from dataflow.errors import Cancelled, DataflowError, LimitExceeded, ModelError, OutOfMemoryError
from dataflow.plugin import Converter, Given, Initializer, SizeValues, default_registry, element_name, poll
from dataflow.plugin import dtype as as_dtype

from .block_weights import BlockWeight, takes
from .converters import Table, is_own, name_of
from .emit import slice_axis, stack
from .file.functions import MOST_NODES
from .file.records import Array, GraphRecord, ModelRecord, NodeRecord
from .free_batch import Freed
from .parametrized import parametrized
from .positions import of_positions
from .shape_eval import MOST_KNOWN, Known, compute, has_rule
from .signatures import Arguments, arguments_of
from .tensor import Tensor

COMPUTED = "computed"  # behind the names of tensors that were computed for some inputs alone


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


class Importer:
    """Builds the graph of one file; converters call its methods.

    Attributes:
        table: of converters.
        builder: where nodes go.
        node: the one that is being converted.
        opset: the version of its domain.
        around: of a body, the importer of the graph around it.
        freed: a batch size that is made free.
        values: what is known of values that are computed, for one form of the inputs.
        types: of the inputs, where the graph is made for these alone.
        lengths: of outputs that are sequences; None of those that are absent.
        blocks: of values that are stored weights dequantized, or their transposes, what is stored.
        block_names: of tensors that were made of these, the names that look like those of a weight.
        inactive: names of nodes that would drop whenever they run, and don't.
        iterations: how many of loops became nodes.
        unrolls: a loop that can't be one node becomes those of its iterations.
        most_iterations: of loops may become nodes.
    """

    unrolls = True
    most_iterations = 1 << 14

    def __init__(
        self,
        record: ModelRecord,
        path: str,
        table: Table,
        around: Importer | None = None,
        freed: Freed | None = None,
        values: Mapping[str, Array] = MappingProxyType({}),
        types: Mapping[str, Given] = MappingProxyType({}),
    ) -> None:
        self.record, self.path, self.table, self.around, self.freed = record, path, table, around, freed
        self.values, self.types = values, types
        self.scope: Importer | None = None  # of a body whose nodes stand among those of the graph around it
        self.builder = GraphBuilder(record.graph.name or "onnx")
        self.opset = 0
        self.node: NodeRecord
        self.tensors: dict[str, Tensor] = {}
        self.roles: dict[str, tuple[str, bool]] = {}
        self.lengths: dict[str, int | None] = {}
        self.blocks: dict[Value, BlockWeight] = {}
        self.block_names: dict[Value, tuple[str, ...]] = {}
        self.inactive: list[str] = around.inactive if around is not None else []
        self.iterations = 0
        self.claimed: set[Value] = set()  # values that have their name from the file
        self._of_file: frozenset[str] | None = None
        self._converters: dict[tuple[str, str], Converter] = {}  # by domain and operator
        self._takes: dict[tuple[str, str], Arguments] = {}
        self._sizes_named: set[str] = set()  # names of sizes that are read
        self._static: tuple[GraphBuilder, SizeValues] | None = None

    def run(self, graph: GraphRecord, nodes: Sequence[NodeRecord], outputs: Sequence[str]) -> None:
        """Converts nodes in order and names the outputs."""
        self.declare(graph)
        self.convert_all(nodes)
        for name in outputs:
            self._output(name, self.tensors[name], graph)

    def declare(self, graph: GraphRecord) -> None:
        """Adds the inputs and stored tensors of the main graph."""
        for name, type_ in graph.inputs.items():
            assert type_ is not None  # of the main graph
            given = self.types.get(name, type_ if self.freed is None else self.freed.input(type_))
            if given is None:
                self.tensors[name] = Tensor(name)
            elif isinstance(given, tuple):
                fed = tuple(self._input(element_name(name, index), item) for index, item in enumerate(given))
                self.tensors[name] = Tensor(name, elements=fed)
            else:
                self.tensors[name] = self._input(name, given)
            if name in graph.vocabularies:
                keyed = ops.keyed(self.value(self.tensors[name]), keys=graph.vocabularies[name], fed=True)
                self.tensors[name] = Tensor(name, keyed)
        self.builder.reserve([*graph.initializers, *(name for node in graph.nodes for name in node.outputs if name)])
        self.builder.reserve(_stored_names(graph))  # of bodies too: they become tensors of this graph
        for name, array in graph.initializers.items():
            self.tensors[name] = self.stored(name, array)

    def _input(self, name: str, type_: TensorType) -> Tensor:
        value = self.builder.input(name, type_.dtype, type_.shape)
        self.claimed.add(value)
        return Tensor(name, value)

    def _output(self, name: str, tensor: Tensor, graph: GraphRecord) -> None:
        """Names an output; of a sequence, its elements."""
        if not tensor.is_sequence and not tensor.is_absent:
            self.builder.output(name, self.value(tensor))
            return
        if name in graph.declared:
            raise ModelError(f"output {name!r} is declared as {graph.declared[name]}, but is no tensor")
        elements = self.elements(tensor) if tensor.is_sequence else None
        self.lengths[name] = None if elements is None else len(elements)
        for index, element in enumerate(elements or ()):
            self.builder.output(element_name(name, index), self.value(element))

    def convert_all(self, nodes: Sequence[NodeRecord]) -> None:
        """Adds nodes to the graph.

        Raises:
            ModelError: some can't be imported; lists them all, but not those that depend on them.
            Undetermined: the others can, once a value is known.
        """
        problems: list[str] = []
        waiting: Undetermined | None = None
        lost: set[str] = set()
        for node in nodes:
            if lost and not lost.isdisjoint(node.reads()):
                lost.update(node.outputs)
                continue
            try:
                self.convert(node)
            except Undetermined as error:
                waiting = error if waiting is None else waiting
                lost.update(node.outputs)
            except ModelError as error:
                problems.append(str(error))
                lost.update(node.outputs)
            lost.discard("")
        if len(problems) > 1:
            texts = [text.removeprefix(f"{self.path}: ") for text in problems]
            raise ModelError(f"{self.path}: {len(texts)} nodes can't be imported:\n  " + "\n  ".join(texts))
        if problems:
            raise ModelError(problems[0])
        if waiting is not None:
            raise waiting

    def stored(self, name: str, array: Array) -> Tensor:
        """A tensor with data; a few integers are known as sizes too."""
        known = None
        if array.dtype.kind in "iub" and array.size <= MOST_KNOWN:
            known = Known(array.astype(object), as_dtype(array))
        return Tensor(name, None, array, known)

    def convert(self, node: NodeRecord) -> None:
        """Adds a node of the file to the graph."""
        poll(node)
        if node.op == "Constant" and self._is_stored(node):
            return
        self.node, self.opset = node, self.record.opsets[node.domain]
        converter = self._converter(node)
        self.builder.origin = f"{node.describe()}, opset {self.opset}"
        try:
            inputs = [self.tensors[name] if name else None for name in node.inputs]
        except KeyError as error:
            text = f"it reads {error.args[0]!r}, which nothing before it defines"
            raise ModelError(f"{self._where(converter)}: {text}") from None
        try:
            self._arguments(node, converter).check(inputs, node.attributes)
            results = self.sizes_of(node, inputs) or self.call(converter, inputs, node)
            self.enter(node, inputs, results)
        except (Cancelled, LimitExceeded, MemoryError, OutOfMemoryError, RecursionError):
            raise  # not the node's alone
        except Undetermined as error:
            text = str(error).removeprefix(f"{self.path}: ")
            raise Undetermined(f"{self._where(converter)}: {text}", error.value, error.repeats) from None
        except DataflowError as error:
            text = str(error).removeprefix(f"{self.path}: ")  # of a node in a body
            raise ModelError(f"{self._where(converter)}: {text}") from None
        except Exception as error:  # of another kind, rank or length; whatever it is, the node is named
            cause = "its inputs or attributes don't fit the operator" if is_own(converter) else "the converter failed"
            text = f"{cause}: {type(error).__name__}: {error}"
            raise ModelError(f"{self._where(converter)}: {text}") from error

    def _is_stored(self, node: NodeRecord) -> bool:
        """Whether a node of ONNX's ``Constant`` holds a tensor, which is added then; often half of a file's do."""
        array, name = node.attributes.get("value"), node.outputs[0]
        alone = len(node.attributes) == len(node.outputs) == 1 and not (node.inputs or node.domain)
        if not alone or not name or type(array) is not np.ndarray:
            return False
        self.tensors[name] = self.stored(name, array)
        return True

    def _converter(self, node: NodeRecord) -> Converter:
        """That of a node's operator, which is looked up once."""
        found = self._converters.get((node.domain, node.op))
        if found is None:
            found = self.table.find(node.domain, node.op, self.opset)
            assert found is not None
            self._converters[node.domain, node.op] = found
        return found

    def _arguments(self, node: NodeRecord, converter: Converter) -> Arguments:
        """What the converter of a node's operator takes; likewise."""
        found = self._takes.get((node.domain, node.op))
        if found is None:
            found = self._takes[node.domain, node.op] = arguments_of(converter)
        return found

    def _where(self, converter: Converter) -> str:
        """The node that is being converted, for messages."""
        whose = "" if is_own(converter) else f", converted by {name_of(converter)}"
        return f"{self.path}: {self.node.describe()}, opset {self.opset}{whose}"

    def enter(self, node: NodeRecord, inputs: Sequence[Tensor | None], results: Sequence[Any]) -> None:
        """Gives the names of a node's outputs to its results.

        Raises:
            ModelError: there are fewer results than outputs.
        """
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                self.tensors[name] = self.named(name, result)
        for name in node.outputs[len(results) :]:
            if name:
                raise ModelError(f"its output {name!r} is not supported")
        if not node.domain and node.op in _SAME_DATA and inputs and inputs[0] is not None:
            source = inputs[0].stored if inputs[0].array is None and inputs[0].outer is None else inputs[0]
            for name in filter(None, node.outputs):
                self.tensors[name].stored = source

    def sizes_of(self, node: NodeRecord, inputs: Sequence[Tensor | None]) -> Sequence[Known] | None:
        """The result of a computation with sizes; None when some are not known, or the operator isn't one of them."""
        if node.domain or not has_rule(node.op):
            return None
        unknown = not inputs or any(t is not None and t.known is None for t in inputs)
        if unknown and not (node.op == "Concat" and self._follow(inputs)):
            return None
        operands = [None if t is None else t.known for t in inputs]
        try:
            found = compute(node.op, operands, node.attributes)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
            return None  # its inputs don't fit: the converter says which
        return None if found is None else (found,)

    def _follow(self, inputs: Sequence[Tensor | None]) -> bool:
        """Reads the sizes that nodes compute from others, where they are put beside known ones: those stay known."""
        if all(t is None or t.known is None for t in inputs):
            return False
        unknown = [t for t in inputs if t is not None and t.known is None]
        if not all(self._is_followed(t) for t in unknown):
            return False
        for tensor in unknown:
            self.sizes(tensor, "sizes")
        return True

    def _is_followed(self, tensor: Tensor) -> bool:
        """Whether a tensor is a short list of integers that depend on sizes alone."""
        type_ = tensor.type
        listed = type_.dtype.name in ("int32", "int64") and type_.rank == 1 and type_.is_bound
        return listed and type_.elements <= _FOLLOWED and self.static.is_static(self.value(tensor))

    def inlined(self, record: GraphRecord, inputs: Sequence[Tensor | Value | Known] = ()) -> list[Tensor]:
        """The outputs of a body, its nodes among those of this graph."""
        inner = Importer(self.record, self.path, self.table, self.around, self.freed)
        inner.builder, inner.scope, inner.roles, inner.claimed = self.builder, self, self.roles, self.claimed
        inner.values, inner._sizes_named = self.outermost.values, self.outermost._sizes_named
        inner.tensors = dict(self.tensors)
        if len(record.inputs) != len(inputs):
            raise ModelError(f"the body {record.name!r} has {len(record.inputs)} inputs; {len(inputs)} are given")
        for name, array in record.initializers.items():
            tensor = self.stored(name, array)
            if not self.define(name, tensor):  # another one has the name, and is trained and saved under it
                tensor = Tensor(name, self.builder.constant(array, name), None, tensor.known)
            inner.tensors[name] = tensor
        for name, given in zip(record.inputs, inputs, strict=True):
            inner.tensors[name] = inner.named(name, given)
        inner.convert_all(record.nodes)
        return [inner.tensors[name] for name in record.outputs]

    @property
    def outermost(self) -> Importer:
        """The importer of the main graph."""
        around = self.around if self.scope is None else self.scope
        return self if around is None else around.outermost

    def call(self, converter: Converter, inputs: list[Tensor | None], node: NodeRecord) -> Sequence[Any]:
        """The converter's results."""
        found = converter.function(self, *inputs, **node.attributes)
        return found if isinstance(found, tuple) else (found,)

    def define(self, name: str, tensor: Tensor) -> bool:
        """Adds a stored tensor of a body; converting the body again adds the same one again.

        Returns:
            False where another tensor has the name.
        """
        known = self.tensors.setdefault(name, tensor)
        return known is tensor or (known.array is not None and known.array is tensor.array)

    def named(self, name: str, result: Value | Tensor | Known | Array | list[Any]) -> Tensor:
        """The tensor for an output of the file; a value that was made for it gets its name. A list is a sequence.

        Raises:
            ModelError: it is none of what converters give.
        """
        if type(result) is Value:  # as almost always
            return self._named_value(name, result)
        if isinstance(result, Tensor):
            known = result.value is None
            if not known:
                return result
            return Tensor(name, None, result.array, result.known, elements=result.elements, rows=result.rows)
        if isinstance(result, list):
            elements = [e if isinstance(e, Tensor) else self.named(f"{name}.{i}", e) for i, e in enumerate(result)]
            for element in elements:
                element.check()
            return Tensor(name, elements=tuple(elements))
        if isinstance(result, Known):
            return Tensor(name, None, None, result)
        if isinstance(result, np.ndarray):
            return self.stored(name, result)
        if isinstance(result, Value):
            return self._named_value(name, result)
        given = type(result).__name__
        raise ModelError(f"its converter gives a {given}; expected a value, tensor, array, known sizes or a list")

    def _named_value(self, name: str, result: Value) -> Tensor:
        if result not in self.claimed:  # else the operator passed an operand on
            self.builder.rename(result, name if self.scope is None else self.builder.free_name(name))
            self.claimed.add(result)
        return Tensor(name, result)

    def block_product(self, x: Value, weight: Value, transposed: bool = False) -> Any:
        """The product of x with a stored weight that the file dequantizes, as it is stored; None of another.

        Quantized x is left to products of integers.
        """
        found = self.blocks.get(weight)
        maker = self.builder.producer(x)
        if found is None or not takes(x, weight) or (maker is not None and maker.op is ops.dequantize):
            return None
        path = self.node.name or self.node.outputs[0]
        y, elements = (found.other() if transposed else found).product(self.builder, x, f"{path}.blocks")
        self.block_names[elements] = (*([f"{self.node.scope}.weight"] if self.node.scope else []), f"{path}.weight")
        return y

    # ---- what converters use --------------------------------------------------------------------------

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
            self._of_file = _stored_names(self.record.graph)
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
            elif (array.size > 1 or self._is_learned(name, array, single)) and _is_finite(array):
                self.roles[name] = role, trainable and role == "parameter" and name not in self.record.noted.buffers
        return value

    def _is_learned(self, name: str, array: Array, single: bool) -> bool:
        """Whether a tensor of one element is a weight, and no literal that an exporter stored."""
        return array.size == 1 and ((single and array.ndim > 0) or name in self.record.noted.named)

    def sizes(self, tensor: Tensor, what: str) -> list[Any]:
        """The integers and dims of a tensor; those that are computed get names, and are read before what has them runs.

        Raises:
            ModelError: they depend on data, in a body.
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
            raise ModelError(f"{what} {tensor.name!r} depends on data, in a body; it must be known at load there")
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

    # ---- the end --------------------------------------------------------------------------------------

    def stored_names(self) -> list[str]:
        """Names of all tensors with data."""
        return [name for name, tensor in self.tensors.items() if tensor.array is not None]

    def finish(self) -> Graph:
        """The graph, with the roles of its stored tensors; see ``Specialize`` for their names."""
        for value in self.builder.initializers():
            if not self.is_of_file(value.name):
                self.builder.rename(value, self.builder.free_name(f"{value.name}:{COMPUTED}"))
        graph = self.builder.finish()
        stored: dict[Value, Initializer] = {}
        for value, data in graph.initializers.items():
            learned = value.name in self.record.noted.parameters and data.array.dtype.kind in "fV"
            alone = data.array.size == 1 and value.name in self.record.noted.named
            other = "parameter" if learned or alone else "constant"
            role, trainable = self.roles.get(value.name, (other, learned))
            stored[value] = Initializer(data.array, role, trainable)  # type: ignore[arg-type]
        named = self.record.noted.named - self.roles.keys()
        for value in parametrized(graph, [v for v in stored if v.name in named and _is_finite(stored[v].array)]):
            stored[value] = Initializer(stored[value].array, "parameter", True)
        guessed = {v: d.array for v, d in stored.items() if d.trainable and v.name not in self.record.noted.parameters}
        for value in of_positions(graph, guessed):
            stored[value] = dataclasses.replace(stored[value], trainable=False)
        return dataclasses.replace(graph, initializers=stored)


def _stored_names(graph: GraphRecord) -> frozenset[str]:
    """Names of what a graph of the file and its bodies store: initializers and constants."""
    found = {*graph.initializers, *(n for node in graph.nodes if node.op == "Constant" for n in node.outputs)}
    return frozenset(found.union(*(_stored_names(body) for node in graph.nodes for body in node.bodies)))


class _Captured(Mapping[Value, "tuple[SizeValues, Value]"]):
    """By input of a body, the value of the graph around it that it is."""

    def __init__(self, inner: Importer) -> None:
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


_FOLLOWED = 64  # elements of a list of sizes that is read
_WORTH_A_SUM = 1 << 12  # elements: a sum reads them once, a check of each writes a mask too
_SAME_DATA = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Identity", "Expand", "Slice", "Split"}


def _is_finite(array: Array) -> bool:
    """Whether all elements are."""
    if 0 in array.strides:  # one number repeated
        array = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]
    if array.dtype.itemsize == 2:  # by their bits: NumPy adds 16-bit floats one by one, 4 to 21 ns each
        infinite = int(np.array(np.inf, array.dtype).view(np.uint16))
        positive = array.view(np.int16).max(initial=0) < infinite
        return bool(positive and array.view(np.uint16).max(initial=0) < infinite + 0x8000)
    if array.dtype.kind != "f":
        array = array.astype(np.float32)
    flat = array.reshape(-1) if array.size <= _WORTH_A_SUM else None
    with np.errstate(over="ignore", invalid="ignore"):
        # No sum with an infinite term, or one that is no number, is finite; one of squares is made without Python.
        if math.isfinite(array.sum() if flat is None else flat.dot(flat)):
            return True
    return bool(np.isfinite(array).all())
