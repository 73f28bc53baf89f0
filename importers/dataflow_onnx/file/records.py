"""An ONNX model as plain records: what the reader gives and the importer takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataflow import TensorType
from dataflow.plugin import Form

from .scopes import scope_of

Array = np.ndarray[Any, Any]


def plain_domain(domain: str) -> str:
    """The normalized name of a domain: files call ONNX's own "" or ai.onnx, records only ""."""
    return "" if domain == "ai.onnx" else domain


@dataclass(
    slots=True
)  # not frozen, though nobody changes one: there is one per node, and that takes three times as long
class NodeRecord:
    """A node of the file.

    Attributes:
        inputs, outputs: names; "" where one is left out.
        attributes: Python values; graphs are GraphRecords, tensors are arrays.
        noted_scope: the exporter's note of the module that it comes from, or None; see ``scopes``.
    """

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    noted_scope: str | None = None

    @property
    def scope(self) -> str:
        """The dotted name of the module that it comes from; empty where nothing says it."""
        return scope_of(self.name, self.noted_scope)

    @property
    def bodies(self) -> tuple[GraphRecord, ...]:
        """Its attributes that are graphs."""
        attributes = self.attributes
        if not attributes or GraphRecord not in map(type, attributes.values()):
            return ()
        return tuple([a for a in attributes.values() if type(a) is GraphRecord])

    def reads(self) -> tuple[str, ...]:
        """Names of its operands, and of what its bodies read of the graphs around them."""
        bodies = self.bodies
        return (*self.inputs, *(n for b in bodies for n in free_names(b))) if bodies else self.inputs

    def describe(self) -> str:
        """For messages."""
        label = self.name or (self.outputs[0] if self.outputs else "")
        return f"{self.domain + '.' if self.domain else ''}{self.op} {label!r}"


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A graph of the file: the main one or a body.

    Attributes:
        inputs: None where a body doesn't say the type.
        declared: types of outputs, where they are given; the file may be wrong about them.
        forms: of inputs and outputs that are sequences or optionals, and of tensors whose rank isn't declared.
        maps: outputs that are lists of maps.
        vocabularies: of inputs that are maps, the keys that nodes read; empty: all, in their order.
    """

    name: str
    nodes: tuple[NodeRecord, ...]
    inputs: Mapping[str, TensorType | None]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Array]
    declared: Mapping[str, TensorType] = field(default_factory=dict)
    forms: Mapping[str, Form] = field(default_factory=dict)
    maps: frozenset[str] = frozenset()
    vocabularies: Mapping[str, tuple[int, ...] | tuple[str, ...]] = field(default_factory=dict)


def shapes_of_progress(body: GraphRecord) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes in which the body of a ``Loop`` takes the iteration and the condition.

    They are scalars, or have one element where the body declares that, as TensorFlow's converter does before opset 11.
    """
    types = [*body.inputs.values()]
    iteration, condition = ((1,) if type_ is not None and type_.rank == 1 else () for type_ in types[:2])
    return iteration, condition


def passed_on_as(name: str, nodes: Sequence[NodeRecord]) -> str:
    """The value that nodes of ONNX's ``Identity`` pass on under this name; each is followed once, whatever it reads."""
    for node in reversed(nodes):
        if name in node.outputs and node.op == "Identity" and not node.domain and len(node.inputs) == 1:
            name = node.inputs[0]
    return name


def stored_by(node: NodeRecord) -> Array | None:
    """The tensor that a node of ONNX's ``Constant`` holds; None for other nodes, and for numbers and texts."""
    if node.op != "Constant" or node.domain or node.inputs:
        return None
    array = node.attributes.get("value")
    alone = len(node.attributes) == len(node.outputs) == 1 and node.outputs[0]
    return array if alone and type(array) is np.ndarray else None


