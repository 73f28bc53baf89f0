"""Outputs of a model for a dataset, batch by batch, in the order of its samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from numbers import Number
from typing import Any

import numpy as np

from ..errors import InputError
from ..execute.arguments import checked_array, named_inputs
from ..host import checks
from ..host.numbers import integer
from ..ir.dims import Dim
from ..ir.types import Array, TensorType
from ..ir.value import Value
from .data.batch import Batch, Request, check_keys
from .data.dataset import Dataset, as_dataset
from .progress import progress

BATCH_SIZE = 32


def is_dataset(inputs: Any, batch_size: int | None) -> bool:
    """Whether this is a dataset rather than the arrays of one run."""
    if batch_size is not None or isinstance(inputs, (Dataset, str, os.PathLike)):
        return True
    if isinstance(inputs, list):
        return bool(inputs) and isinstance(inputs[0], (Mapping, tuple))
    if hasattr(inputs, "columns"):  # a table
        return True
    arrays = inputs is None or isinstance(inputs, (Mapping, tuple, Number, np.ndarray))
    return not (arrays or hasattr(inputs, "__array__") or hasattr(inputs, "__dlpack__") or hasattr(inputs, "to_numpy"))


def predictions(
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    inputs: Sequence[Value],
    outputs: Mapping[str, TensorType],
    data: Any,
    labels: Sequence[str],
    batch_size: int | None,
    shown: bool | None,
) -> dict[str, Array]:
    """The outputs for all samples, by name, in the order of the samples.

    Args:
        run: gives the outputs for a batch.
        inputs: of the model. Where their first axis has a fixed size, batches have that, and the last is filled up.
        outputs: declared types of what ``run`` gives.
        data: what a Dataset is made of; or arrays, or one array where there is one input.
        labels: what else it may have in tuples.
        batch_size: samples per run.
        shown: as ``progress`` of ``Trainer.fit``.

    Raises:
        InputError: data that doesn't fit, or an output without an axis of samples.
    """
    if not inputs:
        raise InputError("predict: the model has no inputs")
    for name, type_ in outputs.items():
        _check_axis(name, type_, inputs[0].type)
    dataset = bound_dataset(data, inputs, labels)
    found = _Rows(dataset)
    with closing(input_batches(dataset, inputs, batch_size, shown)) as batches:
        for batch, arrays, size in batches:
            found.add(batch, _run(run, arrays, batch.size, size))
    return found.arrays()


def input_batches(
    dataset: Dataset, inputs: Sequence[Value], batch_size: int | None, shown: bool | None
) -> Generator[tuple[Batch, dict[str, Array], int], None, None]:
    """The batches of a dataset as the model's inputs take them: each, its arrays, and how many samples they have.

    Where the first axis of the inputs has a fixed size, arrays of fewer samples are filled up with the last one.

    Args:
        dataset: bound to the inputs, see ``bound_dataset``.
        inputs: of the model.
        batch_size: samples per run.
        shown: as ``progress`` of ``Trainer.fit``.

    Raises:
        InputError: data that doesn't fit.
    """
    types = {v.name: v.type for v in inputs}
    size = _batch_size(inputs, batch_size)
    bar = progress(shown)
    bar.begin(1, dataset.count(size), 0, 0)
    try:
        with closing(dataset.batches(size)) as batches:
            for number, batch in enumerate(batches):
                check_keys(batch.arrays, types, batch.arrays)
                arrays = {n: checked_array(n, type_, cast(n, type_, batch.arrays[n])) for n, type_ in types.items()}
                more = size - batch.size if _fixed(inputs) else 0
                if more > 0:
                    arrays = {name: np.concatenate([a, np.repeat(a[-1:], more, 0)]) for name, a in arrays.items()}
                yield batch, arrays, batch.size + max(more, 0)
                bar.batch(0, number + 1, {})
    finally:
        bar.end()


def cast(name: str, type_: TensorType, given: Any) -> Any:
    """An array of data in the input's dtype, where NumPy calls the conversion one of the same kind.

    Raises:
        InputError: it is of another kind.
    """
    wanted = type_.dtype.numpy
    if not isinstance(given, np.ndarray) or given.dtype == wanted:
        return given
    if not np.can_cast(given.dtype, wanted, "same_kind"):
        raise InputError(
            f"input {name!r}: expected {type_}, got {given.dtype}; convert it with .astype(np.{type_.dtype})"
        )
    with np.errstate(over="ignore"):
        found = given.astype(wanted)
    if type_.dtype.is_float and not (finite := np.isfinite(found)).all() and np.isfinite(given[~finite]).any():
        wrong = given[~finite & np.isfinite(given)].flat[0]
        raise InputError(f"input {name!r}: {wrong} is beyond the numbers of {type_.dtype}; expected {type_}")
    if wanted.kind in "iu" and given.dtype.kind in "iu" and not np.array_equal(found, given):
        wrong = int(given[found != given].flat[0])
        raise InputError(f"input {name!r}: {wrong} is beyond the numbers of {type_.dtype}; expected {type_}")
    return found


class _Rows:
    """Results of batches: one row per sample, in the order of the dataset."""

    def __init__(self, dataset: Dataset) -> None:
        rows = dataset.rows
        # Batches may come in another order, and name samples by their numbers; a sample may occur twice.
        self._samples: Array | None = None
        self._positions: Array | None = None
        if rows is not None:
            self._samples, self._positions = np.unique(rows, return_inverse=True)
        self._filled: dict[str, Array] = {}
        self._batches: list[Mapping[str, Array]] = []

    def add(self, batch: Batch, results: Mapping[str, Array]) -> None:
        """Takes the results of a batch."""
        first = self._filled or (self._batches[0] if self._batches else results)
        for name, array in results.items():
            if array.shape[1:] != first[name].shape[1:]:
                raise InputError(
                    f"predict: output {name!r} is {list(array.shape)} for a batch and {list(first[name].shape)} for "
                    "others; pad the samples to one length, or choose outputs that are alike with outputs="
                )
        if batch.indices is None or self._samples is None:
            self._batches.append(results)
            return
        if not self._filled:
            self._filled = {n: np.empty((len(self._samples), *a.shape[1:]), a.dtype) for n, a in results.items()}
        positions = np.searchsorted(self._samples, batch.indices)
        for name, array in results.items():
            self._filled[name][positions] = array

    def arrays(self) -> dict[str, Array]:
        """All results."""
        if self._batches:
            return {name: np.concatenate([batch[name] for batch in self._batches]) for name in self._batches[0]}
        assert self._positions is not None
        if np.array_equal(self._positions, np.arange(len(self._positions))):
            return self._filled
        return {name: array[self._positions] for name, array in self._filled.items()}


def _run(
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]], arrays: Mapping[str, Array], rows: int, size: int
) -> dict[str, Array]:
    """The outputs of a batch of ``rows`` samples, whose arrays have ``size``."""
    found = run(arrays)
    for name, array in found.items():
        if not array.ndim or len(array) != size:
            raise InputError(f"predict: output {name!r} is {list(array.shape)} for {size} samples; {_CHOOSE}")
    return {name: array[:rows] for name, array in found.items()}


_CHOOSE = "its first axis doesn't count samples; choose others with outputs="


def _check_axis(name: str, type_: TensorType, of_input: TensorType) -> None:
    """Raises InputError where an output has no axis of samples, as far as its declared type says."""
    first, samples = (t.shape[0] if t.rank else None for t in (type_, of_input))
    if first is None or (isinstance(first, int) and first != samples):
        raise InputError(f"predict: output {name!r} is {type_}; {_CHOOSE}")


def check_batches(
    what: str, inputs: Mapping[str, TensorType], dataset: Dataset, batch_size: int, *, training: bool
) -> None:
    """Refuses batches of another size than a model's fixed one, before any work is done.

    Raises:
        InputError: some batch would have another number of samples.
    """
    firsts = {type_.shape[0] for type_ in inputs.values() if type_.rank}
    count, fixed = dataset.known_length, firsts.pop() if len(firsts) == 1 else None
    if count is None or not isinstance(fixed, int) or count <= 0:
        return
    last = count % fixed if not (training and dataset.drops_last) else 0
    if (batch_size == fixed or count == fixed <= batch_size) and not last:
        return
    leave = f", which leaves {last} over" if last else ""
    leave += ": drop_last=True of a Dataset leaves them out" if last and training else ""
    size = f"give batch_size={fixed}" if batch_size != fixed else ""
    if last and not training:  # no size of batches helps
        first = f"the first {count - last} samples alone, take({count - last}) of a Dataset"
        size = "" if count < fixed else f"{size} and {first}" if size else f"give {first}"
    raise InputError(
        f"{what}: the model takes {fixed} samples at a time, and {count} come in batches of {batch_size}{leave}; "
        f"{size}{', or ' if size else ''}load the model with batch='free' (--batch free)"
    )


def _fixed(inputs: Sequence[Value]) -> bool:
    return inputs[0].type.rank > 0 and not isinstance(inputs[0].type.shape[0], Dim)


def _batch_size(inputs: Sequence[Value], given: int | None) -> int:
    size = BATCH_SIZE if given is None else integer("batch_size", given)
    first = inputs[0].type.shape[0] if _fixed(inputs) else size
    assert isinstance(first, int)
    if given is not None and size != first:
        raise InputError(f"batch_size is {size}; the model takes {inputs[0].type}, so {first} samples at a time")
    return first


def bound_dataset(data: Any, inputs: Sequence[Value], labels: Sequence[str]) -> Dataset:
    """A dataset of ``data`` that gives the inputs, with labels or without.

    Raises:
        InputError: it can't.
    """
    array = isinstance(data, np.ndarray) or (isinstance(data, tuple) and data and hasattr(data[0], "shape"))
    dataset = as_dataset(named_inputs(inputs, data) if array else data)
    types = {v.name: v.type for v in inputs}
    try:
        found = dataset.bound(Request(types, labels))
        keys = found.keys()
    except InputError as error:  # tuples, or files, without the labels
        try:
            found = dataset.bound(Request(types))
            keys = found.keys()
        except InputError as without:
            named = isinstance(dataset.origin, (str, os.PathLike)) or hasattr(dataset.origin, "columns")
            raise (without if named else error) from None
    if keys is not None:
        check_keys(keys, types, keys)
    return found


def chosen_outputs(declared: Mapping[str, TensorType], outputs: Any) -> tuple[str, ...]:
    """Names of the outputs that a caller chose; all by default."""
    return tuple(declared) if outputs is None else tuple(dict.fromkeys(checks.texts("outputs", outputs)))
