"""Runs a model by its interpreter: which subgraphs are loaded, and the arrays that the caller gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..host.fork import renew_in_child
from ..ir.specialize import Argument, Interpreter, Subgraph
from ..ir.types import Array
from .arguments import check_out, write_out

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class Interpreted:
    """An interpreter, and its subgraphs with the weights of one moment. Safe to use from several threads.

    Args:
        interpreter: of the model.
        load: makes what runs a subgraph.

    Attributes:
        is_needed: data were found to decide in a loop which nodes there are.
    """

    def __init__(self, interpreter: Interpreter, load: Callable[[Subgraph], Run]) -> None:
        self._interpreter, self._load, self.is_needed = interpreter, load, False
        self._runs: WeakKeyDictionary[Subgraph, Run] = WeakKeyDictionary()
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    def run(
        self, given: Mapping[str, Argument], outputs: Sequence[str] | None, out: Mapping[str, Array] | None = None
    ) -> dict[str, Any] | None:
        """The outputs by name, which belong to the caller; None where the interpreter knows no value of a name.

        Args:
            given: for each input.
            outputs: names; None: all outputs.
            out: arrays to write into, by output name.

        Raises:
            InputError: the nodes can't be run with what is given, or ``out`` doesn't fit.
        """
        found = self._interpreter.run(given, outputs, self._compute)
        if found is None:
            return None
        shared = {id(item) for argument in given.values() for item in _arrays(argument)}
        results = {name: _own(item, shared) for name, item in found.items()}
        if out:
            check_out(out, results)
            write_out(out, results)
        return results

    def _compute(self, subgraph: Subgraph, arguments: Mapping[str, Array]) -> Mapping[str, Array]:
        run = self._runs.get(subgraph)
        if run is None:
            with self._lock:
                run = self._runs.get(subgraph)
                if run is None:
                    run = self._runs[subgraph] = self._load(subgraph)
        return run(arguments)


def _arrays(item: Argument | list[Array]) -> Sequence[Array]:
    return item if isinstance(item, (tuple, list)) else () if item is None else (item,)


def _own(item: Any, shared: set[int]) -> Any:
    """An array, or list of them, that no other result, and no argument, is."""
    if isinstance(item, list):
        return [_own(array, shared) for array in item]
    if item is None:
        return None
    array: Array = item
    if id(array) in shared or not array.flags.writeable:
        array = np.array(array, order="C")
    shared.add(id(array))
    return array
