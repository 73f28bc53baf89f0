"""A node in terms of smaller ops, as its op says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import PluginError, blamed
from .graph import Node
from .value import Value

MOST_STEPS = 64  # a decomposition may have nodes that are decomposed in turn, so many times


def check_steps(steps: int, nodes: Iterable[Node]) -> None:
    """Refuses decompositions that don't end, as those of ops that are made of themselves.

    Args:
        steps: how many times nodes of a graph, and of what they were replaced by, were decomposed.
        nodes: those that are to be decomposed next; empty: none.

    Raises:
        PluginError: there are too many steps; names the ops.
    """
    names = sorted({node.op.name for node in nodes}) if steps >= MOST_STEPS else []
    if names:
        raise PluginError(
            f"{', '.join(names)}: the decomposition doesn't end: after {MOST_STEPS} steps it still has nodes of "
            f"{'this op' if len(names) == 1 else 'these ops'} that are decomposed; no op can be made of itself, "
            "or of ops that are made of it"
        )


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
