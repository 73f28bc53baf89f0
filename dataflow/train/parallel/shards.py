"""Optimizer state shared out: each parameter has one process that keeps its moments and takes its steps.

After Rajbhandari et al. 2020, "ZeRO", whole parameters at a time: stage 1 shares the optimizer's state, stage 2 also
sums each gradient for its owner alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from ...host import checks
from ...ir.types import Array
from ..optimizers.averages import Averaged
from ..optimizers.updates import Updates
from .collectives import BUCKET, Collectives, Sharding


@dataclass(frozen=True, slots=True)
class Shards:
    """Who owns which parameter; the same in every process.

    Attributes:
        owner: rank by parameter.
        rank: of this process.
        gradients: sums of gradients go to their owner alone.
    """

    owner: Mapping[str, int]
    rank: int
    gradients: bool

    @staticmethod
    def of(sizes: Mapping[str, int], rank: int, size: int, gradients: bool) -> Shards:
        """The largest parameter first, each to the process that has the fewest bytes."""
        owned = [0] * size
        owner: dict[str, int] = {}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            least = owned.index(min(owned))
            owner[name] = least
            owned[least] += sizes[name]
        return Shards(owner, rank, gradients)

    def own(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of this process."""
        return tuple(name for name in names if self.owner[name] == self.rank)


def shards_of(
    shard: str | None, collectives: Collectives | None, updates: Updates, sizes: Mapping[str, int]
) -> Shards | None:
    """Who owns what by ``shard=``; None where everyone has all.

    Args:
        shard: ``optimizer``, ``gradients`` or None.
        collectives: the processes; None: there is one.
        updates: what an optimizer step does.
        sizes: bytes by trained parameter.

    Raises:
        InputError: another value, or an optimizer whose state can't be shared out.
    """
    if shard is not None:
        checks.text("shard", shard, ("optimizer", "gradients"))
    if shard is None or collectives is None:
        return None
    if not isinstance(collectives, Sharding):
        raise InputError(f"shard={shard!r}: {checks.shown(collectives)} lacks the methods sum_to and send")
    if any(tensor.slot.evaluated for tensor in updates.all_slots().values()):
        averaged = any(isinstance(kind.rule, Averaged) for kind in updates.kinds)
        made = "average=" if averaged else type(updates.rule).__name__
        advice = "leave it out" if averaged else "take another optimizer"
        raise InputError(
            f"shard={shard!r}: {made} keeps an average of the weights, which every process reads; {advice}"
        )
    if updates.clips and not updates.reads_squares:
        raise InputError(f"shard={shard!r}: norms of groups need all their gradients in one process; use clip_norm=")
    return Shards.of(sizes, collectives.rank, collectives.size, shard == "gradients")


def send_from_owners(
    collectives: Sharding,
    owner: Mapping[str, int],
    read: Callable[[str], Array],
    write: Callable[[str, Array], None],
) -> None:
    """Gives tensors of their owners to all processes, in messages of about ``BUCKET`` bytes.

    Args:
        collectives: the processes.
        owner: rank by name, in the same order in all of them.
        read: a copy of a tensor; of the right shape and dtype where this process doesn't own it.
        write: takes what the owner has.
    """
    rows: dict[tuple[int, np.dtype[np.generic]], list[tuple[str, Array]]] = {}
    for name, rank in owner.items():
        array = read(name)
        row = rows.setdefault((rank, array.dtype), [])
        row.append((name, array))
        if sum(held.nbytes for _, held in row) >= BUCKET:
            _send(collectives, rank, rows.pop((rank, array.dtype)), write)
    for (rank, _), row in rows.items():
        _send(collectives, rank, row, write)


def _send(collectives: Sharding, rank: int, row: list[tuple[str, Array]], write: Callable[[str, Array], None]) -> None:
    joined = np.concatenate([array.reshape(-1) for _, array in row])
    collectives.send(joined.view(np.uint8), rank)  # libraries of collectives lack types of few bits
    if rank == collectives.rank:
        return
    ends = np.cumsum([array.size for _, array in row])[:-1]
    for (name, array), found in zip(row, np.split(joined, ends), strict=True):
        write(name, found.reshape(array.shape))
