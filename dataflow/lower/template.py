"""What a graph is lowered to, for other sizes than those that it was made for: with other numbers alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..ir.graph import Initializer, Role
from ..ir.lowered import BaseTensor, Loop, Lowered, LoweredItem, LoweredNode, Move, Storage, Stored
from ..ir.sized_data import SizedData
from ..ir.substitution import Substitution
from ..ir.tracing import Trace
from ..ir.types import Array
from .storage import SIZED, digest

LARGE = 1 << 14  # bytes of data that a template doesn't keep


class Template:
    """What was lowered for traced sizes.

    Args:
        trace: what was decided meanwhile.
        lowered: of traced sizes.
        initial: the first data of what is stored.

    Attributes:
        first: what was lowered for the sizes of the trace, and the first data; of who takes it.
    """

    def __init__(self, trace: Trace, lowered: Lowered, initial: Mapping[str, Initializer]) -> None:
        self._trace, self._lowered = trace, lowered
        made = _Lowering(trace.numbers)
        self.first: tuple[Lowered, dict[str, Initializer]] | None = made.all_of(lowered, initial)
        self._initial = {key: data for key, data in initial.items() if not _is_large(data)}
        self._large = {key: data.role for key, data in initial.items() if key not in self._initial}
        self._fixed = {key: value for key, value in made.known.items() if id(value) == key}

    def at(
        self, sizes: Mapping[str, int], lower: Callable[[], Mapping[str, Initializer]]
    ) -> tuple[Lowered, dict[str, Initializer]] | None:
        """What is lowered for other sizes, and the first data; None where something is decided otherwise.

        Args:
            sizes: by name.
            lower: gives the first data of these sizes without the template, which doesn't keep what is large.
        """
        if not self._trace.holds(sizes):
            return None
        made = _Lowering(sizes, self._fixed)
        for question, about, answer in self._trace.asked.values():
            if question(made.node(about)) != answer:
                return None
        lowered, initial = made.all_of(self._lowered, self._initial)
        read = functools.cache(lower)
        return lowered, {**initial, **{key: Remade(self, key, role, read) for key, role in self._large.items()}}


class Remade(Initializer):
    """Large data that a template doesn't keep, since who needed it has it: it is made again if somebody reads it.

    Attributes:
        template: for all sizes it is the same.
    """

    __slots__ = ("key", "read", "template")
    template: Template
    key: str
    read: Callable[[], Mapping[str, Initializer]]

    def __init__(self, template: Template, key: str, role: Role, read: Callable[[], Mapping[str, Initializer]]) -> None:
        given = {"role": role, "trainable": False, "origin": "", "literal": False}
        for name, value in {**given, "template": template, "key": key, "read": read}.items():
            object.__setattr__(self, name, value)

    @property
    def array(self) -> Array:
        """Its data, but for the factor."""
        return self.read()[self.key].array

    @property
    def factor(self) -> Array | None:
        """See ``Initializer``."""
        return self.read()[self.key].factor


def _is_large(data: Initializer) -> bool:
    return not isinstance(data, SizedData) and data.array.nbytes > LARGE and any(data.array.strides)


class _Lowering(Substitution):
    """Makes what was lowered anew."""

    def __init__(self, sizes: Mapping[str, int], known: Mapping[int, Any] | None = None) -> None:
        super().__init__(sizes, known)
        self._digests: dict[str, str] = {}  # of constants that are others for these sizes, by what stands for them

    def all_of(self, of: Lowered, initial: Mapping[str, Initializer]) -> tuple[Lowered, dict[str, Initializer]]:
        """What was lowered, and the first data of what it stores."""
        data = {key: one.at(self) for key, one in initial.items()}
        for key, one in initial.items():
            if data[key] is not one:
                self._digests[key[key.rindex("#") :]] = "#" + digest(of.stored[key].storage.type.dtype, data[key])
        return self.lowered(of), {self.name(key): one for key, one in data.items()} if self._digests else data

    def name(self, of: str) -> str:
        """A name, which may begin with that of a constant."""
        if self._digests and SIZED in of:
            for stands, found in self._digests.items():
                of = of.replace(stands, found)
        return of

    def lowered(self, of: Lowered) -> Lowered:
        """All of it."""
        return Lowered(
            tuple([self.known.get(id(item)) or self.made(item, self._item) for item in of.items]),
            self._named(of.inputs),
            self._named(of.outputs),
            {self.name(key): self.made(stored, self._stored) for key, stored in of.stored.items()},
            tuple([(self._base_of(after), self._base_of(before)) for after, before in of.states]),
            of.stages,
            of.fallbacks,
            of.state,
            of.again,
        )

    def _named(self, of: Mapping[str, Storage]) -> dict[str, Storage]:
        return {name: self._storage_of(storage) for name, storage in of.items()}

    def _stored(self, of: Stored) -> Stored:
        storage = self._storage_of(of.storage)
        return of if storage is of.storage else Stored(self.name(of.name), storage, of.passes)

    def _base_of(self, of: BaseTensor) -> BaseTensor:
        return self.made(of, self._base)

    def _base(self, of: BaseTensor) -> BaseTensor:
        type_ = self.type(of.type)
        name = self.name(of.name)
        return of if type_ is of.type and name is of.name else BaseTensor(of.number, name, type_, of.memory, of.kind)

    def _storage_of(self, of: Storage) -> Storage:
        return self.made(of, self._storage)

    def _storage(self, of: Storage) -> Storage:
        base, type_, strides = self._base_of(of.base), self.type(of.type), self.sizes(of.strides)
        moves = of.offset, of.iteration_stride, of.buffer_stride
        found = self.sizes(moves)
        if base is of.base and type_ is of.type and strides is of.strides and found is moves:
            return of
        return Storage(base, found[0], strides, type_, found[1], found[2])

    def _storages(self, of: tuple[Any, ...]) -> tuple[Any, ...]:
        known = self.known
        return tuple([None if s is None else known.get(id(s)) or self._storage_of(s) for s in of])

    def _item(self, of: LoweredItem) -> LoweredItem:
        if isinstance(of, Move):
            return Move(self._storage_of(of.source), self._storage_of(of.target), of.from_device, of.to_device, of.name)
        node, inputs, outputs = self.node(of.node), self._storages(of.inputs), self._storages(of.outputs)
        if isinstance(of, LoweredNode):
            same = node is of.node and all(
                a is b for a, b in zip(inputs + outputs, of.inputs + of.outputs, strict=True)
            )
            return of if same else LoweredNode(node, of.device, of.kernel, inputs, outputs)
        return Loop(
            node,
            of.device,
            tuple([self._item(item) for item in of.items]),  # type: ignore[misc]
            self.size(of.iterations),
            inputs,
            outputs,
            of.kind,
            of.when,
            self._storages(of.control),
            self._storages(of.counts),
        )
