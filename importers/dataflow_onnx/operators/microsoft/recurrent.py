"""The converter of an LSTM with quantized weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Value, float32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...importer import Importer
from ...tensor import Tensor
from ..recurrent import LSTM

T = Tensor
operator = Collector("com.microsoft")


def _weights(c: Importer, steps: T, scale: T, zero: T) -> T:
    """The floats (directions, gates, size) that integers (directions, size, gates) stand for."""

    def along(vector: Value) -> Any:
        """One number for each direction, or for each of its gates."""
        if vector.type.rank not in (1, 2):
            raise ModelError(f"a scale or zero point is {vector.type}; expected (directions,) or (directions, gates)")
        directions, *gates = vector.type.shape
        return ops.reshape(cast_to(vector, float32), shape=(directions, 1, *(gates or (1,))))

    shifted = ops.sub(cast_to(c.value(steps), float32), along(c.value(zero)))
    floats = ops.mul(shifted, along(c.value(scale)))
    return Tensor(steps.name, ops.transpose(floats, perm=(0, 2, 1)))


@operator("DynamicQuantizeLSTM")
def DynamicQuantizeLSTM(
    c: Importer,
    X: T,
    W: T,
    R: T,
    B: T | None,
    sequence_lens: T | None,
    initial_h: T | None,
    initial_c: T | None,
    P: T | None,
    W_scale: T,
    W_zero_point: T,
    R_scale: T,
    R_zero_point: T,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> Any:
    """An LSTM with the weights that the integers stand for.

    onnxruntime rounds the inputs and states to 8 bits before each product, which is its choice and no result of the
    file; they keep their floats here, so results are nearer to those of the model that was quantized.
    """
    operands = (X, _weights(c, W, W_scale, W_zero_point), _weights(c, R, R_scale, R_zero_point))
    return LSTM(
        c,
        *operands,
        B,
        sequence_lens,
        initial_h,
        initial_c,
        P,
        activation_alpha=activation_alpha,
        activation_beta=activation_beta,
        activations=activations,
        clip=clip,
        direction=direction,
        hidden_size=hidden_size,
        input_forget=input_forget,
    )
