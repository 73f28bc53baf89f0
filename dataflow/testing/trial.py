"""A trial: a sample by one kernel with operands of one form, run so that what a kernel may do wrong shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..execute.bound import Bound
from ..ir.graph import Graph, Initializer
from ..ir.kernel import HOST, Kernel
from ..ir.types import Array
from ..planning.algorithms import Algorithms
from ..planning.offsets import values_apart
from ..plugin.device import Precision
from ..plugin.registry import Registry
from ..session import Session
from .guarded import GuardedArray, Position
from .layouts import Layouts, Variant
from .sample import Sample

TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}
NOISE = (0xFF, 0x55)  # what results hold before a run: NaN or -1, and in the next run a finite number
POSITIONS: tuple[Position, ...] = (0, "begin", 1, 2, 3)  # of operands that are not aligned: every small alignment
EITHER_ZERO = frozenset({"relu", "maximum", "minimum", "clip"})  # of -0 and 0 either is the larger
TWICE: frozenset[Variant] = frozenset({"plain", "strided", "constant"})  # run again over other noise


class Declined(Exception):
    """The reason why a device doesn't run a node that a kernel of it takes: so it says when it prepares."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where samples run.

    Attributes:
        device: its id.
        registry: of plugins.
        precision: of products.
    """

    device: str
    registry: Registry
    precision: Precision = "float32"

    def only(self, kernel: Kernel | None) -> Target:
        """The same with one kernel for its op; None: as it is."""
        if kernel is None:
            return self
        kernels = self.registry.kernels
        chosen = {**kernels, self.device: {**kernels[self.device], kernel.op: (kernel,)}}
        return dataclasses.replace(self, registry=dataclasses.replace(self.registry, kernels=chosen))

    def session(self, graph: Graph, algorithms: Algorithms, pin: Mapping[str, str] | None = None) -> Session:
        """A session of a graph that is not folded, and where something is pinned not fused."""
        named = [self.device, *(() if pin is None else dict.fromkeys(pin.values()))]
        return Session(
            graph,
            named,
            registry=self.registry,
            threads=2,
            fold=False,
            fuse=pin is None,
            precision=self.precision,
            algorithms=algorithms,
            pin=pin,
        )

    @property
    def on_host(self) -> bool:
        """Whether its kernels read the arrays of the kit where they lie."""
        return self.registry.devices[self.device].memory == HOST


@dataclass(frozen=True, slots=True)
class Trial:
    """A sample on a device, in one variant.

    Attributes:
        expected: the results.
        plain: the results of the ``plain`` variant; their magnitude is that of intermediate values, which the few
            distinct results of broadcast operands don't show.
        data: of the operands, instead of the sample's.
    """

    sample: Sample
    target: Target
    variant: Variant
    layouts: Layouts
    expected: Mapping[str, Array]
    plain: Mapping[str, Array]
    data: Mapping[str, Array] | None = None
    _scales: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def difference(self) -> str | None:
        """What is wrong first, over all algorithms of the device's kernel, or None.

        Raises:
            Declined: the device leaves the node to another.
        """
        avoided: set[str] = set()
        while True:
            algorithms = Algorithms(avoid=avoided)
            with values_apart():
                text = self._problem(algorithms)
            used = {*algorithms.used.values()}
            if text:
                notes = [str(self)] * any(self.layouts) + [f"algorithm {', '.join(sorted(used))}"] * bool(used)
                return text + (f" ({'; '.join(notes)})" if notes else "")
            if used <= avoided:
                return None
            avoided |= used

    def _problem(self, algorithms: Algorithms) -> str | None:
        """What is wrong with what a session computes that is made now, or None."""
        graph = self.sample.build(self.layouts)
        feeds = self.sample.feeds(self.layouts) if self.data is None else dict(self.data)
        if self.variant == "constant":
            graph, feeds = _with_constants(graph, feeds)
        session = self.target.session(graph, algorithms)
        inputs = {name: GuardedArray(array.shape, array.dtype, name) for name, array in feeds.items()}
        outputs = {name: GuardedArray(array.shape, array.dtype, name) for name, array in self.expected.items()}
        try:
            return self._runs_of(session, graph, feeds, inputs, outputs)
        finally:
            for guarded in (*inputs.values(), *outputs.values()):
                guarded.release()

    def _runs_of(
        self,
        session: Session,
        graph: Graph,
        feeds: Mapping[str, Array],
        inputs: Mapping[str, GuardedArray],
        outputs: Mapping[str, GuardedArray],
    ) -> str | None:
        """What is wrong in the runs of a session, or None."""
        first: Mapping[str, Array] = {}
        for number, (position, byte) in enumerate(self._runs()):
            for guarded in (*inputs.values(), *outputs.values()) if number or position != "end" else ():
                guarded.move(position)  # they are made at the end
            for name, array in feeds.items():
                inputs[name].fill(array)
                if number and self.target.on_host:
                    inputs[name].forbid_writes()
            for bound in bounds_of(session) if number else ():
                bound.poison(byte)
            text = self._run(session, feeds, inputs, outputs, byte)
            if text is None and not number:
                text = self._elsewhere(session, graph, feeds)
                first = {name: output.array.copy() for name, output in outputs.items()}
            elif text is None and position == "end":
                text = _changed(first, outputs)
            if text:
                return text
        return None

    def _runs(self) -> Iterator[tuple[Position, int]]:
        """Where operands lie in their pages, and with what results are filled before each run."""
        if not self.target.on_host:  # operands are copied, and lie where the plan says
            yield from (("end", byte) for byte in NOISE[: 2 if self.variant == "plain" else 1])
        elif self.variant == "unaligned":
            yield from ((position, NOISE[number % 2]) for number, position in enumerate(POSITIONS))
        else:
            yield from (("end", byte) for byte in NOISE[: 2 if self.variant in TWICE else 1])

    def _run(
        self,
        session: Session,
        feeds: Mapping[str, Array],
        inputs: Mapping[str, GuardedArray],
        outputs: Mapping[str, GuardedArray],
        byte: int,
    ) -> str | None:
        """What is wrong after one run, or None."""
        for output in outputs.values():
            output.poison(byte)
        given = {name: guarded.array for name, guarded in inputs.items()}
        text = raised(lambda: session.run(given, out={name: output.array for name, output in outputs.items()}))
        if text:
            return text
        for bound in bounds_of(session):
            if text := bound.damage():
                return text
        for name, guarded in inputs.items():
            if not guarded.same_bytes(feeds[name]):
                return f"{name} was changed: a kernel writes its results alone"
        for name, output in outputs.items():
            text = output.damage()
            if not text and (wrong := self.mismatch(name, output.array)):
                text = f"{name}: {wrong}{_unwritten(output.array, self.expected[name], byte)}"
            if text:
                return text
        return None

    def mismatch(self, name: str, found: Array) -> str | None:
        """How a result differs from what is expected, or None."""
        strict = self.variant == "special" and self.sample.op.name not in EITHER_ZERO
        text = _wrong_zeros(found, self.expected[name]) if strict else None
        if text is None and name not in self._scales:  # the same for each run and algorithm
            self._scales[name] = max(_largest(self.expected[name]), _largest(self.plain[name]))
        return text or mismatch(found, self.expected[name], self.sample.tolerance, self._scales[name])

    def _elsewhere(self, session: Session, graph: Graph, feeds: Mapping[str, Array]) -> str | None:
        """Where the node ran, if that isn't the device, or None; raises Declined where that is what the device says."""
        if len(graph.nodes) > 1 or not any(a.size for a in self.expected.values()):
            return None
        shapes = {name: array.shape for name, array in feeds.items()}
        assigned = [p for p in session.placement(shapes) if p.op == self.sample.op.name]
        devices = {p.device for p in assigned}
        if not devices or devices == {self.target.device}:
            return None
        for reason in (p.refusals[self.target.device] for p in assigned if self.target.device in p.refusals):
            raise Declined(reason)
        return f"the node ran on {', '.join(devices)}"

    def __str__(self) -> str:
        return ", ".join(f"x{i}{layout}" for i, layout in enumerate(self.layouts) if layout is not None)


