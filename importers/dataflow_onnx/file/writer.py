"""Model -> ONNX file. An imported model is patched: what did not change keeps its bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto

from dataflow import Dim, TensorType
from dataflow.errors import InputError, ModelError
from dataflow.plugin import Edited, Exporter, Model

from .anew import changed_proto, freed_proto, graph_proto
from .apart import take_apart
from .distinct import stored_in_bodies
from .edited import NotInFile, apply_edits, names_after
from .functions import inlined
from .inference_form import as_in_inference
from .new_data import fill, raw_bytes, tensor_of, type_of
from .reader import external_bytes, make_dense, read_bytes
from .records import Array, ModelRecord, Source
from .saving import is_external, same_array, tensors, write_file, write_model
from .subgraph import keep_subgraph
from .trained_note import is_changed, note_of, with_note
from .value_types import CODE_OF

_log = logging.getLogger("dataflow")


def save_file(
    model: Model,
    path: str,
    *,
    exporters: Mapping[str, Exporter],
    overwrite: bool = False,
    opset: int | None = None,
    ir_version: int | None = None,
    inputs: Mapping[str, TensorType] | None = None,
    outputs: Sequence[str] | Literal["all"] | None = None,
) -> None:
    """Writes ``model`` and reads it back; the file appears whole or not at all.

    Args:
        model: imported, or built by hand from ops that ONNX can express.
        path: of the file.
        exporters: by name of the op what plugins write theirs as.
        overwrite: replaces a file that exists.
        opset: of a model built by hand; the lowest that can express it by default.
        ir_version: of a model built by hand; the lowest that fits by default.
        inputs: of an imported model: values that need not be computed; with ``outputs``, see ``keep_subgraph``.
        outputs: of an imported model: only what computes these values is written, or all values are outputs.

    Raises:
        InputError: the file exists, or can't be written; there is no such value.
        ModelError: an op has no ONNX form.
    """
    target = Path(path)
    if _exists(target) and not overwrite:
        raise InputError(f"{path}: exists already; give overwrite=True (--force) to replace it")
    source = source_of(model)
    reduced = inputs is not None or outputs is not None
    written = freed_proto(model, source, exporters, opset, ir_version, path, reduced)
    changed = None
    if written is None and source is not None and opset is None and ir_version is None:
        try:
            changed = patched(model, source)
        except NotInFile as error:
            written = changed_proto(model, source, exporters, path, reduced, error)
    arrays = model.arrays()
    if written is None and source is not None:
        arrays = _arrays(model, source, arrays)
    if written is not None:
        proto, source = written, None
    elif source is None:
        if reduced:
            raise InputError(
                "inputs= and outputs= are for imported models; of one built by hand, save the subgraph as a model"
            )
        proto = graph_proto(model, exporters, opset, ir_version)
    elif opset is not None or ir_version is not None:
        raise InputError("opset= and ir_version= are for models built by hand; an imported model keeps its own")
    else:
        same = model.metadata == source.metadata and not is_changed(model, source) and not source.inference
        if changed is None and not reduced and same and _copied(source, target):
            return
        proto = changed if changed is not None else _parsed(source)
        if reduced:
            chosen = [v.name for v in proto.graph.output] if outputs is None else outputs
            keep_subgraph(proto, inputs or {}, None if chosen == "all" else chosen)

    note = note_of(model, source, proto.graph)
    _describe(proto, with_note(model.metadata, note))

    def data_of(tensor: TensorProto, initializer: bool) -> bytes:
        assert source is not None  # only an imported model begins with data in other files
        array = arrays.get(tensor.name, source.tensors.get(tensor.name)) if initializer else None
        return external_bytes(tensor, source.folder) if array is None else raw_bytes(array)

    def check(data: bytes) -> Mapping[str, Array]:
        if source is None and not any(map(is_external, tensors(proto.graph))):
            try:
                onnx.checker.check_model(data)  # which looks for data files in the working directory
            except (onnx.checker.ValidationError, ValueError) as error:
                raise ModelError(f"{path}: what would be written is no valid ONNX model: {error}") from None
        record = read_bytes(data, str(target))
        if source is not None and _is_reshaped(model, source):
            _check_outputs(record, model, path)
        return record.graph.initializers

    write_model(proto, target, data_of, check, arrays)


def _is_reshaped(model: Model, source: Source) -> bool:
    """Whether a stored tensor has another shape than in the file that the model came from."""
    stored = _stored(model, source)
    return any(v.name in stored and stored[v.name].shape != v.type.sizes for v in model.graph.initializers)


def _check_outputs(record: ModelRecord, model: Model, path: str) -> None:
    """Reads a file with other sizes as a model: numbers in its nodes may be made for those before.

    Raises:
        ModelError: it can't be read, or its outputs have other shapes than the model's.
    """
    from ..loading import import_model, knows
    from ..operators import STANDARD

    if not knows(record, record.graph.nodes):
        return
    text = "what would be written doesn't fit the model's new sizes, since numbers in its nodes are made for the old"
    try:
        found = import_model(record, path, STANDARD).outputs
    except ModelError as error:
        raise ModelError(f"{path}: {text}: {error}") from None
    for name, type_ in model.outputs.items():
        if name in found and found[name].shape != type_.shape:
            raise ModelError(f"{path}: {text}: output {name!r} would be {found[name]} instead of {type_}")


def _describe(proto: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    """Gives a file's model this metadata; what it has already stays where it is.

    Raises:
        InputError: a key or value is no text.
    """
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InputError(f"metadata: {key!r} is {text!r}; expected a text, e.g. of json.dumps")
    held = {entry.key: entry.value for entry in proto.metadata_props}
    if held == metadata:
        return
    left = dict(metadata)
    kept = [(key, left.pop(key)) for key in held if key in left]
    del proto.metadata_props[:]
    for key, text in [*kept, *left.items()]:
        proto.metadata_props.add(key=key, value=text)


def _exists(target: Path) -> bool:
    """Whether there is such a file.

    Raises:
        InputError: there can't be one.
    """
    try:
        target.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a name too long, or with a zero byte
        raise InputError(f"{target}: cannot be written: {getattr(error, 'strerror', error)}") from None
    return True


def _copied(source: Source, target: Path) -> bool:
    """Writes an unchanged model with every byte it had; False where its data files would replace others."""
    locations = set()
    if source.external:
        proto = onnx.ModelProto.FromString(source.content.to_bytes())
        entries = [{e.key: e.value for e in t.external_data} for t in tensors(proto.graph) if is_external(t)]
        locations = {entry["location"] for entry in entries}
    for location in locations:
        old, new = Path(source.folder) / location, target.parent / location
        if not old.is_file() or (new.exists() and not new.samefile(old)) or not new.parent.is_dir():
            return False
    # Its data files still hold what they must.
    read_bytes(source.content.to_bytes(), str(Path(source.folder) / target.name))
    made: list[Path] = []
    try:
        for location in locations:
            old, new = Path(source.folder) / location, target.parent / location
            if not new.exists():
                with old.open("rb") as file:
                    made.append(write_file(new, iter(lambda: file.read(1 << 24), b"")))
        write_file(target, source.content.chunks)
    except BaseException:
        for new in made:
            new.unlink(missing_ok=True)
        raise
    return True


def source_of(model: Model) -> Source | None:
    """The file that a model came from, changed or not."""
    source = model.source.source if isinstance(model.source, Edited) else model.source
    return source if isinstance(source, Source) else None


def _stored(model: Model, source: Source) -> Mapping[str, Array]:
    """The file's stored tensors by the names that the model has for them."""
    return names_after(source.stored, model.source) if isinstance(model.source, Edited) else source.stored


