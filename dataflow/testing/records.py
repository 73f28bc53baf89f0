"""Checks of one kernel record beside its values: its in-place pairs, and what it leaves behind when it runs often."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from .. import ops
from .._runtime import ffi
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph
from ..ir.kernel import Kernel
from ..ir.lowered import LoweredNode
from ..ir.types import Array
from ..ir.value import Value
from ..planning.algorithms import Algorithms
from ..planning.offsets import values_apart
from ..session import Session
from .expected import expected_of
from .guarded import same_bytes
from .process_state import ProcessState, StaticMemory, live_bytes
from .sample import Sample
from .trial import Target, Trial, bounds_of, raised

_ROUNDS, _RUNS = 3, 8  # memory that is lost in every round is leaked, whatever Python keeps meanwhile
_PREPARES = 64  # in each round: what Python keeps and frees meanwhile is little beside what they would lose
_LEAST = 8  # bytes per run: the smallest block that C's allocator gives


# ---- in place ----------------------------------------------------------------------------------------


def in_place(sample: Sample, target: Target, kernel: Kernel) -> list[tuple[tuple[int, int], str | None]]:
    """For each pair of the record that this sample reaches, what is wrong when the result lies over the operand."""
    node = sample.node
    found = []
    for result, operand in kernel.inplace:
        if result >= len(node.outputs) or operand >= len(node.inputs):
            continue
        y, x = node.outputs[result], node.inputs[operand]
        if (
            y is None
            or x is None
            or y.type.sizes != x.type.sizes
            or y.type.nbytes != x.type.nbytes
            or not y.type.nbytes
        ):
            continue
        text = _problem_in_place(sample, target, (result, operand))
        if text is not _APART:
            found.append(((result, operand), text))
    return found


_APART = "they do not share memory"


def _problem_in_place(sample: Sample, target: Target, pair: tuple[int, int]) -> str | None:
    """What is wrong, ``_APART`` where the plan doesn't let the pair share memory, or None."""
    reference = target.registry.reference
    if reference is None:
        return _APART
    graph = _between_copies(sample, pair)
    feeds = sample.feeds()
    with values_apart(in_place=True):
        session = target.session(graph, Algorithms(), {"kit.*": reference})
        found: dict[str, Array] = {}
        if text := raised(lambda: found.update(session.run(feeds))):
            return text
    if not _shares(session, sample, pair):
        return _APART
    expected = expected_of(sample, target.registry)
    trial = Trial(sample, target, "in_place", (), expected, expected)
    for name in expected:
        if text := trial.mismatch(name, found[name]):
            return f"{name}: {text} where y{pair[0]} lies over x{pair[1]}, as the kernel claims that it may"
    for bound in bounds_of(session):
        if text := bound.damage():
            return text
    return None


def _between_copies(sample: Sample, pair: tuple[int, int]) -> Graph:
    """The node with an operand that it may overwrite and a result that isn't the graph's: both are copied."""
    g = GraphBuilder(sample.name)
    values: list[Value | None] = [
        None if operand is None else g.input(f"x{index}", operand.dtype, operand.shape)
        for index, operand in enumerate(sample.inputs)
    ]
    chosen = values[pair[1]]
    assert chosen is not None
    values[pair[1]] = ops.copy(chosen, name="kit.before")
    node = g.add(sample.op, values, sample.attributes, bodies=sample.bodies)
    for index, value in enumerate(node.outputs):
        if value is not None:
            g.output(f"y{index}", ops.copy(value, name="kit.after") if index == pair[0] else value)
    return g.build()


def _shares(session: Session, sample: Sample, pair: tuple[int, int]) -> bool:
    (plan,) = session.plans
    for segment in plan.segments:
        for step in segment.steps:
            if step.node.op.name == sample.op.name and not step.node.name.startswith("kit."):
                y, x = step.outputs[pair[0]], step.inputs[pair[1]]
                return y is not None and x is not None and (y.arena, y.offset) == (x.arena, x.offset)
    return False


# ---- many runs ---------------------------------------------------------------------------------------


