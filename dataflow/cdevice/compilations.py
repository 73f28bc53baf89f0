"""What a C device compiled: once for all segments that compute the same, whichever thread binds one first."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ..host.fork import renew_in_child
from .abi import CData

if TYPE_CHECKING:
    from ..ir.operand import Operand
    from ..ir.plan import Segment, Step


class Compiled:
    """Something that a device compiled; given back when no segment uses it any more.

    Attributes:
        key: of the segments that it is for.
        held: the ``df_held``.
    """

    __slots__ = ("__weakref__", "held", "key")

    def __init__(self, key: str, held: CData) -> None:
        self.key, self.held = key, held


class Compilations:
    """What one open device compiled and something still holds."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Compiled] = WeakValueDictionary()
        self._lock = threading.Lock()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: what another thread was compiling is compiled anew."""
        self._lock = threading.Lock()

    def get(self, key: str, compile: Callable[[], CData]) -> Compiled:
        """What was compiled for ``key``; else ``compile`` does it, while other threads wait."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = Compiled(key, compile())
            return found


def key_of(segment: Segment, threads: int, precision: int) -> str:
    """Equal for segments of which a device can make the same, in other processes too; see ``df_segment.key``."""
    numbers: dict[int, int] = {}  # of values, by their first appearance here: their own depend on the whole graph
    text = repr((threads, precision, list(_described(segment.steps, segment.live, numbers))))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(
    steps: tuple[Step, ...], live: frozenset[int] | None, numbers: dict[int, int]
) -> Iterator[tuple[object, ...]]:
    def described(o: Operand | None) -> object:
        if o is None:
            return None
        moves = o.iteration_stride, o.buffer_stride
        value = numbers.setdefault(o.value, len(numbers))
        return o.arena, o.offset, o.type.dtype.name, o.type.sizes, o.strides, *moves, value, o.origin

    for step in steps:
        outlive = [o is not None and (live is None or o.value in live) for o in step.outputs]
        body = step.body
        inner = body and (body.kind, body.iterations, body.when, list(_described(body.steps, None, numbers)))
        operands = [*map(described, (*step.inputs, *step.outputs, step.workspace, *step.prepacks))]
        yield step.node.op.name, step.path, [*step.node.attributes.items()], operands, outlive, inner