def bounds_of(session: Session) -> Sequence[Bound]:
    """The plans of a session that have memory."""
    return [bound for program in session._loaded().engine.programs.values() for bound in program.bounds]


def raised(run: object) -> str | None:
    """What a call raises, as text, or None; only Ctrl-C goes through."""
    try:
        assert callable(run)
        run()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a kernel is anybody's code
        return f"raised {type(error).__name__}: {error}"
    return None


def _with_constants(graph: Graph, feeds: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph with every input but the first as an initializer, and the data of the first."""
    first, *others = graph.inputs
    stored = {**graph.initializers, **{value: Initializer(feeds[value.name]) for value in others}}
    return dataclasses.replace(graph, inputs=(first,), initializers=stored), {first.name: feeds[first.name]}


def _unwritten(found: Array, expected: Array, byte: int) -> str:
    """A note where differing elements are still what they were before the run."""
    if found.dtype.hasobject:
        return ""
    rows = found.reshape(-1).view(np.uint8).reshape(found.size, -1)
    kept = int(
        ((rows == byte).all(1) & (expected.reshape(-1).view(np.uint8).reshape(found.size, -1) != rows).any(1)).sum()
    )
    return f"; {kept} of them were not written" if kept else ""


def _changed(first: Mapping[str, Array], outputs: Mapping[str, GuardedArray]) -> str | None:
    """A result of which a second run made other bits, or None."""
    for name, output in outputs.items():
        if not output.same_bytes(first[name]):
            return (
                f"{name}: a second run gives other bits: an element is left unwritten, is read before it is written, "
                "or isn't computed the same each time"
            )
    return None


def _largest(array: Array) -> float:
    """The largest magnitude of finite elements; 0 without any, and of strings."""
    if array.dtype.hasobject:
        return 0.0
    sizes = np.abs(array.astype(np.float64))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _wrong_zeros(found: Array, expected: Array) -> str | None:
    """Where zeros have the other sign, or None."""
    if found.dtype.kind not in "fV":
        return None
    a, b = found.astype(np.float64), expected.astype(np.float64)
    wrong = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    if not wrong.any():
        return None
    return f"{int(wrong.sum())} of {wrong.size} zeros have the other sign, first at {np.argwhere(wrong)[0].tolist()}"


def mismatch(found: Array, expected: Array, tolerance: float | None, scale: float) -> str | None:
    """The first element whose error exceeds rounding of values as large as ``scale``, or None."""
    if found.dtype.kind == "b":
        wrong = found.view(np.uint8) != expected.view(np.uint8)  # a bool is the byte 0 or 1
    elif found.dtype.kind not in "fV":
        wrong = found != expected
    else:
        limit = tolerance or TOLERANCES.get(found.dtype.name, 2e-2)
        a, b = found.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):  # of infinities
            close = np.abs(a - b) <= limit * np.maximum(np.abs(b), 0.1 * scale)
        wrong = ~((close & np.isfinite(a) & np.isfinite(b)) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    return f"{count} of {wrong.size} elements differ, first at {list(at)}: {found[at]} instead of {expected[at]}"
