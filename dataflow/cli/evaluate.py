"""``dataflow evaluate``: loss and metrics of a model over data, and its outputs for each sample."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..errors import InputError
from .data_options import data_arguments, data_options
from .options import (
    EXECUTION,
    batch_option,
    check_new,
    execution,
    execution_options,
    json_option,
    mode_option,
    model_argument,
    print_json,
    read_model,
    renames,
    write_npz,
)


@click.command()
@model_argument
@click.option("--data", required=True, type=click.Path(exists=True), help="A file or folder, as for finetune.")
@click.option(
    "--loss", "losses", multiple=True, default=("cross_entropy",), show_default="cross_entropy", help="As of finetune."
)
@click.option("--value", metavar="NAME", help="The value that the loss reads.")
@click.option("--metric", "metrics", multiple=True, help="As of finetune, instead of the loss's own; repeatable.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--map", "renamed", multiple=True, metavar="OLD=NEW", help="Rename a key of the data, e.g. y=labels.")
@click.option("--output", "target", type=click.Path(dir_okay=False), metavar="FILE.npz", help="Outputs per sample.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@data_options
@batch_option
@mode_option
@execution_options
@json_option
def evaluate(
    model: str,
    data: str,
    losses: tuple[str, ...],
    value: str | None,
    metrics: tuple[str, ...],
    batch_size: int,
    renamed: tuple[str, ...],
    target: str | None,
    force: bool,
    batch: str | None,
    mode: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Prints the loss and metrics of MODEL over data; a mean with its standard error.

    With --output the model's outputs for all samples are written too, in the order of the samples.
    """
    from ..train.data.dataset import Dataset
    from ..train.data.reading import recalled
    from ..train.inference import evaluate as figures_of
    from ..train.inference import predict

    if target is not None and Path(target).suffix != ".npz":
        raise InputError(f"{target}: outputs are written as .npz")
    check_new(target, force)
    if any(":" in name for name in (*losses, *metrics)):
        sys.path.append(str(Path.cwd()))  # a script installed in another folder doesn't have it
    how = execution({name: options.pop(name) for name in EXECUTION})
    loaded = read_model(model, batch, how["limits"], mode)
    reading = recalled(loaded.metadata, data, data_arguments(options), labels=True)
    dataset = Dataset(data, rename=renames(renamed), **reading)
    found = figures_of(loaded, dataset, list(losses), list(metrics) or None, output=value, batch_size=batch_size, **how)
    if target is not None:
        write_npz(target, predict(loaded, dataset, batch_size=batch_size, progress=False, **how))
    if as_json:
        print_json({"figures": {name: np.asarray(v).tolist() for name, v in found.items()}, "file": target})
        return
    for name, figure in found.items():
        if np.ndim(figure):
            click.echo(f"{name}:\n{_table(figure, loaded.classes)}")
        elif not name.endswith("_error"):
            error = found.get(f"{name}_error")
            click.echo(f"{name}: {figure:.6g}" + ("" if error is None else f" ± {error:.2g}"))
    if target is not None:
        click.echo(f"wrote {target}")


def _table(array: Any, names: tuple[str, ...] | None) -> str:
    """A line per class, with its name where the model has names."""
    labels = names if names is not None and len(names) == len(array) else tuple(map(str, range(len(array))))
    width = max(map(len, labels), default=0)
    rows = [" ".join(f"{number:>6.4g}" for number in np.atleast_1d(row)) for row in array]
    return "\n".join(f"  {label:<{width}} {row}" for label, row in zip(labels, rows, strict=True))
