"""The plan: what runs where, in what order, at what offset. Immutable and printable; holds no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Union

from ..host.quick_init import quick_init
from . import html
from .graph import Node
from .kernel import HOST, Kernel
from .operand import BodyKind, Operand


@quick_init
@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer: alive in ``[start, stop)``, ``bytes`` long."""

    start: int
    stop: int
    bytes: int
    alignment: int = 64


@quick_init
@dataclass(frozen=True, slots=True)
class Arena:
    """One allocation, or a slot that gets its address at each run.

    Attributes:
        name: of the stored tensor, input or output; ``arena`` for scratch memory.
        memory: name of the memory that it lies in.
        kind: ``weights`` and ``state`` (what programs change) keep their contents from run to run, as do ``prepacks``,
            copies of weights in the form that a kernel wants; ``source`` is a weight that is read prepacked only:
            it has no memory; ``arena`` is for the values of one run; ``input`` and ``output`` are slots; ``before`` is
            state that a run finds, ``after`` what it leaves for the next, both in memory of the session's; ``grown``
            is state that a run finds and adds to where it lies, with memory for what later runs add.
    """

    name: str
    memory: str
    bytes: int
    kind: Literal["weights", "state", "prepacks", "source", "arena", "input", "output", "before", "after", "grown"]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Steps that run more or less often than once.

    In a loop their operands move by ``iteration_stride`` and ``buffer_stride``.

    Attributes:
        iterations: how often; the most for ``while``.
        kind: ``repeat``; ``when``: once, if the step's input is ``when``; ``while``: as long as its second input is
            true, as often as the first says at most.
    """

    steps: tuple[Step, ...]
    iterations: int
    kind: BodyKind = "repeat"
    when: bool = True


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One call of a kernel, or a body.

    Attributes:
        kernel: None for a body; its operands tell how often that runs.
        workspace: scratch memory of this step, or None.
        prepared: what the device answered at plan time: algorithm and state.
        prepacks: where the prepacked copies of inputs lie that the kernel asked for; None where it gets none.
    """

    node: Node
    kernel: Kernel | None
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    workspace: Operand | None
    prepared: Any
    body: Body | None = None
    prepacks: tuple[Operand | None, ...] = ()

    @property
    def path(self) -> str:
        """The name of the kernel, with the algorithm where it has several; empty for a body."""
        return "" if self.kernel is None else f"{self.kernel.name} {self.prepared.algorithm}".rstrip()


@dataclass(frozen=True, slots=True, eq=False)
class Prepack:
    """A prepacked copy of a weight.

    Attributes:
        operand: where it lies, as bytes.
        source: what it is made from.
        fill: ``fill(source, prepacked)`` makes it; both are ``void *``.
        form: a digest of the kernel and of all else that decides what ``fill`` makes of the same data.
    """

    operand: Operand
    source: Operand
    fill: Callable[[Any, Any], None]
    form: str


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Steps that run on one device with one call.

    Attributes:
        live: numbers of the values that something else than these steps reads; None: any may be.
    """

    device: str
    steps: tuple[Step, ...]
    live: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """A contiguous copy of one value from one memory to another."""

    source: Operand
    target: Operand
    from_device: str
    to_device: str
    name: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waits until a device that works asynchronously has done all it was given."""

    device: str


Item = Union[Segment, Transfer, Wait]


@dataclass(frozen=True, slots=True)
class Range:
    """One of the programs that a plan is made of: items that can run by themselves after those of the ranges before.

    Whoever runs it by itself waits for asynchronous devices at its end.

    Attributes:
        start, stop: of its items in the plan.
        time: when it ends, in the steps of ``Plan.lifetimes``.
        outputs: names of the results that are complete at its end.
        slots: indices of the arenas of inputs and outputs that it reads or writes.
        alive: name and bytes of what later ranges read of what is there at its end, beside stored tensors; of the last
            range: of the state that it leaves.
    """

    start: int
    stop: int
    time: int
    outputs: tuple[str, ...]
    slots: frozenset[int]
    alive: tuple[tuple[str, int], ...]

    @property
    def alive_bytes(self) -> int:
        """The sum over ``alive``."""
        return sum(size for _, size in self.alive)


