"""The same SSA form as a graph, where nodes have kernels and values have storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Union

from ..host.quick_init import quick_init
from .graph import Node
from .kernel import HOST, Kernel
from .operand import BodyKind, Operand
from .plan import Again
from .types import TensorType


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class BaseTensor:
    """The bytes of one value that is no view. Compares by identity.

    Attributes:
        kind: ``input`` is fed, ``stored`` is an initializer or state, ``computed`` is what a node writes.
    """

    number: int
    name: str
    type: TensorType
    memory: str
    kind: Literal["input", "stored", "computed"]


@quick_init
@dataclass(frozen=True, slots=True)
class Storage:
    """Where a value lies: in a base tensor, from ``offset`` bytes, with strides in elements.

    In a loop's body it moves by ``iteration_stride`` bytes per iteration, and by ``buffer_stride`` bytes on odd
    iterations.
    """

    base: BaseTensor
    offset: int
    strides: tuple[int, ...]
    type: TensorType
    iteration_stride: int = 0
    buffer_stride: int = 0

    def operand(self, arena: int = -1, start: int = 0) -> Operand:
        """The operand, once the base tensor has an offset in an arena."""
        return Operand(
            arena,
            start + self.offset,
            self.type,
            self.strides,
            self.base.number,
            self.offset,
            self.iteration_stride,
            self.buffer_stride,
        )


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class LoweredNode:
    """A node with its kernel, on a device."""

    node: Node
    device: str
    kernel: Kernel
    inputs: tuple[Storage | None, ...]
    outputs: tuple[Storage | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A node whose body runs on one device; see ``plan.Body`` for how often.

    Attributes:
        items: the body; what it computes for itself lies in base tensors that nothing else uses.
        inputs, outputs: storage outside the body that it reads and writes, also to know how often it runs.
        control, counts: of these, what tells how often, and what says how often it was.
    """

    node: Node
    device: str
    items: tuple[LoweredNode | Loop, ...]
    iterations: int
    inputs: tuple[Storage, ...]
    outputs: tuple[Storage, ...]
    kind: BodyKind = "repeat"
    when: bool = True
    control: tuple[Storage, ...] = ()
    counts: tuple[Storage, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A contiguous copy of a base tensor into another memory."""

    source: Storage
    target: Storage
    from_device: str
    to_device: str
    name: str


LoweredItem = Union[LoweredNode, Loop, Move]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An initializer in a memory.

    Attributes:
        passes: it is a state that lies in scratch memory, from the item that writes it to the end.
    """

    name: str
    storage: Storage
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """One of several programs in a row; see ``Graph.stages``.

    Attributes:
        stop: how many items are of it or of those before.
        outputs: names of the results that are complete at its end.
    """

    name: str
    stop: int
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunState:
    """What runs of a session leave for the next.

    Attributes:
        pairs: outputs, and the inputs that they become.
        memory: where they lie.
        reserved: by output, sizes that it will have: where it is what was there and more behind it along one axis, both
            lie in memory for these.
    """

    pairs: Mapping[str, str]
    memory: str
    reserved: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))


NO_STATE = RunState(MappingProxyType({}), HOST)


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """What a plan is made from.

    Attributes:
        items: nodes, loops and moves, in order.
        inputs: storage of each fed value.
        outputs: storage of each result; contiguous and, unless the value is a result twice, a base tensor of its own.
        stored: each initializer that is read, by name, or by ``memory/name`` for a memory other than the host's.
        states: pairs of base tensors (after, before) that share memory.
        stages: of a graph that is several programs in a row.
        fallbacks: why a node isn't on a device that stands earlier in the list: (node, device) to reason.
        state: inputs and outputs that stay in a memory from run to run; the others are on the host.
        again: which items run a second time.
    """

    items: tuple[LoweredItem, ...]
    inputs: Mapping[str, Storage]
    outputs: Mapping[str, Storage]
    stored: Mapping[str, Stored]
    states: tuple[tuple[BaseTensor, BaseTensor], ...]
    stages: tuple[Stage, ...]
    fallbacks: Mapping[tuple[str, str], str]
    state: RunState = NO_STATE
    again: Again | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "stored", "fallbacks"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def joined(self) -> bool:
        """Whether its stages run at once, see ``Graph.joined``."""
        return bool(self.stages) and len(self.outputs) > sum(len(stage.outputs) for stage in self.stages)

    def passing(self) -> dict[BaseTensor, BaseTensor]:
        """The states that lie in scratch memory: what is written, and the stored base tensor that it stands for."""
        before = {stored.storage.base for stored in self.stored.values() if stored.passes}
        return {after: base for after, base in self.states if base in before}
