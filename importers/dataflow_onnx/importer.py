"""Records -> Graph: one converter per operator; shape computations are resolved at once.

The result of a shape computation (Shape, Gather, Concat, ... of sizes) is known as integers and named dims, so
Reshape, Slice and the like get it as attributes; nothing else is folded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Graph, GraphBuilder, Value, ops
from dataflow.errors import Cancelled, DataflowError, LimitExceeded, ModelError, OutOfMemoryError
from dataflow.plugin import Converter, Initializer, poll
from dataflow.plugin import dtype as as_dtype

from .converters import Table, is_own, name_of
from .file.records import Array, GraphRecord, ModelRecord, NodeRecord
from .free_batch import Freed
from .shape_eval import MOST_KNOWN, Known, assumed_different, compute
from .signatures import arguments_of
from .tensor import Tensor


class Importer:
    """Builds the graph of one file; converters call its methods.

    Attributes:
        table: of converters.
        builder: where nodes go.
        node: the one that is being converted.
        opset: the version of its domain.
        around: of a body, the importer of the graph around it.
        freed: a batch size that is made free.
    """

    def __init__(
        self,
        record: ModelRecord,
        path: str,
        table: Table,
        around: Importer | None = None,
        freed: Freed | None = None,
    ) -> None:
        self.record, self.path, self.table, self.around, self.freed = record, path, table, around, freed
        self.builder = GraphBuilder(record.graph.name or "onnx")
        self.opset = 0
        self.node: NodeRecord
        self.tensors: dict[str, Tensor] = {}
        self.roles: dict[str, tuple[str, bool]] = {}
        self.claimed: set[Value] = set()  # values that have their name from the file
        self.assumed: list[tuple[Any, Any]] = []  # pairs of named sizes that the graph assumes to differ

    def run(self, graph: GraphRecord, nodes: Sequence[NodeRecord], outputs: Sequence[str]) -> None:
        """Converts nodes in order and names the outputs."""
        for name, type_ in graph.inputs.items():
            assert type_ is not None  # of the main graph
            type_ = type_ if self.freed is None else self.freed.input(type_)
            self.tensors[name] = Tensor(name, self.builder.input(name, type_.dtype, type_.shape))
            self.claimed.add(self.value(self.tensors[name]))
        for name, array in graph.initializers.items():
            self.tensors[name] = self.stored(name, array)
        self.convert_all(nodes)
        for name in outputs:
            value = self.value(self.tensors[name])
            for left, right in dict.fromkeys(self.assumed):
                text = f"the graph was made for sizes {left} and {right} that differ: fix them when exporting"
                value = ops.require(value, left=left, right=right, equal=0, text=text)
            self.builder.output(name, value)

    def convert_all(self, nodes: Sequence[NodeRecord]) -> None:
        """Adds nodes to the graph.

        Raises:
            ModelError: some can't be imported; lists them all, but not those that depend on them.
        """
        problems: list[str] = []
        lost: set[str] = set()
        for node in nodes:
            if lost and not lost.isdisjoint(node.reads()):
                lost.update(node.outputs)
                continue
            try:
                self.convert(node)
            except ModelError as error:
                problems.append(str(error))
                lost.update(node.outputs)
                lost.discard("")
        if len(problems) > 1:
            texts = [text.removeprefix(f"{self.path}: ") for text in problems]
            raise ModelError(f"{self.path}: {len(texts)} nodes can't be imported:\n  " + "\n  ".join(texts))
        if problems:
            raise ModelError(problems[0])

    def stored(self, name: str, array: Array) -> Tensor:
        """A tensor with data; a few integers are known as sizes too."""
        known = None
        if array.dtype.kind in "iub" and array.size <= MOST_KNOWN:
            known = Known(array.astype(object), as_dtype(array))
        return Tensor(name, None, array, known)

    def convert(self, node: NodeRecord) -> None:
        """Adds a node of the file to the graph."""
        poll(node)
        self.node, self.opset = node, self.record.opsets[node.domain]
        converter = self.table.find(node.domain, node.op, self.opset)
        assert converter is not None
        self.builder.origin = where = f"{node.describe()}, opset {self.opset}"
        where += "" if is_own(converter) else f", converted by {name_of(converter)}"
        undefined = [name for name in node.inputs if name and name not in self.tensors]
        if undefined:
            raise ModelError(f"{self.path}: {where}: it reads {undefined[0]!r}, which nothing before it defines")
        inputs = [self.tensors[name] if name else None for name in node.inputs]
        try:
            arguments_of(converter).check(inputs, node.attributes)
            results = self.sizes_of(node, inputs) or self.call(converter, inputs, node)
            self.enter(node, inputs, results)
        except (Cancelled, LimitExceeded, MemoryError, OutOfMemoryError, RecursionError):
            raise  # not the node's alone
        except DataflowError as error:
            text = str(error).removeprefix(f"{self.path}: ")  # of a node in a body
            raise ModelError(f"{self.path}: {where}: {text}") from None
        except Exception as error:  # of another kind, rank or length; whatever it is, the node is named
            cause = "its inputs or attributes don't fit the operator" if is_own(converter) else "the converter failed"
            text = f"{cause}: {type(error).__name__}: {error}"
            raise ModelError(f"{self.path}: {where}: {text}") from error

    def enter(self, node: NodeRecord, inputs: Sequence[Tensor | None], results: Sequence[Any]) -> None:
        """Gives the names of a node's outputs to its results.

        Raises:
            ModelError: there are fewer results than outputs.
        """
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                self.tensors[name] = self.named(name, result)
        if not node.domain and node.op in _SAME_DATA and inputs and inputs[0] is not None and node.outputs[0]:
            source = inputs[0] if inputs[0].array is not None else inputs[0].stored
            self.tensors[node.outputs[0]].stored = source
        lost = next((name for name in node.outputs[len(results) :] if name), None)
        if lost is not None:
            raise ModelError(f"its output {lost!r} is not supported")

    def sizes_of(self, node: NodeRecord, inputs: Sequence[Tensor | None]) -> Sequence[Known] | None:
        """The result of a computation with sizes; None when some are not known, or the operator isn't one of them."""
        if node.domain or any(t is not None and t.known is None for t in inputs):
            return None
        operands = [None if t is None else t.known for t in inputs]
        try:
            found = compute(node.op, operands, node.attributes)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
            return None  # its inputs don't fit: the converter says which
        if found is not None:
            self.outermost.assumed += assumed_different(node.op, operands)
        return None if found is None else (found,)

    @property
    def outermost(self) -> Importer:
        """The importer of the main graph."""
        return self if self.around is None else self.around.outermost

    def call(self, converter: Converter, inputs: list[Tensor | None], node: NodeRecord) -> Sequence[Any]:
        """The converter's results."""
        found = converter.function(self, *inputs, **node.attributes)
        return found if isinstance(found, tuple) else (found,)

    def define(self, name: str, tensor: Tensor) -> None:
        """Adds a stored tensor of a body; converting the body again adds the same one again.

        Raises:
            ModelError: the name is taken.
        """
        known = self.tensors.setdefault(name, tensor)
        if known is not tensor and (known.array is None or known.array is not tensor.array):
            raise ModelError(f"{name!r} is defined twice: in a body and outside")

    def named(self, name: str, result: Value | Tensor | Known | Array) -> Tensor:
        """The tensor for an output of the file; a value that was made for it gets its name.

        Raises:
            ModelError: it is none of what converters give.
        """
        if isinstance(result, Tensor):
            return Tensor(name, result.value, result.array, result.known) if result.value is None else result
        if isinstance(result, Known):
            return Tensor(name, None, None, result)
        if isinstance(result, np.ndarray):
            return self.stored(name, result)
        if not isinstance(result, Value):
            given = type(result).__name__
            raise ModelError(f"its converter gives a {given}; expected a value, a tensor, an array or known sizes")
        if result not in self.claimed:  # else the operator passed an operand on
            self.builder.rename(result, name)
            self.claimed.add(result)
        return Tensor(name, result)

    # ---- what converters use --------------------------------------------------------------------------

    def value(self, tensor: Tensor | None) -> Value:
        """The graph's value for a tensor; stored data becomes an initializer, once."""
        if tensor is None:
            raise ModelError("an input that the operator needs is left out")
        if tensor.value is None:
            array = tensor.array
            if array is None:
                array = self.numbers(tensor)
                tensor.value = self.builder.constant(array, tensor.name)
            else:
                known = self.tensors.get(tensor.name)
                if known is not None and known is not tensor and known.value is not None:
                    tensor.value = known.value
                else:
                    tensor.value = self.builder.initializer(tensor.name, array)
            self.claimed.add(tensor.value)
        return tensor.value

    def numbers(self, tensor: Tensor) -> Array:
        """Known sizes as data."""
        assert tensor.known is not None
        numbers, dtype = tensor.known.numbers, tensor.known.dtype
        if any(isinstance(n, Dim) for n in numbers.reshape(-1)):
            raise ModelError(
                f"{tensor.name!r} is computed from the size {numbers.tolist()} and used as data; "
                "fix that size of the input when exporting"
            )
        return numbers.astype(dtype.numpy)

    def weight(self, tensor: Tensor, trainable: bool = True, role: str = "parameter", single: bool = True) -> Value:
        """The value of a tensor that, if stored, is a parameter; with ``single``, also when it has one element."""
        value = self.value(tensor)
        if tensor.outer is not None and self.around is not None:
            self.around.weight(tensor.outer, trainable, role, single)
        source = tensor if tensor.array is not None else tensor.stored
        if source is not None and source.array is not None and source.array.dtype.kind in "fV":
            array, name = source.array, self.value(source).name
            if name in self.roles:
                return value
            if role == "statistic":
                self.roles[name] = role, False
            elif (array.size > 1 or (single and array.shape == (1,))) and _is_finite(array):
                self.roles[name] = role, trainable and role == "parameter"
        return value

    def sizes(self, tensor: Tensor, what: str) -> list[Any]:
        """The integers and dims of a tensor; those that depend on data get names, and are read while the model runs.

        Raises:
            ModelError: they depend on data, in a body.
        """
        if tensor.known is None:
            tensor.known = self.read_sizes(tensor, what)
        return list(tensor.known.numbers.reshape(-1))

    def read_sizes(self, tensor: Tensor, what: str) -> Known:
        """Named dims for the elements of a computed tensor, and a node that reads them."""
        value = self.value(tensor)
        if self.around is not None:
            raise ModelError(f"{what} {tensor.name!r} depends on data, in a body; it must be known at load there")
        if value.type.rank > 1 or not value.type.is_bound or value.type.dtype.name not in ("int32", "int64"):
            raise ModelError(f"{what} {tensor.name!r} depends on data and is {value.type}; expected a list of sizes")
        if value.type.elements > MOST_KNOWN:
            text = f"{what} {tensor.name!r} depends on data and has {value.type.elements} elements; expected at most"
            raise ModelError(f"{text} {MOST_KNOWN}")
        dims = [Dim(f"{tensor.name}.{i}") for i in range(value.type.elements)]
        self.builder.add(ops.read_shape, (value,), {"sizes": tuple(dims)})
        numbers = np.array(dims, object).reshape(value.type.sizes)
        return Known(numbers, value.type.dtype)

    def count(self, value: Value, what: str) -> Dim:
        """A name for the only element of a computed value, a size."""
        known = self.read_sizes(Tensor(f"{what} of {self.node.describe()}", value), what)
        dim = known.numbers.reshape(-1)[0]
        assert isinstance(dim, Dim)
        return dim

    def ints(self, tensor: Tensor, what: str) -> tuple[int, ...]:
        """As ``sizes``, for what must be integers at load.

        Raises:
            ModelError: one is named, or depends on data.
        """
        if tensor.known is None:
            raise ModelError(f"{what} {tensor.name!r} depends on data; only numbers known at load are supported")
        found = self.sizes(tensor, what)
        if any(isinstance(n, Dim) for n in found):
            raise ModelError(f"{what} {tensor.name!r} is {found}: it must not depend on a named size")
        return tuple(int(n) for n in found)

    def scalar(self, tensor: Tensor, what: str) -> float:
        """A stored number, or a size.

        Raises:
            ModelError: it is computed.
        """
        if tensor.known is not None and tensor.known.numbers.size == 1:
            return self.ints(tensor, what)[0]
        if tensor.array is None or tensor.array.size != 1:
            raise ModelError(f"{what} {tensor.name!r} must be a stored number")
        return float(tensor.array.reshape(()))

    # ---- the end --------------------------------------------------------------------------------------

    def stored_names(self) -> list[str]:
        """Names of all tensors with data."""
        return [name for name, tensor in self.tensors.items() if tensor.array is not None]

    def finish(self) -> Graph:
        """The graph, with the roles of its stored tensors."""
        graph = self.builder.finish()
        stored: dict[Value, Initializer] = {}
        for value, data in graph.initializers.items():
            role, trainable = self.roles.get(value.name, ("constant", False))
            stored[value] = Initializer(data.array, role, trainable)  # type: ignore[arg-type]
        return dataclasses.replace(graph, initializers=stored)


_WORTH_A_SUM = 1 << 12  # elements: a sum reads them once, a check of each writes a mask too
_SAME_DATA = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Identity", "Expand"}


def _is_finite(array: Array) -> bool:
    """Whether all elements are."""
    if 0 in array.strides:  # one number repeated
        array = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]
    if array.dtype.kind != "f":
        array = array.astype(np.float32)
    if array.size > _WORTH_A_SUM:
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isfinite(array.sum()):
                return True  # no sum with an infinite term, or one that is no number, is finite
    return bool(np.isfinite(array).all())
