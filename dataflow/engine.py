"""Engine: open devices, stored tensors and the plans made for them; sessions and trainers run on one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from .compile import Compiled, lowered_graph, planned
from .errors import DeviceError
from .execute.execution import Execution, choose_devices, open_devices
from .execute.program import Program
from .execute.program_cache import Key, Kind, ProgramCache
from .execute.run_state import KeptState, growing_sizes
from .execute.scratch import Scratch
from .execute.series import SeriesProgram, can_move
from .execute.shared_copies import shared_copies
from .execute.variables import Variables
from .host.garbage_collection import collection_paused
from .ir.graph import Graph, Initializer
from .ir.lowered import NO_STATE, Lowered, RunState
from .ir.types import Array
from .lower.template import Remade
from .lower.templates import Sized, Templates
from .passes.bind_shapes import is_open
from .planning.budget import check_budget
from .planning.memory_goal import MemoryGoal, Searches
from .planning.series import series_of
from .plugin.device import Refused
from .plugin.registry import registry_of


class Engine:
    """Open devices with the tensors that outlive a run and the programs that were compiled for them.

    Safe to use from several threads.

    Args:
        how: which devices, and how they compile.
        graph: the user's, to which the patterns of pins refer.
        plans: how many are kept per kind of program, the least recently used going first.
        shares: prepacked copies are those of other engines that share; nothing is ever written to tensors.
        state: outputs that runs leave for the next, and the inputs that they become.

    Attributes:
        registry: what plugins offer.
        placement: devices in order, and what runs where.
        devices: the same, open.
        variables: the stored tensors.
        state: what runs left; None where they leave nothing.

    Raises:
        InputError: an unknown device, option or precision; a pin that fits nothing.
        DeviceError: a named device is unavailable.
    """

    def __init__(
        self,
        how: Execution,
        graph: Graph,
        *,
        plans: int,
        shares: bool = False,
        state: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._how, self._plans, self._searches = how, plans, Searches()
        self._fixed = not is_open(graph)
        self.registry = registry_of(how.registry)
        self._sharing = shared_copies(self.registry) if shares else None
        self.placement = choose_devices(how, self.registry, graph)
        self.devices = open_devices(how, self.placement, self.registry)
        pairs = RunState(MappingProxyType(dict(state)), self.devices.memories[self.placement.devices[0]])
        self.state = KeptState(pairs, self.devices) if state else None
        self._scratch = Scratch(self.devices, exact=how.small) if state or how.small else None
        self._begin()

    def _begin(self) -> None:
        self.variables = Variables(self.devices, borrows=True, sharing=self._sharing)
        self._programs = ProgramCache(self.variables.may_drop, self.variables.drop_constants)
        self._templates = Templates()

    def renewed(self) -> Engine:
        """An engine on the same devices, without tensors and programs."""
        other = copy.copy(self)
        other._begin()
        return other

    @property
    def programs(self) -> Mapping[Key, Program]:
        """Those that are kept, of each kind the least recently used first."""
        return self._programs.programs

    @property
    def recent(self) -> Program | None:
        """The program that was used last, and so is kept; None where none is."""
        return self._programs.recent

    def find(self, kind: Kind, form: Hashable) -> Program | None:
        """The program of a kind for ``form``, where it is kept."""
        return self._programs.find(kind, form)

    def program(self, kind: Kind, form: Hashable, make: Callable[[], Program], more: int = 1) -> Program:
        """The program of a kind for ``form``; ``make`` makes it where it isn't kept.

        Args:
            kind: of the program.
            form: which of them it is.
            make: makes it.
            more: how many times as many of this kind are kept as of others.
        """
        return self._programs.program(kind, form, lambda: collection_paused(make), self._plans * more)

    def compile(
        self,
        graph: Graph | Sized,
        *,
        mutable: Collection[str] = (),
        owners: Mapping[str, str] = MappingProxyType({}),
        goal: MemoryGoal | None = None,
        reserved: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> Compiled:
        """The plan of a bound graph. A device that refuses nodes is not asked for these again.

        Args:
            graph: every dim is an int; or what makes it for some sizes.
            mutable: see ``lowered_graph``.
            owners: likewise.
            goal: see ``planned``.
            reserved: of the state, see ``RunState``.

        Raises:
            DeviceError: the last device refuses nodes, or one refuses what it wasn't asked for.
        """
        placement = self.placement
        state = NO_STATE if self.state is None else replace(self.state.state, reserved=reserved)

        def lowered(one: Graph) -> tuple[Lowered, dict[str, Initializer]]:
            return lowered_graph(
                one,
                placement,
                self.registry,
                mutable=mutable,
                owners=owners,
                folding=self._how.fold,
                ordered=self._fixed,
                fusion=self._how.fuse,
                state=state,
                storage=self._how.storage,
                precision=self._how.precision,
            )

        while True:
            if isinstance(graph, Sized) and placement is self.placement:
                how = frozenset(mutable), tuple(owners.items()), tuple(reserved.items())
                found = self._templates.lowered(graph, how, lowered)
            else:
                found = lowered(graph.make(graph.sizes) if isinstance(graph, Sized) else graph)
            try:
                return planned(
                    *found,
                    placement,
                    self.devices,
                    self.registry,
                    mutable=mutable,
                    goal=goal,
                    searches=self._searches,
                    prepacks=not self._how.small,
                )
            except Refused as error:
                pins = placement.pins.without(error)
                if pins.refused.keys() == placement.pins.refused.keys():
                    raise DeviceError(str(error)) from error
                placement = replace(placement, pins=pins)

    def build(
        self,
        graph: Graph | Sized,
        *,
        mutable: Collection[str] = (),
        owners: Mapping[str, str] = MappingProxyType({}),
        newest: Callable[[str], Array | None] = lambda name: None,
        judge: Callable[[Lowered], None] = lambda lowered: None,
        scratch: Scratch | None = None,
        cap: int = 1,
    ) -> Program:
        """The program of a bound graph, with its tensors allocated and filled.

        Args:
            graph: every dim is an int; or what makes it for some sizes.
            mutable: names of initializers that some program changes.
            owners: owning memory of each mutable initializer.
            newest: data by name that comes before the graph's, or None.
            judge: sees the placement of the nodes and may refuse it.
            scratch: buffers that programs use in turn; None: the program's own.
            cap: the most runs of it at one time.

        Raises:
            InputError: the memory goal can't be reached.
            ModelError: no device takes a node.
            OutOfMemoryError: a memory can't hold the plan.
            LimitExceeded: the limits don't allow it.
        """
        scratch = scratch or self._scratch
        made = self.compile(graph, mutable=mutable, owners=owners, goal=self._how.memory)
        plan, lowered = made.plan, made.lowered
        judge(lowered)
        self._take(made, scratch, newest)
        return Program(plan, lowered, self.devices, self.variables, cap, scratch, self.state, made.segments)

    def _take(self, made: Compiled, scratch: Scratch | None, newest: Callable[[str], Array | None]) -> None:
        """Takes the memory of tensors that a program needs and nobody has yet."""
        reserved = {} if scratch is None else scratch.sizes
        present = self.variables.present(made.plan, made.initial)
        check_budget(made.plan, self.devices.available, present, reserved, self.devices.account)
        self.variables.require(made.plan, made.lowered, made.initial, newest)

    @property
    def makes_series(self) -> bool:
        """Whether it keeps programs, kernels choose algorithms themselves, and sizes to come may take memory."""
        return self._plans > 0 and self._how.algorithms.free and (self.state is not None or not self._how.small)

    def build_series(
        self,
        graphs: Sequence[Graph | Sized],
        count: int,
        *,
        varying: Collection[str],
        mutable: Collection[str] = (),
        owners: Mapping[str, str] = MappingProxyType({}),
        newest: Callable[[str], Array | None] = lambda name: None,
        judge: Callable[[Lowered], None] = lambda lowered: None,
        scratch: Scratch | None = None,
        cap: int = 1,
        most: int | None = None,
        bends: bool = False,
    ) -> SeriesProgram | str:
        """The program of a series of plans, or why there is none; see ``build``.

        Args:
            graphs: for the sizes of the first plan, of the second, and of the one ``count`` steps from the first.
            count: at least two.
            varying: names of values that are constant in each plan, but not the same in all.
            mutable: as for ``build``.
            owners: likewise.
            newest: likewise.
            judge: likewise.
            scratch: likewise.
            cap: likewise.
            most: bytes of scratch memory that the last plan may take; None: as many as there are.
            bends: see ``series_of``.

        Raises:
            ModelError: no device takes a node.
            OutOfMemoryError: a memory can't hold the last plan.
            LimitExceeded: the limits don't allow it.
        """
        if any(getattr(backend, "compiles", False) for backend in self.devices.backends.values()):
            return "a device compiles segments for their sizes"
        goal, changing = self._how.memory, {*mutable, *varying}
        if goal is not None and goal.is_budget:
            return "the budget of memory holds for each plan by itself"
        scratch = scratch or self._scratch
        first_graph, last_graph, rows = graphs[0], graphs[2], dict[str, tuple[int, ...]]()
        if self.state is not None and isinstance(first_graph, Graph) and isinstance(last_graph, Graph):
            rows = growing_sizes(self.state.state.pairs, first_graph, last_graph)
        made = self.compile(graphs[2], mutable=changing, owners=owners, goal=goal, reserved=rows)
        if most is not None and made.plan.peak_bytes > most:
            return f"the largest sizes would take {made.plan.peak_bytes} bytes; the most is {most}"
        same = None if made.lowered.again is None else MemoryGoal(as_before=True)
        first, second = (
            self.compile(graph, mutable=changing, owners=owners, goal=same, reserved=rows) for graph in graphs[:2]
        )
        if not can_move(made.plan, self.devices):
            return "a device cannot move from plan to plan"
        series = series_of(first.plan, second.plan, made.plan, count, bends=bends)
        if isinstance(series, str):
            return series
        different = [k for k, d in made.initial.items() if not (_same(d, first.initial[k], second.initial[k]))]
        if different:
            return f"the constant {different[0]!r} depends on sizes"
        judge(made.lowered)
        self._take(made, scratch, newest)
        return SeriesProgram(series, made.lowered, self.devices, self.variables, cap, scratch, self.state)

    def forget_programs(self) -> None:
        """Drops all programs; none may be running."""
        self._programs.clear()
        self._templates.clear()

    def close(self) -> None:
        """Gives device memory back; nothing may be running."""
        self.forget_programs()
        self.variables.close()


def _same(one: Initializer, *others: Initializer) -> bool:
    """Whether stored tensors of several graphs begin with the same data."""
    if isinstance(one, Remade) and all(isinstance(o, Remade) and o.template is one.template for o in others):
        return True
    return all(_equal(one.array, o.array) and _equal(one.factor, o.factor) for o in others)


def _equal(one: Array | None, other: Array | None) -> bool:
    if one is other:
        return True
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not any(one.strides) and not any(other.strides):  # one element, however often
        one, other = one[(slice(1),) * one.ndim], other[(slice(1),) * other.ndim]
    if one.dtype == object:
        return bool((one == other).all())
    return one.tobytes() == other.tobytes()