def free_names(graph: GraphRecord) -> tuple[str, ...]:
    """Names that a body reads and doesn't define, in order."""
    own = {*graph.inputs, *graph.initializers, *(n for node in graph.nodes for n in node.outputs)}
    names = [*(n for node in graph.nodes for n in node.reads()), *graph.outputs]
    return tuple(dict.fromkeys(n for n in names if n and n not in own))


def names_read(graph: GraphRecord) -> Iterator[str]:
    """Names that nodes of a graph and of its bodies read, and that these return."""
    yield from graph.outputs
    for node in graph.nodes:
        yield from node.inputs
        for body in node.bodies:
            yield from names_read(body)


@dataclass(frozen=True, slots=True)
class Content:
    """A serialized model, unchecked.

    Attributes:
        small: the model without the data of its large initializers.
        large: these data, as bytes, by the initializer's number; they don't change.
        chunks: all bytes of the model, in order.
    """

    small: bytes = field(repr=False)
    large: Mapping[int, Array]
    chunks: Sequence[bytes | memoryview] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the model."""
        return sum(map(len, self.chunks))

    def to_bytes(self) -> bytes:
        """All bytes, as one copy."""
        return b"".join(self.chunks)


Roles = Mapping[str, tuple[str, bool]]
"""By the name of a stored tensor its role, and whether it is trained."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Names of stored tensors, as far as a file says what they are.

    Attributes:
        parameters: of a module of PyTorch, and what was computed of some.
        buffers: neither.
        named: parameters or buffers of a module of PyTorch, by their names: no literals of an expression.
        roles: what this project noted when it wrote the file.
        stopped: results of nodes behind which this project noted that gradients stop.
        origins: of those parameters, and of what was computed of one alone, that parameter's name in the module.
        absent: parameters of the module that the exporter left out of the file.
    """

    parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    roles: Roles = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A file.

    Attributes:
        opsets: domain to version; "" is ONNX's own domain.
        content: the bytes of the file.
        metadata: its texts by key.
        noted: what it says of its stored tensors.
        producer: what wrote it.
        inference: nodes of the file in training mode are those of inference mode here.
    """

    graph: GraphRecord
    opsets: Mapping[str, int]
    ir_version: int
    content: Content = field(repr=False)
    folder: str
    external: bool
    metadata: Mapping[str, str] = field(repr=False, default_factory=dict)
    noted: Noted = Noted()
    producer: str = ""
    inference: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A stored tensor with the data of another one.

    Attributes:
        of: the file's tensor.
        name: its own.
        reader: the first result of the node that reads it instead; empty: it stands for an Identity node's result.
        index: which operand it is.
    """

    of: str
    name: str
    reader: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """What saving needs of the file that a model came from.

    Attributes:
        content: its bytes.
        folder: where it lay.
        external: it has data in other files.
        stored: the data of its stored tensors by name, as they were read.
        tensors: those of the file, when it has data in other files: these may be gone when it is saved.
        metadata: its texts by key.
        copies: tensors that it has merged, see ``file.apart``.
        roles: of its stored tensors as they were read.
        noted: those that the file itself says.
        stopped: results behind which it says that gradients stop.
        freed: the fixed batch size that it has, where the model has a free one; else 0.
        repeated: the types that it has of tensors with a row for each sample, of which such a model stores one.
        partial: only some of its outputs were read.
        inference: nodes that it has in training mode were read, and are written, as those of inference mode.
        absent: parameters of the exporter's module that it lacks, see ``Model.source``.
    """

    content: Content = field(repr=False)
    folder: str
    external: bool
    stored: dict[str, Array] = field(repr=False)
    tensors: Mapping[str, Array] = field(repr=False)
    metadata: Mapping[str, str] = field(repr=False, default_factory=dict)
    copies: tuple[Copy, ...] = ()
    roles: Roles = field(default_factory=dict, repr=False)
    noted: Roles = field(default_factory=dict, repr=False)
    stopped: frozenset[str] = frozenset()
    freed: int = 0
    repeated: dict[str, TensorType] = field(default_factory=dict, repr=False)
    partial: bool = False
    inference: bool = False
    absent: tuple[str, ...] = ()
