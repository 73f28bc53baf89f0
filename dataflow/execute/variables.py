"""Persistent tensors by name: weights, state and prepacked copies, shared by the programs of a session or trainer."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._runtime import ffi
from ..cdevice.host_memory import BufferSlice, Lent, array_at, can_lend, data_of
from ..host.limits import Account
from ..host.strings import numbers_of, strings_of
from ..ir.graph import Initializer
from ..ir.kernel import HOST
from ..ir.lowered import Lowered
from ..ir.operand import Operand
from ..ir.plan import Plan, Prepack
from ..ir.types import Array
from ..planning.offsets import lie_apart
from ..plugin.device import Buffer
from .devices import Devices
from .guarded_memory import guarded_block
from .shared_copies import SharedCopies, SharedCopy

_WORTH_A_THREAD = 1 << 21  # bytes to pack; a thread's begin and end may take milliseconds where others run


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in a memory."""

    memory: str
    buffer: Buffer
    operand: Operand


@dataclass(frozen=True, slots=True)
class _Copy:
    """A prepacked copy; one in the memory of a device is made on the host first."""

    source: str  # the key of the tensor that it is made from
    memory: str
    buffer: Buffer
    prepack: Prepack
    shared: SharedCopy | None = None  # where other sessions may read it


class Variables:
    """Tensors that outlive a run.

    Args:
        devices: the open devices.
        borrows: constants that nobody can change stay where they lie, instead of being copied.
        sharing: prepacked copies of such constants, which others may have made; None: there are no others.
    """

    def __init__(self, devices: Devices, borrows: bool = False, sharing: SharedCopies | None = None) -> None:
        self._devices, self._borrows, self._sharing = devices, borrows, sharing
        self._tensors: dict[str, _Tensor] = {}
        self._copies: dict[str, _Copy] = {}
        self._constants: set[str] = set()  # what a compile made or found constant: programs may each have their own

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def require(
        self, plan: Plan, lowered: Lowered, initial: dict[str, Initializer], newest: Callable[[str], Array | None]
    ) -> None:
        """Allocates and fills what ``plan`` needs and is not there yet.

        Args:
            plan: says where the tensors lie.
            lowered: names them.
            initial: their first data by key; is emptied, so that data of which only prepacked copies are kept go one
                by one.
            newest: data by name that comes before the first, or None.
        """
        wanted: dict[str, list[str]] = {}  # tensor -> copies to be made
        for name, prepack in plan.prepacks.items():
            if name not in self._copies:
                wanted.setdefault(plan.arenas[prepack.source.arena].name, []).append(name)
        sources: list[tuple[Initializer, str, list[str]]] = []
        own: dict[str, Initializer] = {}  # the data of copies that others may want
        for key, operand in plan.stored.items():
            first = initial.pop(key)
            known = self._tensors.get(key)
            newer = newest(lowered.stored[key].name)
            data = first if newer is None else Initializer(newer)
            if known is None and first.role == "constant":
                self._constants.add(key)
            if known is None and plan.arenas[operand.arena].kind != "source":
                made = None if data.factor is None else self._devices.account  # what is lent belongs to the model
                self._tensors[key] = known = self._kept(plan, operand, data_of(data), newer is None, made)
            if key in wanted:
                on_host = known is not None and known.memory == HOST
                now = data if known is None else Initializer(self._array(known) if on_host else self.read(key))
                names = wanted[key] if newer is not None else self._left(first, key, wanted[key], plan, own)
                if names:
                    sources.append((now, key, names))
            del first, data, newer
        if sources:
            self._prepack(sources, plan)
        self._share(own)

    def lent(self, plan: Plan, initial: Mapping[str, Initializer]) -> frozenset[str]:
        """Keys of tensors that ``require`` would use where they lie."""
        if not self._borrows:
            return frozenset()
        arenas = {key: plan.arenas[o.arena] for key, o in plan.stored.items() if key not in self._tensors}
        on_host = [key for key, arena in arenas.items() if arena.memory == HOST and arena.kind == "weights"]
        return frozenset(k for k in on_host if initial[k].factor is None and can_lend(initial[k].array))

    def present(self, plan: Plan, initial: Mapping[str, Initializer]) -> frozenset[str]:
        """Names of persistent arenas of ``plan`` for which ``require`` would take no memory."""
        missing = ((name, prepack) for name, prepack in plan.prepacks.items() if name not in self._copies)
        copies = ((name, prepack, plan.arenas[prepack.source.arena].name) for name, prepack in missing)
        shared = {name for name, prepack, key in copies if self._shared(initial[key], prepack, plan) is not None}
        return self.keys | self.lent(plan, initial) | shared

    def _form(self, prepack: Prepack) -> Hashable:
        return prepack.form, self._devices.precision, self._devices.threads

    def _shared(self, data: Initializer, prepack: Prepack, plan: Plan) -> SharedCopy | None:
        """The copy of constants on the host that another session has."""
        if self._sharing is None or not self._shares(data, prepack, plan):
            return None
        return self._sharing.find(data, self._form(prepack))

    def _shares(self, data: Initializer, prepack: Prepack, plan: Plan) -> bool:
        arena = plan.arenas[prepack.operand.arena]
        return self._borrows and arena.memory == HOST and can_lend(data.array)

    def _left(
        self, data: Initializer, key: str, names: list[str], plan: Plan, own: dict[str, Initializer]
    ) -> list[str]:
        """Takes the copies of ``data`` that another session has; the names of the others, in ``own`` where it may."""
        left = []
        for name in names:
            prepack = plan.prepacks[name]
            found = self._shared(data, prepack, plan)
            if found is not None:
                self._copies[name] = _Copy(key, HOST, found.buffer, prepack, found)
                continue
            left.append(name)
            if self._shares(data, prepack, plan):
                own[name] = data
        return left

    def _share(self, own: Mapping[str, Initializer]) -> None:
        """Lets other sessions find the copies that were made of these data."""
        for name, data in own.items():
            copy = self._copies[name]
            if self._sharing is not None:
                shared = self._sharing.keep(data, self._form(copy.prepack), copy.buffer)
                self._copies[name] = replace(copy, shared=shared)

    def _kept(self, plan: Plan, operand: Operand, array: Array, constant: bool, account: Account | None) -> _Tensor:
        arena = plan.arenas[operand.arena]
        if self._borrows and constant and arena.memory == HOST and arena.kind == "weights" and can_lend(array):
            return _Tensor(HOST, Lent(array, account), operand)
        tensor = _Tensor(arena.memory, self._devices.allocate(arena.memory, operand.type.nbytes), operand)
        self._write(tensor, array)
        return tensor

    def _prepack(self, sources: list[tuple[Initializer, str, list[str]]], plan: Plan) -> None:
        """Makes prepacked copies, on as many threads as kernels may use; lets go of a source once it is packed.

        This thread takes the largest that is left, the others the smallest: one that has to wait for a processor keeps
        little waiting.

        Args:
            sources: tensors, their keys, and the names of the copies of each.
            plan: has the copies.
        """
        failures: list[BaseException] = []
        blocks = self._blocks([name for _, _, names in sources for name in names], plan)
        copies: dict[str, _Copy] = {}

        most = max((data.array.nbytes for data, _, _ in sources if data.factor is not None), default=0)

        def work(which: int) -> None:
            try:
                scratch = np.empty(most, np.uint8)  # for one after the other: pages that are there are not made again
                while sources:
                    try:
                        data, key, names = sources.pop(which)
                    except IndexError:
                        return
                    array = data_of(data, scratch)
                    for name in names:
                        prepack = plan.prepacks[name]
                        memory = plan.arenas[prepack.operand.arena].memory
                        copies[name] = _Copy(key, memory, blocks[name], prepack)
                        self._fill(copies[name], array)
                    del array, data
            except BaseException as error:
                failures.append(error)
                sources.clear()  # what is begun ends, nothing more begins

        sources.sort(key=lambda entry: entry[0].array.nbytes)
        helpers = [
            threading.Thread(target=work, args=(0,))
            for _ in range(min(self._devices.threads, os.cpu_count() or 1, len(sources)) - 1)
            if sum(data.array.nbytes for data, _, _ in sources) > _WORTH_A_THREAD
        ]
        try:
            for helper in helpers:
                helper.start()
            work(-1)
        except RuntimeError:  # the system lends no more threads
            work(-1)
        finally:
            sources.clear()
            for helper in helpers:
                if helper.ident is not None:
                    helper.join()
        if failures:
            raise failures[0]
        self._copies.update(copies)

    def _fill(self, copy: _Copy, array: Array) -> None:
        """Makes a prepacked copy of ``array``."""
        if copy.memory == HOST:
            _fill(copy.prepack, array, copy.buffer.base)
            return
        data = np.zeros(copy.buffer.bytes, np.uint8)  # must live until the device has read it
        _fill(copy.prepack, array, ffi.from_buffer(data))
        backend = self._devices.backend_of(copy.memory)
        backend.write(copy.buffer, 0, data)
        backend.sync()

    def _blocks(self, names: Sequence[str], plan: Plan) -> dict[str, Any]:
        """Memory for prepacked copies, on the host in one block: its large pages are made sooner by the system."""
        arenas = {name: plan.arenas[plan.prepacks[name].operand.arena] for name in names}
        away = {name: arena for name, arena in arenas.items() if arena.memory != HOST}
        blocks = {name: self._devices.allocate(arena.memory, arena.bytes) for name, arena in away.items()}
        return {**blocks, **self._host_blocks({n: a.bytes for n, a in arenas.items() if n not in away})}

    def _host_blocks(self, wanted: Mapping[str, int]) -> dict[str, Any]:
        names, sizes = list(wanted), list(wanted.values())
        if not sizes:
            return {}
        if lie_apart():
            return {n: guarded_block(size, f"a prepacked copy: {n}") for n, size in zip(names, sizes, strict=True)}
        block = self._devices.allocate(HOST, sum(sizes))
        offsets = itertools.accumulate(sizes, initial=0)
        return {name: BufferSlice(block, at, size) for name, at, size in zip(names, offsets, sizes, strict=False)}

    @property
    def keys(self) -> frozenset[str]:
        """Names of all tensors and prepacked copies."""
        return frozenset({*self._tensors, *self._copies})

    def buffer(self, key: str) -> Buffer:
        """The memory of a tensor or of a prepacked copy."""
        return self._copies[key].buffer if key in self._copies else self._tensors[key].buffer

    def may_drop(self, names: Collection[str]) -> bool:
        """Whether some of these are constants, or prepacked copies of what is one or isn't kept."""
        if not self._constants.isdisjoint(names):
            return True
        sources = (self._copies[name].source for name in names if name in self._copies)
        return any(source not in self._tensors or source in self._constants for source in sources)

    def drop_constants(self, kept: Collection[str]) -> None:
        """Forgets constants that aren't among ``kept``; a run that still uses them keeps their memory."""
        for key in self._constants.difference(kept):
            self._tensors.pop(key, None)
        self._constants.intersection_update(kept)
        for name in [n for n, c in self._copies.items() if n not in kept and c.source not in self._tensors]:
            del self._copies[name]

    def names(self) -> frozenset[str]:
        """Names of all tensors, also of those of which only prepacked copies are kept."""
        return frozenset({*self._tensors, *(copy.source for copy in self._copies.values())})

    def write(self, key: str, array: Array) -> None:
        """Copies ``array`` into a tensor of the same dtype and shape."""
        if key in self._tensors:
            self._write(self._tensors[key], array)
        for copy in self._copies.values():
            if copy.source == key:
                self._fill(copy, array)

    def _write(self, tensor: _Tensor, array: Array) -> None:
        if tensor.operand.type.elements == 0:
            return
        assert not isinstance(tensor.buffer, Lent), "a tensor that is borrowed can't be written"
        if tensor.memory == HOST:
            strings = tensor.operand.type.dtype.kind == "s"
            self._array(tensor)[...] = numbers_of(array, tensor.buffer) if strings else array
            return
        data = np.ascontiguousarray(array)  # must live until the device has read it
        backend = self._devices.backend_of(tensor.memory)
        backend.write(tensor.buffer, 0, data)
        backend.sync()

    def _array(self, tensor: _Tensor) -> Array:
        """An array over a tensor on the host."""
        return array_at(tensor.buffer.base, tensor.operand.type.nbytes, replace(tensor.operand, offset=0))

    def view(self, key: str) -> Array:
        """A tensor where it lies, not to be written, where it is numbers on the host; otherwise a copy."""
        tensor = self._tensors[key]
        if tensor.memory != HOST or tensor.operand.type.dtype.kind == "s":
            return self.read(key)
        array = self._array(tensor).view()
        array.flags.writeable = False
        return array

    def drop(self, key: str) -> None:
        """Gives the memory of a tensor back, where there is one; no program may use it."""
        tensor = self._tensors.pop(key, None)
        if tensor is not None:
            self._devices.free(tensor.memory, tensor.buffer)

    def read(self, key: str) -> Array:
        """A copy of a tensor."""
        tensor = self._tensors[key]
        if tensor.operand.type.elements == 0 or tensor.memory == HOST:
            found = self._array(tensor)
            return strings_of(found) if tensor.operand.type.dtype.kind == "s" else found.copy()
        array = np.empty(tensor.operand.type.sizes, tensor.operand.type.dtype.numpy)
        self._devices.backend_of(tensor.memory).read(array, tensor.buffer, 0)
        return array

    def close(self) -> None:
        """Gives device memory back."""
        for tensor in self._tensors.values():
            self._devices.free(tensor.memory, tensor.buffer)
        for copy in self._copies.values():
            if copy.memory != HOST:
                self._devices.free(copy.memory, copy.buffer)
        self._tensors.clear()
        self._copies.clear()


def _fill(prepack: Prepack, array: Array, target: Any) -> None:
    data = np.ascontiguousarray(array)
    base = ffi.cast("char *", data.__array_interface__["data"][0])
    prepack.fill(ffi.cast("void *", base + prepack.source.offset), target)
