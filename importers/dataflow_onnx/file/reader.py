"""ONNX file -> records. Files are hostile until checked: sizes, offsets and names are checked before use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from dataflow import DType, TensorType
from dataflow.errors import ModelError
from dataflow.plugin import MOST_AXES

from . import trained_note
from .aligned import AlignedTensors
from .external import ExternalData
from .functions import inlined
from .inference_form import as_in_inference
from .map_inputs import with_vocabularies
from .node_order import sort_nodes
from .noted import noted, text_under
from .old_opsets import BEFORE_7, as_opset_7
from .records import Array, Content, GraphRecord, ModelRecord, NodeRecord, plain_domain
from .scopes import NOTED
from .sparse import SparseTensors, is_sparse_value
from .value_types import DTYPE_OF, ValueType, declared_type, form_of, form_of_output, type_in_body, type_of_input
from .wire import content_of, read_content

OLDEST_OPSET = 1
MAIN = "the main graph"
_TEXT = frozenset({str})

_PLAIN: Mapping[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.STRING: lambda a: a.s.decode("utf-8", "replace"),
    AttributeProto.INTS: lambda a: tuple(a.ints),
    AttributeProto.FLOATS: lambda a: tuple(a.floats),
    AttributeProto.STRINGS: lambda a: _texts(a.strings),
}


def _texts(given: Iterable[bytes]) -> tuple[str, ...]:
    """Decoded, each that is repeated, as the modes of a forest's nodes are, once."""
    texts = list(given)
    known = {text: text.decode("utf-8", "replace") for text in set(texts)}
    return tuple([known[text] for text in texts])


def read_file(path: str, inference: bool = False) -> ModelRecord:
    """The records of a file; with ``inference`` of its nodes as they are in inference mode.

    Raises:
        ModelError: it can't be read, or isn't a valid ONNX model; says where and what to do.
    """
    try:
        content = read_content(path)
    except (OSError, ValueError) as error:  # a name with a zero byte
        raise ModelError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    if not content.size:
        raise ModelError(f"{path}: the file is empty; expected an ONNX model")
    return _records(content, path, inference)


def read_bytes(data: bytes, path: str = "model") -> ModelRecord:
    """The records of a serialized model; ``path`` is for messages and says where external data lies."""
    return _records(content_of(data), path)


def _records(content: Content, path: str, inference: bool = False) -> ModelRecord:
    proto = onnx.ModelProto()
    large = content.large
    try:
        proto.ParseFromString(content.small)
        if large and proto.functions:  # they are replaced by their nodes, with all that the file has
            proto.ParseFromString(content.to_bytes())
            large = {}
    except DecodeError:
        raise ModelError(
            f"{path}: not an ONNX model, or cut short: its {content.size} bytes can't be decoded"
        ) from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"{path}: not an ONNX model: it has no graph or no opset; was the file cut short?")
    proto, reader = inlined(proto, path), _Reader(path)
    changed = inference and as_in_inference(proto) > 0
    opsets = {"com.microsoft": 1}  # which onnxruntime takes undeclared, as converters leave it
    opsets |= {reader.text("an opset's domain", plain_domain(o.domain)): int(o.version) for o in proto.opset_import}
    version = opsets.get("")
    if version is not None and version < OLDEST_OPSET:
        raise ModelError(f"{path}: opset {version}; expected {OLDEST_OPSET} or later")
    reader.aligned = AlignedTensors(len(content.small), len(proto.graph.initializer) + len(proto.graph.node))
    graph = with_vocabularies(reader.graph(proto.graph, MAIN, large), proto.graph)
    if version is not None and version < 7:
        graph = _modern(graph, version, path)
        opsets |= {"": 7, BEFORE_7: 1}
    folder, external = str(reader.external.folder), reader.external.used
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    producer = proto.producer_name if isinstance(proto.producer_name, str) else ""
    known = noted(graph, proto.graph, producer)
    note = metadata.pop(trained_note.KEY, "")
    if note:
        roles, stopped = trained_note.roles_in(note)
        known = dataclasses.replace(known, roles=roles, stopped=stopped)
    return ModelRecord(
        graph, opsets, int(proto.ir_version), content, folder, external, metadata, known, producer, changed
    )


