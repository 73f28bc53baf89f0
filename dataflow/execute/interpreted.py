"""Runs a model by its interpreter: which subgraphs are loaded, and the arrays that the caller gets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..errors import Cancelled, DataflowError, LimitExceeded, OutOfMemoryError
from ..host.fork import renew_in_child
from ..ir.specialize import Argument, Interpreter, Subgraph
from ..ir.types import Array
from .arguments import check_out, write_out

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
_MOST_NEW = (
    24  # values that decided, of all new forms: the eight of three branches, whose runs are faster, have as many
)
_HITS = 32  # runs of forms that were there make up for one of them: a new form takes as long as some hundred
log = logging.getLogger("dataflow")


class Interpreted:
    """An interpreter, and its subgraphs with the weights of one moment. Safe to use from several threads.

    Args:
        interpreter: of the model; None: it has none, so a form is always to run.
        load: makes what runs a subgraph.

    Attributes:
        is_needed: data were found to decide in a loop which nodes there are.
        is_cheaper: so many forms were made for values of data that others are likely to come for ever.
    """

    def __init__(self, interpreter: Interpreter | None, load: Callable[[Subgraph], Run]) -> None:
        self._load = None if interpreter is None else load  # which may refer to what has this: memory waits then
        self._interpreter, self.is_needed = interpreter, False
        self.is_cheaper, self._new = False, 0.0
        self._runs: WeakKeyDictionary[Subgraph, Run] = WeakKeyDictionary()
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    def comes_to_be_needed(self) -> bool:
        """Says that data decide in a loop; gives whether that is new, and there is an interpreter."""
        is_new = self._interpreter is not None and not self.is_needed
        self.is_needed = self.is_needed or is_new
        return is_new

    def form_came(self, known: Hashable, *, is_new: bool) -> None:
        """Says that a run had a form for these values of its data, and whether it had to be made."""
        if is_new and isinstance(known, tuple):
            self._new += len(known)  # the more decide, the more forms there may be
            if self._new > _MOST_NEW and self._interpreter is not None and not self.is_cheaper:
                log.info("data decide about the nodes anew again and again; from now on branches run as they come")
                self.is_cheaper = True
        elif self._new:
            self._new = max(0.0, self._new - 1 / _HITS)

    def run(
        self, given: Mapping[str, Argument], outputs: Sequence[str] | None, out: Mapping[str, Array] | None = None
    ) -> dict[str, Any] | None:
        """The outputs by name, which belong to the caller; None where a form is to run.

        It is where nothing says that the interpreter is needed or cheaper, where the interpreter knows no value of a
        name, and where it is only cheaper, but can't run what a form perhaps can.

        Args:
            given: for each input.
            outputs: names; None: all outputs.
            out: arrays to write into, by output name.

        Raises:
            InputError: the nodes can't be run with what is given, or ``out`` doesn't fit.
        """
        if self._interpreter is None or not (self.is_needed or self.is_cheaper):
            return None
        try:
            found = self._interpreter.run(given, outputs, self._compute)
        except (Cancelled, LimitExceeded, OutOfMemoryError):
            raise
        except DataflowError:
            if self.is_needed:
                raise
            self.is_cheaper, self._new = False, 0.0
            return None
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
                    assert self._load is not None
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