def patched(model: Model, source: Source) -> onnx.ModelProto | None:
    """The file's model as it is now, or None when nothing changed; large tensors stay in their files."""
    graph_types = {value.name: value.type for value in model.graph.initializers}
    edits = model.source if isinstance(model.source, Edited) else None
    stored = _stored(model, source)
    added = frozenset[str]() if edits is None else edits.added & graph_types.keys()
    now = model.arrays()
    arrays = {n: array for n, array in _arrays(model, source, now).items() if n in stored or n in added}
    changed = {n for n in arrays if n in stored and not same_array(now[n], stored[n])} | added
    if not changed and edits is None:
        return None
    proto = _parsed(source)
    if source.copies:
        proto = take_apart(proto, source.copies)
    if edits is not None:
        proto = apply_edits(proto, model.graph, edits)
    left = set(changed)
    for tensor in proto.graph.initializer:
        if tensor.name in left:
            fill(tensor, arrays[tensor.name])
            left.discard(tensor.name)
    _fill_bodies(proto.graph, left, arrays)
    if left:
        if proto.functions and not left <= {name for node in proto.graph.node for name in node.output}:
            proto = inlined(proto, "the model")  # a function may be called twice: its constants differ now
            _fill_bodies(proto.graph, left, arrays)
        _replace_nodes(proto, left, arrays)
    for value in proto.graph.input:  # before IR 4 stored tensors are inputs too
        if value.name in changed:
            _set_shape(value, graph_types[value.name])
    _patch_types(proto, model)
    return proto