def repeated(sample: Sample, other: Sample, target: Target, kernel: Kernel) -> str | None:
    """What is wrong when a session runs often, from two threads at once, or beside another, or None.

    Args:
        sample: what runs.
        other: of other sizes, where there is one: it is prepared and runs in between.
        target: where.
        kernel: the record.
    """
    session = target.session(sample.build(), Algorithms())
    outputs = _outputs(sample)
    draws = [(sample.feeds(), dict[str, Array]()), (sample.feeds(other=1), dict[str, Array]())]
    for feeds, results in draws:  # two draws, so that what one run leaves for another shows
        for _ in range(2):
            session.run(feeds, out=outputs)
        results.update((name, array.copy()) for name, array in outputs.items())
    return (
        _left_behind(session, draws[0][0], outputs)
        or (_static_memory(session, [feeds for feeds, _ in draws], outputs, kernel) if target.on_host else None)
        or _at_once(session, draws)
        or _prepared_often(session, target)
        or _beside_another(session, draws[0], other, target)
    )


def _outputs(sample: Sample) -> dict[str, Array]:
    node = sample.node
    return {
        f"y{index}": np.empty(value.type.sizes, value.type.dtype.numpy)
        for index, value in enumerate(node.outputs)
        if value is not None
    }


def _left_behind(session: Session, feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
    """Memory, files or threads of which there are more after every round of runs."""
    lost, grown = [], []
    for _ in range(_ROUNDS):
        state, bytes_before = ProcessState.now(), live_bytes()
        for _ in range(_RUNS):
            session.run(feeds, out=outputs)
        lost.append(live_bytes() - bytes_before)
        grown.append(ProcessState.now().grown(state))
    if all(grown):
        return grown[-1]
    return f"{min(lost) // _RUNS} bytes of memory are lost in each run" if min(lost) >= _LEAST * _RUNS else None


def _prepared_often(session: Session, target: Target) -> str | None:
    """Memory that is lost each time that a node is prepared and released."""
    engine = session._loaded().engine
    items = [item for program in engine.programs.values() for item in program.lowered.items]
    nodes = [item for item in items if isinstance(item, LoweredNode) and item.device == target.device]
    backend = engine.devices.backends.get(target.device)
    if not nodes or backend is None:
        return None
    lost = []
    for _ in range(_ROUNDS):
        before = live_bytes()
        for _ in range(_PREPARES):
            backend.prepare(nodes, engine.devices.threads)
        lost.append(live_bytes() - before)
    least = min(lost) // _PREPARES
    return f"{least} bytes of memory are lost each time that it is prepared" if least >= _LEAST else None


def _beside_another(
    session: Session, draw: tuple[Mapping[str, Array], Mapping[str, Array]], other: Sample, target: Target
) -> str | None:
    """Whether a node gives other bits after one of other sizes was prepared."""
    feeds, expected = draw
    beside = target.session(other.build(), Algorithms())
    beside.run(other.feeds())
    found = {name: np.empty_like(array) for name, array in expected.items()}
    session.run(feeds, out=found)
    if all(same_bytes(array, expected[name]) for name, array in found.items()):
        return None
    return (
        f"once {other.name} was prepared and ran, other bits: what a node keeps lies in its state, since others are "
        "prepared before it runs"
    )


def _static_memory(
    session: Session, draws: Sequence[Mapping[str, Array]], outputs: Mapping[str, Array], kernel: Kernel
) -> str | None:
    """Whether a run of a kernel in C changes the static memory of its library."""
    if not hasattr(kernel.code, "run"):  # a function of Python
        return None
    memory = StaticMemory(int(ffi.cast("uintptr_t", kernel.code.run)))
    session.run(draws[0], out=outputs)
    before = memory.read()
    session.run(draws[1], out=outputs)
    if memory.read() != before:
        return "a run changes static memory of the library: a kernel keeps no state, since several may run at once"
    return None


def _at_once(session: Session, draws: Sequence[tuple[Mapping[str, Array], Mapping[str, Array]]]) -> str | None:
    """Whether runs by two threads at once, each of data of its own, give the bits of one alone."""
    problems: list[str] = []
    together = threading.Barrier(2)

    def work(feeds: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
        own = {name: np.empty_like(array) for name, array in expected.items()}
        for _ in range(_RUNS // 2):
            together.wait(timeout=60)
            text = raised(lambda: session.run(feeds, out=own))
            wrong = [name for name, array in own.items() if not same_bytes(array, expected[name])]
            if text or wrong:
                problems.append(text or f"{wrong[0]}: two runs at once give other bits than one alone")

    threads = [threading.Thread(target=work, args=draw, daemon=True) for draw in draws]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems[0] if problems else None
