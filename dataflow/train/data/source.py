"""What every kind of source can do: samples by number, or ready batches one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ...ir.types import Array
from .batch import Batch, Draw, Request


class Source(Protocol):
    """Samples with numbers, which may be read from several threads at once."""

    @property
    def workers(self) -> int:
        """How many threads read ahead unless the caller says so."""

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """By label key the names of the classes, in the order of their numbers."""

    @property
    def unusable(self) -> Array:
        """Numbers of the samples that may not be read, since something is missing in them."""

    def __len__(self) -> int:
        """How many samples, with those that may not be read."""

    def bound(self, request: Request) -> Source:
        """The source that gives what ``request`` wants.

        Raises:
            InputError: it can't.
        """

    def keys(self) -> tuple[str, ...]:
        """The keys of a batch."""

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The samples with these numbers.

        Args:
            rows: (B,) numbers.
            draw: of random changes; None: the samples as they are.

        Raises:
            InputError: a sample can't be read; says which.
        """

    def column(self, key: str, rows: Array) -> Array | None:
        """One entry of many samples, where that costs less than reading them; or None."""

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """The rows in an order in which those of a batch fit each other; ``generator`` shuffles, None doesn't."""

    def signature(self) -> dict[str, Any]:
        """What tells this data from other data at little cost, for JSON."""

    def likewise(self, request: Request) -> dict[str, Any]:
        """Options of a Dataset by which other data of the kind gives what is requested likewise, for JSON."""


class Stream(Protocol):
    """Ready batches one after the other."""

    @property
    def length(self) -> int | None:
        """How many batches, where that is known."""

    def bound(self, request: Request) -> Stream:
        """The stream that gives what ``request`` wants."""

    def batches(self, start: int, batch_size: int, drop_last: bool) -> Iterator[Batch]:
        """The batches from number ``start`` on; ``batch_size`` counts where the stream is of single samples.

        Raises:
            InputError: a batch can't be read; says which.
        """


def plain_order(rows: Array, generator: Any) -> Array:
    """The order of samples that all fit each other."""
    found: Array = rows if generator is None else generator.permutation(rows)
    return found
