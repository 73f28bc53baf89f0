"""The file format ``.mlp``: an npz archive with the weights w0, b0, w1, b1, ... of layers with ReLU between them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dataflow import GraphBuilder, InputError, ModelError, float32, ops
from dataflow.plugin import Format, Model, hookimpl


def load(path: str, **options: Any) -> Model:
    """The model in a file.

    Raises:
        InputError: an option; there are none.
        ModelError: the file isn't such an archive.
    """
    if options:
        raise InputError(f"{path}: files .mlp have no option {next(iter(options))!r}")
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        layers = [(stored[f"w{i}"], stored[f"b{i}"]) for i in range(len(stored) // 2)]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: it can't be read as weights of layers: {error}") from error
    g = GraphBuilder(Path(path).stem)
    value = g.input("x", float32, ("batch", len(layers[0][0])))
    for i, (w, b) in enumerate(layers):
        value = ops.relu(value) if i else value
        value = ops.add(ops.matmul(value, g.parameter(f"w{i}", w)), g.parameter(f"b{i}", b))
    g.output("y", value)
    return Model(g.build())


def save(model: Model, path: str, **options: Any) -> None:
    """Writes the parameters of a model that was loaded from such a file.

    Raises:
        InputError: an option; there are none. Or the model has other parameters.
    """
    if options:
        raise InputError(f"{path}: files .mlp have no option {next(iter(options))!r}")
    arrays = model.arrays()
    if set(arrays) != {f"{letter}{i}" for letter in "wb" for i in range(len(arrays) // 2)}:
        raise InputError(f"{path}: a file .mlp holds w0, b0, w1, ...; the model has {', '.join(arrays)}")
    with Path(path).open("wb") as file:
        np.savez(file, **arrays)


@hookimpl
def dataflow_formats() -> Iterable[Format]:
    """``df.load("model.mlp")``, ``df.save(model, "model.mlp")``."""
    return [Format(".mlp", load, save)]
