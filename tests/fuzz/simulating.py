"""Runs a plan on bytes: kernels are digests of what they read, so that any wrong byte shows in the results."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dataflow.ir.lowered import BaseTensor, Loop, Lowered, LoweredNode, Move, Storage
from dataflow.ir.operand import Operand
from dataflow.ir.plan import Arena, Body, Plan, Prepack, Segment, Step, Transfer, Wait
from dataflow.ir.types import contiguous_strides

Array = np.ndarray[Any, Any]
Result = Mapping[str, bytes]


class OutsideError(Exception):
    """An operand reaches outside its arena."""


def simulate(plan: Plan, late: bool) -> Result | None:
    """The outputs and kept states; None where an access lies outside its arena.

    Args:
        plan: right or wrong.
        late: what a device may do later is done as late as possible: when it is waited for, or when its own queue
            goes on. Otherwise everything is done at once.
    """
    try:
        return _Simulator(plan, late).run()
    except OutsideError:
        return None


@functools.lru_cache(10_000)
def _offsets(sizes: tuple[int, ...], strides: tuple[int, ...], size: int) -> Array:
    """Of each byte of a tensor from its begin, element by element."""
    index = np.zeros(sizes, np.int64)
    for axis, (dim, stride) in enumerate(zip(sizes, strides, strict=True)):
        shape = [dim if a == axis else 1 for a in range(len(sizes))]
        index = index + (np.arange(dim) * stride * size).reshape(shape)
    return (index[..., None] + np.arange(size)).ravel()


@functools.lru_cache(10_000)
def _noise(name: str, count: int) -> Array:
    """What lies there before: data of the arenas that have some, by name."""
    return np.random.default_rng(zlib.crc32(name.encode())).integers(0, 256, count, np.uint8)


def apart(lowered: Lowered, plan: Plan) -> Plan:
    """The plan of a program where each value has memory of its own: what the program means."""
    arenas: list[Arena] = []
    index: dict[BaseTensor, int] = {}
    names = {s.base: name for name, s in lowered.inputs.items()}
    names |= {stored.storage.base: name for name, stored in lowered.stored.items()}

    def new(name: str, size: int) -> int:
        arenas.append(Arena(name, "", size, "state"))
        return len(arenas) - 1

    def operand(storage: Storage) -> Operand:
        base = storage.base
        if base not in index:
            index[base] = new(names.get(base, f"own{len(arenas)}"), base.type.nbytes)
        return storage.operand(index[base], 0)

    def own(like: Operand) -> Operand:
        return replace(like, arena=new(f"own{len(arenas)}", like.bytes), offset=0)

    prepacked: dict[str, Prepack] = {}

    def step(item: LoweredNode | Loop) -> Step:
        planned = by_name[item.node.name]
        if isinstance(item, Loop):
            body = Body(tuple(step(i) for i in item.items if i.node.name in by_name), item.iterations)
            return replace(planned, body=body)
        inputs, outputs = ([None if s is None else operand(s) for s in given] for given in (item.inputs, item.outputs))
        given = []
        for request, copy in zip(planned.prepared.prepacks, planned.prepacks, strict=False):
            source = inputs[request.input]
            given.append(None if copy is None else own(copy))
            if copy is not None and source is not None:
                prepacked[str(len(prepacked))] = Prepack(given[-1], source, request.fill, "")
        workspace = None if planned.workspace is None else own(planned.workspace)
        return replace(
            planned, inputs=tuple(inputs), outputs=tuple(outputs), workspace=workspace, prepacks=tuple(given)
        )

    by_name = {s.node.name: s for item in plan.items if isinstance(item, Segment) for s in _all_steps(item.steps)}
    items: list[Any] = []
    for item in lowered.items:
        if isinstance(item, Move):
            source, target = operand(item.source), operand(item.target)
            items.append(Transfer(source, target, item.from_device, item.to_device, item.name))
        elif item.node.name in by_name:  # others have nothing to compute
            items.append(Segment(item.device, (step(item),)))
    outputs = {name: operand(s) for name, s in lowered.outputs.items()}
    kept = {
        before.name: operand(Storage(after, 0, contiguous_strides(after.type.sizes), after.type))
        for after, before in lowered.states
    }
    return replace(
        plan,
        items=tuple(items),
        arenas=tuple(arenas),
        outputs=outputs,
        kept=kept,
        prepacks=prepacked,
        asynchronous=frozenset(),
    )


def _all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from _all_steps(step.body.steps if step.body is not None else ())


class _Simulator:
    def __init__(self, plan: Plan, late: bool) -> None:
        self.plan, self.late = plan, late
        self.memory = [_noise(arena.name, arena.bytes).copy() for arena in plan.arenas]
        for copy in plan.prepacks.values():
            self.fill(copy.operand, 0, self.digest(b"pack", [self.read(copy.source, 0)]))
        for arena, memory in zip(plan.arenas, self.memory, strict=True):
            if arena.kind == "source":  # it has no memory
                memory[:] = _noise("gone", arena.bytes)
        self.waiting: dict[str, list[Any]] = {}

    def run(self) -> Result:
        for item in self.plan.items:
            if isinstance(item, Wait):
                self.finish(item.device)
                continue
            names = (item.device,) if isinstance(item, Segment) else (item.from_device, item.to_device)
            queue = next((n for n in names if n in self.plan.asynchronous), "")
            if self.late and queue:
                self.waiting.setdefault(queue, []).append(item)
            else:
                self.do(item)
        found = {f"y.{n}": self.read(o, 0).tobytes() for n, o in self.plan.outputs.items()}
        found |= {f"s.{n}": self.read(o, 0).tobytes() for n, o in self.plan.kept.items()}
        for queue in list(self.waiting):
            self.finish(queue)
        again = {f"s.{n}": self.read(o, 0).tobytes() for n, o in self.plan.kept.items()}
        return {**found, **{f"{n}.again": a for n, a in again.items()}}

    def finish(self, queue: str) -> None:
        for item in self.waiting.pop(queue, []):
            self.do(item)

    def do(self, item: Segment | Transfer) -> None:
        if isinstance(item, Transfer):
            self.fill(item.target, 0, self.read(item.source, 0).tobytes())
            return
        for step in item.steps:
            self.step(step, 0)

    def step(self, step: Step, iteration: int) -> None:
        if step.body is not None:
            for inner in range(step.body.iterations):
                for nested in step.body.steps:
                    self.step(nested, inner)
            return
        seed = f"{step.node.name}:{iteration}".encode()
        outputs = [o for o in step.outputs if o is not None]
        for index, operand in enumerate(outputs):  # a kernel may write before it has read everything
            if not self.updates_inplace(step, index, operand):
                self.fill(operand, iteration, self.digest(b"garbage" + seed, []))
        if step.workspace is not None:
            self.fill(step.workspace, iteration, self.digest(b"scratch" + seed, []))
        given = [step.prepared.prepacks[i] for i, p in enumerate(step.prepacks) if p is not None]
        replaced = {request.input for request in given if request.replaces}
        reads = [self.read(o, iteration) for i, o in enumerate(step.inputs) if o is not None and i not in replaced]
        reads += [self.read(p, 0) for p in step.prepacks if p is not None]
        if step.workspace is not None:
            reads.append(self.read(step.workspace, iteration))
        for index, operand in enumerate(outputs):
            self.fill(operand, iteration, self.digest(seed + bytes([index]), reads))
        if step.workspace is not None:
            self.fill(step.workspace, iteration, self.digest(b"after" + seed, reads))

    def updates_inplace(self, step: Step, result: int, out: Operand) -> bool:
        """A declared pair in one place: the kernel reads each element before it writes it."""
        assert step.kernel is not None
        for pair in step.kernel.inplace:
            source = step.inputs[pair[1]] if pair[0] == result and pair[1] < len(step.inputs) else None
            if source is not None and (source.arena, source.offset, source.type.sizes, source.strides) == (
                out.arena, out.offset, out.type.sizes, out.strides
            ):  # fmt: skip
                return True
        return False

    def digest(self, seed: bytes, arrays: list[Array]) -> bytes:
        made = hashlib.blake2b(seed)
        for array in arrays:
            made.update(array.tobytes())
        return made.digest()

    def bytes_of(self, operand: Operand, iteration: int) -> Array:
        """Indices into the arena of the operand's bytes."""
        found = _offsets(operand.type.sizes, operand.strides, operand.type.dtype.nbytes(1))
        found = found + (
            operand.offset + iteration * operand.iteration_stride + (operand.buffer_stride if iteration % 2 else 0)
        )
        if found.size and (found.min() < 0 or found.max() >= self.memory[operand.arena].size):
            raise OutsideError
        return found

    def read(self, operand: Operand, iteration: int) -> Array:
        found: Array = self.memory[operand.arena][self.bytes_of(operand, iteration)]
        return found

    def fill(self, operand: Operand, iteration: int, data: bytes) -> None:
        index = self.bytes_of(operand, iteration)
        if index.size:
            repeated = data * (index.size // len(data) + 1)
            self.memory[operand.arena][index] = np.frombuffer(repeated, np.uint8, index.size)
