"""Samples of activations."""

from __future__ import annotations

from ... import ops
from ...ir.types import float32
from ..sample import Kind, Operand, Sample, at_every_shape, in_double, x


def _activations() -> list[Sample]:
    kinds: dict[str, Kind] = dict.fromkeys(["sigmoid", "softplus", "softsign", "mish", "gelu"], "normal")
    kinds |= dict.fromkeys(["relu", "leaky_relu", "elu", "selu", "celu"], "away")
    rows = [sample for name, kind in kinds.items() for sample in at_every_shape(getattr(ops, name), kind)]
    rows += [Sample(ops.celu, (x(4, 9),), {"alpha": alpha}, gradient=(0,)) for alpha in (-1.0, 1e4)]
    rows += [Sample(ops.relu_grad, (x(*s), x(*s)), gradient=(0,)) for s in ((3, 5), (0,), (70001,), (1,))]
    rows += [Sample(ops.thresholded_relu, (Operand((5,), float32, value=[-1.0, 0.5, 1.3, 2.0, 0.9]),), gradient=(0,))]
    rows += [Sample(ops.hard_sigmoid, (Operand((5,), float32, value=[-4.0, -1.0, 0.3, 1.7, 4.0]),), gradient=(0,))]
    rows += [Sample(ops.hard_swish, (Operand((5,), float32, value=[-4.0, -1.0, 0.3, 1.7, 4.0]),), gradient=(0,))]
    rows += [Sample(ops.gelu, (x(3, 7),), {"approximate": "tanh"}, gradient=(0,))]
    for how in ("none", "tanh"):
        small = {"approximate": how}
        rows.append(Sample(ops.gelu_grad, (x(3, 7), x(3, 7)), small, gradient=(0, 1)))
        rows += [Sample(ops.gelu_grad, (x(*s), x(*s)), small) for s in ((), (0,), (70001,), (2, 33))]
        rows.append(Sample(ops.gelu_grad_sums, (x(3, 7), x(3, 7)), {**small, "keepdims": 1}, gradient=(0, 1)))
        rows += [Sample(ops.gelu_grad_sums, (x(*s), x(*s)), small) for s in ((7,), (0, 4), (300, 33), (2, 70, 132))]
    rows += [Sample(ops.prelu, (x(2, 3, 4, kind="away"), x(3, 1)), gradient=(0, 1))]
    return rows


SAMPLES: list[Sample] = _activations()
SAMPLES += in_double(SAMPLES, "softplus", "softsign", "relu_grad")
