"""A file's records -> Model: what is imported of them, and what saving needs of the file."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence

from dataflow import Graph, ops
from dataflow.errors import (
    Cancelled,
    DataflowError,
    InputError,
    LimitExceeded,
    ModelError,
    OutOfMemoryError,
    PluginError,
)
from dataflow.plugin import Converter, Model, default_registry, eliminate_dead_code

from .aliases import aliases_of
from .converters import Table
from .declared_outputs import warn_of_shapes
from .deferred import Anew, deferred_graph, specialized
from .file.apart import taken_apart
from .file.distinct import distinct
from .file.reader import read_bytes, read_file
from .file.records import GraphRecord, ModelRecord, NodeRecord, Source
from .file.trained_note import roles_of
from .free_batch import Freed, freed_of, repeated_types
from .free_check import check_free
from .importer import Importer
from .interpret.interpreter import FileInterpreter
from .operands import Undetermined
from .operators import STANDARD
from .tensor import Unsized

_log = logging.getLogger("dataflow")


@functools.lru_cache(maxsize=8)
def table_with(converters: tuple[Converter, ...]) -> Table:
    """The converters of ONNX's own operators, and those of plugins.

    Raises:
        PluginError: a plugin's is of an operator that has one.
    """
    return STANDARD.extended(converters) if converters else STANDARD


def installed_table() -> Table:
    """Those of the plugins that are installed, with which models of pickles are made for other sizes."""
    return table_with(default_registry().converters)


copyreg.pickle(Table, lambda table: (installed_table, ()))


def load_file(
    path: str,
    outputs: Sequence[str] | None = None,
    batch: str | None = None,
    mode: str | None = None,
    table: Table = STANDARD,
) -> Model:
    """The model in a file; the options as for ``load``."""
    if mode not in (None, "inference"):
        raise InputError(f"mode is {mode!r}; expected 'inference', or nothing")
    if batch not in (None, "free"):
        raise InputError(f"batch is {batch!r}; expected 'free', or nothing")
    with _named(path):
        return import_model(read_file(path, mode == "inference"), path, table, outputs, batch == "free")


def load_bytes(data: bytes, outputs: Sequence[str] | None = None, table: Table = STANDARD) -> Model:
    """The model in serialized form."""
    with _named("model"):
        return import_model(read_bytes(data), "model", table, outputs)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Turns whatever a file causes into a ModelError that names the file; errors of one node name the node already."""
    try:
        yield
    except ModelError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise ModelError(f"{path}: {error}") from error
    except (Cancelled, LimitExceeded, OutOfMemoryError, PluginError):
        raise
    except MemoryError as error:
        raise OutOfMemoryError(f"{path}: it can't be imported in the memory that there is: {error}") from error
    except RecursionError:
        raise ModelError(f"{path}: graphs, or what they are made of, are nested too deeply") from None
    except Exception as error:
        text = f"it can't be imported: {error}" if isinstance(error, DataflowError) else f"it is damaged: {error!r}"
        raise ModelError(f"{path}: {text}") from error


def import_model(
    record: ModelRecord, path: str, table: Table, outputs: Sequence[str] | None = None, free_batch: bool = False
) -> Model:
    """The model of a file's records.

    Raises:
        ModelError: operators are not known (all are listed), or a node doesn't fit.
    """
    freed = freed_of(record.graph, path) if free_batch else None
    try:
        return _imported(record, path, table, outputs, freed)
    except ModelError as error:
        if freed is None or freed.old < 2:
            raise
        try:  # stored tensors may have a row for each sample
            return _imported(record, path, table, outputs, dataclasses.replace(freed, constants=True))
        except ModelError:
            raise error from None


def _imported(
    record: ModelRecord, path: str, table: Table, outputs: Sequence[str] | None, freed: Freed | None
) -> Model:
    """As ``import_model``, with a batch size that is made free."""
    record, copies = taken_apart(record, path)
    record = distinct(record)
    nodes = _needed(record.graph, outputs, path) if outputs is not None else record.graph.nodes
    _refuse_unknown(record, nodes, path, table)
    names = outputs or record.graph.outputs
    importer = Importer(record, path, table, freed=freed)
    specialize = functools.partial(specialized, record, path, table, nodes, names, freed)
    graph = _graph(importer, nodes, names, specialize)
    if importer.inactive:
        _log.info(
            "%s: %d dropout nodes in training mode are inactive, first %s; Trainer(dropout=True) lets them drop, and "
            "mode='inference' (--mode inference) makes them inactive where other programs run a saved file",
            path, len(importer.inactive), importer.inactive[0],
        )  # fmt: skip
    stored = {value.name: data.array for value, data in graph.initializers.items()}
    kept = record.graph.initializers if record.external else {}
    roles = roles_of(graph)
    source = Source(
        record.content, record.folder, record.external, stored, kept, record.metadata, copies, roles,
        record.noted.roles, record.noted.stopped, freed.old if freed is not None else 0,
        repeated_types(freed, importer.tensors, stored), outputs is not None, record.inference,
        record.noted.absent,
    )  # fmt: skip
    aliases = aliases_of(record.graph.nodes, importer.stored_names())
    if importer.block_names:  # what was dequantized as a matrix is read no more
        graph = eliminate_dead_code(graph, extras=False)
        aliases |= {value.name: names for value, names in importer.block_names.items()}
    complete = not graph.has_open_sizes and not graph.has(ops.deferred)
    again = None if complete else specialize
    interpreter = None
    if again is not None and freed is None and _is_interpreted(record.graph, nodes):
        interpreter = FileInterpreter(record, path, table, nodes, names)
    model = Model(
        graph, aliases=aliases, source=source, specialize=again, interpreter=interpreter, metadata=record.metadata
    )
    for name in record.graph.maps.intersection(names) - model.maps.keys():
        raise ModelError(f"{path}: output {name!r} is a list of maps; expected one that a ZipMap gives")
    if freed is not None:
        check_free(model, import_model(record, path, table, outputs), freed, path)
    return model


