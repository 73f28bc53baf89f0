"""How long a node takes by each of its kernel's algorithms: timed alone, on the host in turns.

On a device that works asynchronously its step alone is timed, since moving operands there can take longer than it does.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph
from ..ir.lowered import BaseTensor, LoweredNode
from ..ir.plan import Segment
from ..ir.types import Array, TensorType
from ..ir.value import Value
from ..lower.lowering import lower
from ..lower.placement import Pins
from ..planning.planner import make_plan
from ..plugin.registry import Registry
from .bound import Bound
from .bound_items import in_sequence
from .devices import Devices
from .profile import single_steps, waiting
from .program import Program
from .variables import Variables

SECONDS = 0.1  # for a node
LEAST, MOST = 3, 50  # rounds


def time_algorithms(
    node: LoweredNode, names: Sequence[str], constant: Collection[int], devices: Devices, registry: Registry
) -> dict[str, float]:
    """Seconds of the fastest run by each algorithm; empty where the node alone gets another kernel.

    Args:
        node: its kernel has these algorithms.
        names: of them.
        constant: which inputs are constants, so that prepacks of them are kept.
        devices: its devices.
        registry: where its kernel comes from.
    """
    graph, arguments = _alone(node, constant)
    others = (device for device in devices.backends if device != node.device)  # one of them works on the host's memory
    lowered, initial = lower(graph, Pins((node.device, *others)), registry)
    if [item.kernel for item in lowered.items if isinstance(item, LoweredNode)] != [node.kernel]:
        return {}
    variables = Variables(devices)
    alignment = {d: registry.devices[d].alignment for d in devices.backends}
    asynchronous = frozenset(d for d in devices.backends if registry.devices[d].asynchronous)
    programs = {}
    for name in names:

        def prepare(
            device: str, nodes: Sequence[LoweredNode], constants: Collection[BaseTensor], name: str = name
        ) -> Sequence[Any]:
            return devices.backends[device].prepare(nodes, devices.threads, constants, {0: name})

        plan = make_plan(lowered, prepare, alignment, asynchronous)
        variables.require(plan, lowered, dict(initial), lambda name: None)
        programs[name] = Program(plan, lowered, devices, variables)
    try:
        if node.device in asynchronous:
            each = SECONDS / len(programs)
            return {name: _step_seconds(program, devices, arguments, each) for name, program in programs.items()}
        return _race(programs, arguments)
    finally:
        for program in programs.values():
            program.close()
        variables.close()


def _race(programs: dict[str, Program], arguments: dict[str, Array]) -> dict[str, float]:
    """The least seconds of a run of each; they take turns, since the machine's speed changes with time."""
    results = {name: program.results.arrays() for name, program in programs.items()}
    best = dict.fromkeys(programs, math.inf)
    for name, program in programs.items():
        program.run(arguments, results[name])
    begin = time.perf_counter()
    for done in range(MOST):
        if done >= LEAST and time.perf_counter() - begin > SECONDS:
            break
        for name, program in programs.items():
            start = time.perf_counter()
            program.run(arguments, results[name])
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _step_seconds(program: Program, devices: Devices, arguments: dict[str, Array], most: float) -> float:
    """The least seconds of the program's steps, repeated for ``most`` seconds; operands and results stay there."""
    plan = program.plan
    items = [item for _, item in single_steps(plan)]
    repeated: list[_Repeated] = []

    def steps_repeated(bound: Sequence[Any]) -> list[Any]:
        found = []
        for item, one in zip(items, (in_sequence([b])[0] for b in bound), strict=True):
            if isinstance(item, Segment):
                repeated.append(_Repeated(one, waiting(devices, plan, item), most))
                found.append(repeated[-1])
            else:
                found.append(one)
        return found

    alone = Bound(dataclasses.replace(plan, items=tuple(items), ranges={}), devices, program.persistent,
                  arrange=steps_repeated)  # fmt: skip
    try:
        alone.run(arguments, program.results.arrays())
    finally:
        alone.close()
    return sum(item.seconds for item in repeated)


class _Repeated:
    """A bound item that runs for so many seconds and notes the least time of a run."""

    def __init__(self, item: Any, wait: Callable[[], None], most: float) -> None:
        self.native: int = item.native
        self.seconds = math.inf
        self._item, self._wait, self._most = item, wait, most

    def run(self, slots: Any, count: int, cancel: Any, calls: Any) -> None:
        begin = time.perf_counter()
        for done in range(MOST):
            start = time.perf_counter()
            if done >= LEAST and start - begin > self._most:
                break
            self._item.run(slots, count, cancel, calls)
            self._wait()
            self.seconds = min(self.seconds, time.perf_counter() - start)


def _alone(node: LoweredNode, constant: Collection[int]) -> tuple[Graph, dict[str, Array]]:
    """A graph of the node with made-up operands, and what it is fed."""
    builder = GraphBuilder("alone")
    random = np.random.default_rng(0)
    inputs: list[Value | None] = []
    arguments: dict[str, Array] = {}
    for index, value in enumerate(node.node.inputs):
        if value is None:
            inputs.append(None)
            continue
        array = _random(value.type, random)
        if index in constant:
            inputs.append(builder.initializer(f"input{index}", array))
        else:
            inputs.append(builder.input(f"input{index}", value.type.dtype, value.type.sizes))
            arguments[f"input{index}"] = array
    made = builder.add(node.node.op, inputs, node.node.attributes, bodies=node.node.bodies, name="node")
    for index, result in enumerate(made.outputs):
        if result is not None:
            builder.output(f"output{index}", result)
    return builder.build(), arguments


def _random(type_: TensorType, random: np.random.Generator) -> Array:
    """Normal numbers of a floating type; ones of others, which most ops take."""
    if type_.dtype.kind == "f":
        return random.standard_normal(type_.sizes, np.float32).astype(type_.dtype.numpy)
    return np.ones(type_.sizes, type_.dtype.numpy)
