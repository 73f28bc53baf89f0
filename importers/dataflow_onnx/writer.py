"""Model -> ONNX file. An imported model is patched: what did not change keeps its bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from dataflow.errors import InputError, ModelError
from dataflow.model import Model
from dataflow.types import Dim, TensorType

from .importing import Source
from .reader import CODE_OF, read_bytes
from .records import Array

LARGEST = (1 << 31) - (1 << 20)  # bytes that one protobuf message may have, with room for the rest
DATA_SUFFIX = ".data"


def save_file(
    model: Model, path: str, *, overwrite: bool = False, opset: int | None = None, ir_version: int | None = None
) -> None:
    """Writes ``model`` and reads it back; the file appears whole or not at all.

    Args:
        model: imported, or built by hand from ops that ONNX can express.
        path: of the file.
        overwrite: replaces a file that exists.
        opset: of a model built by hand; the lowest that can express it by default.
        ir_version: of a model built by hand; the lowest that fits by default.

    Raises:
        InputError: the file exists, or can't be written.
        ModelError: an op has no ONNX form.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise InputError(f"{path}: exists already; give overwrite=True (--force) to replace it")
    if isinstance(model.source, Source):
        if opset is not None or ir_version is not None:
            raise InputError("opset= and ir_version= are for models built by hand; an imported model keeps its own")
        proto = patched(model, model.source)
        external = model.source.external
        if proto is None:
            _write(target, model.source.data)
            return
    else:
        from .building import build_proto

        proto, external = build_proto(model, opset, ir_version), False
    _save_proto(proto, target, external or proto.ByteSize() > LARGEST)


def patched(model: Model, source: Source) -> onnx.ModelProto | None:
    """The file's model with the newest data, or None when nothing changed."""
    graph_types = {value.name: value.type for value in model.graph.initializers}
    arrays = {name: array for name, array in model.arrays().items() if name in source.types}
    changed = {n for n in model.newest_names() if n in source.types}
    changed |= {name for name, type_ in source.types.items() if graph_types.get(name, type_) != type_}
    if not changed:
        return None
    proto = onnx.ModelProto()
    proto.ParseFromString(source.data)
    left = set(changed)
    for tensor in proto.graph.initializer:
        if tensor.name in left:
            tensor.CopyFrom(_tensor(tensor.name, arrays[tensor.name]))
            left.discard(tensor.name)
    if left:
        _replace_nodes(proto, left, arrays)
    for value in proto.graph.input:  # before IR 4 stored tensors are inputs too
        if value.name in changed:
            _set_shape(value, graph_types[value.name])
    _patch_types(proto, model)
    return proto


def _replace_nodes(proto: onnx.ModelProto, names: set[str], arrays: dict[str, Array]) -> None:
    """Stored tensors that nodes made (Constant, ConstantOfShape) become initializers."""
    for index in range(len(proto.graph.node) - 1, -1, -1):
        node = proto.graph.node[index]
        if len(node.output) == 1 and node.output[0] in names:
            name = node.output[0]
            del proto.graph.node[index]
            proto.graph.initializer.append(_tensor(name, arrays[name]))
            if proto.ir_version < 4:
                code = CODE_OF[_type(arrays[name]).dtype]
                proto.graph.input.append(onnx.helper.make_tensor_value_info(name, code, arrays[name].shape))
            names = names - {name}
    if names:
        raise ModelError(f"the file holds no tensor {sorted(names)[0]!r} any more; load it again and repeat the change")


def _patch_types(proto: onnx.ModelProto, model: Model) -> None:
    """Declared shapes of outputs and inner values that differ from the graph's."""
    types = {value.name: value.type for value in model.graph.values()} | dict(model.outputs)
    for value in (*proto.graph.output, *proto.graph.value_info):
        type_ = types.get(value.name)
        if type_ is not None and value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            differs = len(dims) != type_.rank or any(
                dim.HasField("dim_value") and not isinstance(size, Dim) and dim.dim_value != size
                for dim, size in zip(dims, type_.shape, strict=False)
            )
            if differs:
                _set_shape(value, type_)


def _set_shape(value: onnx.ValueInfoProto, type_: TensorType) -> None:
    del value.type.tensor_type.shape.dim[:]
    for size in type_.shape:
        dim = value.type.tensor_type.shape.dim.add()
        if isinstance(size, Dim):
            dim.dim_param = str(size)
        else:
            dim.dim_value = int(size)


def _type(array: Array) -> TensorType:
    from dataflow.types import dtype

    return TensorType(dtype(array), array.shape)


def _tensor(name: str, array: Array) -> TensorProto:
    """A stored tensor with raw, little-endian, packed data."""
    dtype = _type(array).dtype
    proto = TensorProto(name=name, data_type=CODE_OF[dtype], dims=array.shape)
    if dtype.bits < 8:
        per = 8 // dtype.bits
        flat = array.reshape(-1).astype(np.int8).view(np.uint8) & ((1 << dtype.bits) - 1)
        flat = np.pad(flat, (0, -len(flat) % per)).reshape(-1, per)
        packed = np.zeros(len(flat), np.uint8)
        for index in range(per):
            packed |= flat[:, index] << (index * dtype.bits)
        proto.raw_data = packed.tobytes()
    else:
        little = array.dtype.newbyteorder("<") if array.dtype.kind != "V" else array.dtype
        proto.raw_data = np.ascontiguousarray(array).astype(little, copy=False).tobytes()
    return proto


# ---- files ------------------------------------------------------------------------------------------------


def _save_proto(proto: onnx.ModelProto, target: Path, external: bool) -> None:
    """Checks and writes the model; with ``external``, large tensors go to a file beside it."""
    if not external:
        data = proto.SerializeToString()
        read_bytes(data, str(target))  # what is written can be read
        _write(target, data)
        return
    beside = target.with_name(target.name + DATA_SUFFIX)
    blob = bytearray()
    for tensor in proto.graph.initializer:
        raw = tensor.raw_data
        if len(raw) < 1024:
            continue
        blob.extend(b"\0" * (-len(blob) % 4096))
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        tensor.data_location = TensorProto.EXTERNAL
        for key, entry in (("location", beside.name), ("offset", str(len(blob))), ("length", str(len(raw)))):
            tensor.external_data.add(key=key, value=entry)
        blob.extend(raw)
    _write(beside, bytes(blob))
    _write(target, proto.SerializeToString())


def _write(target: Path, data: bytes) -> None:
    """Writes a file in one step: under another name, then in place of the target.

    Raises:
        InputError: it can't be written; nothing is left behind.
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}; is the disk full?") from None
    finally:
        Path(name).unlink(missing_ok=True)
