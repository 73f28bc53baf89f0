"""Where the time of a plan goes: every step timed by itself, in the plan's order."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..host.numbers import integer
from ..ir.kernel import HOST
from ..ir.operand import Operand
from ..ir.plan import Item, Plan, Segment, Step, Transfer, Wait
from ..ir.types import Array
from .bound import Bound
from .bound_items import in_sequence
from .devices import Devices
from .marks import Call
from .program import Program
from .program_calls import ProgramCall

TRANSFER, WAIT = "transfer", "wait"
WARM = 2  # rounds that don't count
MOST_ROUNDS = 1_000_000

Span = tuple[float, float]  # begin and end in seconds


@dataclass(frozen=True, slots=True)
class StepTime:
    """What one step of a plan costs.

    Attributes:
        node: its name; of a transfer the value's.
        op: the op's name; ``transfer`` and ``wait`` are steps between segments.
        device: id; of a transfer the side that is not the host.
        kernel: its name, with the algorithm where it has several; empty for a body, a transfer and a wait.
        segment: which of the plan's items it belongs to.
        seconds: the median over the rounds; of several calls together.
        fastest: the least of them.
        operations: floating-point operations by the op's declaration; a kernel that needs fewer still counts these.
        bytes: every operand once: what it reads and writes at least.
        calls: how many there are in a run; more than one in loops that the host runs.
    """

    node: str
    op: str
    device: str
    kernel: str
    segment: int
    seconds: float
    fastest: float
    operations: int
    bytes: int
    calls: int = 1


@dataclass(frozen=True, slots=True)
class OpTime:
    """The steps of one op on one device together; see StepTime."""

    op: str
    device: str
    count: int
    seconds: float
    operations: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The time of a plan, as a whole and by steps.

    Attributes:
        steps: in the plan's order.
        spans: begin and end of each step in the round of median length, in seconds from the round's begin.
        seconds: the whole plan run as always, the median over the rounds.
        rounds: how many there were.
        outputs: the results by name.
        beside: what other threads did in that round, by name: sums of gradients over processes.
    """

    steps: tuple[StepTime, ...]
    spans: tuple[Span, ...]
    seconds: float
    rounds: int
    outputs: Mapping[str, Array]
    beside: tuple[tuple[str, Span], ...] = ()

    @property
    def step_seconds(self) -> float:
        """The sum over the steps; what ``seconds`` has beyond it is lost between them."""
        return sum(step.seconds for step in self.steps)

    def by_op(self) -> list[OpTime]:
        """Sums per op and device, the longest first."""
        groups: dict[tuple[str, str], list[StepTime]] = {}
        for step in self.steps:
            groups.setdefault((step.op, step.device), []).append(step)
        found = [
            OpTime(
                op,
                device,
                sum(s.calls for s in steps),
                sum(s.seconds for s in steps),
                sum(s.operations for s in steps),
                sum(s.bytes for s in steps),
            )
            for (op, device), steps in groups.items()
        ]
        return sorted(found, key=lambda row: -row.seconds)


def profile_program(program: Program, devices: Devices, arguments: Mapping[str, Array], rounds: int) -> Profile:
    """The profile of a program.

    Each step is bound as a segment of its own, so that one native call runs it, and the whole plan is run in order in
    every round: each step finds memory and caches as the steps before it leave them. What a call of a segment without
    steps takes is subtracted. Rounds of the plan as it is take turns with them.

    Args:
        program: what is measured.
        devices: its devices.
        arguments: contiguous, aligned arrays of the planned types, by name.
        rounds: how often; two more warm up.

    Raises:
        InputError: fewer than one round.
    """
    rounds = integer("rounds", rounds, 1, MOST_ROUNDS)
    plan = program.plan
    numbered = single_steps(plan)
    empty = {s.device: Segment(s.device, ()) for s in plan.segments}
    items = (*(item for _, item in numbered), *empty.values())
    timed: list[_Timed] = []
    marks = program.marks

    def each_timed(bound: Sequence[Any]) -> list[Any]:
        waits = [waiting(devices, plan, item) for item in items]
        for b, wait in zip(bound, waits, strict=True):
            timed.append(_Timed(in_sequence([b])[0], wait, getattr(b, "elapsed", None)))
        arranged: list[Any] = [*timed]
        for number, (item, step) in reversed([*enumerate(() if marks is None else marks.after)]):
            begin = next(i for i, (index, _) in enumerate(numbered) if index == item)
            arranged.insert(begin + step + 1, Call(marks.reached, number) if marks else None)
        return arranged

    single = dataclasses.replace(plan, items=items, ranges={})
    bound = Bound(single, devices, program.persistent, arrange=each_timed)
    try:
        outputs = program.results.arrays()
        totals = []
        beside: list[Sequence[tuple[str, float, float]]] = []
        for _ in range(rounds + WARM):
            begin = time.perf_counter()
            program.run(arguments, outputs)
            totals.append(time.perf_counter() - begin)
            if marks is not None:
                marks.begin()
            bound.run(arguments, outputs)
            beside.append(() if marks is None else marks.end())
    finally:
        bound.close()
    spans = [item.spans[WARM:] for item in timed]
    lost = [0.0 if item.by_device else _median(found) for item, found in zip(timed, spans, strict=True)]
    idle = dict(zip(empty, lost[len(numbered) :], strict=True))
    steps = tuple(
        _step_time(item, index, found, idle, devices) for (index, item), found in zip(numbered, spans, strict=False)
    )
    usual = _usual_round(spans[: len(numbered)])
    start = spans[0][usual][0] if numbered else 0.0
    return Profile(
        steps,
        tuple((found[usual][0] - start, found[usual][1] - start) for found in spans[: len(numbered)]),
        statistics.median(totals[WARM:]),
        rounds,
        outputs,
        tuple((name, (begin - start, end - start)) for name, begin, end in beside[WARM:][usual]),
    )


