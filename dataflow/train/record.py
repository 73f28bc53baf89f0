"""What a checkpoint says beside its tensors: where a run stands, and what it depends on; checked when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..ir.graph import Graph
from ..ir.types import Array, TensorType
from .checkpoint import Checkpoint, fingerprint
from .history import History
from .metrics import RunningMean
from .optimizers.protocol import SlotTensor

BEST = "best/"
_MOST = 2**53  # of counts: floats hold them exactly
_RUNNING_MEAN = {"fraction", "batches", "sums"}


@dataclass(frozen=True, slots=True)
class Record:
    """Where a run stands.

    Attributes:
        steps: optimizer steps done.
        epoch: passes over the data done.
        position: batches of the next pass done.
        means: figures of that pass so far.
        history: of the run so far.
        best: the best figure for stopping early, or None.
        waited: epochs since.
        trainable: names of the trained parameters.
        slots: names of the optimizer's tensors per parameter.
        order: what the order of the data depends on, beside the epoch.
        origin: what the bits of a result depend on, beside data and settings.
        algorithms: by node, see ``Algorithms``.
        optimizer: names of its class and of its average's; empty where an older version didn't say.
        data: what tells the data from other data, see ``Dataset.signature``; empty likewise.
        freezing: see ``Freezing``; empty likewise.
        lr_factor: what callbacks multiplied the learning rate by.
        batch_sizes: ``given`` to ``fit``, of the pass ``now``, and of the ``next``; empty likewise.
        loss_scale: see ``Scaling.state``; empty where the loss isn't scaled.
    """

    steps: int
    epoch: int
    position: int
    means: Mapping[str, RunningMean]
    history: History
    best: float | None
    waited: int
    trainable: Sequence[str]
    slots: Sequence[str]
    order: Mapping[str, Any]
    origin: Mapping[str, Any]
    algorithms: Mapping[str, str] = field(default_factory=dict)
    optimizer: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    freezing: Mapping[str, Any] = field(default_factory=dict)
    lr_factor: float = 1.0
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    loss_scale: Mapping[str, float] = field(default_factory=dict)

    def counters(self) -> dict[str, Any]:
        """What JSON holds of it."""
        found: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "means"}
        found["tallies"] = {name: asdict(mean) for name, mean in self.means.items()}
        return found | {"history": self.history.state(), "trainable": [*self.trainable], "slots": [*self.slots]}

    @classmethod
    def of(cls, checkpoint: Checkpoint, path: Path) -> Record:
        """The record in a checkpoint that was read from ``path``.

        Raises:
            InputError: an entry is missing, or of another type or out of range.
        """
        read = _Reader(checkpoint.counters, path)
        means = {
            name: RunningMean(bool(t["fraction"]), t["batches"], [float(s) for s in t["sums"]])
            for name, t in read.mapping("tallies", _is_running_mean, "a running mean").items()
        }
        return cls(
            steps=read.count("steps"),
            epoch=read.count("epoch"),
            position=read.count("position"),
            means=means,
            history=History.from_state(read.mapping("history", _is_table, "columns of numbers", {"epochs", "steps"})),
            best=read.entry("best", lambda v: v is None or _is_number(v), "a number or null"),
            waited=read.count("waited"),
            trainable=read.names("trainable"),
            slots=read.names("slots"),
            order=read.mapping("order"),
            origin=read.mapping("origin"),
            algorithms=read.mapping("algorithms", lambda v: isinstance(v, str), "a name", otherwise={}),
            optimizer=read.entry("optimizer", lambda v: isinstance(v, str), "a name", ""),
            data=read.mapping("data", otherwise={}),
            freezing=read.mapping("freezing", _is_counts, "counts by parameter", otherwise={}),
            lr_factor=read.entry("lr_factor", lambda v: _is_number(v) and 0 < v < math.inf, "a number above 0", 1.0),
            loss_scale=read.mapping("loss_scale", _is_factor, "a number", otherwise={}),
            batch_sizes=read.mapping("batch_sizes", lambda v: _is_count(v) and v > 0, "a batch size", otherwise={}),
        )

    def check(
        self,
        checkpoint: Checkpoint,
        path: Path,
        graph: Graph,
        trainable: Sequence[str],
        slots: Mapping[str, SlotTensor],
        optimizer: str,
    ) -> None:
        """Raises InputError when the checkpoint belongs to a model of another structure, or to other options.

        Args:
            checkpoint: that it came from.
            path: of its file, for the message.
            graph: of the model.
            trainable: names of the parameters that this run trains.
            slots: the optimizer's tensors, by name.
            optimizer: as ``optimizer`` above.
        """
        types = {"parameters/" + value.name: value.type for value in graph.initializers}
        types |= {name: tensor.type for name, tensor in slots.items()}
        differences = [d for name, array in checkpoint.tensors.items() if (d := self._difference(name, array, types))]
        if not differences and checkpoint.fingerprint != fingerprint(graph):
            differences.append("the nodes of the graphs differ")
        for there, here, label in (
            (self.trainable, trainable, "trained parameters"),
            (self.slots, slot_names(slots), "optimizer state"),
            ([self.optimizer or optimizer], [optimizer], "optimizers"),
        ):
            if not differences and [*there] != [*here]:
                differences.append(f"the {label} differ: {_short(there)} there, {_short(here)} here")
        counts = {name: count for table in self.freezing.values() for name, count in table.items()}
        odd = [name for name, count in counts.items() if name not in trainable or count > self.steps]
        if odd and not differences:
            differences.append(f"it says that {odd[0]!r} is frozen, which can't be")
        differences = differences or self._missing(checkpoint.tensors, slots)
        if differences:
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise InputError(
                f"{path}: the checkpoint doesn't fit this run: {'; '.join(differences[:3])}{more}; "
                "use the model and settings that it was made with, or another folder"
            )

    def _difference(self, name: str, array: Array, types: Mapping[str, TensorType]) -> str | None:
        """How a tensor differs from those of a run of this model."""
        bare = name.removeprefix(BEST)
        kind, _, parameter = bare.partition("/")
        if kind == "optimizer":
            slot, _, parameter = parameter.partition("/")
            if slot not in self.slots:
                return f"{name!r} is no tensor of the optimizer"
        elif kind != "parameters":
            return f"{name!r} is no tensor of a run"
        wanted = types.get(bare)
        if wanted is None and "parameters/" + parameter in types:
            return None  # a slot that the optimizer of this run has not, see _missing
        if wanted is None:
            return f"the model has no {parameter!r}"
        if wanted.sizes != array.shape or wanted.dtype.numpy != array.dtype:
            return f"{parameter!r} is {array.dtype}{list(array.shape)} there and {wanted} here"
        return None

    def _missing(self, tensors: Mapping[str, Array], slots: Mapping[str, SlotTensor]) -> list[str]:
        """What of a run's state isn't there, given the rest of it; or has no place here."""
        for name in tensors:
            if name.removeprefix(BEST).startswith("optimizer/") and name.removeprefix(BEST) not in slots:
                return [f"the optimizer here has no {name.removeprefix(BEST)!r}"]
        trained = [name for name in self.trainable if f"parameters/{name}" in tensors]
        wanted = [slot for slot, tensor in slots.items() if tensor.parameter in trained]
        if any(name.startswith(BEST) for name in tensors):
            wanted += [f"{BEST}parameters/{name}" for name in trained]
            wanted += [BEST + s for s, t in slots.items() if t.slot.evaluated and t.parameter in trained]
        wanted += [f"parameters/{tensor.parameter}" for slot, tensor in slots.items() if slot in tensors]
        if self.steps and not trained:
            return [f"after {self.steps} steps it has none of the trained parameters"]
        return [f"it has no {name!r}" for name in wanted if name not in tensors]


class _Reader:
    """Entries of a mapping that came from JSON, each checked."""

    def __init__(self, counters: Mapping[str, Any], path: Path) -> None:
        self._counters, self._path = counters, path

    def entry(self, key: str, fits: Any, expected: str, otherwise: Any = ...) -> Any:
        value = self._counters.get(key, otherwise)
        if value is ...:
            raise InputError(f"{self._path}: damaged: its counters have no {key!r}")
        if not fits(value):
            raise InputError(f"{self._path}: damaged: {key!r} is {_clipped(value)}; expected {expected}")
        return value

    def count(self, key: str) -> int:
        number: int = self.entry(key, _is_count, "a count")
        return number

    def names(self, key: str) -> list[str]:
        found: list[str] = self.entry(
            key, lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v), "a list of names"
        )
        return found

    def mapping(
        self,
        key: str,
        fits: Any = lambda value: True,
        expected: str = "",
        keys: set[str] | None = None,
        otherwise: Any = ...,
    ) -> dict[str, Any]:
        found: dict[str, Any] = self.entry(
            key, lambda v: isinstance(v, dict) and (keys is None or v.keys() == keys), "a mapping", otherwise
        )
        for name, value in found.items():
            if not fits(value):
                raise InputError(f"{self._path}: damaged: {key!r} has {name!r}: {_clipped(value)}; expected {expected}")
        return found


def slot_names(slots: Mapping[str, SlotTensor]) -> list[str]:
    """The different names among the optimizer's tensors, in their order."""
    return list(dict.fromkeys(tensor.slot.name for tensor in slots.values()))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _is_factor(value: Any) -> bool:
    return _is_number(value) and 0 <= value < math.inf


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_running_mean(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != _RUNNING_MEAN or not _is_numbers(value["sums"]):
        return False
    return isinstance(value["fraction"], bool) and _is_count(value["batches"]) and len(value["sums"]) == 5


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(map(_is_numbers, value.values()))
        and len({len(column) for column in value.values()}) <= 1
    )


def _short(names: Sequence[str]) -> str:
    return ", ".join(map(str, ([*names] or ["none"])[:4])) + (", ..." if len(names) > 4 else "")


def _clipped(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