@dataclass(frozen=True, slots=True)
class Again:
    """What a plan computes a second time, so that it isn't kept in memory until it is read.

    Attributes:
        nodes: name and bytes of the results of each such step, in order.
        cost: what they add to the work of the plan, as a part of it; counted in bytes and operations, not timed.
        peak_bytes: scratch bytes that the plan would need without them.
    """

    nodes: tuple[tuple[str, int], ...]
    cost: float
    peak_bytes: int

    def __str__(self) -> str:
        kept = sum(size for _, size in self.nodes)
        return (
            f"{len(self.nodes)} nodes run again before their results of {kept} bytes are read, for "
            f"{100 * self.cost:.1f}% more work; with all of them kept the peak is {self.peak_bytes} bytes"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A program for bound shapes.

    Attributes:
        items: segments, transfers and waits, in order.
        arenas: allocations and slots; operands name them by index.
        inputs, outputs: the operand of each input and output.
        stored: where initializers and state lie: name to operand.
        prepacks: prepacked copies of weights, by the name of their arena.
        kept: what must lie in the memory of a state at the end, by the state's name.
        lifetimes: per scratch arena, the names and lifetimes that were packed, with their offsets (for drawings).
        asynchronous: devices whose segments and transfers may still run when the next item begins.
        ranges: the programs that it is made of, by name and in order; empty where it is a single one.
        peak_bytes: scratch bytes in all memories.
        lower_bound_bytes: the largest sum of sizes alive at one step, over all memories.
        again: what it computes a second time to need less memory; None: nothing.
        constants: arenas that are the same at every run and of which kernels may have prepacked copies.
    """

    items: tuple[Item, ...]
    arenas: tuple[Arena, ...]
    inputs: Mapping[str, Operand]
    outputs: Mapping[str, Operand]
    stored: Mapping[str, Operand]
    prepacks: Mapping[str, Prepack]
    kept: Mapping[str, Operand]
    lifetimes: Mapping[int, tuple[tuple[str, Lifetime, int], ...]]
    asynchronous: frozenset[str]
    ranges: Mapping[str, Range]
    peak_bytes: int
    lower_bound_bytes: int
    again: Again | None = None
    constants: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "stored", "prepacks", "kept", "lifetimes", "ranges"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, in order."""
        return tuple(item for item in self.items if isinstance(item, Segment))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by name of memory; their sum is all that the program allocates, or uses where the model has it."""
        out: dict[str, int] = {}
        for arena in self.arenas:
            kind = "state" if arena.kind in ("before", "after", "grown") else arena.kind
            if kind in ("weights", "state", "prepacks", "arena"):
                key = kind if arena.memory == HOST else f"{arena.memory} {kind}"
                out[key] = out.get(key, 0) + arena.bytes
        return out

    def save_html(self, path: str, title: str = "plan") -> None:
        """Writes a drawing of the plan, offset against time, as one page without outside parts."""
        figures = {
            "peak": f"{self.peak_bytes:,} bytes",
            "lower bound": f"{self.lower_bound_bytes:,} bytes",
            "ratio": f"{self.peak_bytes / max(self.lower_bound_bytes, 1):.4f}",
            **{f"memory {name}": f"{size:,} bytes" for name, size in self.memory.items()},
            **{f"after {name}": _alive(found, most=8) for name, found in self.ranges.items()},
            **({} if self.again is None else {"computed again": str(self.again)}),
        }
        lines = {found.time: f"{name} ends: {_alive(found, most=8)}" for name, found in self.ranges.items()}
        drawings = [
            (
                f"{self.arenas[index].name} in {self.arenas[index].memory}",
                [html.Row(name, life.start, life.stop, offset, life.bytes) for name, life, offset in entries],
            )
            for index, entries in self.lifetimes.items()
        ]
        Path(path).write_text(html.page(title, figures, drawings, str(self), lines), encoding="utf-8")

    def __str__(self) -> str:
        bound = self.lower_bound_bytes
        lines = [f"peak {self.peak_bytes} bytes, lower bound {bound}, ratio {self.peak_bytes / max(bound, 1):.4f}"]
        lines += [f"memory {name}: {size} bytes" for name, size in self.memory.items()]
        lines += [] if self.again is None else [str(self.again)]
        headings: dict[int, list[str]] = {}
        for name, found in self.ranges.items():
            headings.setdefault(found.start, []).append(f"{name}: items {found.start} to {found.stop - 1}")
            headings.setdefault(found.stop, []).append(f"after {name}: {_alive(found)}")
        for index, item in enumerate(self.items):
            lines += headings.get(index, ())
            if isinstance(item, Wait):
                lines.append(f"wait for {item.device}")
                continue
            if isinstance(item, Transfer):
                lines.append(f"transfer {item.name}: {item.from_device} -> {item.to_device}, {item.source.bytes} bytes")
                continue
            lines.append(f"segment on {item.device}: {len(item.steps)} steps")
            lines += [line for step in item.steps for line in self._step_lines(step, "  ")]
        lines += headings.get(len(self.items), ())
        return "\n".join(lines)

    def _step_lines(self, step: Step, indent: str) -> list[str]:
        if step.body is not None:
            often = {
                "repeat": f"{step.body.iterations} iterations",
                "when": f"when {step.body.when}",
                "while": "while true",
            }
            lines = [f"{indent}{step.node.name}: {often[step.body.kind]} of"]
            return lines + [line for inner in step.body.steps for line in self._step_lines(inner, indent + "  ")]
        assert step.kernel is not None
        results = ", ".join(_shown(self, o) for o in step.outputs)
        reads = ", ".join(_shown(self, i) for i in step.inputs)
        return [f"{indent}{step.node.name}: {step.kernel.name}({reads}) -> {results}"]


def operands_of(item: Item | Step) -> list[Operand]:
    """Everything that an item or step reads or writes, in bodies too."""
    found: list[Operand] = []
    if isinstance(item, Segment):
        for step in item.steps:
            _add_operands(step, found)
    elif isinstance(item, Transfer):
        found += (item.source, item.target)
    elif isinstance(item, Step):
        _add_operands(item, found)
    return found


def _add_operands(step: Step, found: list[Operand]) -> None:
    found += [o for o in (*step.inputs, *step.outputs, step.workspace, *step.prepacks) if o is not None]
    for inner in () if step.body is None else step.body.steps:
        _add_operands(inner, found)


def _alive(found: Range, most: int | None = None) -> str:
    """What lies in memory at the end of a range for those after it."""
    listed = sorted(found.alive, key=lambda row: -row[1])
    names = ", ".join(f"{name} {size}" for name, size in listed[:most])
    more = ", ..." if most is not None and len(listed) > most else ""
    return f"{len(listed)} values of {found.alive_bytes} bytes are alive" + (f": {names}{more}" if listed else "")


def _shown(plan: Plan, operand: Operand | None) -> str:
    if operand is None:
        return "_"
    return f"{operand.type}@{plan.arenas[operand.arena].name}+{operand.offset}"