def profile_calls(
    calls: Sequence[ProgramCall], run: Callable[[], Mapping[str, Array]], devices: Devices, rounds: int
) -> Profile:
    """The profile of a run that calls several programs, since data decide about shapes: those of each, added up.

    Args:
        calls: programs with their arguments; of several calls of a program the first is measured.
        run: the run.
        devices: of the programs.
        rounds: see ``profile_program``.
    """
    rounds = integer("rounds", rounds, 1, MOST_ROUNDS)
    counts = Counter(id(program) for program, _ in calls)
    first = {id(program): call for call in reversed(calls) for program in [call[0]]}
    found: dict[tuple[str, ...], StepTime] = {}
    for key in dict.fromkeys(id(program) for program, _ in calls):
        for step in profile_program(first[key][0], devices, first[key][1], rounds).steps:
            same = step.node, step.op, step.device, step.kernel
            found[same] = _added(found.get(same), step, counts[key])
    totals, outputs = [], dict[str, Array]()
    for _ in range(rounds + WARM):
        begin = time.perf_counter()
        outputs = dict(run())
        totals.append(time.perf_counter() - begin)
    ends = itertools.accumulate(step.seconds for step in found.values())
    spans = tuple((end - step.seconds, end) for step, end in zip(found.values(), ends, strict=True))
    return Profile(tuple(found.values()), spans, statistics.median(totals[WARM:]), rounds, outputs)


def _added(known: StepTime | None, step: StepTime, count: int) -> StepTime:
    """A step that is called ``count`` times, together with what is known of the same node for other sizes."""
    fields = ("seconds", "fastest", "operations", "bytes", "calls")
    sums = {f: getattr(step, f) * count + (getattr(known, f) if known is not None else 0) for f in fields}
    return dataclasses.replace(known or step, **sums)


class _Timed:
    """A bound item that notes when it began and ended."""

    def __init__(self, item: Any, wait: Callable[[], None], elapsed: Callable[[], float | None] | None) -> None:
        self.native: int = item.native
        self.spans: list[Span] = []
        self.by_device = False  # the device's clock was asked, which knows nothing of the host's time
        self._item, self._wait, self._elapsed = item, wait, elapsed

    def run(self, slots: Any, count: int, cancel: Any, calls: Any) -> None:
        begin = time.perf_counter()
        self._item.run(slots, count, cancel, calls)
        self._wait()
        end = time.perf_counter()
        seconds = self._elapsed() if self._elapsed is not None else None
        self.by_device = seconds is not None
        self.spans.append((begin if seconds is None else end - seconds, end))


def single_steps(plan: Plan) -> list[tuple[int, Item]]:
    """The plan's items, each step as a segment of its own, with the number of the item that it belongs to."""
    found: list[tuple[int, Item]] = []
    for index, item in enumerate(plan.items):
        if isinstance(item, Segment):
            found += [(index, Segment(item.device, (step,))) for step in item.steps]
        else:
            found.append((index, item))
    return found


def waiting(devices: Devices, plan: Plan, item: Item) -> Callable[[], None]:
    """What ends an item: nothing, or on a device that works asynchronously that it has done its work."""
    device = _device(item, devices)
    return devices.backends[device].sync if device in plan.asynchronous else lambda: None


def _device(item: Item, devices: Devices) -> str:
    if not isinstance(item, Transfer):
        return item.device
    return item.from_device if devices.memories[item.from_device] != HOST else item.to_device


def _median(spans: Sequence[Span]) -> float:
    return statistics.median(end - begin for begin, end in spans)


def _usual_round(spans: Sequence[Sequence[Span]]) -> int:
    """The number of the round of median length."""
    lengths = [sum(end - begin for begin, end in round) for round in zip(*spans, strict=True)]
    return sorted(range(len(lengths)), key=lengths.__getitem__)[len(lengths) // 2] if lengths else 0


def _step_time(item: Item, index: int, spans: Sequence[Span], idle: Mapping[str, float], devices: Devices) -> StepTime:
    device = _device(item, devices)
    median, fastest = _median(spans), min(end - begin for begin, end in spans)
    if isinstance(item, Wait):
        return StepTime("", WAIT, device, "", index, median, fastest, 0, 0)
    if isinstance(item, Transfer):
        return StepTime(item.name, TRANSFER, device, "", index, median, fastest, 0, 2 * item.source.type.nbytes)
    (step,) = item.steps
    tick = time.get_clock_info("perf_counter").resolution  # the least that is known to be more than nothing
    seconds, fastest = (max(found - idle[device], tick) for found in (median, fastest))
    return StepTime(step.node.name, step.node.op.name, device, step.path, index, seconds, fastest, *work(step))


def work(step: Step) -> tuple[int, int]:
    """Operations and bytes of a step, see StepTime; of a body as often as it runs at most."""
    if step.body is not None:
        inner = [work(s) for s in step.body.steps]
        return step.body.iterations * sum(o for o, _ in inner), step.body.iterations * sum(b for _, b in inner)
    written = [o for o in step.outputs if o is not None]
    cost = step.node.op.cost
    operations = sum(o.type.elements for o in written) if cost is None else int(cost(step.node))
    return operations, sum(map(_bytes, written)) + sum(_bytes(o) for o in step.inputs if o is not None)


def _bytes(operand: Operand) -> int:
    """Of its elements; what is repeated by a stride of zero counts once."""
    return min(operand.type.nbytes, operand.bytes)
