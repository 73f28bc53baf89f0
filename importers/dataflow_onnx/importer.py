"""Records -> Graph: one converter per operator; shape computations are resolved at once.

The result of a shape computation (Shape, Gather, Concat, ... of sizes) is known as integers and named dims, so
Reshape, Slice and the like get it as attributes; nothing else is folded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from dataflow import Graph, TensorType, Value, ops
from dataflow.errors import Cancelled, DataflowError, LimitExceeded, ModelError, OutOfMemoryError
from dataflow.plugin import Converter, Given, element_name, poll
from dataflow.plugin import dtype as as_dtype

from .block_weights import BlockWeight
from .converters import Table, is_own, name_of
from .declared_outputs import check_dtypes
from .file.records import Array, GraphRecord, ModelRecord, NodeRecord, stored_by
from .free_batch import Freed
from .operands import Operands, Undetermined, stored_names
from .roles import with_roles
from .shape_eval import MOST_KNOWN, Known, compute, has_rule
from .signatures import Arguments, arguments_of
from .tensor import Tensor, Unsized, refusal_of

COMPUTED = "computed"  # behind the names of tensors that were computed for some inputs alone
_FOLLOWED = 64  # elements of a list of sizes that is read
_SAME_DATA = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Identity", "Expand", "Slice", "Split"}


class Importer(Operands):
    """Builds the graph of one file; converters call its methods.

    Attributes:
        path: of the file.
        table: of converters.
        opset: the version of the domain of the node that is being converted.
        freed: a batch size that is made free.
        lengths: of outputs that are sequences; None of those that are absent.
        blocks: of values that are stored weights dequantized, or their transposes, what is stored.
        block_names: of tensors that were made of these, the names that look like those of a weight.
        inactive: names of nodes that would drop whenever they run, and don't.
        iterations: how many of loops became nodes.
        unrolls: a loop that can't be one node becomes those of its iterations, at most ``most_iterations`` of all.
        is_for_values: the graph is for known values, of any sizes.
    """

    unrolls, is_for_values = True, False
    most_iterations = 1 << 14

    def __init__(
        self,
        record: ModelRecord,
        path: str,
        table: Table,
        around: Self | None = None,
        freed: Freed | None = None,
        values: Mapping[str, Array] = MappingProxyType({}),
        types: Mapping[str, Given] = MappingProxyType({}),
    ) -> None:
        if freed is not None:  # the batch size stays free: sizes that have it as a factor are known by that
            types = {n: freed.input(t) if isinstance(t, TensorType) else t for n, t in types.items()}
        super().__init__(record, around, values, types)
        self.path, self.table, self.freed = path, table, freed
        self.opset = 0
        self.lengths: dict[str, int | None] = {}
        self.blocks: dict[Value, BlockWeight] = {}
        self.block_names: dict[Value, tuple[str, ...]] = {}
        self.inactive: list[str] = around.inactive if around is not None else []
        self.iterations = 0
        self._converters: dict[tuple[str, str], Converter] = {}  # by domain and operator
        self._takes: dict[tuple[str, str], Arguments] = {}

    def run(self, graph: GraphRecord, nodes: Sequence[NodeRecord], outputs: Sequence[str]) -> None:
        """Converts nodes in order and names the outputs."""
        self.returned = frozenset(outputs)
        self.declare(graph)
        self.convert_all(nodes)
        check_dtypes(graph, outputs, self.tensors, self._where)
        for name in outputs:
            self._output(name, self.tensors[name])

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
        self.builder.reserve(stored_names(graph))  # of bodies too: they become tensors of this graph
        for name, array in graph.initializers.items():
            self.tensors[name] = self.stored(name, array)

    def _input(self, name: str, type_: TensorType) -> Tensor:
        value = self.builder.input(name, type_.dtype, type_.shape)
        self.claimed.add(value)
        return Tensor(name, value)

    def _output(self, name: str, tensor: Tensor) -> None:
        """Names an output; of a sequence, its elements."""
        if not tensor.is_sequence and not tensor.is_absent:
            self.builder.output(name, self.value(tensor))
            return
        elements = self.elements(tensor) if tensor.is_sequence else None
        self.lengths[name] = None if elements is None else len(elements)
        for index, element in enumerate(elements or ()):
            self.builder.output(element_name(name, index), self.value(element))

    def convert_all(self, nodes: Sequence[NodeRecord]) -> None:
        """Adds nodes to the graph.

        Raises:
            ModelError: some can't be imported; lists them all, but not those that depend on them.
            Undetermined, Unsized: the others can, once a value or size is known.
        """
        problems: list[str] = []
        waiting: Undetermined | Unsized | None = None
        lost: set[str] = set()
        for node in nodes:
            if lost and not lost.isdisjoint(node.reads()):
                lost.update(node.outputs)
                continue
            try:
                self.convert(node)
            except (Undetermined, Unsized) as error:
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
        if self.freed is not None and self.freed.constants and self.around is None and self.scope is None:
            freed = self.freed.constant(self.builder, None if name in self.tensors else name, array)
            if freed is not None:
                rows = [t.value for t in (freed, freed.stored) if t is not None]
                self.claimed.update(v for v in rows if v is not None)
                return dataclasses.replace(freed, name=name)
        known = None
        if array.dtype.kind in "iub" and array.size <= MOST_KNOWN:
            known = Known(array.astype(object), as_dtype(array))
        return Tensor(name, None, array, known)

    def convert(self, node: NodeRecord) -> None:
        """Adds a node of the file to the graph."""
        poll(node)
        if node.op == "Constant" and self._is_stored(node):
            return
        self.node, self.opset, converter = node, self.record.opsets[node.domain], self._converter(node)
        self.builder.origin = f"{node.describe()}, opset {self.opset}"
        try:
            inputs = [self.tensors[name] if name else None for name in node.inputs]
        except KeyError as error:
            text = f"it reads {error.args[0]!r}, which nothing before it defines"
            raise ModelError(f"{self._where(node)}: {text}") from None
        try:
            self._arguments(node, converter).check(inputs, node.attributes)
            results = self.sizes_of(node, inputs) or self.call(converter, inputs, node)
            self.enter(node, inputs, results)
        except (Cancelled, LimitExceeded, MemoryError, OutOfMemoryError, RecursionError):
            raise  # not the node's alone
        except Undetermined as error:
            text = str(error).removeprefix(f"{self.path}: ")
            raise Undetermined(f"{self._where(node)}: {text}", error.value, error.repeats) from None
        except DataflowError as error:
            text = str(error).removeprefix(f"{self.path}: ")  # of a node in a body
            raise refusal_of(error, inputs, self.outermost.builder)(f"{self._where(node)}: {text}") from None
        except (Exception, SystemExit) as error:  # of another kind, rank or length; whatever it is, the node is named
            cause = "its inputs or attributes don't fit the operator" if is_own(converter) else "the converter failed"
            text = f"{cause}: {type(error).__name__}: {error}"
            raise refusal_of(error, inputs, self.outermost.builder)(f"{self._where(node)}: {text}") from error

    def _is_stored(self, node: NodeRecord) -> bool:
        """Whether a node of ONNX's ``Constant`` holds a tensor, which is added then; often half of a file's do."""
        array = stored_by(node)
        if array is not None:
            self.tensors[node.outputs[0]] = self.stored(node.outputs[0], array)
        return array is not None

    def _converter(self, node: NodeRecord) -> Converter:
        """That of a node's operator, which is looked up once."""
        found = self._converters.get((node.domain, node.op))
        if found is None:
            found = self.table.find(node.domain, node.op, self.record.opsets[node.domain])
            assert found is not None
            self._converters[node.domain, node.op] = found
        return found

    def _arguments(self, node: NodeRecord, converter: Converter) -> Arguments:
        """What the converter of a node's operator takes; likewise."""
        found = self._takes.get((node.domain, node.op))
        if found is None:
            found = self._takes[node.domain, node.op] = arguments_of(converter)
        return found

    def _where(self, node: NodeRecord) -> str:
        """A node of the file, for messages."""
        converter = self._converter(node)
        whose = "" if is_own(converter) else f", converted by {name_of(converter)}"
        return f"{self.path}: {node.describe()}, opset {self.record.opsets[node.domain]}{whose}"

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

    def stored_names(self) -> list[str]:
        """Names of all tensors with data."""
        return [name for name, tensor in self.tensors.items() if tensor.array is not None]

    def finish(self) -> Graph:
        """The graph, with the roles of its stored tensors; see ``Specialize`` for their names."""
        for value in self.builder.initializers():
            if not self.is_of_file(value.name):
                self.builder.rename(value, self.builder.free_name(f"{value.name}:{COMPUTED}"))
        return with_roles(self.builder.finish(), self.roles, self.record.noted)
