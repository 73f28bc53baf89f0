"""A node in terms of smaller ops, as its op says."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PluginError, blamed
from .graph import Node
from .value import Value


def decomposed(node: Node, inputs: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """What stands for the node's outputs, of nodes that are added to the builder of ``inputs``.

    Args:
        node: of an op with a decomposition.
        inputs: what stands for its inputs.

    Raises:
        PluginError: the decomposition fails, gives something else than values, or values of other types.
    """
    if node.op.decompose is None:
        raise PluginError(f"{node.describe()}: the op has no decomposition")
    extra = {"bodies": node.bodies} if node.op.bodies else {}
    with blamed(f"{node.describe()}: its decomposition"):
        made = node.op.decompose(*inputs, **extra, **node.attributes)
    found = (made,) if isinstance(made, Value) else made
    if not isinstance(found, (tuple, list)) or not all(v is None or isinstance(v, Value) for v in found):
        raise PluginError(f"{node.describe()}: its decomposition gave {made!r}; expected a value, or a tuple of values")
    names = node.op.output_names(node)
    missing = [n for n, v in zip(names, (*found, *[None] * len(names)), strict=False) if v is None and n[0] != "+"]
    if len(found) > len(names) or (missing and not names[-1].endswith("*")):
        raise PluginError(f"{node.describe()}: its decomposition gave {len(found)} values; expected {', '.join(names)}")
    for value, declared in zip(found, node.outputs, strict=False):
        if value is None or declared is None or value.type == declared.type:
            continue
        if (value.type.is_bound and declared.type.is_bound) or value.type.dtype != declared.type.dtype:
            raise PluginError(
                f"{node.describe()}: its decomposition gave {value.type} for {declared.name!r}, "
                f"which its infer says is {declared.type}"
            )
    return tuple(found)
