"""Prepacked copies of a model's constants that its sessions have in common."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from ..ir.graph import Initializer
from ..ir.types import Array
from ..plugin.device import Buffer
from ..plugin.registry import Registry


@dataclass(frozen=True, eq=False)
class SharedCopy:
    """A prepacked copy; it stays as long as a session holds it.

    Attributes:
        source: whose memory it is made from; an address says nothing once that is gone.
        buffer: the copy, on the host, which nobody writes any more.
    """

    source: weakref.ref[Array]
    buffer: Buffer


class SharedCopies:
    """Those of the sessions over one registry, whose kernels have the same names."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[Hashable, SharedCopy] = weakref.WeakValueDictionary()

    def find(self, data: Initializer, form: Hashable) -> SharedCopy | None:
        """The copy of ``data`` in ``form``, where a session has it."""
        found = self._known.get(_key(data, form))
        return found if found is not None and found.source() is _owner(data.array) else None

    def keep(self, data: Initializer, form: Hashable, buffer: Buffer) -> SharedCopy:
        """Lets other sessions find a copy of ``data``, as long as what is returned lives."""
        shared = self._known[_key(data, form)] = SharedCopy(weakref.ref(_owner(data.array)), buffer)
        return shared


def _key(data: Initializer, form: Hashable) -> Hashable:
    """Where the array lies, and what the factor is: each compile makes views and factors anew."""
    array, factor = data.array, data.factor
    product = None if factor is None else (factor.shape, factor.dtype.str, factor.tobytes())
    return array.ctypes.data, array.shape, array.strides, array.dtype.str, product, form


def _owner(array: Array) -> Array:
    """The array of which it is a view, or itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


_OF_REGISTRIES: weakref.WeakKeyDictionary[Registry, SharedCopies] = weakref.WeakKeyDictionary()


def shared_copies(registry: Registry) -> SharedCopies:
    """Those of the sessions over ``registry``."""
    return _OF_REGISTRIES.setdefault(registry, SharedCopies())
