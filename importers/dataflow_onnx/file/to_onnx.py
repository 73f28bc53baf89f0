"""Graph -> ONNX nodes, for models built by hand, in the lowest opset from 17 that can express them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from dataflow import Dim, DType, Graph, Node, Value
from dataflow.errors import ModelError, blamed
from dataflow.plugin import Exporter, Model

from .forms import FORMS
from .forms.smaller import EXTRA
from .in_operators import in_operators, plain_outputs, values_read
from .size_nodes import computed
from .value_types import CODE_OF

LOWEST_OPSET = 17
IR_VERSION = 8  # of opset 17; newer opsets ask for more, see IR_OF
IR_OF = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13}
_OPSET_OF_DTYPE = {  # in which operators that move elements take them too
    "float8_e4m3fn": 21, "float8_e4m3fnuz": 21, "float8_e5m2": 21, "float8_e5m2fnuz": 21, "int4": 21, "uint4": 21,
    "float4_e2m1fn": 23, "float8_e8m0fnu": 24, "int2": 25, "uint2": 25,
}  # fmt: skip


def build_proto(model: Model, exporters: Mapping[str, Exporter], opset: int | None, ir_version: int | None) -> Any:
    """The ONNX model of a graph built by hand.

    Args:
        model: with the graph.
        exporters: by name of the op, of those that plugins brought.
        opset: of the file; None: the lowest that can express it.
        ir_version: of the file; None: that of the opset.

    Raises:
        ModelError: an op has no ONNX form, or not in this opset.
    """
    graph = in_operators(model.graph, exporters)
    writer = _Writer(graph, exporters)
    nodes = writer.nodes()
    needed = max(writer.opset, LOWEST_OPSET)
    if opset is not None and opset < needed:
        raise ModelError(f"opset={opset}: the model needs {needed}")
    chosen = opset or needed
    arrays = model.arrays()
    made = {v.name: data.array for v, data in graph.initializers.items() if v.name not in arrays}
    read = writer.names_read() | {v.name for v in graph.outputs.values()}
    stored = [_tensor(name, array) for name, array in {**arrays, **made}.items() if name in read]
    proto = onnx.helper.make_graph(
        nodes,
        graph.name or "graph",
        [writer.info(v.name, v) for v in graph.inputs],
        [writer.info(name, v) for name, v in graph.outputs.items()],
        [*stored, *writer.constants],
    )
    version = ir_version or IR_OF.get(chosen, IR_VERSION)
    opsets = [onnx.helper.make_opsetid(*pair) for pair in [("", chosen), *writer.domains.items()]]
    return onnx.helper.make_model(proto, opset_imports=opsets, ir_version=version, producer_name="dataflow")


def nodes_of(graph: Graph, nodes: Sequence[Node], opset: int, taken: Collection[str]) -> tuple[list[Any], list[Any]]:
    """Some nodes of a graph as ONNX nodes, with the tensors that these read beside the graph's values.

    Args:
        graph: has the nodes.
        nodes: in order.
        opset: that they are written for.
        taken: names that no tensor made here may have.

    Raises:
        ModelError: an op has no ONNX form, or only in a later opset.
    """
    writer = _Writer(graph, {})
    writer.taken |= set(taken)
    writer.note_sizes(list(graph.values()))
    for node in nodes:
        writer.checked(node)
    if writer.opset > max(opset, LOWEST_OPSET):
        raise ModelError(f"the file has opset {opset}; what was added needs {writer.opset}")
    return writer.protos, writer.constants


class _Writer:
    """The operators and tensors of a graph, or of a body within one; see ``forms.writer.Writer``."""

    def __init__(self, graph: Graph, exporters: Mapping[str, Exporter], outer: _Writer | None = None) -> None:
        self.graph, self.exporters = graph, exporters
        self.outer = outer
        self.domains: dict[str, int] = {} if outer is None else outer.domains  # versions beside ONNX's own
        self.opset = LOWEST_OPSET
        self.constants: list[Any] = []
        self.protos: list[Any] = []
        self.taken: set[str] = set() if outer is None else outer.taken
        self.named: dict[Value, str] = {}  # of a body, whose values may be called as others outside; of others, changed
        if outer is None:
            self.taken |= {value.name for value in graph.values()} | set(graph.outputs)
        self.size_tensors: dict[Any, str] = {}  # of named sizes that a node reads, one element each
        self.axes: dict[Any, tuple[str, int]] = {}  # where a named size can be read: value and axis
        self._reads = values_read(graph)
        self._at = ""  # the result of the node that is being written

    def nodes(self) -> list[Any]:
        """The nodes in order; outputs under their own names at the end.

        Raises:
            ModelError: an op has no ONNX form, with its attributes and sizes.
        """
        newest = (_OPSET_OF_DTYPE.get(value.type.dtype.name, 0) for value in self.graph.values())
        self.need(max(newest, default=0))
        for value in self.graph.producers() if self.outer is None else ():
            if self.graph.outputs.get(value.name, value) is not value:  # another value is the output of this name
                self.named[value] = self.unique(value.name)
        self.note_sizes(self.graph.inputs)
        for node in self.graph.nodes:
            self.checked(node)
            self.note_sizes([value for value in node.outputs[: len(plain_outputs(node))] if value is not None])
        for name, value in self.graph.outputs.items() if self.outer is None else ():
            if name != value.name:
                self.add("Identity", [self.name(value)], [name])
        return self.protos

    def checked(self, node: Node) -> None:
        """Adds what a node is written as.

        Raises:
            ModelError: it has no ONNX form.
        """
        name = node.op.name
        self._at = next((self.name(v) for v in node.outputs if v is not None), node.name)
        try:
            extra = [v for v in node.outputs[len(plain_outputs(node)) :] if v is not None and self.reads(v)]
            if extra and name not in EXTRA:
                raise ModelError(f"its extra result {extra[0].name!r} has no ONNX form")
            if name in FORMS:
                FORMS[name](self, node)
            elif name in self.exporters:
                self.exported(node, self.exporters[name])
            else:
                raise ModelError(
                    "this op has no ONNX form; save only what inference needs, or offer one by the hook onnx_exporters "
                    "if it is an op of yours"
                )
        except ModelError as error:
            raise ModelError(f"{node.describe()}: {error}") from None
        except Exception as error:  # whatever onnx makes of an attribute
            raise ModelError(f"{node.describe()}: it has no ONNX form with these attributes: {error}") from error

    def exported(self, node: Node, exporter: Exporter) -> None:
        """Adds the operator that a plugin writes its op as."""
        own = {key: value for key, value in node.attributes.items() if value is not None}
        given: Any = own
        if exporter.attributes is not None:
            with blamed(f"attributes of the exporter of {node.op.name!r}"):
                given = exporter.attributes(node)
            if not isinstance(given, Mapping):
                raise ModelError(f"attributes of the exporter of {node.op.name!r} gave {given!r}; expected a dict")
        attributes = {key: CODE_OF[value] if isinstance(value, DType) else value for key, value in given.items()}
        outputs = [self.name(v) for v in node.outputs]
        proto = onnx.helper.make_node(exporter.operator, self.inputs(node), outputs, node.name)
        proto.domain = self.domain(exporter.domain, exporter.version)
        proto.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in attributes.items())
        self.protos.append(proto)

    # ---- what forms write to --------------------------------------------------------------------------

    def need(self, opset: int) -> None:
        self.opset = max(self.opset, opset)
        if self.outer is not None:
            self.outer.need(opset)

    def domain(self, name: str, version: int) -> str:
        """The name, of a domain whose version is written to the file.

        Raises:
            ModelError: another operator needs another version.
        """
        if name in ("", "ai.onnx"):
            self.need(version)
            return ""
        if self.domains.setdefault(name, version) != version:
            raise ModelError(
                f"version {version} of {name} is needed, and version {self.domains[name]} for another node"
            )
        return name

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> None:
        given = list(inputs)
        while given and not given[-1]:  # what is left out at the end; not all readers take an empty name there
            given.pop()
        self.protos.append(onnx.helper.make_node(kind, given, outputs, name=name, **attributes))

    def made(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        found = self.unique(f"{self._at}.{kind.lower()}")
        self.add(kind, inputs, [found], **attributes)
        return found

    def name(self, value: Value | None) -> str:
        if value is None:
            return ""
        if self.outer is None:
            return self.named.get(value, value.name)
        if value not in self.named:
            self.named[value] = self.unique(f"{self.graph.name}/{value.name}")
        return self.named[value]

    def inputs(self, node: Node) -> list[str]:
        return [self.name(v) for v in node.inputs]

    def outputs(self, node: Node) -> list[str]:
        return [self.name(v) for v in node.outputs if v is not None][: len(plain_outputs(node))]

    def reads(self, value: Value | None) -> bool:
        return value in self._reads

    def stored(self, array: Any) -> str:
        made = self.unique(f"{self._at}.constant")
        self.constants.append(_tensor(made, array))
        return made

    def tensor(self, array: Any) -> Any:
        return _tensor("", array)

    def ints(self, values: Sequence[int] | range) -> str:
        return self.stored(np.asarray(list(values), np.int64))

    def sizes(self, sizes: Sequence[Any]) -> str:
        """Numbers and named sizes as a tensor: stored, or joined by a node.

        Raises:
            ModelError: a named size is the size of no value.
        """
        if not any(isinstance(n, Dim) for n in sizes):
            return self.ints(sizes)
        return self.made("Concat", [*map(self.size, sizes)], axis=0)

    def body(
        self,
        graph: Graph,
        given: Mapping[Value, str],
        fixed: Sequence[Value],
        outputs: Sequence[Value],
        counted: bool = False,
    ) -> Any:
        """A subgraph.

        Args:
            graph: the body.
            given: the names outside of values of the body.
            fixed: the subgraph's own inputs.
            outputs: its results.
            counted: of a loop: behind what it carries stands a number, to which each iteration adds 1.
        """
        inner = _Writer(graph, self.exporters, self)
        inner.named.update(given)
        inputs = [inner.info(inner.name(v), v) for v in fixed]
        inner.axes, inner.size_tensors = dict(self.axes), dict(self.size_tensors)
        inner.note_sizes(fixed)
        inner.constants += [_tensor(inner.name(v), data.array) for v, data in graph.initializers.items()]
        inner.nodes()
        results = []
        for value in outputs:
            name = self.unique(f"{graph.name}/result")
            inner.add("Identity", [inner.name(value)], [name])
            results.append(inner.info(name, value))
        if counted:
            number = onnx.helper.make_tensor_value_info(self.unique("count"), onnx.TensorProto.INT64, [])
            after = onnx.helper.make_tensor_value_info(self.unique("count"), onnx.TensorProto.INT64, [])
            inner.add("Add", [number.name, inner.stored(np.int64(1))], [after.name])
            inputs.append(number)
            results.insert(len(fixed) - 1, after)
        return onnx.helper.make_graph(inner.protos, self.unique(graph.name or "body"), inputs, results, inner.constants)

    # ---- sizes and names ------------------------------------------------------------------------------

    def note_sizes(self, values: Sequence[Value]) -> None:
        """Records which values named sizes can be read from."""
        for value in values:
            for axis, size in enumerate(value.type.shape):
                if isinstance(size, Dim):
                    self.axes.setdefault(size, (self.name(value), axis))

    def size(self, size: Any) -> str:
        """A size as a tensor of one element: read off a value, or computed of such."""
        if not isinstance(size, Dim):
            return self.ints([size])
        if size not in self.size_tensors and size not in self.axes:
            if str(size) in size.names:
                raise ModelError(f"the size {size} is that of no value before it, which ONNX could read it from")
            self.size_tensors[size] = computed(self, size)
        if size not in self.size_tensors:
            value, axis = self.axes[size]
            self.size_tensors[size] = self.unique(f"{value}.size{axis}")
            self.add("Shape", [value], [self.size_tensors[size]], start=axis, end=axis + 1)
        return self.size_tensors[size]

    def unique(self, name: str) -> str:
        """A name that is not yet used."""
        count, made = 0, name
        while made in self.taken:
            count += 1
            made = f"{name}.{count}"
        self.taken.add(made)
        return made

    def names_read(self) -> set[str]:
        """What the operators read, those of subgraphs too."""
        found: set[str] = set()
        protos = list(self.protos)
        while protos:
            proto = protos.pop()
            found.update(proto.input)
            for attribute in proto.attribute:
                protos += attribute.g.node
        return found

    @staticmethod
    def info(name: str, value: Value) -> Any:
        shape = [str(d) if isinstance(d, Dim) else d for d in value.type.shape]
        return onnx.helper.make_tensor_value_info(name, CODE_OF[value.type.dtype], shape)


def _tensor(name: str, array: Any) -> Any:
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)