def _modern(graph: GraphRecord, version: int, path: str) -> GraphRecord:
    try:
        return as_opset_7(graph, version)
    except ModelError as error:
        raise ModelError(f"{path}: opset {version}: {error}") from None


def make_dense(graph: GraphProto, folder: str) -> None:
    """Gives a graph of a file in ``folder`` dense tensors instead of sparse ones."""
    _Reader(str(Path(folder) / "model")).sparse.replace(graph)


def external_bytes(proto: TensorProto, folder: str) -> bytes:
    """The data of a tensor that lies in another file of ``folder``, checked as when a model is read."""
    reader = _Reader(str(Path(folder) / "model"))
    shape = tuple(int(d) for d in proto.dims)
    return reader.external_bytes(proto, DTYPE_OF[proto.data_type], shape, f"tensor {proto.name!r}").tobytes()


def _noted_scope(proto: NodeProto) -> str | None:
    """The exporter's note of the module that a node comes from."""
    notes = proto.metadata_props
    if len(notes) > 3 and notes[3].key == NOTED:  # its position in the exporter's; others are looked for
        return str(notes[3].value)
    return (text_under(NOTED, proto) or None) if notes else None


def _label(proto: NodeProto, index: int) -> str:
    """A node of the file as text for messages, before it is decoded."""
    return f"node {index} ({proto.op_type} {proto.name or (proto.output[0] if proto.output else '')!r})"


