"""Graphs of a file as they are run node by node: which names each has, and what they hold in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from dataflow.errors import InputError

from ..file.records import Array, GraphRecord, NodeRecord

Item: TypeAlias = "Array | list[Array] | None"
"""What a name holds: a tensor, a sequence, or an optional that is absent."""


class Scope:
    """The main graph or a body: its nodes in order.

    Args:
        record: of the file.
        nodes: those that its outputs need.
        outputs: names.
        repeats: a loop runs it.

    Attributes:
        stored: tensors that it has by itself.
        empty: names of sequences without elements, which it has too.
        inner: the scopes of bodies of its nodes that were run.
    """

    def __init__(
        self, record: GraphRecord, nodes: Sequence[NodeRecord], outputs: Sequence[str], *, repeats: bool
    ) -> None:
        self.record, self.outputs, self.repeats = record, tuple(outputs), repeats
        self.stored: dict[str, Array] = dict(record.initializers)
        self.empty: set[str] = set()
        self.nodes: list[NodeRecord] = []
        for node in nodes:
            array = node.attributes.get("value") if node.op == "Constant" and not node.domain else None
            if array is not None:
                self.stored[node.outputs[0]] = array
            elif node.op == "SequenceEmpty" and not node.domain:
                self.empty.add(node.outputs[0])
            else:
                self.nodes.append(node)
        self.reads = [tuple(name for name in node.reads() if name) for node in self.nodes]
        self.inner: dict[int, Scope] = {}
        self._dead: dict[tuple[int, int], Sequence[str]] = {}
        self._last = dict.fromkeys(self.outputs, len(self.nodes))
        for index, names in enumerate(self.reads):
            for name in names:
                self._last[name] = max(index, self._last.get(name, 0))

    def body(self, record: GraphRecord, *, loop: bool) -> Scope:
        """The scope of a body of one of its nodes."""
        found = self.inner.get(id(record))
        if found is None:
            repeats = self.repeats or loop
            found = self.inner[id(record)] = Scope(record, record.nodes, record.outputs, repeats=repeats)
        return found

    def live(self, start: int, end: int) -> list[str]:
        """Names that nodes from ``start`` to ``end`` define, and that others, or the outputs, read."""
        names = (name for node in self.nodes[start:end] for name in node.outputs if name)
        return [name for name in dict.fromkeys(names) if self._last.get(name, -1) >= end]

    def dead(self, start: int, end: int) -> Sequence[str]:
        """Names that nobody reads once the nodes from ``start`` to ``end`` have run."""
        found = self._dead.get((start, end))
        if found is None:
            names = dict.fromkeys(name for reads in self.reads[start:end] for name in reads)
            found = self._dead[start, end] = [name for name in names if self._last[name] < end]
        return found


class Frame:
    """What the names of a scope hold, in one run of it.

    Attributes:
        items: by name.
        around: of a body, the frame of the graph around it.
    """

    __slots__ = ("around", "items", "scope")

    def __init__(self, scope: Scope, items: Mapping[str, Any], around: Frame | None = None) -> None:
        self.scope, self.items, self.around = scope, dict(items), around

    def item(self, name: str) -> Item:
        """What a name holds that was given or computed, or is an empty sequence.

        Raises:
            InputError: nobody did.
        """
        owner = self._owner(name)
        if owner is None or (name not in owner.items and name in owner.scope.stored):
            raise InputError(f"{name!r} is read, which nothing before it defines")
        found: Item = owner.items.get(name, [])
        return found

    def stored(self, name: str) -> Array | None:
        """The data in the file of a stored tensor; None of all else."""
        owner = self._owner(name)
        return None if owner is None or name in owner.items else owner.scope.stored.get(name)

    def is_empty(self, name: str) -> bool:
        """Whether a name is that of a sequence which has no elements in any run."""
        owner = self._owner(name)
        return owner is not None and name not in owner.items and name in owner.scope.empty

    def is_tensor(self, name: str) -> bool:
        """Whether a name that is given, computed or stored is that of a tensor, or of an empty sequence."""
        owner = self._owner(name)
        return owner is None or isinstance(owner.items.get(name, ()), (np.ndarray, tuple))

    def _owner(self, name: str) -> Frame | None:
        """The innermost frame that has a name."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.items or name in frame.scope.stored or name in frame.scope.empty:
                return frame
            frame = frame.around
        return None
