"""A note in the files that this project writes: which stored floats are trained, where reading alone would say else."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dataflow.errors import ModelError
from dataflow.plugin import Graph, Model

from .records import Roles, Source

KEY = "dataflow.roles"
_KINDS = {"parameter": ("parameter", True), "frozen": ("parameter", False), "constant": ("constant", False)}


def roles_in(text: str) -> Roles:
    """Role, and whether it is trained, by the name of a stored tensor.

    Raises:
        ModelError: the text isn't such a note.
    """
    try:
        lists = json.loads(text)
        found = {str(name): _KINDS[kind] for kind, names in lists.items() for name in names}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"the metadata {KEY!r} is damaged: {error!r}") from None
    return found


def note_of(model: Model, source: Source | None, stored: set[str]) -> str:
    """The text of the note; empty where there is nothing to say.

    Args:
        model: that is saved.
        source: the file that it came from.
        stored: names of the file's initializers.
    """
    read: Roles = {} if source is None else source.roles
    noted: Roles = {} if source is None else source.noted
    changed = {
        value.name: (data.role, data.trainable)
        for value, data in model.graph.initializers.items()
        if value.name in stored and value.type.dtype.kind in "fV"
    }
    lists: dict[str, list[str]] = {}
    for kind, role in _KINDS.items():
        names = [name for name, now in changed.items() if now == role and (name in noted or read.get(name) != now)]
        if names:
            lists[kind] = names
    return json.dumps(lists, separators=(",", ":")) if lists else ""


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