class _Attribute:
    """An attribute of a node, whose text is made when a message has it."""

    __slots__ = ("index", "node", "proto")

    def __init__(self, proto: AttributeProto, node: NodeProto, index: int) -> None:
        self.proto, self.node, self.index = proto, node, index

    def __str__(self) -> str:
        return f"{_label(self.node, self.index)}, attribute {self.proto.name!r}"


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.external = ExternalData(Path(path).resolve().parent)
        self.aligned = AlignedTensors(0, 0)
        self.sparse = SparseTensors(self.tensor)

    def fail(self, text: str) -> ModelError:
        return ModelError(f"{self.path}: {text}")

    def text(self, what: str, name: str) -> str:
        """A name; protobuf gives bytes where it is no UTF-8."""
        if type(name) is not str:
            raise self.fail(f"{what} is no text: {name!r:.200}; names are UTF-8")
        return name

    def name(self, what: str, name: str) -> str:
        """A name that isn't empty."""
        if not name:
            raise self.fail(f"{what} has no name")
        return self.text(f"the name of {what}", name)

    def graph(self, proto: GraphProto, where: str, large: Mapping[int, Array] = MappingProxyType({})) -> GraphRecord:
        """The records of a graph; ``large`` has the data of initializers that were left out, by their number."""
        initializers: dict[str, Array] = {}
        for index, tensor in enumerate(proto.initializer):
            name = tensor.name
            if type(name) is not str:
                self.text(f"the name of initializer {index} of {where}", name)
            if name in initializers:
                raise self.fail(f"{where} has two initializers called {name!r}")
            initializers[name] = self.tensor(tensor, f"initializer {name!r}", large.get(index))
        for index, sparse in enumerate(proto.sparse_initializer):
            name = self.name(f"sparse initializer {index} of {where}", sparse.values.name)
            if name in initializers:
                raise self.fail(f"{where} has two initializers called {name!r}")
            initializers[name] = self.dense(sparse, f"initializer {name!r}")
        nodes = tuple([self.node(node, index) for index, node in enumerate(proto.node)])
        nodes = sort_nodes(nodes) if where == MAIN else nodes  # a body may read a name before it defines its own
        inputs: dict[str, TensorType | None] = {}
        for index, value in enumerate(proto.input):
            if self.name(f"input {index} of {where}", value.name) in inputs:
                raise self.fail(f"{where} has two inputs called {value.name!r}")
            if value.name not in initializers:
                inputs[value.name] = self.type(value, where)
        outputs = tuple(self.name(f"output {i} of {where}", value.name) for i, value in enumerate(proto.output))
        if not outputs:
            raise self.fail(f"{where} has no outputs")
        if where == MAIN:  # one that is listed twice, as ONNX's checker lets it, is one result
            outputs = tuple(dict.fromkeys(outputs))
        declared = {value.name: type_ for value in proto.output if (type_ := declared_type(value)) is not None}
        forms = {value.name: form for value in proto.input if (form := form_of(value.type)) is not None}
        forms |= {value.name: form for value in proto.output if (form := form_of_output(value.type)) is not None}
        title = self.text(f"the name of {where}", proto.name)
        maps = frozenset(v.name for v in proto.output if v.type.sequence_type.elem_type.HasField("map_type"))
        record = GraphRecord(title, nodes, inputs, outputs, initializers, declared, forms, maps)
        self.check_order(record, where)
        return record

    def type(self, value: onnx.ValueInfoProto, where: str) -> TensorType | None:
        try:
            return type_in_body(value) if where != MAIN else type_of_input(value)
        except ModelError as error:
            raise self.fail(f"input {value.name!r} of {where} {error}") from None

    def node(self, proto: NodeProto, index: int) -> NodeRecord:
        op, domain, name = proto.op_type, proto.domain and plain_domain(proto.domain), proto.name
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        if not _TEXT.issuperset(map(type, (op, domain, name, *inputs, *outputs))):
            for text in (op, domain, name, *inputs, *outputs):
                self.text(f"a name of {_label(proto, index)}", text)
        attributes: dict[str, Any] = {}
        for given in proto.attribute:
            key, kind = given.name, given.type
            if type(key) is not str or key in attributes or given.ref_attr_name:
                self.refuse_attribute(given, proto, index)
            plain = _PLAIN.get(kind)
            if plain is None:
                attributes["value" if is_sparse_value(given) else key] = self.attribute(given, proto, index, kind)
            else:
                attributes[key] = plain(given)
        if not outputs:
            raise self.fail(f"{_label(proto, index)} has no outputs")
        return NodeRecord(op, domain, name, inputs, outputs, attributes, _noted_scope(proto))

    def refuse_attribute(self, proto: AttributeProto, node: NodeProto, index: int) -> None:
        label = _label(node, index)
        key = self.text(f"the name of an attribute of {label}", proto.name)
        if proto.ref_attr_name:
            raise self.fail(f"{label}: attribute {key!r} is that of a function around it, but there is none")
        raise self.fail(f"{label} has two attributes called {key!r}")

    def attribute(self, proto: AttributeProto, node: NodeProto, index: int, kind: int) -> Any:
        """A tensor, a graph or a type."""
        where = _Attribute(proto, node, index)
        if kind == AttributeProto.TENSOR:
            return self.tensor(proto.t, where)
        if is_sparse_value(proto):
            return self.dense(proto.sparse_tensor, where)
        if kind == AttributeProto.GRAPH:
            return self.graph(proto.g, f"the body in {where}")
        if kind == AttributeProto.TYPE_PROTO:
            return ValueType(form_of(proto.tp))
        raise self.fail(f"{where}: attributes of kind {kind} are not supported")

    # ---- tensors --------------------------------------------------------------------------------------

    def tensor(self, proto: TensorProto, where: object, left_out: Array | None = None) -> Array:
        """The data of a tensor; ``where`` it is, as text for messages."""
        if (dtype := DTYPE_OF.get(proto.data_type)) is None:
            raise self.fail(f"{where}: element type {proto.data_type} is not known")
        shape = tuple(proto.dims)
        count = math.prod(shape)
        if (shape and min(shape) < 0) or count >= 1 << 48:
            raise self.fail(f"{where}: shape {shape} can't be: a size is negative or the product overflows")
        if len(shape) > MOST_AXES:
            raise self.fail(f"{where} has {len(shape)} axes; at most {MOST_AXES} are supported")
        if dtype.kind == "s":
            strings = [s.decode("utf-8", "replace") for s in proto.string_data]
            return self.shaped(np.array(strings, object), shape, where)
        if proto.data_location == TensorProto.EXTERNAL:
            return self.shaped(self.decode(self.external_bytes(proto, dtype, shape, where), dtype), shape, where)
        if left_out is not None or proto.HasField("raw_data"):
            raw = proto.raw_data if left_out is None else left_out
            wanted = dtype.packed_nbytes(count)
            if len(raw) != wanted:
                raise self.fail(f"{where}: {dtype}{list(shape)} needs {wanted} bytes, the file has {len(raw)}")
            if type(raw) is bytes:
                raw = self.aligned.keep(raw)
            return self.shaped(self.decode(raw, dtype), shape, where)
        try:
            array = onnx.numpy_helper.to_array(proto)
        except Exception as error:  # whatever the decoder of typed fields finds wrong
            raise self.fail(f"{where}: its data can't be decoded as {dtype}{list(shape)}: {error}") from None
        return self.shaped(np.asarray(array).reshape(-1), shape, where)

    def dense(self, proto: Any, where: object) -> Array:
        """The data of a sparse tensor, with its zeros."""
        try:
            return self.sparse.dense(proto, where)
        except ModelError as error:
            raise error if str(error).startswith(f"{self.path}: ") else self.fail(str(error)) from None

    def decode(self, raw: bytes | Array, dtype: DType) -> Array:
        """The elements of little-endian, packed data."""
        if dtype.bits >= 8:
            return np.frombuffer(raw, dtype.numpy) if isinstance(raw, bytes) else raw.view(dtype.numpy)
        packed = np.frombuffer(raw, np.uint8)
        per = 8 // dtype.bits
        elements = [(packed >> (i * dtype.bits)) & ((1 << dtype.bits) - 1) for i in range(per)]
        flat = np.stack(elements, axis=-1).reshape(-1).astype(np.uint8)
        if dtype.kind == "i":
            sign = 1 << (dtype.bits - 1)
            return ((flat.astype(np.int8) ^ sign) - sign).astype(dtype.numpy)
        return flat.astype(dtype.numpy) if dtype.kind == "u" else flat.view(dtype.numpy)

    def shaped(self, flat: Array, shape: tuple[int, ...], where: object) -> Array:
        count = math.prod(shape)
        if flat.size < count:
            raise self.fail(f"{where}: shape {shape} has {count} elements, the data has {flat.size}")
        return (flat if flat.size == count else flat[:count]).reshape(shape)

    def external_bytes(self, proto: TensorProto, dtype: DType, shape: tuple[int, ...], where: object) -> Array:
        """The bytes of a tensor that lies in another file of the model's folder."""
        entries = {entry.key: entry.value for entry in proto.external_data}
        try:
            return self.external.bytes(entries, dtype.packed_nbytes(math.prod(shape)))
        except ModelError as error:
            raise self.fail(f"{where}: {dtype}{list(shape)}: {error}") from None

    # ---- order ----------------------------------------------------------------------------------------

    def check_order(self, graph: GraphRecord, where: str) -> None:
        """Refuses names that are defined twice, or read before they are defined or never."""
        known = {*graph.inputs, *graph.initializers}
        made = {name for node in graph.nodes for name in node.outputs if name}
        for node in graph.nodes:
            for name in node.inputs if where == MAIN else ():  # a body reads names of the graph around it too
                if name and name not in known:
                    if name in made:
                        raise self.fail(f"{node.describe()} reads {name!r} before it is computed: there is a cycle")
                    raise self.fail(f"{node.describe()} reads {name!r}, which nothing defines")
            for name in node.outputs:
                if name and name in known:
                    raise self.fail(f"{node.describe()} defines {name!r}, which is defined already")
                known.add(name)
        for name in graph.outputs if where == MAIN else ():
            if name not in known:
                raise self.fail(f"output {name!r} is computed by no node")