def _is_interpreted(graph: GraphRecord, nodes: Sequence[NodeRecord]) -> bool:
    """Whether a file has loops that its data may decide about, and neither takes nor gives maps."""
    return not graph.maps and not graph.vocabularies and any(node.bodies for node in _with_bodies(nodes))


def _graph(importer: Importer, nodes: Sequence[NodeRecord], outputs: Sequence[str], specialize: Anew) -> Graph:
    """The graph for all inputs, or one that stands for those that are made for given ones.

    Raises:
        ModelError: a node doesn't fit.
    """
    record = importer.record
    defer = functools.partial(deferred_graph, importer, nodes, outputs, specialize)
    forms = record.graph.forms
    form = next((f"input {name!r} is a {forms[name]}" for name in record.graph.inputs if name in forms), None)
    if form is not None:
        importer.declare(record.graph)
        return defer(ModelError(form))
    try:
        importer.run(record.graph, nodes, outputs)
    except (Undetermined, Unsized) as error:
        return defer(error)
    except ModelError as error:  # what can't be said for all sizes, or is no graph for some, may be one for others
        if all(v.type.is_bound for v in importer.builder.inputs()):
            raise
        return defer(error, needs_example=True)
    if importer.freed is None:  # the sizes are the file's
        warn_of_shapes(importer.path, record.graph, outputs, importer.tensors)
    if importer.lengths:
        return defer(ModelError(f"output {next(iter(importer.lengths))!r} is no tensor"))
    return importer.finish()


def _needed(graph: GraphRecord, outputs: Sequence[str], path: str) -> tuple[NodeRecord, ...]:
    wanted = set(outputs)
    made = {name for node in graph.nodes for name in node.outputs}
    for name in outputs:
        if name not in made and name not in graph.inputs:
            raise ModelError(f"{path}: outputs: no value is called {name!r}")
    kept = []
    for node in reversed(graph.nodes):
        if wanted & set(node.outputs):
            kept.append(node)
            wanted |= set(node.reads())
    return tuple(reversed(kept))


def knows(record: ModelRecord, nodes: Sequence[NodeRecord], table: Table = STANDARD) -> bool:
    """Whether every operator of these nodes has a converter."""
    used = {(node.domain, node.op) for node in _with_bodies(nodes)}
    versions = record.opsets
    return all(domain in versions and table.find(domain, op, versions[domain]) is not None for domain, op in used)


def _refuse_unknown(record: ModelRecord, nodes: Sequence[NodeRecord], path: str, table: Table) -> None:
    """Lists every operator without a converter at once."""
    missing: dict[tuple[str, str], list[str]] = {}
    if knows(record, nodes, table):
        return
    for node in _with_bodies(nodes):
        version = record.opsets.get(node.domain)
        if version is None or table.find(node.domain, node.op, version) is None:
            missing.setdefault((node.domain, node.op), []).append(node.describe())
    if not missing:
        return
    lines = []
    for (domain, op), uses in missing.items():
        version = record.opsets.get(domain)
        where = f"opset {version}" if version is not None else "a domain that the file declares no opset for"
        if version is not None and (domain, op) in table.versions:
            where += f", which is converted from opset {table.versions[domain, op][0].since} on"
        lines.append(f"  {domain or 'ai.onnx'}.{op}, {where}: {len(uses)} nodes, first {uses[0]}")
    text = f"{path}: these operators are not known:\n" + "\n".join(lines)
    if any(domain.startswith("com.microsoft.") for domain, _ in missing):  # of layouts for one processor
        text += "\nonnxruntime made the file for itself; export the plain model instead"
    elif any(domain == "com.microsoft" for domain, _ in missing):
        text += (
            "\ncom.microsoft has onnxruntime's own operators; where it made them, as its optimizers do, load the plain "
            "model from before; a model that was written with them needs nodes of ONNX's own operators in their stead"
        )
    text += "\nA plugin can bring converters of operators (hook onnx_converters)"
    reachable = _importable(record, nodes, set(missing))
    if reachable:
        text += "\nWithout them these values can be imported with outputs=: " + ", ".join(map(repr, reachable[:8]))
    raise ModelError(text)


def _with_bodies(nodes: Sequence[NodeRecord]) -> Iterator[NodeRecord]:
    """Nodes and those of their bodies."""
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from _with_bodies(body.nodes)


def _importable(record: ModelRecord, nodes: Sequence[NodeRecord], missing: set[tuple[str, str]]) -> list[str]:
    """The last values that need none of the missing operators."""
    blocked: set[str] = set()
    reached: list[str] = []
    read: set[str] = set()
    for node in nodes:
        lacking = any((inner.domain, inner.op) in missing for inner in _with_bodies([node]))
        if lacking or blocked & set(node.reads()):
            blocked |= set(node.outputs)
        else:
            reached += [name for name in node.outputs if name]
            read |= set(node.reads())
    return [name for name in reached if name not in read]
