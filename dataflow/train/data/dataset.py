"""Datasets: samples in batches, in an order that depends on seed and epoch alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from ...ir.types import Array
from .ahead import ahead
from .balance import balanced
from .batch import Batch, Draw, Request, check_keys, reading, refuse_nan
from .derived import DerivedStream, MappedSource
from .entry_keys import EntryKeys
from .kinds import opened
from .source import Source, Stream

_CHUNK = 1 << 22


class Dataset:
    """Samples to train on or to evaluate.

    Args:
        data: a dict of arrays or memory maps with samples first; the path of a file or folder, as
            docs/training/data.md says; a DataFrame or a table of Arrow; anything with ``__len__`` and ``__getitem__``
            that gives a dict or a tuple per sample; an iterable of ready batches (dicts or tuples of arrays), or a
            function that makes one.
        rename: old key to new; a new key of None drops the entry.
        keys: names for the elements of tuples; by default the model's inputs in order, then ``labels``.
        balance: key of the classes of which a training epoch has equally many samples; as it is before ``map``.
        drop_last: leave out the short last batch of a training epoch.
        workers: threads that read ahead; by default none for arrays in memory and for samples of unknown origin.
        prefetch: batches that may wait, per thread.
        options: of the kind of data, e.g. ``columns=`` of a table.

    Attributes:
        origin: the data that it is made of.
        names_classes: ``classes=`` says the classes of labels and their order.

    Arrays are read through ``.to_numpy`` or ``__array__``.

    Raises:
        InputError: no data, or options that don't fit it.
    """

    def __init__(
        self,
        data: Any,
        *,
        rename: Mapping[str, str | None] | None = None,
        keys: Sequence[str] | None = None,
        balance: str | None = None,
        drop_last: bool = False,
        workers: int | None = None,
        prefetch: int = 2,
        **options: Any,
    ) -> None:
        if isinstance(data, Dataset):
            raise InputError("Dataset: the data is a Dataset already")
        self._balance = checks.optional("balance", balance, str)
        self._drop_last = bool(checks.instance("drop_last", drop_last, bool, np.bool_))
        self._workers = None if workers is None else integer("workers", workers, 0)
        self._prefetch = integer("prefetch", prefetch)
        self._source: Source | None = None
        self._stream: Stream | None = None
        self._subset: Array | None = None
        self._source, self._stream = opened(data, EntryKeys.of(rename, keys), options)
        self.origin, self._renames, self._given = data, bool(rename), {"rename": rename, "keys": keys, **options}
        self.names_classes = options.get("classes") is not None
        if self._source is not None and not len(self):
            raise InputError("Dataset: it has no samples")
        if self._source is None and self._balance is not None:
            raise InputError("Dataset: balance needs samples with numbers, not an iterable")

    # ---- what there is --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of samples; raises TypeError for an iterable of batches."""
        if self._subset is not None:
            return len(self._subset)
        if self._source is None:
            raise TypeError("an iterable of batches has no length")
        return len(self._source)

    @property
    def length(self) -> int | None:
        """The number of samples, or None when it is not known."""
        return None if self._source is None else len(self)

    @property
    def rows(self) -> Array | None:
        """The samples' numbers in their order, or None for an iterable."""
        return None if self._source is None else self._rows()

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """By label key the names of classes in the order of their numbers, where the data has names."""
        return {} if self._source is None else self._source.classes

    def keys(self) -> tuple[str, ...] | None:
        """The keys of a batch. None when only reading would tell."""
        return None if self._source is None else self._source.keys()

    def signature(self) -> dict[str, Any]:
        """What tells this data from other data at little cost, for JSON; empty for an iterable of batches."""
        return {} if self._source is None else self._source.signature()

    def likewise(self, request: Request) -> dict[str, Any]:
        """Options by which a Dataset of other data of the kind gives a model the same, for JSON.

        Raises:
            InputError: the data doesn't fit what is requested.
        """
        if self._source is None or self._renames:  # names of the file aren't those that are requested
            return {}
        return self._source.likewise(request)

    @property
    def sampling(self) -> dict[str, Any] | None:
        """What the order of an epoch depends on beside seed, epoch and length, for JSON; None where nothing is set."""
        found = {"balance": self._balance, "drop_last": self._drop_last}
        return found if any(found.values()) else None

    def column(self, key: str) -> Array | None:
        """One entry of all samples, where that is known without reading them; or None."""
        return None if self._source is None else self._source.column(key, self._rows())

    def check_keys(self, required: Collection[str], optional: Collection[str]) -> None:
        """Raises InputError that lists the keys that are missing and those that nothing reads."""
        found = self.keys()
        if found is not None:
            check_keys(found, required, optional)

    def refuse_nan(self, keys: Collection[str]) -> None:
        """Raises InputError where an entry among ``keys`` has a NaN, with the sample; some data is checked later."""
        if self._source is None:
            return
        rows = self._rows()
        for key in keys:
            first = self._source.column(key, rows[:1])
            if first is not None and first.dtype.kind == "f":
                step = max(1, _CHUNK // max(1, first.size))
                for start in range(0, len(rows), step):
                    block = rows[start : start + step]
                    found = self._source.column(key, block)
                    assert found is not None  # as the first
                    refuse_nan(key, found, block)

    # ---- datasets made from it ------------------------------------------------------------------------

    def like(self, data: Any) -> Dataset:
        """One of other data, which is read by the same options."""
        return Dataset(data, workers=self._workers, prefetch=self._prefetch, **self._given)

    def bound(self, request: Request) -> Dataset:
        """The dataset that gives what a model wants.

        Raises:
            InputError: it can't.
        """
        if self._source is not None:
            source = self._source.bound(request)
            rows = self._rows()
            usable = rows[~np.isin(rows, source.unusable)] if len(source.unusable) else rows
            if not len(usable):
                raise InputError("Dataset: in every sample something is missing, and missing='drop' leaves them out")
            return self._with(_source=source, _subset=self._subset if len(usable) == len(rows) else usable)
        assert self._stream is not None
        return self._with(_stream=self._stream.bound(request))

    def map(self, change: Callable[[dict[str, Any]], Any]) -> Dataset:
        """With every sample changed by a function from dict to dict; of an iterable, every batch.

        It runs where samples are read, perhaps in several threads at a time.
        """
        _check_function("map", change)
        if self._source is not None:
            return self._with(_source=MappedSource(self._source, change))
        assert self._stream is not None
        return self._with(_stream=DerivedStream(self._stream, change))

    def filter(self, keep: Callable[[dict[str, Any]], Any]) -> Dataset:
        """Of the samples those for whose dict ``keep`` is true, which are read now; of an iterable, of the batches."""
        _check_function("filter", keep)
        if self._source is None:
            assert self._stream is not None
            return self._with(_stream=DerivedStream(self._stream, lambda batch: batch if keep(batch) else None))
        chosen = []
        for row in self._rows():
            sample = {key: array[0] for key, array in self._source.read(row[None], None).items()}
            with reading(f"filter of sample {row}"):
                if keep(sample):
                    chosen.append(row)
        if not chosen:
            raise InputError("Dataset.filter: it leaves no samples")
        return self._with(_subset=np.array(chosen))

    def take(self, most: int) -> Dataset:
        """The first ``most`` samples; of an iterable, batches."""
        most = integer("take", most)
        if self._source is not None:
            return self._with(_subset=self._rows()[:most])
        assert self._stream is not None
        return self._with(_stream=DerivedStream(self._stream, lambda batch: batch, most))

    def shuffle(self, seed: int = 0) -> Dataset:
        """The samples in another order, for ``take``; ``fit`` shuffles by itself in each epoch.

        Raises:
            InputError: an iterable, which only its author can shuffle.
        """
        if self._source is None:
            raise InputError("Dataset.shuffle: an iterable can't be shuffled here; shuffle what it reads")
        return self._with(_subset=np.random.default_rng([integer("seed", seed, 0), 0x5F0F]).permutation(self._rows()))

    def split(self, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        """Two datasets without common samples; the second has ``fraction`` of them, chosen by seed.

        Raises:
            InputError: the fraction leaves one of them empty, or the data has no length.
        """
        if self._source is None:
            raise InputError("val_split needs data with a length; give validation= for an iterable of batches")
        count = round(len(self) * checks.number("val_split", fraction, -math.inf))
        if not 0.0 < fraction < 1.0 or not 0 < count < len(self):
            raise InputError(f"val_split={fraction} of {len(self)} samples leaves one side empty; expected 0 < it < 1")
        order = np.random.default_rng([seed, 0x5B11]).permutation(self._rows())
        return self._with(_subset=np.sort(order[count:])), self._with(_subset=np.sort(order[:count]))

    # ---- batches --------------------------------------------------------------------------------------

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = False,
        start: int = 0,
        training: bool = False,
    ) -> Generator[Batch]:
        """The batches of an epoch; the last may be short. Closing the iterator ends its threads.

        Args:
            batch_size: samples per batch; an iterable of ready batches keeps its own.
            seed: with ``epoch`` the only thing that order and random changes depend on.
            epoch: number of the pass.
            shuffle: a random order; not for iterables.
            start: how many batches to skip.
            training: with random changes of samples, ``balance`` and ``drop_last``.
        """
        batch_size = integer("batch_size", batch_size)
        if self._source is None:
            assert self._stream is not None
            yield from self._read_ahead(self._stream.batches(start, batch_size, training and self._drop_last))
            return
        rows = self._ordered(batch_size, np.random.default_rng([seed, epoch]) if shuffle else None, training)
        end = len(rows) // batch_size * batch_size if training and self._drop_last else len(rows)

        def read(first: int) -> Batch:
            assert self._source is not None
            indices = rows[first : min(first + batch_size, end)]
            return Batch(self._source.read(indices, Draw(seed, epoch, first) if training else None), indices)

        tasks = (partial(read, first) for first in range(start * batch_size, end, batch_size))
        workers = self._source.workers if self._workers is None else self._workers
        with closing(ahead(tasks, workers, self._prefetch * workers)) as batches:
            yield from batches

    @property
    def known_length(self) -> int | None:
        """The number of samples that come one by one; None where they come in ready batches, or it isn't known."""
        return None if self._source is None else len(self)

    @property
    def drops_last(self) -> bool:
        """Whether the short last batch of a training epoch is left out."""
        return self._drop_last

    def count(self, batch_size: int, *, training: bool = False) -> int | None:
        """The number of batches in an epoch, or None when it is not known."""
        if self._source is None:
            return None if self._stream is None else self._stream.length
        return len(self) // batch_size if training and self._drop_last else -(-len(self) // batch_size)

    def _ordered(self, batch_size: int, generator: np.random.Generator | None, training: bool) -> Array:
        assert self._source is not None
        rows = self._rows()
        if training and self._balance is not None:
            source = self._source
            while isinstance(source, MappedSource):  # classes as they are before functions change samples
                source = source.source
            labels = source.column(self._balance, rows)
            if labels is None:
                found = f"there are {', '.join(map(repr, self._source.keys()))}"
                raise InputError(f"balance={self._balance!r}: no entry of that name is known without reading; {found}")
            if generator is None:
                raise InputError("balance needs shuffle=True, since it draws samples at random")
            rows = balanced(rows, labels, generator)
        return self._source.order(rows, batch_size, generator)

    def _read_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches of an iterable, read ahead by one thread where threads are asked for: it has one reader."""
        end = Batch({}, None)
        tasks = iter(lambda: partial(next, batches, end), None)
        with closing(ahead(tasks, min(self._workers or 0, 1), self._prefetch)) as found:
            for batch in found:
                if batch is end:
                    return
                yield batch

    # ---- parts ----------------------------------------------------------------------------------------

    def _rows(self) -> Array:
        return np.arange(len(self)) if self._subset is None else self._subset

    def _with(self, **changes: Any) -> Dataset:
        changed = copy.copy(self)
        changed.__dict__.update(changes)
        return changed


def as_dataset(data: Any) -> Dataset:
    """``data`` itself when it is a Dataset, else one of it."""
    return data if isinstance(data, Dataset) else Dataset(data)


def _check_function(name: str, given: Any) -> None:
    if not callable(given):
        raise InputError(f"Dataset.{name}: {checks.shown(given)} can't be called; expected a function of a dict")
