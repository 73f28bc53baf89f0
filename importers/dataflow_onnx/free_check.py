"""Whether a model whose batch size was freed is right: it is run, and compared with single runs and the fixed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dataflow import Graph, Model, Session, TensorType
from dataflow.errors import DataflowError, ModelError

from .file.records import Array
from .free_batch import NAME, Freed, batch_axis

_MOST = 3  # samples: what fits one and two may still depend on there being no more
_Run = Callable[..., Mapping[str, Array]]  # of the inputs, and names of outputs
_WORDS = {2: "two", 3: "three"}


def check_free(freed: Model, fixed: Model, was: Freed, path: str) -> None:
    """Runs a freed model.

    Raises:
        ModelError: batches of two and three aren't what single runs give, or a batch of the old size what the file
            gives; names the first node whose results differ.
    """
    random = np.random.default_rng(0)
    most = {name: _random(t.bind({NAME: _MOST}), random) for name, t in freed.inputs.items()}
    ones = [_samples(most, i, i + 1) for i in range(_MOST)]
    try:
        run = _runs(freed)
        apart = [run(one) for one in ones]
        together = {count: run(_samples(most, 0, count)) for count in range(2, _MOST + 1)}
        old = {name: _random(t.bind({NAME: was.old}), random) for name, t in freed.inputs.items()}
        same = _runs(fixed)(old), run(old)
    except DataflowError as error:
        raise ModelError(f"{path}: batch='free': the freed model can't be run: {error}") from None
    wrong = [
        (name, count)
        for count, results in together.items()
        for name, array in results.items()
        if not _is_joined(array, [one[name] for one in apart[:count]], freed.outputs[name])
    ]
    wrong += [(name, 2) for name, array in same[0].items() if not _close(array, same[1][name])]
    if wrong:
        name, count = wrong[0]
        where = _first_difference(freed, run, _samples(most, 0, count), ones[:count])
        raise ModelError(
            f"{path}: batch='free': the output {name!r} for a batch of {_WORDS[count]} is not what its samples give "
            f"alone, from {where} on; export the model with a free batch size instead"
        )


def _samples(data: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
    """Some rows of the inputs."""
    return {name: array[start:stop] if array.ndim else array for name, array in data.items()}


def _runs(model: Model) -> _Run:
    """Runs of a model that all draw the same random numbers: those of the first run of a session."""
    session = Session(model)
    draws = _draws(model.graph)
    return lambda given, outputs=None: (Session(model) if draws else session).run(given, outputs)


def _draws(graph: Graph) -> bool:
    return any(node.op.effects == "random" or any(map(_draws, node.bodies)) for node in graph.nodes)


def _first_difference(model: Model, run: _Run, batch: Mapping[str, Array], ones: Sequence[Mapping[str, Array]]) -> str:
    """The first node whose results differ."""
    values = [(v, n) for n in model.graph.nodes for v in n.outputs if v is not None and n.op.view is None]
    names = [v.name for v, _ in values]
    together, apart = run(batch, names), [run(one, names) for one in ones]
    for value, node in values:
        if not _is_joined(together[value.name], [one[value.name] for one in apart], value.type):
            return str(node.origin or node.describe())
    return "its end"


def _random(type_: TensorType, random: np.random.Generator) -> Array:
    """Data that most models take: tokens are 0 and 1."""
    found: Array = random.integers(0, 2, type_.sizes)
    if type_.dtype.kind == "s":
        return found.astype(str).astype(object)
    if type_.dtype.is_float:
        found = random.standard_normal(type_.sizes)
    return found.astype(type_.dtype.numpy)


def _is_joined(together: Array, apart: Sequence[Array], type_: TensorType) -> bool:
    """Whether the result for a batch is those of its samples, along the axis of the batch."""
    axis = batch_axis(type_.shape)
    if axis is None:  # sizes that depend on data may have it
        sizes = enumerate(zip(together.shape, apart[0].shape, strict=False))
        axis = next((i for i, (size, own) in sizes if size != own), None)
    if axis is None:
        return all(_close(together, one) for one in apart)
    others = {(*a.shape[:axis], *a.shape[axis + 1 :]) for a in (together, *apart)}
    return len(others) == 1 and _close(together, np.concatenate(apart, axis=axis))


def _close(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype.kind not in "fV":
        return a.shape == b.shape and bool((a == b).all())
    upcast, other = a.astype(np.float64), b.astype(np.float64)
    scale = np.abs(other[np.isfinite(other)]).max(initial=1e-30)
    return bool(np.allclose(upcast, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))