def _parsed(source: Source) -> onnx.ModelProto:
    """The file's model, with dense tensors alone; in inference mode where it was read so."""
    proto: onnx.ModelProto = onnx.ModelProto.FromString(source.content.to_bytes())
    if source.inference:
        proto = inlined(proto, "the model")
        as_in_inference(proto)
    make_dense(proto.graph, source.folder)
    return proto


def _arrays(model: Model, source: Source, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """A model's data as the file has them: of what has a row for each sample, every row."""
    types = names_after(source.repeated, model.source) if isinstance(model.source, Edited) else source.repeated
    return dict(arrays) | {n: np.broadcast_to(arrays[n], t.sizes) for n, t in types.items() if n in arrays}


def _fill_bodies(graph: onnx.GraphProto, names: set[str], arrays: Mapping[str, Array]) -> None:
    """Gives stored tensors of bodies new data, and takes their names out of ``names``."""
    for tensor, name in stored_in_bodies(graph) if names else ():
        if name in names:
            tensor.CopyFrom(tensor_of(tensor.name, arrays[name]))
            names.discard(name)


def _replace_nodes(proto: onnx.ModelProto, names: set[str], arrays: Mapping[str, Array]) -> None:
    """Stored tensors that nodes made (Constant, ConstantOfShape) become initializers."""
    for index in range(len(proto.graph.node) - 1, -1, -1):
        node = proto.graph.node[index]
        if len(node.output) == 1 and node.output[0] in names:
            name = node.output[0]
            del proto.graph.node[index]
            proto.graph.initializer.append(tensor_of(name, arrays[name]))
            if proto.ir_version < 4:
                code = CODE_OF[type_of(arrays[name]).dtype]
                proto.graph.input.append(onnx.helper.make_tensor_value_info(name, code, arrays[name].shape))
            names = names - {name}
    names = _fill_attributes(proto.graph, names, arrays) if names else names
    if names:
        raise ModelError(f"the file holds no tensor {sorted(names)[0]!r} any more; load it again and repeat the change")


def _fill_attributes(graph: onnx.GraphProto, names: set[str], arrays: Mapping[str, Array]) -> set[str]:
    """Gives attributes of floats, called ``OUTPUT.ATTRIBUTE``, new data; the names that are none."""
    left = set(names)
    for node in graph.node:
        for attribute in node.attribute:
            name = f"{node.output[0] if node.output else None}.{attribute.name}"
            if name in left and attribute.type == onnx.AttributeProto.FLOATS:
                attribute.floats[:] = arrays[name].ravel().tolist()
                left.discard(name)
    return left


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
