"""Which nodes a user wants on which device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from ..errors import InputError
from ..host import checks
from ..ir.graph import Graph, Node
from ..ir.kernel import Targets
from ..plugin.device import Refused
from ..plugin.registry import Registry

GRADIENT = "grad/"
"""Before the names of the nodes that a node's gradient is made of: they run where the node runs."""


@dataclass(frozen=True)
class Pins:
    """Device ids by pattern, and the order of preference that follows from them.

    A pattern (as in a shell) is of the names of nodes, of the values they compute, or of the parameters they read;
    the first that matches counts.

    Args:
        devices: in order of preference.
        patterns: to the id of one of them.
        parameters: names of the stored tensors of the user's graph.
        refused: name of a node, device id and name of a kernel, empty for all of them, to the reason why it can't run
            although it takes the node.

    Raises:
        InputError: a device that is not in the list.
    """

    devices: tuple[str, ...]
    patterns: Mapping[str, str] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    refused: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.texts("pin: a device", checks.mapping("pin", self.patterns).values())
        patterns = {pattern: device.removesuffix(":0") for pattern, device in self.patterns.items()}
        object.__setattr__(self, "patterns", MappingProxyType(patterns))
        for pattern, device in patterns.items():
            if device not in self.devices:
                raise InputError(
                    f"pin {pattern!r}: device {device!r} is not in the list of devices: {', '.join(self.devices)}"
                )

    def for_graph(self, graph: Graph) -> Pins:
        """The pins with the names of the parameters of the user's graph.

        Raises:
            InputError: nothing of the graph matches a pattern.
        """
        found = replace(self, parameters=frozenset(v.name for v in graph.initializers))
        for pattern in found.patterns:
            if not any(found._matches(pattern, node) for node in graph.nodes):
                some = ", ".join(repr(node.name) for node in graph.nodes[:5])
                raise InputError(f"pin {pattern!r} matches no node, value or parameter; nodes are named {some}, ...")
        return found

    def without(self, refused: Refused) -> Pins:
        """The pins, with nodes that a device, or a kernel of it, doesn't run."""
        found = {(name, refused.device, refused.kernel): str(refused) for name in refused.nodes}
        return replace(self, refused={**self.refused, **found})

    def order(self, node: Node) -> tuple[str, ...]:
        """The devices in the order in which they are asked to take ``node``."""
        pin = self.pin_of(node)
        return tuple(dict.fromkeys([pin, *self.devices])) if pin else self.devices

    def pin_of(self, node: Node) -> str:
        """The device on which the user wants ``node``, or empty."""
        if not self.patterns:
            return ""
        found = (device for pattern, device in self.patterns.items() if self._matches(pattern, node))
        return node.pin or next(found, "")

    def _matches(self, pattern: str, node: Node) -> bool:
        """Whether the node has the name, or is a part or the gradient of one that has."""
        name = node.name.removeprefix(GRADIENT)
        values = [v.name for v in node.outputs if v is not None]
        values += [v.name for v in node.inputs if v is not None and v.name in self.parameters]
        return any(fnmatchcase(n, pattern) for n in (name, *values)) or name.startswith(f"{pattern}/")


def targets_of(pins: Pins, registry: Registry) -> Targets:
    """The devices with their kernels, and what the user wants where, as passes see them."""
    return Targets({device: registry.kernels[device] for device in pins.devices}, pins.order, pins.pin_of)
