"""Pickles name ops: whoever reads one has the declarations from plugins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError, PluginError

_source: Callable[[], Mapping[str, Any]]


def install_ops(load: Callable[[], Mapping[str, Any]]) -> None:
    """Gives pickles the ops that they name; ``load`` is called when the first one is written or read."""
    global _source
    _source = load
    _ops.cache_clear()


@functools.cache
def _ops() -> Mapping[str, Any]:
    return _source()


def reduced(name: str, op: object) -> tuple[Callable[[str], Any], tuple[str]]:
    """What a pickle has of an op.

    Raises:
        InputError: no installed plugin offers it.
    """
    if _ops().get(name) is not op:
        raise InputError(
            f"op {name!r} can't be pickled: no installed plugin offers it, so that whoever reads the pickle would not "
            "find it; offer it by the hook dataflow_ops of a plugin"
        )
    return op_named, (name,)


def op_named(name: str) -> Any:
    """The op of a pickle.

    Raises:
        PluginError: no installed plugin offers it.
    """
    found = _ops().get(name)
    if found is None:
        raise PluginError(f"the pickle has a node of op {name!r}, which no plugin offers; install the one that does")
    return found
