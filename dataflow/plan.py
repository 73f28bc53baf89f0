"""The plan: what runs where, in what order, at what offset. Immutable and printable; holds no memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Union

from .device import Kernel
from .graph import Node
from .memory import Lifetime
from .native import Operand


@dataclass(frozen=True, slots=True)
class Arena:
    """One allocation, or a slot that gets its address at each run.

    Attributes:
        name: ``weights``, ``state``, ``arena``, ``staging`` or the name of an input or output.
        memory: name of the memory that it lies in.
        kind: ``persistent`` keeps its contents from run to run, ``scratch`` doesn't; ``input`` and ``output``
            are slots.
    """

    name: str
    memory: str
    bytes: int
    kind: Literal["persistent", "scratch", "input", "output"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One call of a kernel.

    Attributes:
        workspace: scratch memory of this step, or None.
        prepared: what the device answered at plan time: algorithm and state.
    """

    node: Node
    kernel: Kernel
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    workspace: Operand | None
    prepared: Any


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Steps that run on one device with one call."""

    device: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """A contiguous copy of one value from one memory to another."""

    source: Operand
    target: Operand
    from_device: str
    to_device: str
    name: str


Item = Union[Segment, Transfer]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A program for bound shapes.

    Attributes:
        items: segments and transfers, in order.
        arenas: allocations and slots; operands name them by index.
        inputs, outputs: the operand of each input and output.
        stored: where initializers and state lie: name to operand.
        lifetimes: per scratch arena, the names and lifetimes that were packed, with their offsets (for drawings).
        peak_bytes: scratch bytes in all memories.
        lower_bound_bytes: the largest sum of sizes alive at one step, over all memories.
    """

    items: tuple[Item, ...]
    arenas: tuple[Arena, ...]
    inputs: Mapping[str, Operand]
    outputs: Mapping[str, Operand]
    stored: Mapping[str, Operand]
    lifetimes: Mapping[int, tuple[tuple[str, Lifetime, int], ...]]
    peak_bytes: int
    lower_bound_bytes: int

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "stored", "lifetimes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, in order."""
        return tuple(item for item in self.items if isinstance(item, Segment))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by name of memory; their sum is all that the program allocates."""
        out: dict[str, int] = {}
        for arena in self.arenas:
            if arena.kind in ("persistent", "scratch"):
                key = arena.name if arena.memory == "host" else f"{arena.memory} {arena.name}"
                out[key] = out.get(key, 0) + arena.bytes
        return out

    def __str__(self) -> str:
        bound = self.lower_bound_bytes
        lines = [f"peak {self.peak_bytes} bytes, lower bound {bound}, ratio {self.peak_bytes / max(bound, 1):.4f}"]
        lines += [f"memory {name}: {size} bytes" for name, size in self.memory.items()]
        for item in self.items:
            if isinstance(item, Transfer):
                lines.append(f"transfer {item.name}: {item.from_device} -> {item.to_device}, {item.source.bytes} bytes")
                continue
            lines.append(f"segment on {item.device}: {len(item.steps)} steps")
            for step in item.steps:
                places = ", ".join(_place(self, o) for o in step.outputs)
                reads = ", ".join(_place(self, i) for i in step.inputs)
                lines.append(f"  {step.node.name}: {step.kernel.name}({reads}) -> {places}")
        return "\n".join(lines)


def _place(plan: Plan, operand: Operand | None) -> str:
    if operand is None:
        return "_"
    return f"{operand.type}@{plan.arenas[operand.arena].name}+{operand.offset}"
