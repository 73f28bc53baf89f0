"""A note in the files that this project writes: which stored floats are trained, where reading alone would say else.

And behind which Identity nodes gradients stop: ONNX has no operator for that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from dataflow.errors import ModelError
from dataflow.ops import stop_gradient
from dataflow.plugin import Graph, Model

from .records import Roles, Source

_log = logging.getLogger("dataflow")

KEY = "dataflow.roles"
_STOPPED = "stopped"
_FLOATS = (1, 10, 11, 16)  # ONNX's float, float16, double and bfloat16
_KINDS = {"parameter": ("parameter", True), "frozen": ("parameter", False), "constant": ("constant", False)}


def roles_in(text: str) -> tuple[Roles, frozenset[str]]:
    """Role, and whether it is trained, by the name of a stored tensor; and the results that have no gradient.

    Raises:
        ModelError: the text isn't such a note.
    """
    try:
        lists = json.loads(text)
        stopped = frozenset(map(str, lists.pop(_STOPPED, ())))
        found = {str(name): _KINDS[kind] for kind, names in lists.items() for name in names}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"the metadata {KEY!r} is damaged: {error!r}") from None
    return found, stopped


def note_of(model: Model, source: Source | None, graph: Any) -> str:
    """The text of the note; empty where there is nothing to say.

    Args:
        model: that is saved.
        source: the file that it came from.
        graph: the protobuf that is written.
    """
    stored = {tensor.name for tensor in graph.initializer}
    identities = {name for node in graph.node if node.op_type == "Identity" for name in node.output}
    read: Roles = {} if source is None else source.roles
    noted: Roles = {} if source is None else source.noted
    now = {v.name: (d.role, d.trainable) for v, d in model.graph.initializers.items() if v.type.dtype.kind in "fV"}
    made: Roles = {}
    if source is None:  # what forms of ops store beside the tensors of the graph, as a bias of zeros
        floats = (t.name for t in graph.initializer if t.dims and t.data_type in _FLOATS)
        made = dict.fromkeys(floats, ("constant", False))
    known = {**made, **noted, **now}  # of a file that was read in part, what the rest was noted as
    changed = {name: role for name, role in known.items() if name in stored}
    lists: dict[str, list[str]] = {}
    for kind, role in _KINDS.items():
        names = [name for name, own in changed.items() if own == role and (name in noted or read.get(name) != own)]
        if names:
            lists[kind] = names
    before = () if source is None else sorted(source.stopped)
    stopped = [name for name in dict.fromkeys((*before, *_stopped(model.graph))) if name in identities]
    if stopped:
        lists[_STOPPED] = stopped
    return json.dumps(lists, separators=(",", ":")) if lists else ""


def _stopped(graph: Graph) -> list[str]:
    """Results behind which gradients stop; those of bodies have other names in the file, so that is logged."""
    for node in graph.nodes:
        if any(map(_has_stopped, node.bodies)):
            _log.warning("%s: gradients stop in its body; in a file that is read again they don't", node.describe())
    return [v.name for node in graph.nodes if node.op is stop_gradient for v in node.outputs if v is not None]


def _has_stopped(body: Graph) -> bool:
    return any(node.op is stop_gradient or any(map(_has_stopped, node.bodies)) for node in body.nodes)


def is_changed(model: Model, source: Source) -> bool:
    """Whether a tensor of the file has another role than when it was read."""
    now = roles_of(model.graph)
    return any(now.get(name, role) != role for name, role in source.roles.items())


def roles_of(graph: Graph) -> Roles:
    """Those of the stored tensors of a graph."""
    return {value.name: (data.role, data.trainable) for value, data in graph.initializers.items()}


def with_note(metadata: Mapping[str, str], note: str) -> dict[str, str]:
    """The texts of a file by key, the note among them."""
    return {**metadata, KEY: note} if note else dict(metadata)
