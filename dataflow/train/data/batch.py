"""A batch: named arrays with samples first, made from what anybody's code gives, with errors that say where."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import DataflowError, InputError
from ...host.quick_init import quick_init
from ...ir.types import Array, TensorType

SAMPLE_WEIGHT = "sample_weight"


@quick_init
@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples.

    Attributes:
        arrays: by key, samples first.
        indices: the samples' numbers in the dataset; None where it has none.
    """

    arrays: Mapping[str, Array]
    indices: Array | None

    @property
    def size(self) -> int:
        """How many samples."""
        return min((len(a) for a in self.arrays.values() if a.ndim), default=0)


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a batch.

    Attributes:
        inputs: the model's, by name.
        labels: keys of what the losses read beside them.
        classes: by label key the names of known classes in the order of their numbers.
        open: other entries may be read too, which only the objective knows.
        raw: entries as they are, since a function makes those that are wanted.
        numbered: labels may be numbers of known classes, too.
        numbers: keys of labels that are compared as numbers, so that texts are no names of classes.
    """

    inputs: Mapping[str, TensorType]
    labels: Sequence[str] = ()
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    open: bool = False
    raw: bool = False
    numbered: bool = False
    numbers: Sequence[str] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, in the order of the elements of tuples."""
        return (*self.inputs, *self.labels)


@dataclass(frozen=True, slots=True)
class Draw:
    """What random changes of the samples of a batch depend on: never on how many threads read, nor in which order.

    Attributes:
        seed: of the run.
        epoch: number of the pass.
        position: of the first sample of the batch in the pass.
    """

    seed: int
    epoch: int
    position: int

    def generator(self, index: int) -> np.random.Generator:
        """Random numbers for the sample ``index`` of the batch."""
        return np.random.default_rng([self.seed, self.epoch, self.position + index, 0xA06])


def as_array(value: Any, where: str) -> Array:
    """A numpy array of ``value``, without a copy where that is possible; raises InputError."""
    if type(value) is not np.ndarray and hasattr(value, "mask") and hasattr(value, "filled"):
        raise InputError(f"{where}: a masked array, whose mask would be lost; give its filled() values")
    if isinstance(value, np.ndarray):
        return value
    try:
        found = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    except Exception as error:  # anybody's code: whatever it raises is its reason
        raise InputError(
            f"{where}: {type(value).__name__} gives no array: {type(error).__name__}: {error}; convert it to numpy"
        ) from error
    array = np.asarray(found)
    if array.dtype.kind == "O":
        raise InputError(f"{where}: {type(value).__name__} gives an array of objects; its parts must have one shape")
    return array


def stacked(entries: Sequence[Mapping[str, Any]], rows: Sequence[int]) -> dict[str, Array]:
    """The arrays of a batch from its samples, whose numbers ``rows`` has.

    Raises:
        InputError: the samples differ in keys or shapes; names the sample.
    """
    for number, entry in zip(rows, entries, strict=True):
        if entry.keys() != entries[0].keys():
            raise InputError(f"Dataset: sample {number} has keys {list(entry)}, sample {rows[0]} {list(entries[0])}")
    found = {}
    for key in entries[0]:
        samples = [as_array(entry[key], f"{key!r} of sample {n}") for n, entry in zip(rows, entries, strict=True)]
        odd = next((n for n, sample in zip(rows, samples, strict=True) if sample.shape != samples[0].shape), None)
        if odd is not None:
            raise InputError(
                f"Dataset: {key!r} of sample {odd} has another shape than of sample {rows[0]} {samples[0].shape}; "
                "pad the samples to one shape, or give an iterable of ready batches"
            )
        found[key] = np.stack(samples)
    return found


def check_keys(found: Collection[str], required: Collection[str], optional: Collection[str] = ()) -> None:
    """Raises InputError that lists the keys that are missing and those that nothing reads."""
    if len(found) == len(required) and set(found) == set(required):
        return
    missing = [key for key in required if key not in found]
    unknown = [key for key in found if key not in required and key not in optional]
    if missing or unknown:
        reasons = []
        if missing:
            reasons.append(f"missing: {', '.join(map(repr, missing))}")
        if unknown:
            reasons.append(f"unknown: {', '.join(map(repr, unknown))}")
        raise InputError(
            f"the data's keys don't fit: {'; '.join(reasons)}; expected {', '.join(map(repr, required))}; "
            "Dataset(data, rename={'old': 'new'}) renames, {'old': None} leaves out"
        )


def check_lengths(arrays: Mapping[str, Array]) -> None:
    """Raises InputError where arrays have no axis of samples, or differ in their number."""
    if not arrays:
        raise InputError("Dataset: it has no arrays")
    scalars = [key for key, array in arrays.items() if array.ndim == 0]
    if scalars:
        raise InputError(f"Dataset: {', '.join(map(repr, scalars))} has no axis of samples; the first axis counts them")
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{key!r} has {len(array)}" for key, array in arrays.items())
        raise InputError(f"Dataset: the arrays differ in their number of samples (first axis): {lengths}")


def refuse_nan(key: str, array: Array, indices: Array | None) -> None:
    """Raises InputError with the first sample whose ``array`` has a NaN."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        row = int(np.argwhere(np.isnan(array))[0][0]) if array.ndim else 0
        number = int(indices[row]) if indices is not None else row
        raise InputError(f"{key!r} of sample {number} is NaN; leave such samples out")


def in_dtype(key: str, array: Array, kind: np.dtype[Any], indices: Array | None) -> Array:
    """The array in that dtype.

    Raises:
        InputError: a finite number would become infinite; says of which sample.
    """
    if array.dtype == kind or array.dtype.kind != "f" or kind.kind != "f":
        return np.asarray(array, kind)
    with np.errstate(over="ignore"):
        found = array.astype(kind)
    beyond = np.isinf(found)
    if beyond.any() and (beyond := beyond & np.isfinite(array)).any():
        at = tuple(np.argwhere(beyond)[0])
        row = int(at[0]) if at else 0
        number = int(indices[row]) if indices is not None else row
        raise InputError(f"{key!r} of sample {number} is {array[at]:g}, which is beyond the numbers of {kind}")
    return found


def type_of(array: Array) -> str:
    """Dtype and shape as a text."""
    return f"{array.dtype}{list(array.shape)}"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """A context in which anybody's code reads data: what it raises becomes an InputError that says where."""
    try:
        yield
    except (DataflowError, OSError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"Dataset: {what} can't be read: {type(error).__name__}: {error}") from error


def checked_weight(given: Array, size: int, indices: Array | None) -> Array:
    """Weights of ``size`` samples, float32, whose numbers in the dataset are ``indices``.

    Raises:
        InputError: another shape, no numbers, or numbers that are no weights.
    """
    if given.dtype.kind not in "fiub":
        raise InputError(f"'sample_weight' is {given.dtype}; expected numbers")
    weight = in_dtype(SAMPLE_WEIGHT, given, np.dtype(np.float32), indices)
    refuse_nan(SAMPLE_WEIGHT, weight, indices)
    if weight.shape != (size,) or not ((weight >= 0) & (weight < np.inf)).all():
        raise InputError(_unfit(weight, size, indices))
    return weight


def _unfit(weight: Array, size: int, indices: Array | None) -> str:
    """What is wrong with weights of samples."""
    if weight.shape != (size,):
        return f"'sample_weight' is {weight.shape}; expected ({size},), one finite number >= 0 per sample"
    row = int(np.argmin((weight >= 0) & (weight < np.inf)))
    number = row if indices is None else int(indices[row])
    return f"'sample_weight' of sample {number} is {weight[row]:g}; expected a finite number >= 0"
