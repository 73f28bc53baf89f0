"""The tensors that training changes: where they lie, what they held first, what they hold now."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..engine import Engine
from ..errors import InputError
from ..ir.graph import Graph
from ..ir.kernel import HOST
from ..ir.lowered import Lowered
from ..ir.types import Array, TensorType, dtype
from .joint import ACCUMULATOR, PENDING
from .optimizers.masters import MASTER, master_type
from .optimizers.updates import Updates
from .tied_weights import Tie

_log = logging.getLogger("dataflow")


class Trained:
    """Parameters, the optimizer's tensors, accumulated gradients and statistics, by name, wherever they lie.

    Args:
        engine: has the tensors.
        graph: has their first data.
        updates: knows the optimizer's tensors per parameter.
        trainable: names of parameters.
        statistics: names of running statistics that training updates.
        ties: stored tensors that are copies of others.

    Attributes:
        reached: names of the parameters that the loss depends on; empty before the first micro-batch.
        averaged: ``newest`` gives the average of a parameter where the optimizer keeps one.
        owners: the memory in which each changed tensor lies; None before the first micro-batch, where each lies on the
            host.
    """

    def __init__(
        self,
        engine: Engine,
        graph: Graph,
        updates: Updates,
        trainable: Sequence[str],
        statistics: Sequence[str],
        ties: Mapping[str, Tie],
    ) -> None:
        self._engine, self._ties = engine, ties
        self._trainable, self._statistics = tuple(trainable), tuple(statistics)
        self._first = {v.name: data.array for v, data in graph.initializers.items()}
        self._slots, self._tensors = updates.slots, updates.all_slots()
        self._evaluated = {t.parameter: slot for slot, t in self._tensors.items() if t.slot.evaluated}
        self._loaded: dict[str, Array] = {}
        self.reached: tuple[str, ...] = ()
        self.averaged = True
        self.owners: dict[str, str] | None = None

    def reach(self, names: tuple[str, ...]) -> None:
        """Says on which parameters the loss depends; once which of those to train stay as they are."""
        reached = set(names)
        left = [name for name in self._trainable if name not in reached]
        if left and not self.reached:
            more = ", ..." if len(left) > 4 else ""
            _log.info(
                "the loss depends on %d of %d trained tensors; these stay as they are: %s",
                len(names), len(self._trainable), ", ".join(left[:4]) + more,
            )  # fmt: skip
        self.reached = names

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the parameters to train, as far as it is known."""
        return self.reached or self._trainable

    def changed(self) -> set[str]:
        """Names of the stored tensors that some program changes."""
        names = {*self.wanted, *self._statistics, *(PENDING + s for s in self._statistics)}
        names |= {ACCUMULATOR + name for name in self.reached}
        names |= {*self._assigned()}
        return names.union(self._averages().values(), *(self._slots[name] for name in self.reached))

    def averages(self) -> dict[str, str]:
        """By parameter the name of what evaluation reads in its place, where ``averaged`` says so."""
        return self._averages() if self.averaged else {}

    def _averages(self) -> dict[str, str]:
        """Likewise, of the parameters whose averages exist: from a checkpoint before the first micro-batch, too."""
        if not self._evaluated:
            return {}
        reached = frozenset(self.reached)
        return {name: slot for name, slot in self._evaluated.items() if name in reached or slot in self._loaded}

    def all_owners(self) -> dict[str, str]:
        """The memory of each tensor that some program changes."""
        return {**dict.fromkeys(self.changed(), HOST), **(self.owners or {})}

    def _assigned(self) -> list[str]:
        """Names of trainable parameters that were set or loaded, and on which the loss doesn't depend as far as known.

        What reads them beside the loss must not take what they were at first for constant.
        """
        held = [name for name in self._trainable if f"parameters/{name}" in self._loaded] if self._loaded else []
        return [name for name in held if name not in self.reached]

    def resolve(self, lowered: Lowered | None) -> None:
        """Decides once where each tensor lies: in the memory of the first device that reads the parameter.

        Args:
            lowered: a training program; None where all devices work on the host's memory.
        """
        owners = self.owners = {}
        if lowered is None:
            return
        changed = self.changed()
        for stored in lowered.stored.values():
            memory = stored.storage.base.memory
            if memory != HOST and stored.name in changed:
                owners[stored.name] = memory
        for name in self.reached:
            owner = owners.get(name, HOST)
            for other in (ACCUMULATOR + name, *self._slots[name]):
                owners[other] = owner
        for name in self._statistics:
            owners[PENDING + name] = owners.get(name, HOST)

    # ---- data -----------------------------------------------------------------------------------------

    def initial(self, name: str) -> Array | None:
        """Data from a checkpoint, or what a parameter or slot begins with; None for others and for zeros.

        A parameter's first program needn't be one whose graph has its data: a batch may take another branch.
        """
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded.get("parameters/" + name)
        if found is None and name in self.reached:
            found = self._first[name]
        begins = found is None and name in self._tensors and self._tensors[name].slot.start != 0.0
        return self._begun(name) if begins else found

    def newest(self, name: str) -> Array | None:
        """The newest data of a parameter or statistic that training changes; None for others."""
        tie = self._ties.get(name)
        if tie is not None:
            source = self.newest(tie.of)
            return None if source is None else tie.apply(source)
        average = self._evaluated.get(name, name) if self.averaged else name
        if name not in self.reached and name not in self._statistics:
            return self._loaded.get(average, self._loaded.get("parameters/" + name))
        found = self.read(average)
        return found if average == name else found.astype(self._first[name].dtype, copy=False)

    def read(self, name: str) -> Array:
        """A copy of a tensor that training changes."""
        key = self.key_of(name)
        if key in self._engine.variables:
            return self._engine.variables.read(key)
        array = self.initial(name)
        return self._begun(name) if array is None else array

    def view(self, name: str) -> Array:
        """A tensor that training changes: where it lies on the host itself, not to be written; else a copy."""
        key = self.key_of(name)
        return self._engine.variables.view(key) if key in self._engine.variables else self.read(name)

    def assign(self, name: str, array: Array) -> None:
        """Replaces a parameter or a statistic by what users set, of its type; a master is replaced with it.

        Raises:
            InputError: training doesn't change it, or makes it anew at each step of what else is kept; it is read as
                its average; or it is a copy of another, which couldn't be what this one is to be.
        """
        tie = self._ties.get(name)
        if tie is not None:
            source = tie.invert(array, self._first[tie.of].shape)
            if source is None:
                raise InputError(
                    f"parameter {name!r} repeats {tie.of!r}, with which it is trained, and the value has rows that "
                    f"differ; set {tie.of!r}"
                )
            self.assign(tie.of, source)
            return
        if name not in {*self.wanted, *self._statistics, *self._assigned()}:
            why, advice = "that doesn't change it", "name it in trainable=, of statistics give batch_norm='update',"
            if name in self._trainable:
                why, advice = "whose loss doesn't depend on it", "set it before the first step,"
            raise InputError(
                f"parameter {name!r}: a Trainer owns the model's weights, {why}, so it is a constant of what was "
                f"compiled; {advice} or close the Trainer first. What changes by hand from step to step can be an "
                "input of the model, too"
            )
        held = {slot: tensor.slot for slot, tensor in self._tensors.items() if tensor.parameter == name}
        begun = [slot for slot in held if self.key_of(slot) in self._engine.variables or slot in self._loaded]
        copies = [slot for slot in begun if held[slot].start == "parameter" and held[slot].name != MASTER.name]
        others = [held[slot].name for slot in copies if not held[slot].evaluated]
        if others:
            raise InputError(
                f"parameter {name!r}: the optimizer makes it anew at each step, of what it keeps "
                f"({', '.join(others)}), so the value would be lost; use another one, or set it before the first step"
            )
        if copies and self.averaged:
            raise InputError(
                f"parameter {name!r}: it is read as its average, and what is trained is to be set; assign "
                "trainer.averaged = False before, True after it. The average follows with the next steps"
            )
        self._loaded[f"parameters/{name}"] = array
        masters = [slot for slot in begun if held[slot].name == MASTER.name]
        for each in (name, PENDING + name, *masters):
            key = self.key_of(each)
            if key in self._engine.variables:
                self._engine.variables.write(key, array)
            elif each in self._loaded:
                self._loaded[each] = array.astype(self._loaded[each].dtype)
        self.drop_loaded()

    def write(self, name: str, array: Array) -> None:
        """Copies ``array`` into a tensor of the same dtype and shape, where it exists already.

        A slot that no program reads is kept as the array.
        """
        if self.key_of(name) in self._engine.variables:
            self._engine.variables.write(self.key_of(name), array)
        elif name in self._tensors:
            self._loaded[name] = array

    def stood_still(self, name: str, keep: float) -> None:
        """Takes a parameter into its average, of which ``keep`` is left; nothing where it hasn't begun."""
        average = self._evaluated[name]
        if self.key_of(average) not in self._engine.variables and average not in self._loaded:
            return
        masters = [slot for slot in self._slots[name] if self._tensors[slot].slot.name == MASTER.name]
        mean, weights = self.read(average), self.read([name, *masters][-1])
        moved = keep * mean.astype(np.float64) + (1.0 - keep) * weights.astype(np.float64)
        # What is equal stays, to the bit.
        self.write(average, np.where(mean == weights, mean, moved.astype(mean.dtype)))

    def slots(self) -> dict[str, str]:
        """The parameter of each of the optimizer's tensors that are there, by its name."""
        return {slot: name for name in self.reached for slot in self._slots[name]}

    def state(self, without: Collection[str] = (), *, copies: bool = True) -> dict[str, Array]:
        """What training changes: ``parameters/<name>`` and ``optimizer/<slot>/<name>``.

        Args:
            without: names of slots that are left out.
            copies: otherwise arrays on the host are where they lie, and change with the next step.
        """
        read = self.read if copies else self.view
        found = {f"parameters/{name}": read(name) for name in (*self.reached, *self._statistics)}
        slots = [*self.slots(), *(slot for name in self._assigned() for slot in self._slots[name])]
        found |= {slot: read(slot) for slot in slots if slot not in without}
        return {**self._loaded, **found}

    def drop_loaded(self) -> None:
        """Forgets what was loaded of parameters and slots of which there are variables: these have it.

        A parameter is kept while a slot begins as it does that was neither loaded nor made.
        """
        variables = self._engine.variables
        for name in self.reached if self._loaded else ():
            absent = [slot for slot in self._slots[name] if self.key_of(slot) not in variables]
            begin = [slot for slot in absent if self._tensors[slot].slot.start == "parameter"]
            if self.key_of(name) in variables and all(slot in self._loaded for slot in begin):
                self._loaded.pop(f"parameters/{name}", None)
            for slot in self._slots[name].keys() - absent:
                self._loaded.pop(slot, None)

    def drop_slots(self) -> None:
        """Gives the memory back of what only training steps read; they can't run any more."""
        kept = {*self._evaluated.values()}
        for name in self.reached:
            for each in (ACCUMULATOR + name, *self._slots[name]):
                if each not in kept:
                    self._engine.variables.drop(self.key_of(each))

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replaces what training changes, now or when the programs are made; what ``state`` lacks is as at first."""
        self._loaded = dict(state)
        slots = [slot for name in self.reached for slot in self._slots[name]]
        changed: Collection[str] = {*self.reached, *self._statistics, *slots}
        variables, changing = self._engine.variables, self.changed()
        for key in variables.names():
            name = self._name_of(key)
            if name not in changing:
                continue  # it may lie in the model's memory
            found = self.initial(name)
            if found is None and name in changed:
                found = self._begun(name)
            if found is not None:
                variables.write(key, found)
        self.drop_loaded()
        self._loaded = {key: np.array(value) for key, value in self._loaded.items()}

    def _begun(self, name: str) -> Array:
        """What a tensor is before training: that of the model, the start of a slot, or zeros of an accumulator."""
        array = self._first.get(name)
        if array is not None:
            return array
        if name not in self._tensors:
            first = self._first[name.removeprefix(ACCUMULATOR)]
            return np.zeros(first.shape, master_type(TensorType(dtype(first), first.shape)).dtype.numpy)
        tensor = self._tensors[name]
        if tensor.slot.start == "parameter":
            parameter = self._loaded.get("parameters/" + tensor.parameter, self._first[tensor.parameter])
            return parameter.astype(tensor.type.dtype.numpy, copy=False)
        return np.full(tensor.type.sizes, tensor.slot.start, tensor.type.dtype.numpy)

    def _name_of(self, key: str) -> str:
        """The tensor's name without the memory before it."""
        for memory in set(self._engine.devices.memories.values()) - {HOST}:
            key = key.removeprefix(memory + "/")
        return key

    def key_of(self, name: str) -> str:
        """The key of a tensor among the variables: its name, behind that of its memory where that isn't the host's."""
        owner = (self.owners or {}).get(name, HOST)
        return name if owner == HOST else f"{owner}/{name}"
