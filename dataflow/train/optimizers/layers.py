"""Which layer of a model each parameter belongs to, from the first to the last."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...model import Model
from ..parameters import readers_of

_BLOCK = re.compile(r"(.*?(?:^|[._/])\d+)[./]")


def layers_of(model: Model, names: Sequence[str]) -> dict[str, int]:
    """The number of the layer of each of these parameters, from 0, in the order in which the model reads them.

    A layer is what shares its name up to the first number, ``encoder.layer.3``, of the name or an alias; where names
    have none, a node with a weight of two or more axes, with all that is read behind it and before the next.
    """
    readers = readers_of(model.graph)
    first = {name: readers[name][0][0] if name in readers else -1 for name in names}
    keys: dict[str, int] = {}
    found: dict[str, int] = {}
    key = ""
    for name in sorted(names, key=lambda n: first[n]):
        block = _block(model, name)
        if block is not None:
            key = block
        elif model.parameters[name].type.rank >= 2 or not key:
            key = f"node {first[name]}"
        found[name] = keys.setdefault(key, len(keys))
    return found


def _block(model: Model, name: str) -> str | None:
    for known in (name, *model.parameters[name].aliases):
        match = _BLOCK.match(known)
        if match is not None and "::" not in match[1]:
            return match[1].replace("/", ".").strip(".")
    return None
