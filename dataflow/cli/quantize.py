"""``dataflow quantize``: a model of fewer bits, by samples of data or by its weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ..errors import InputError
from ..model_files import check_target, save
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
)


@click.command()
@model_argument
@click.option("--data", type=click.Path(exists=True), help="Some hundred samples, as for finetune; labels aren't read.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="The first N of the data; all by default.")
@click.option("--bits", type=click.Choice(["4", "7", "8"]), help="Of weights: 7 or 8 with data, 4 or 8 without.")
@click.option("--target", "targets", multiple=True, metavar="PATTERN", help="Layers, !PATTERN leaves out; repeatable.")
@click.option("--ranges", type=click.Choice(["minmax", "mse"]), help="Of values: all, or of least error.")
@click.option("--train", is_flag=True, help="Keep floats that are rounded in the graph, for --straight-through.")
@click.option(
    "--store", "integers", is_flag=True, help="Store what --train and --straight-through have trained as integers."
)
@click.option("--block", type=int, metavar="N", help="Without data: elements of a weight with one scale; 32.")
@click.option("--batch-size", type=click.IntRange(min=1), help="32 by default; a fixed batch has its own.")
@click.option("--map", "renamed", multiple=True, metavar="OLD=NEW", help="Rename a key of the data.")
@click.option("-o", "path", required=True, type=click.Path(dir_okay=False), help="The quantized model.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@data_options
@batch_option
@mode_option
@execution_options
@json_option
def quantize(
    model: str,
    data: str | None,
    samples: int | None,
    bits: str | None,
    targets: tuple[str, ...],
    ranges: str | None,
    train: bool,
    integers: bool,
    block: int | None,
    batch_size: int | None,
    renamed: tuple[str, ...],
    path: str,
    force: bool,
    batch: str | None,
    mode: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Writes MODEL with integers in the place of floats.

    With --data products and convolutions are those of bytes, with ranges of values that the samples show. Without, the
    weights of products alone have fewer bits, in blocks with a scale each.
    """
    from ..quantization.blocks import quantize as in_blocks
    from ..quantization.static import quantize_static
    from ..train.data.dataset import Dataset
    from ..train.data.reading import recalled

    for_data: dict[str, object] = {"--samples": samples, "--ranges": ranges, "--train": train or None}
    for_data |= {"--batch-size": batch_size, "--map": renamed or None}
    if integers:
        _refuse({"--data": data, "--bits": bits, "--target": targets or None, "--block": block, **for_data}, "--store")
    elif data is None:
        _refuse({"--bits 7": bits == "7" or None, **for_data}, "weights alone: give --data")
    else:
        _refuse({"--bits 4": bits == "4" or None, "--block": block}, "--data")
    check_new(path, force)
    check_target(path)
    how = execution({name: options.pop(name) for name in EXECUTION})
    loaded = read_model(model, batch, how["limits"], mode)
    reading = data_arguments(options)
    chosen = list(targets) or None
    if integers:
        made = quantize_static(loaded)
    elif data is None:
        made = in_blocks(loaded, int(bits or 4), block or 32, chosen)
    else:
        reading = recalled(loaded.metadata, data, reading, labels=False)
        dataset = Dataset(data, rename=renames(renamed), **reading)
        made = quantize_static(
            loaded,
            dataset if samples is None else dataset.take(samples),
            bits=int(bits or 7),
            targets=chosen,
            ranges=ranges or "minmax",  # type: ignore[arg-type]
            train=train,
            batch_size=batch_size,
            **how,
        )
    save(made, path, overwrite=force)
    sizes = [sum(array.nbytes for array in each.arrays().values()) for each in (loaded, made)]
    if as_json:
        print_json({"model": path, "bytes_before": sizes[0], "bytes": sizes[1]})
        return
    click.echo(f"wrote {path}: stored tensors of {sizes[1] / 1e6:.3g} MB, {sizes[0] / 1e6:.3g} before")


def _refuse(options: Mapping[str, object], beside: str) -> None:
    """Raises InputError where one of these options is given."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given is not None:
        raise InputError(f"{given} doesn't fit {beside}")
