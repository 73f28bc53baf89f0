"""Sums of gradients over processes, begun while the backward program still runs."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ...execute.marks import Marks, Position
from ...ir.types import Array, TensorType
from .collectives import BUCKET, Collectives, Sharding
from .shards import Shards

Read = Callable[[str], Array]
Write = Callable[[str, Array], None]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are summed by one call.

    Attributes:
        names: of their parameters.
        owner: the process that alone gets the sums; None: all do.
    """

    names: tuple[str, ...]
    owner: int | None = None


@dataclass(eq=False)
class GradientSums:
    """Buckets of gradients in the order in which backward completes them, and a thread that sums them.

    The thread alone calls the collectives from the first bucket's begin until ``finish`` returns.

    Attributes:
        collectives: the processes.
        trained: the parameters.
        buckets: the same in every process.
        types: of the gradients, by parameter.
        read: gives the gradient of a parameter, where it lies or as a copy.
        held: gives what its owner has of it, of the micro-batches before.
        write: replaces that by the sum.
        adds: to what owners have.
        absent: this process has no gradients, since it had no samples or failed.
        spans: when each bucket's sum began and ended, of the last sums; by ``time.perf_counter``.
    """

    collectives: Collectives
    trained: tuple[str, ...]
    buckets: tuple[Bucket, ...]
    types: Mapping[str, TensorType]
    read: Read
    held: Read
    write: Write
    adds: bool = False
    absent: bool = False
    spans: list[tuple[float, float]] = field(default_factory=list)
    _begun: list[Future[float]] = field(default_factory=list)
    _open: bool = False
    _thread: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """From now on the marks of a run begin sums: this micro-batch is the last one before the update."""
        self._open = True
        self.spans = []

    def marks(self, uses: Mapping[str, Position]) -> Marks:
        """Where a plan completes buckets, each behind those before it.

        Args:
            uses: the last use of each gradient, by parameter.
        """
        complete = itertools.accumulate((max(uses[name] for name in bucket.names) for bucket in self.buckets), max)
        stops: dict[Position, int] = {}  # buckets that are complete there
        for number, position in enumerate(complete):
            stops[position] = number + 1
        counts = list(stops.values())
        return Marks(
            tuple(stops),
            lambda mark: self._begin(counts[mark]) if self._open else None,
            self.open,
            self._summed_spans,
        )

    def _summed_spans(self) -> list[tuple[str, float, float]]:
        """Ends the sums; what was summed when."""
        self.finish()
        named = zip(self.buckets, self.spans, strict=True)
        return [(f"sum {bucket.names[0]}, {len(bucket.names)} gradients", *span) for bucket, span in named]

    def _begin(self, count: int) -> None:
        """Begins the sums of the first ``count`` buckets, as far as they have not begun."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "collectives")
        self._begun += [self._thread.submit(self._sum, bucket) for bucket in self.buckets[len(self._begun) : count]]

    def finish(self) -> float:
        """Waits for the sums, begun or not; the sum of the squares of those that this process has."""
        if not self._open:
            self.spans = []
        try:
            self._begin(len(self.buckets))
            squares = sum(future.result() for future in self._begun)
        finally:
            self._begun, self._open = [], False
        return squares

    def _sum(self, bucket: Bucket) -> float:
        begin = time.perf_counter()
        joined = np.concatenate([self._gradient(name).reshape(-1) for name in bucket.names])
        owns = bucket.owner in (None, self.collectives.rank)
        if bucket.owner is None:
            self.collectives.sum(joined)
        else:
            assert isinstance(self.collectives, Sharding)
            self.collectives.sum_to(joined, bucket.owner)
        if owns:
            if self.adds:
                joined += np.concatenate([self.held(name).reshape(-1) for name in bucket.names])
            ends = np.cumsum([self.types[name].elements for name in bucket.names])[:-1]
            for name, total in zip(bucket.names, np.split(joined, ends), strict=True):
                self.write(name, total.reshape(self.types[name].sizes))
        self.spans.append((begin, time.perf_counter()))
        return float(np.square(joined, dtype=np.float64).sum()) if owns else 0.0

    def _gradient(self, name: str) -> Array:
        type_ = self.types[name]
        return np.zeros(type_.sizes, type_.dtype.numpy) if self.absent else self.read(name)

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.shutdown()


def agreed_buckets(
    collectives: Collectives, completed: Sequence[str], sizes: Mapping[str, int], shards: Shards | None
) -> tuple[Bucket, ...]:
    """Buckets in the order of process 0, in whose plan gradients are complete in the order ``completed``.

    Args:
        collectives: the processes.
        completed: the parameters; plans of shares of other sizes may have another order.
        sizes: bytes by parameter.
        shards: who gets the sums; None: all do.
    """
    order: list[str] = json.loads(collectives.gather(json.dumps(list(completed)))[0])
    if shards is None or not shards.gradients:
        return tuple(Bucket(names) for names in buckets({name: sizes[name] for name in order}))
    found: list[tuple[int, Bucket]] = []
    for owner in range(collectives.size):
        own = {name: sizes[name] for name in order if shards.owner[name] == owner}
        found += [(order.index(names[-1]), Bucket(names, owner)) for names in buckets(own)]
    return tuple(bucket for _, bucket in sorted(found, key=lambda row: row[0]))


def buckets(sizes: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Names in their order, as many at a time as have ``BUCKET`` bytes together, at least one."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > BUCKET:
            yield tuple(names)
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield tuple(names)
