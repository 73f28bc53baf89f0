"""``dataflow compare``: a model node by node beside a reference, and a model of the node that differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from ..errors import ModelError
from ..testing.compare import Comparison, Difference, Reference
from .bench import random_arguments
from .options import (
    FAILED,
    batch_option,
    check_new,
    device_option,
    input_shapes,
    json_option,
    model_argument,
    print_json,
    read_arguments,
    read_model,
    shape_option,
)


@click.command()
@model_argument
@device_option
@click.option(
    "--reference", type=click.Choice(get_args(Reference)), help="onnxruntime by default, where it is installed."
)
@click.option("--training", is_flag=True, help="Also the nodes of gradients; with numpy.")
@click.option("--tolerance", type=click.FloatRange(0, min_open=True), help="Of a result's largest value.")
@shape_option
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="npy, or npz with input names.")
@click.option("-o", "target", type=click.Path(dir_okay=False), metavar="FILE.onnx", help="The first node that differs.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@batch_option
@json_option
def compare(
    model: str,
    devices: tuple[str, ...],
    reference: Reference | None,
    training: bool,
    tolerance: float | None,
    shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    target: str | None,
    force: bool,
    batch: str | None,
    as_json: bool,
) -> None:
    """Runs MODEL node by node, each from the reference's values, and shows the first and the worst difference.

    Inputs that no --input gives are random, whole numbers one; a named dim is 1 unless --shape says otherwise. With -o
    the first node that differs is written as a model of its own, and its inputs beside it as npz. Exit code 1: some
    node, or the complete model, differs.
    """
    from ..testing.compare import TOLERANCES, write_reproducer
    from ..testing.compare import compare as run

    check_new(target, force)
    loaded = read_model(model, batch)
    given = read_arguments(loaded, inputs)
    sizes = {name: ",".join(map(str, np.shape(array))) for name, array in given.items() if name in loaded.inputs}
    shapes = (*shapes, *(f"{name}={shape}" for name, shape in sizes.items()))
    arguments = random_arguments(loaded, input_shapes(loaded, shapes)) | given
    chosen: Reference = reference or ("numpy" if training or not _installed() else "onnxruntime")
    found = run(loaded, arguments, list(devices) or None, reference=chosen, training=training, tolerance=tolerance)
    written: list[str] = []
    if target is not None and found.differences:
        try:
            write_reproducer(loaded, found.differences[0], target, overwrite=force)
            written = [target]
        except ModelError as error:
            click.echo(f"the node can't be written as ONNX: {error}", err=True)
        written.append(str(Path(target).with_suffix(".npz")))
    if as_json:
        print_json(_json(found) | {"written": written})
    else:
        _print(found)
        for path in written:
            click.echo(f"wrote {path}")
    limit = tolerance or TOLERANCES["float32"]
    if found.differences or any(error > limit for error in found.outputs.values()):
        raise click.exceptions.Exit(FAILED)


def _installed() -> bool:
    from importlib.util import find_spec

    return find_spec("onnxruntime") is not None


def _described(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {"node": difference.node, "value": difference.value, "error": difference.error, "text": difference.text}


def _json(found: Comparison) -> dict[str, Any]:
    return {
        "reference": found.reference,
        "compared": found.compared,
        "differ": len(found.differences),
        "first": _described(found.differences[0] if found.differences else None),
        "worst": _described(found.worst),
        "skipped": dict(found.skipped),
        "outputs": dict(found.outputs),
    }


def _print(found: Comparison) -> None:
    click.echo(f"{found.compared} values compared with {found.reference}: {len(found.differences)} differ")
    if found.differences:
        for title, difference in (("first", found.differences[0]), ("worst", found.worst)):
            assert difference is not None
            click.echo(
                f"{title}: {difference.node}: {difference.value!r} {difference.text}; error {difference.error:.3g}"
            )
    if found.skipped:
        click.echo(f"not compared: {len(found.skipped)} values that the reference doesn't have, or that are random")
    if found.outputs:
        name, error = max(found.outputs.items(), key=lambda item: item[1])
        click.echo(
            f"the complete model: error {error:.3g} at most, of {name!r}, the worst of {len(found.outputs)} results"
        )
