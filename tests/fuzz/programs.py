"""Random lowered programs: what the planner is given, without kernels or a graph behind it.

Lifetimes of any length, views with gaps, flipped and repeated, in-place pairs, workspaces, prepacked weights, several
arenas, asynchronous devices, state kept from run to run, and loops with rows and carried values.
"""

from __future__ import annotations

import math
import random as standard
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dataflow.ir.graph import Node
from dataflow.ir.kernel import HOST, Kernel, OperandSpec
from dataflow.ir.lowered import BaseTensor, Lowered, LoweredNode, Move, Storage, Stored
from dataflow.ir.op import Op, same_type
from dataflow.ir.plan import Plan
from dataflow.ir.types import DType, TensorType, bfloat16, contiguous_strides, float32, float64, int8
from dataflow.lower.loop_buffers import Scan, half, halves, make_loop, row
from dataflow.planning.planner import make_plan
from dataflow.plugin.device import PrepackRequest

WORK = Op("work", ("xs*",), same_type)
ANY = OperandSpec(strided=True, repeated=True)
MEMORIES = {"cpu": HOST, "numpy": HOST, "far": "far", "off": "off"}
DTYPES: tuple[DType, ...] = (float32, float64, int8, bfloat16)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a device answers for a node at plan time."""

    workspace: int
    prepacks: tuple[PrepackRequest, ...]
    algorithms: tuple[str, ...] = ()
    algorithm: str = ""


class Program:
    """Collects random items; ``lowered`` and ``plan`` give what came of them."""

    def __init__(self, random: standard.Random) -> None:
        self.random = random
        self.items: list[Any] = []
        self.inputs: dict[str, Storage] = {}
        self.stored: dict[str, Stored] = {}
        self.written: list[Storage] = []  # values that can be read
        self.states: list[tuple[BaseTensor, BaseTensor]] = []
        self.count = 0
        self.devices = ["cpu", *random.sample(["numpy", "far", "off"], random.randint(0, 3))]
        self.asynchronous = frozenset(d for d in ("far", "off") if random.random() < 0.7)
        self.answers: dict[LoweredNode, Answer] = {}

    # ---- values ---------------------------------------------------------------------------------------

    def shape(self) -> tuple[int, ...]:
        """Few elements; now and then none."""
        sizes = (0, 1, 2, 5) if self.random.random() < 0.1 else (1, 2, 3, 4, 7)
        return tuple(self.random.choice(sizes) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3))))

    def base(self, memory: str, kind: Any, type_: TensorType | None = None) -> Storage:
        self.count += 1
        type_ = type_ or TensorType(self.random.choice(DTYPES), self.shape())
        base = BaseTensor(self.count, f"v{self.count}", type_, memory, kind)
        return Storage(base, 0, contiguous_strides(type_.sizes), type_)

    def view(self, source: Storage) -> Storage:
        """The value, or a part of it: transposed, with gaps, flipped or repeated."""
        if self.random.random() < 0.5 or 0 in source.type.sizes:
            return source
        offset, size = source.offset, source.type.dtype.nbytes(1)
        dims, strides = list(source.type.sizes), list(source.strides)
        for axis in range(len(dims)):
            kind = self.random.randrange(5)
            if kind == 0:
                start = self.random.randrange(dims[axis])
                offset += start * strides[axis] * size
                dims[axis] = self.random.randint(1, dims[axis] - start)
            elif kind == 1:
                offset += (dims[axis] - 1) * strides[axis] * size
                strides[axis] = -strides[axis]
            elif kind == 2 and dims[axis] > 2:
                dims[axis], strides[axis] = (dims[axis] + 1) // 2, strides[axis] * 2
        if self.random.random() < 0.3:
            dims, strides = [self.random.choice((2, 3)), *dims], [0, *strides]
        order = list(range(len(dims)))
        self.random.shuffle(order)
        type_ = TensorType(source.type.dtype, tuple(dims[i] for i in order))
        return Storage(source.base, offset, tuple(strides[i] for i in order), type_)

    def readable(self, memory: str) -> list[Storage]:
        return [s for s in self.written if s.base.memory == memory]

    # ---- items ----------------------------------------------------------------------------------------

    def node(self, device: str, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> LoweredNode:
        pairs = [(o, i) for o in range(len(outputs)) for i in range(len(inputs)) if self.random.random() < 0.5]
        kernel = Kernel("work", "k", (ANY,), (ANY,), None, tuple(pairs))
        made = Node(WORK, f"n{len(self.answers)}", (), (), {})
        item = LoweredNode(made, device, kernel, tuple(inputs), tuple(outputs))
        workspace = self.random.choice((0, 0, 0, 1, 40, 64, 200))
        requests = [
            PrepackRequest(
                i, self.random.randrange(3), self.random.randint(1, 99), _no_fill, self.random.random() < 0.5
            )
            for i, s in enumerate(inputs)
            if s.base.kind == "stored" and s.base.memory == HOST and s.type.elements and self.random.random() < 0.4
        ]
        self.answers[item] = Answer(workspace, tuple(requests))
        return item

    def work(self) -> None:
        """A node over values of its memory."""
        device = self.random.choice(self.devices)
        memory = MEMORIES[device]
        found = self.readable(memory)
        inputs = [self.view(self.recent(found)) for _ in range(self.random.randint(0, 3)) if found]
        candidates = [s for s in inputs if s.offset == 0]
        outputs = []
        for _ in range(self.random.choice((1, 1, 1, 2))):
            like = self.random.choice(candidates).base.type if candidates and self.random.random() < 0.7 else None
            outputs.append(self.base(memory, "computed", like))
        self.items.append(self.node(device, inputs, outputs))
        self.written += outputs

    def recent(self, found: list[Storage]) -> Storage:
        """Mostly one of the last: lives are short then, and places are shared."""
        return found[max(self.random.randrange(len(found)), self.random.randrange(len(found)))]

    def move(self) -> None:
        """A copy of a whole value to another memory."""
        others = [d for d in self.devices if MEMORIES[d] != HOST]
        if not others:
            return
        far, near = self.random.choice(others), "cpu"
        source, target = (far, near) if self.random.random() < 0.5 else (near, far)
        found = [s for s in self.readable(MEMORIES[source]) if s.offset == 0 and s.type == s.base.type]
        if found:
            value = self.recent(found)
            copy = self.base(MEMORIES[target], "computed", value.type)
            self.items.append(Move(value, copy, source, target, f"m{len(self.items)}"))
            self.written.append(copy)

    def loop(self) -> None:
        """A scan on one device: rows in, a carried value, values of an iteration, rows out."""
        device = self.random.choice([d for d in self.devices if MEMORIES[d] == HOST])
        memory = MEMORIES[device]
        found = [s for s in map(self.view, self.readable(memory)) if s.type.shape and 0 not in s.type.sizes]
        if not found:
            return
        sequence = self.recent(found)
        iterations = sequence.type.sizes[0]
        scan = Scan(
            range(1), range(1, 2), range(0), range(1), range(1), range(0), iterations, self.random.random() < 0.5
        )
        carried = TensorType(float32, self.shape())
        carry = self.base(memory, "computed", TensorType(float32, (2, *carried.shape)))
        self.items.append(self.node(device, [], [half(carry, 0)]))
        stacked = self.base(memory, "computed", TensorType(float32, (iterations, *self.shape())))
        out = row(stacked, scan)
        inside: list[Storage] = [row(sequence, scan), halves(carry)[0]]
        items = []
        for _ in range(self.random.randint(0, 3)):
            inner = self.base(memory, "computed")
            items.append(self.node(device, [self.view(self.recent(inside))], [inner]))
            inside.append(inner)
        items.append(self.node(device, [self.recent(inside), inside[0]], [out]))
        items.append(self.node(device, [self.recent(inside), inside[1]], [halves(carry)[1]]))
        own = {s.base for s in inside[2:]}
        node = Node(WORK, f"loop{len(self.items)}", (), (), {})
        self.items.append(make_loop(node, device, items, iterations, lambda s: s.base not in own))
        final = self.base(memory, "computed", carried)
        self.items.append(self.node(device, [half(carry, iterations % 2)], [final]))
        self.written += [final, stacked]


def _no_fill(source: Any, prepacked: Any) -> None:
    """The fill of prepacked weights that no device ever makes."""


def random_program(random: standard.Random) -> tuple[Lowered, Program]:
    """A program of up to a few dozen items that is right by construction."""
    program = Program(random)
    for index in range(random.randint(0, 2)):
        value = program.base(HOST, "input")
        program.inputs[f"x{index}"] = value
        program.written.append(value)
    states = []
    for index in range(random.randint(0, 3)):
        memory = MEMORIES[random.choice(program.devices)]
        value = program.base(memory, "stored")
        program.stored[f"w{index}"] = Stored(f"w{index}", value)
        if random.random() < 0.4:
            states.append(value)
        program.written.append(value)
    for _ in range(random.randint(1, random.choice((4, 10, 20)))):
        random.choice((program.work, program.work, program.work, program.work, program.move, program.loop))()
    changed = {before.base for before in states}
    program.written = [s for s in program.written if s.base not in changed]  # nobody reads them from here on
    for before in states:
        device = next(d for d in program.devices if MEMORIES[d] == before.base.memory)
        after = program.base(before.base.memory, "computed", before.type)
        found = program.readable(before.base.memory)
        reads = [program.recent(found)] if found else []
        program.items.append(program.node(device, reads, [after]))
        program.states.append((after.base, before.base))
    outputs = {}
    for index in range(random.randint(1, 2)):
        found = program.readable(HOST)
        value = program.base(HOST, "computed")
        program.items.append(program.node("cpu", [program.recent(found)] if found else [], [value]))
        outputs[f"y{index}"] = value
    lowered = Lowered(tuple(program.items), program.inputs, outputs, program.stored, tuple(program.states), (), {})
    return lowered, program


def plan_of(lowered: Lowered, program: Program) -> Plan:
    """The planner's plan."""

    def prepare(device: str, nodes: Sequence[LoweredNode], constants: Collection[BaseTensor]) -> Sequence[Answer]:
        return [program.answers[node] for node in nodes]

    alignment = {d: 64 if MEMORIES[d] == HOST else 256 for d in program.devices}
    return make_plan(lowered, prepare, alignment, program.asynchronous & {*program.devices})


def size_of(lowered: Lowered) -> int:
    """Bytes of all values: what a plan without any sharing would take."""
    bases = {s.base for item in lowered.items if not isinstance(item, Move) for s in item.outputs if s is not None}
    return sum(math.ceil(r.type.nbytes / 64) * 64 for r in bases)
