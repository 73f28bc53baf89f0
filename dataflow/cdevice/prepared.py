"""What kernels of C devices answered at plan time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from ..plugin.device import PrepackRequest
from .abi import CData, Tables, text_of


class PreparedKernels:
    """The prepared states of some kernels; released together."""

    def __init__(self, set: CData, tables: Tables, nodes: CData) -> None:
        self.set, self.tables, self.nodes = set, tables, nodes


@dataclass(frozen=True, slots=True, eq=False)
class PreparedKernel:
    """What a kernel answered at plan time."""

    workspace: int
    prepacks: tuple[PrepackRequest, ...]
    state: CData
    owner: PreparedKernels | None
    algorithms: tuple[str, ...] = ()
    algorithm: str = ""


def prepacks_of(owner: PreparedKernels, index: int) -> Iterator[PrepackRequest]:
    """What kernel ``index`` asked for; each request keeps the kernel's state alive."""
    answer = owner.set.prepared[index]
    for number in range(answer.n_prepacks):
        prepack = answer.prepacks[number]

        def fill(source: CData, prepacked: CData, number: int = number) -> None:
            answer = owner.set.prepared[index]
            answer.prepacks[number].prepack(owner.nodes + index, answer.state, source, prepacked)

        replaces = bool(answer.replaced >> prepack.input & 1)
        yield PrepackRequest(int(prepack.input), int(prepack.kind), int(prepack.bytes), fill, replaces)


def algorithm_number(answer: CData, name: str) -> int:
    """Of the algorithm ``name``, which the kernel has."""
    return next(i for i in range(answer.n_algorithms) if _name(answer.algorithms[i]) == name)


def algorithms_of(answer: CData) -> tuple[tuple[str, ...], str]:
    """Those that are possible, and the one that will be used."""
    if not answer.n_algorithms:
        return (), ""
    possible = [i for i in range(answer.n_algorithms) if answer.possible >> i & 1]
    return tuple(_name(answer.algorithms[i]) for i in possible), _name(answer.algorithms[answer.algorithm])


@functools.cache
def _name(text: CData) -> str:
    """A name in a plugin's table, which stays as long as the process."""
    return text_of(text)
