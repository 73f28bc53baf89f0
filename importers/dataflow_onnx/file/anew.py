"""Models of files that are written whole from their graph, as those built by hand, since the file can't be kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dataflow.errors import InputError, ModelError
from dataflow.plugin import Edited, Exporter, Model, in_file

from .edited import NotInFile
from .records import Source
from .to_onnx import build_proto

_log = logging.getLogger("dataflow")


def graph_proto(
    model: Model, exporters: Mapping[str, Exporter], opset: int | None = None, ir_version: int | None = None
) -> Any:
    """The ONNX model of a model's graph, with the nodes that a file is to have; see ``build_proto``."""
    _, graph = in_file(model.source, model.graph_with_data())
    return build_proto(Model(graph, metadata=model.metadata), exporters, opset, ir_version)


def freed_proto(
    model: Model,
    source: Source | None,
    exporters: Mapping[str, Exporter],
    opset: int | None,
    ir_version: int | None,
    path: str,
    reduced: bool,
) -> Any | None:
    """A model whose batch size was freed when it was loaded, with a free one.

    None for others, and where the file can only be written as it was: it says so then.
    """
    if source is None or not source.freed:
        return None
    try:
        _check_complete(source, reduced)
        return graph_proto(model, exporters, opset, ir_version)
    except (InputError, ModelError) as error:
        _log.warning("%s: the batch size is %d as in the file, not free as in the model: %s", path, source.freed, error)
        return None


def changed_proto(
    model: Model, source: Source, exporters: Mapping[str, Exporter], path: str, reduced: bool, why: NotInFile
) -> Any:
    """A model whose file can't have its changes, where these allow another.

    Raises:
        NotInFile: they don't, or the graph has no ONNX form.
    """
    if not isinstance(model.source, Edited) or not model.source.anew:
        raise why
    try:
        _check_complete(source, reduced)
        proto = graph_proto(model, exporters)
    except (InputError, ModelError) as error:
        raise NotInFile(f"{why}; nor can the graph be written without the file: {error}") from None
    _log.info("%s: written from the graph, without nodes of the file it came from: %s", path, why)
    return proto


def _check_complete(source: Source, reduced: bool) -> None:
    """Raises ModelError where a file isn't to have all that the one before had."""
    if reduced:
        raise ModelError("inputs= and outputs= choose from the file")
    if source.partial:
        raise ModelError("only some outputs of the file were loaded")
