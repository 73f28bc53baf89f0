"""The error of a batch whose loss or gradients are not finite, and where that began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import DataflowError
from ..execute.execution import Execution
from ..ir.types import Array
from ..model import Model
from ..session import Session


class NonFiniteLoss(DataflowError):
    """The loss or a gradient became NaN or infinite.

    The whole logical batch was discarded: parameters, the optimizer's state and the statistics of batch norms are those
    before it, and training can go on with another one. Not so where parameters are updated as their gradients are ready
    and only a gradient isn't finite: then they are spoiled, as ``moved`` says.

    Attributes:
        step: optimizer steps done.
        indices: numbers of the samples of the micro-batch, or None where the data has none.
        node: the first node of the model whose result is not finite; None: the loss itself, or a gradient.
        parameter: the first parameter whose gradient is not finite, where the loss is.
        moved: how many parameters and tensors of the optimizer are not finite any more.
    """

    def __init__(
        self,
        loss: float,
        step: int,
        indices: Array | None,
        node: str | None,
        parameter: str | None = None,
        moved: int = 0,
    ) -> None:
        self.step, self.indices, self.node, self.parameter, self.moved = step, indices, node, parameter, moved
        samples = "an unnumbered batch" if indices is None else f"samples {_listed(indices)}"
        after = f"after {step} optimizer steps, in {samples}"
        if parameter is not None:
            what = f"the loss is {loss:.6g}, but the gradient of {parameter} is not finite {after}"
            advice = "look at these samples, and for ops whose slope is infinite somewhere (a root, a norm, a division)"
        else:
            where = f"first in {node}" if node else "the model's own values are finite, so in the loss itself"
            what = f"the loss is {loss} {after}: {where}"
            advice = "look at these samples, lower the learning rate, or set clip_norm"
        left = "the batch was discarded and changed nothing"
        if moved:
            left = (
                f"parameters were updated as their gradients were ready, so that {moved} tensors aren't finite any "
                'more: load the newest checkpoint; with update="together" such a batch changes nothing'
            )
        super().__init__(f"{what}; {left}; {advice}")


def first_bad(
    model: Model, trainable: Sequence[str], how: Execution, arguments: Mapping[str, Array], steps: int
) -> str | None:
    """The first node of the model whose result is not finite for these inputs, or a parameter that isn't.

    Args:
        model: that is trained.
        trainable: names of parameters.
        how: devices, and how they run.
        arguments: of the batch.
        steps: updates done.
    """
    for name in trainable:
        if not np.isfinite(model.parameters[name].array.astype(np.float64)).all():
            return f"parameter {name!r}, which {'the last update made so' if steps else 'was so before any update'}"
    computed = [(v, node) for node in model.graph.nodes for v in node.outputs if v is not None]
    made = {v.name: node for v, node in computed if v.type.dtype.is_float}
    session = Session(model, how.devices, threads=how.threads, registry=how.registry, limits=how.limits)
    found = session.run({name: arguments[name] for name in model.inputs}, outputs=list(made))
    for name, node in made.items():
        if not np.isfinite(found[name].astype(np.float64)).all():
            return node.describe()
    return None


def _listed(indices: Array) -> str:
    first = ", ".join(str(int(i)) for i in indices[:8])
    return first + (f", ... ({len(indices)} in all)" if len(indices) > 8 else "")
