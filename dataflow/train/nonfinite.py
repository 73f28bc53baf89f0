"""The error of a batch whose loss or gradients are not finite."""

from __future__ import annotations

from ..errors import DataflowError
from ..ir.types import Array


class NonFiniteLoss(DataflowError):
    """The loss or a gradient became NaN or infinite.

    The whole logical batch was discarded: parameters, the optimizer's state and the statistics of batch norms are those
    before it, and training can go on with another one.

    Attributes:
        step: optimizer steps done.
        indices: numbers of the samples of the micro-batch, or None where the data has none.
        node: the first node of the model whose result is not finite; None: the loss itself, or a gradient.
        parameter: the first parameter whose gradient is not finite, where the loss is.
    """

    def __init__(
        self, loss: float, step: int, indices: Array | None, node: str | None, parameter: str | None = None
    ) -> None:
        self.step, self.indices, self.node, self.parameter = step, indices, node, parameter
        samples = "an unnumbered batch" if indices is None else f"samples {_listed(indices)}"
        after = f"after {step} optimizer steps, in {samples}"
        if parameter is not None:
            what = f"the loss is {loss:.6g}, but the gradient of {parameter} is not finite {after}"
            advice = "look at these samples, and for ops whose slope is infinite somewhere (a root, a norm, a division)"
        else:
            where = f"first in {node}" if node else "the model's own values are finite, so in the loss itself"
            what = f"the loss is {loss} {after}: {where}"
            advice = "look at these samples, lower the learning rate, or set clip_norm"
        super().__init__(f"{what}; the batch was discarded and changed nothing; {advice}")


def _listed(indices: Array) -> str:
    first = ", ".join(str(int(i)) for i in indices[:8])
    return first + (f", ... ({len(indices)} in all)" if len(indices) > 8 else "")
