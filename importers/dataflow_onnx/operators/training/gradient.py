"""The converter of Gradient: the gradient rules of what the file's nodes became."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import ops
from dataflow.errors import ModelError
from dataflow.plugin import add_gradients

from ...converters import Collector
from ...emit import full
from ...importer import Importer
from ...tensor import Tensor

DOMAIN = "ai.onnx.preview.training"
T = Tensor
operator = Collector(DOMAIN)


@operator("Gradient")
def Gradient(c: Importer, *operands: T | None, xs: Sequence[str], zs: Sequence[str] = (), y: str) -> Any:
    """Derivatives of the sum of ``y`` by the tensors ``xs``, at their own values."""
    names = [None if t is None else t.name for t in operands]
    known = [c.tensors.get(name) for name in (*xs, *zs)]
    if len(names) != len(known) or any(given is not own for given, own in zip(operands, known, strict=True)):
        raise ModelError(f"it is evaluated at {names}; only its own tensors {[*xs, *zs]} are supported")
    if y not in c.tensors:
        raise ModelError(f"y is {y!r}, which nothing before it defines")
    result, wanted = c.value(c.tensors[y]), [c.value(c.tensors[name]) for name in xs]
    seed = full(c.builder, result.type.shape, 1.0, result.type.dtype)
    found = add_gradients(c.builder, {result: seed}, wanted)
    gradients = [found[value] for value in wanted]
    zeros = [full(c.builder, value.type.shape, 0.0, value.type.dtype) for value in wanted]
    return tuple(ops.copy(zero if d is None else d) for d, zero in zip(gradients, zeros, strict=True))
