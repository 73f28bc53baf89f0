"""Kernels are found by the name of an op, so nodes must be of the ops that a registry has by these names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import PluginError
from ..ir.graph import Node
from ..ir.op import AnyOp
from ..plugin.registry import Registry


def check_declared(nodes: Iterable[Node], registry: Registry) -> None:
    """Kernels of one op would compute another of the same name.

    Args:
        nodes: of a graph; those of their bodies are looked at too.
        registry: whose kernels will run them.

    Raises:
        PluginError: a node's op isn't the one that the registry has by its name.
    """
    known = registry.ops
    for node in nodes:
        if known.get(node.op.name, node.op) is not node.op:
            raise PluginError(f"{node.describe()}: {_explained(node.op, registry)}")
        for body in node.bodies:
            check_declared(body.nodes, registry)


def _explained(op: AnyOp, registry: Registry) -> str:
    """Who has which declaration of the name, and what can be done."""
    owner = next(_owners(registry.ops[op.name], registry), "")
    has = f"the plugin {owner} has" if owner else "dataflow has"
    text = f"{has} another op {op.name!r}, whose kernels would run in place of this one's"
    mine = next(_owners(op, registry), "")
    problem = next((p.problem for p in registry.plugins if p.name == mine), None)
    if mine:
        text += f"; it is of the plugin {mine}, which was set aside: {problem}"
    return text + (
        f"; leave the other out with DATAFLOW_PLUGINS=-{owner}" if mine and owner else "; rename it, or use that one"
    )


def _owners(op: AnyOp, registry: Registry) -> Iterator[str]:
    """The plugins that gave this declaration."""
    given = registry.hooks.given.items()
    return (name for name, hooks in given if any(one is op for one in hooks.get("dataflow_ops", ())))
