"""Which nodes a user wants on which device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from ..errors import InputError
from ..host import checks
from ..ir.graph import Graph, Node

GRADIENT = "grad/"
"""Before the names of the nodes that a node's gradient is made of: they run where the node runs."""


class Pins:
    """Device ids by pattern, and the order of preference that follows from them.

    A pattern (as in a shell) is of the names of nodes, of the values they compute, or of the parameters they read;
    the first that matches counts.

    Args:
        devices: in order of preference.
        patterns: to the id of one of them.

    Raises:
        InputError: a device that is not in the list.
    """

    def __init__(self, devices: Sequence[str], patterns: Mapping[str, str] = MappingProxyType({})) -> None:
        checks.texts("pin: a device", checks.mapping("pin", patterns).values())
        self.devices = tuple(devices)
        self.patterns = {pattern: device.removesuffix(":0") for pattern, device in patterns.items()}
        self._stored: frozenset[str] = frozenset()
        self._fused: dict[str, str] = {}  # name of a fused node -> the device it is pinned to
        for pattern, device in self.patterns.items():
            if device not in self.devices:
                raise InputError(
                    f"pin {pattern!r}: device {device!r} is not in the list of devices: {', '.join(self.devices)}"
                )

    def apply(self, graph: Graph) -> None:
        """Takes the names of parameters from the user's graph, and refuses patterns that nothing of it matches."""
        self._stored = frozenset(v.name for v in graph.initializers)
        for pattern in self.patterns:
            if not any(self._matches(pattern, node) for node in graph.nodes):
                some = ", ".join(repr(node.name) for node in graph.nodes[:5])
                raise InputError(f"pin {pattern!r} matches no node, value or parameter; nodes are named {some}, ...")

    def order(self, node: Node) -> tuple[str, ...]:
        """The devices in the order in which they are asked to take ``node``."""
        if not self.patterns:
            return self.devices
        pin = self._fused.get(node.name) or self._pin(node)
        return tuple(dict.fromkeys([pin, *self.devices])) if pin else self.devices

    def follow(self, fused: Node, first: Node) -> None:
        """Lets a node that stands for several run where the first of them is wanted."""
        pin = self._pin(first) if self.patterns else None
        if pin:
            self._fused[fused.name] = pin

    def _pin(self, node: Node) -> str | None:
        return next((device for pattern, device in self.patterns.items() if self._matches(pattern, node)), None)

    def _matches(self, pattern: str, node: Node) -> bool:
        """Whether the node has the name, or is a part or the gradient of one that has."""
        name = node.name.removeprefix(GRADIENT)
        values = [v.name for v in node.outputs if v is not None]
        values += [v.name for v in node.inputs if v is not None and v.name in self._stored]
        return any(fnmatchcase(n, pattern) for n in (name, *values)) or name.startswith(f"{pattern}/")
