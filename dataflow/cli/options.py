"""What the commands share: options, reading models and arrays, printing JSON, exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from ..errors import InputError
from ..host.limits import Limits
from ..model import Model
from ..model_files import load
from ..planning.algorithms import Algorithms
from ..plugin.device import Precision

FAILED, USER, DEVICE, INTERRUPTED = 1, 2, 3, 130

device_option = click.option(
    "--device", "devices", multiple=True, metavar="ID", help="In order of preference; repeatable."
)
batch_option = click.option("--batch", type=click.Choice(["free"]), help="Free a fixed leading dim.")
mode_option = click.option(
    "--mode", type=click.Choice(["inference"]), help="Of a file in training mode, see docs/models.md."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
model_argument = click.argument("model", type=click.Path(exists=True, dir_okay=False))
memory_option = click.option(
    "--memory", type=click.Choice(["small"]), help="small: no prepacked copies of weights, one scratch memory."
)
shape_option = click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,64", help="Of an input; repeatable.")


def execution_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options of how something runs; it gets them as ``**execution``, see ``execution``."""
    for option in (
        click.option("--avoid", multiple=True, metavar="NAME", help="An algorithm, e.g. winograd; repeatable."),
        click.option("--tune", type=click.Path(dir_okay=False), metavar="FILE", help="Times algorithms; keeps them."),
        click.option("--precision", type=click.Choice(get_args(Precision)), default="float32", help="Of products."),
        click.option("--threads", type=click.IntRange(min=1), help="The most threads to use."),
        click.option("--limit-seconds", type=click.FloatRange(0, min_open=True), help="For each load, plan and run."),
        click.option("--limit-memory", metavar="2G", help="Bytes, or with K, M, G: the most to take."),
        device_option,
    ):
        command = option(command)
    return command


EXECUTION = ("devices", "threads", "precision", "tune", "avoid", "limit_memory", "limit_seconds")


def execution(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of Session and Trainer from ``execution_options``."""
    return {
        "devices": list(options["devices"]) or None,
        "threads": options["threads"],
        "precision": options["precision"],
        "algorithms": Algorithms(options["tune"], options["avoid"]),
        "limits": limits_of(options),
    }


def limits_of(options: Mapping[str, Any]) -> Limits | None:
    """The limits that ``execution_options`` give; None where they give none."""
    memory, seconds = options["limit_memory"], options["limit_seconds"]
    return None if memory is None and seconds is None else Limits(_bytes(memory), seconds)


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    scale = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:].upper(), 0)
    number = text[:-1] if scale else text
    if not (number.isascii() and number.isdigit()):
        raise InputError(f"--limit-memory {text}: expected a whole number of bytes, or of K, M or G, e.g. 2G")
    return int(number) << scale


def read_arguments(model: Model, given: Sequence[str]) -> dict[str, Any]:
    """Arrays by input name, from npy and npz files."""
    names = list(model.inputs)
    arguments: dict[str, Any] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = "", text
        found = _read_arrays(path)
        if isinstance(found, dict):
            if name:
                raise InputError(f"--input {text}: an npz names its arrays itself; leave out {name!r}=")
            arguments.update(found)
            continue
        if not name:
            free = [n for n in names if n not in arguments]
            if not free:
                raise InputError(f"--input {text}: the model's inputs are given already: {', '.join(names)}")
            name = free[0]
        arguments[name] = found
    return arguments


def _read_arrays(path: str) -> Any:
    try:
        with Path(path).open("rb") as file:
            found = np.load(file, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else {key: found[key] for key in found.files}
    except (ValueError, EOFError) as error:
        raise InputError(f"{path}: can't be read as npy or npz: {error}") from None


def input_shapes(model: Model, given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """A shape per input: as given, else the declared one with 1 for named dims."""
    shapes = {n: tuple(d if isinstance(d, int) else 1 for d in t.shape) for n, t in model.inputs.items()}
    for name, text in _pairs("--shape", given).items():
        if name not in shapes:
            raise InputError(f"--shape {name}: the model has no such input; it has: {', '.join(shapes)}")
        try:
            shapes[name] = tuple(int(size) for size in text.split(",") if size)
        except ValueError:
            raise InputError(f"--shape {name}={text}: expected whole numbers between commas") from None
    return shapes


def read_model(path: str, batch: str | None, limits: Limits | None = None, mode: str | None = None) -> Model:
    """The model of a file; ``batch`` and ``mode`` are options of its importer, or None."""
    options: dict[str, Any] = {name: text for name, text in (("batch", batch), ("mode", mode)) if text is not None}
    return load(path, limits=limits, **options)


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a dict; the name may contain colons and slashes."""
    found = {}
    for text in given:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise InputError(f"{option} {text}: expected NAME=VALUE")
        found[name] = value
    return found


def renames(given: Sequence[str]) -> dict[str, str | None]:
    """Old keys of data to new ones, of the texts of --map; None leaves a key out."""
    found: dict[str, str | None] = {}
    for text in given:
        old, equals, new = text.partition("=")
        if not equals or not old:
            raise InputError(f"--map {text}: expected OLD=NEW, or OLD= to leave the key out")
        found[old] = new or None
    return found


def print_json(data: Mapping[str, Any]) -> None:
    """One line; what JSON has no number for (nan, infinity) is null."""
    click.echo(json.dumps(_plain(data), allow_nan=False))


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def check_new(target: str | None, force: bool) -> None:
    """Raises InputError where a file would be replaced without ``--force``."""
    if target is not None and Path(target).exists() and not force:
        raise InputError(f"{target} exists; --force replaces it")


def write_npz(path: str | Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Arrays of any shapes and dtypes by name.

    Raises:
        InputError: a name that is an argument of ``numpy.savez``.
    """
    taken = [name for name in ("file", "allow_pickle") if name in arrays]
    if taken:
        raise InputError(f"{path}: NumPy writes no array that is called {taken[0]!r} into an .npz file")
    np.savez(path, **arrays)  # type: ignore[arg-type]
