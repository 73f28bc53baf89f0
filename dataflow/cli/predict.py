"""``dataflow predict``: the outputs of a model for each sample of data, as a table, JSON lines or arrays."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..errors import InputError
from ..host.new_file import new_file
from ..ir.types import Array
from .data_options import data_arguments, data_options
from .options import (
    EXECUTION,
    batch_option,
    check_new,
    execution,
    execution_options,
    mode_option,
    model_argument,
    read_model,
    renames,
    write_npz,
)

_FORMS = (".csv", ".jsonl", ".npz")
_MOST_COLUMNS = 10_000


@click.command()
@model_argument
@click.option("--data", required=True, type=click.Path(exists=True), help="As for finetune; labels aren't read.")
@click.option("--value", "values", multiple=True, metavar="NAME", help="Instead of the outputs; repeatable.")
@click.option(
    "--top", type=click.IntRange(min=1), metavar="K", help="The K largest of a row alone, with their classes."
)
@click.option("--batch-size", type=click.IntRange(min=1), help="32 by default; a fixed batch has its own.")
@click.option("--map", "renamed", multiple=True, metavar="OLD=NEW", help="Rename a key of the data, e.g. y=labels.")
@click.option("--output", "-o", "target", type=click.Path(dir_okay=False), help="A .csv, .jsonl or .npz file.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@data_options
@batch_option
@mode_option
@execution_options
def predict(
    model: str,
    data: str,
    values: tuple[str, ...],
    top: int | None,
    batch_size: int | None,
    renamed: tuple[str, ...],
    target: str | None,
    force: bool,
    batch: str | None,
    mode: str | None,
    **options: Any,
) -> None:
    """Writes the outputs of MODEL for each sample of data, in the order of the samples.

    Without --output a table goes to stdout. Its first column is the sample's number, from 0, or the name of its file.
    """
    from ..train.data.dataset import Dataset
    from ..train.data.images import FILE
    from ..train.data.kinds import kind_of
    from ..train.data.reading import recalled
    from ..train.inference import predict as outputs_of
    from ..train.losses.loss import LABELS
    from ..train.prediction import bound_dataset

    form = ".csv" if target is None else Path(target).suffix
    if form not in _FORMS:
        raise InputError(f"{target}: predictions are written as {', '.join(_FORMS)}")
    check_new(target, force)
    if form == ".npz" and top is not None:
        raise InputError("--top is for .csv and .jsonl; .npz has whole outputs")
    how = execution({name: options.pop(name) for name in EXECUTION})
    loaded = read_model(model, batch, how["limits"], mode)
    reading = recalled(loaded.metadata, data, data_arguments(options), labels=False)
    given = Dataset(data, rename=renames(renamed), **reading)
    dataset = bound_dataset(given, loaded.graph.inputs, (LABELS,))
    shown = None if target is not None else False
    found = outputs_of(loaded, dataset, batch_size=batch_size, outputs=values or None, progress=shown, **how)
    if top is not None and not any(_has_classes(array) for array in found.values()):
        raise InputError("--top is for outputs with a row of numbers per sample; " + _described(found))
    if form == ".npz":
        write_npz(str(target), found)
    else:
        files = dataset.column(FILE) if kind_of(data) == "images" else None
        numbers = files if files is not None else dataset.rows
        samples = range(len(next(iter(found.values())))) if numbers is None else numbers.tolist()
        names = loaded.classes or ()
        if form == ".jsonl":
            _write(target, _lines(samples, found, names, top))
        else:
            _write(target, chain([_joined(_header(found, names, top))], _table(samples, found, names, top)))
    if target is not None:
        click.echo(f"wrote {target}")


def _write(target: str | None, lines: Iterable[str]) -> None:
    if target is None:
        for line in lines:
            click.echo(line)
        return
    with new_file(Path(target)) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in lines)


def _lines(
    samples: Iterable[Any], found: Mapping[str, Array], names: Sequence[str], top: int | None
) -> Iterator[str]:  # fmt: skip
    """A line of JSON per sample: outputs by name, and with ``top`` classes beside them."""
    for index, sample in enumerate(samples):
        line: dict[str, Any] = {_free("sample", found): sample}
        for name, array in found.items():
            row = array[index]
            if top is not None and _has_classes(array):
                order = _largest(row, top)
                line[_free(_key("classes", name, found), found)] = [_class(k, len(row), names) for k in order.tolist()]
                row = row[order]
            line[name] = _plain(row)
        yield json.dumps(line, ensure_ascii=False)


def _header(found: Mapping[str, Array], names: Sequence[str], top: int | None) -> list[str]:
    """The columns of a CSV file: one per number of an output; with ``top`` per class and its number.

    Raises:
        InputError: there are too many.
    """
    header = ["sample"]
    for name, array in found.items():
        count = int(np.prod(array.shape[1:]))
        if top is not None and _has_classes(array):
            most = min(top, count)
            ends = [""] if most == 1 else [f"[{k}]" for k in range(most)]
            header += [column for end in ends for column in (_key("class", name, found) + end, name + end)]
        elif array.ndim == 1 or count == 1:
            header.append(name)
        elif array.ndim == 2:
            header += [f"{name}[{_class(k, count, names)}]" for k in range(count)]
        else:
            header += [f"{name}[{','.join(map(str, at))}]" for at in np.ndindex(array.shape[1:])]
        if len(header) > _MOST_COLUMNS:
            raise InputError(f"{name} has {count} numbers per sample: too many columns; write .jsonl or .npz")
    return header


def _table(
    samples: Iterable[Any], found: Mapping[str, Array], names: Sequence[str], top: int | None
) -> Iterator[str]:  # fmt: skip
    """The lines of a CSV file behind its header."""
    for index, sample in enumerate(samples):
        cells: list[Any] = [sample]
        for array in found.values():
            row = array[index].reshape(-1)
            if top is not None and _has_classes(array):
                for k in _largest(row, top).tolist():
                    cells += [_class(k, len(row), names), _plain(row[k])]
            else:
                cells += _plain(row)
        yield _joined(cells)


def _joined(cells: Sequence[Any]) -> str:
    made = io.StringIO()
    csv.writer(made, lineterminator="").writerow(cells)
    return made.getvalue()


def _has_classes(array: Array) -> bool:
    return array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "fiuV"


def _free(key: str, found: Mapping[str, Array]) -> str:
    """The key of a line, with strokes behind it where an output is called so."""
    while key in found:
        key += "'"
    return key


def _described(found: Mapping[str, Array]) -> str:
    return ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in found.items())


def _key(what: str, name: str, found: Mapping[str, Array]) -> str:
    """A column's name; the output's stands before it where there are several."""
    return what if len(found) == 1 else f"{name}.{what}"


def _class(number: int, count: int, names: Sequence[str]) -> str | int:
    return names[number] if len(names) == count else number


def _largest(row: Array, top: int) -> Array:
    """Where the largest numbers of a row are, those first; of equal ones the first. NaN comes last."""
    order: Array = np.argsort(-row.astype(np.float64), kind="stable")[:top]
    return order


def _plain(array: Array) -> Any:
    """Python's numbers, of the fewest digits that give the array's back; as text what JSON has no numbers for."""
    if array.dtype.kind == "V":  # float types that NumPy lacks
        array = array.astype(np.float32)
    if array.dtype.kind not in "fc":
        return array.tolist()
    if array.ndim:
        return [_plain(row) for row in array]
    if array.dtype.kind == "c" or not np.isfinite(array):
        return str(array)
    return float(str(array))
