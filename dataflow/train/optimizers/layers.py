"""Which layer of a model each parameter belongs to, from the first to the last."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...model import Model
from ..parameters import first_reads

_BLOCK = re.compile(r"(.*?(?:^|[._/])\d+)[./]")
_NODE = re.compile(r"(node_\w+|[A-Z][A-Za-z]*)_\d+")  # how exporters number nodes: no layer of a module


def layers_of(model: Model, names: Sequence[str]) -> dict[str, int]:
    """The number of the layer of each of these parameters, from 0, in the order in which the model reads them.

    A layer is what shares its name up to the first number, ``encoder.layer.3``, of the name, of the parameter that an
    exporter computed it of, or of an alias; where names have none, a node with a weight of two or more axes, with all
    that is read behind it and before the next.
    """
    first = first_reads(model, names)
    origins = {value.name: data.origin for value, data in model.graph.initializers.items()}
    keys: dict[str, int] = {}
    found: dict[str, int] = {}
    key = ""
    for name in sorted(names, key=lambda n: first[n]):
        block = _block((name, origins.get(name, "")), model.parameters[name].aliases)
        if block is not None:
            key = block
        elif model.parameters[name].type.rank >= 2 or not key:
            key = f"node {first[name]}"
        found[name] = keys.setdefault(key, len(keys))
    return found


def _block(names: Sequence[str], aliases: Sequence[str]) -> str | None:
    for index, known in enumerate((*names, *aliases)):
        match = _BLOCK.match(known)
        of_node = match is not None and index >= len(names) and _NODE.fullmatch(match[1]) is not None
        if match is not None and "::" not in match[1] and not of_node:
            return match[1].replace("/", ".").strip(".")
    return None
