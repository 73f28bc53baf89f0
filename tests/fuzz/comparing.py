"""Tells a wrong result from rounding: against float64, with the error that rounding may cause as measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_dtypes import finfo

import dataflow as df
from dataflow.plugin import call_kernel
from dataflow_numpy import control_flow
from dataflow_numpy.kernels import KERNELS

Array = np.ndarray[Any, Any]
Results = Mapping[str, Array]

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}  # of the largest element
NOISE = 3e-7  # relative, per node: a few units in the last place of float32
ROUNDS = 6
# Off by a part of the first input, of which they are a difference: x times what cancels near 0; dy less its means.
DIFFERENCES = {
    "gelu",
    "mish",
    "hard_swish",
    "gelu_grad",
    "layer_norm_grad",
    "layer_norm_grad_sums",
    "batch_norm_train_grad",
    "softmax_grad",
    "log_softmax_grad",
}
# Off as a whole: by the error of a mean, which all elements have in common, or of gates, of which 1 is the largest.
COMMON = re.compile("batch_norm_train|layer_norm|(lstm|gru|rnn)(_grad)?")
# Algorithms of convolutions multiply what isn't finite by zeros of paddings and transforms: NaN spreads to neighbours.
# Gradients of what isn't finite are infinite or NaN, as the order of their factors has it.
SPREADING = re.compile("conv|conv_(relu|clip|add_relu|relu_max_pool)|.*_grad(_.*)?|softmax_cross_entropy|matmul_blocks")
MARGIN = 30.0  # times the error that noise caused
MARGIN_OF_ROUNDING = 6.0  # where noise has the size of the largest rounding itself


def evaluate_noisy(
    graph: df.Graph,
    feeds: Results,
    random: np.random.Generator,
    noise: float,
    affected: set[str] | None = None,
    absolute: bool = False,
) -> dict[str, Array]:
    """The outputs in float64, where each node's floating inputs and results are off by a random relative ``noise``.

    An error of the inputs is what rounding within a node amounts to (backward error): it is large where terms cancel.

    Args:
        graph: bound.
        feeds: arrays by input name.
        random: of the noise.
        noise: relative; 0: the exact results.
        absolute: results are off by ``noise`` of their largest element too: what saturates is 0 in less precision.
        affected: gets the names of outputs behind a convolution of what isn't finite (see ``SPREADING``).
    """
    behind: set[df.Value | None] = set()
    kernels = {**KERNELS, **control_flow.kernels(lambda body, given, _: evaluate_noisy(body, given, random, noise))}
    known: dict[Any, Any] = {v: _to_float64(feeds[v.name]) for v in graph.inputs}
    known.update({v: _to_float64(data.array) for v, data in graph.initializers.items()})
    for node in graph.nodes:
        attributes = {k: df.float64 if _is_float(v) else v for k, v in node.attributes.items()}
        inputs = [None if v is None else _moved(known[v], random, noise) for v in node.inputs]
        results = call_kernel(kernels[node.op.name], node, inputs, attributes)
        if any(v in behind for v in node.inputs) or (
            SPREADING.fullmatch(node.op.name) and not all(map(_finite, inputs))
        ):
            behind.update(node.outputs)
        with np.errstate(all="ignore"):
            for value, result in zip(node.outputs, results, strict=False):
                array = np.asarray(result)
                if array.dtype.kind == "f" and noise:
                    error = noise * random.standard_normal(array.shape)
                    array = array * (1 + error)
                    if COMMON.fullmatch(node.op.name):
                        array = array + (error + noise * random.standard_normal()) * _gain(
                            node.op.name, inputs, results
                        )
                    if absolute:
                        array = array + error * np.abs(array[np.isfinite(array)]).max(initial=0)
                    first = inputs[0] if inputs else None
                    if node.op.name in DIFFERENCES and first is not None and first.shape == array.shape:
                        array = array + error * first
                    if value is not None and value.type.dtype.is_float:  # its range counts too
                        array = array.astype(value.type.dtype.numpy).astype(np.float64)
                known[value] = _wrapped(array, value)
    if affected is not None:
        affected |= {name for name, value in graph.outputs.items() if value in behind}
    return {name: known[value] for name, value in graph.outputs.items()}


def differences(found: Results, expected: Results) -> list[str]:
    """Names of outputs that are not what float64 gives, at a first look: rounding may explain it."""
    return [name for name, array in expected.items() if _far(found[name], array, 0.0).any()]


def wrong(graph: df.Graph, feeds: Results, found: Results, rounding: float = 0.0) -> str:
    """What is wrong with results and not explained by rounding, or nothing.

    Args:
        graph: bound.
        feeds: what the results were computed from.
        found: arrays by output name, of the declared dtypes.
        rounding: the largest relative error with which values of float32 are stored, where that is more than its own.
    """
    random = np.random.default_rng(0)
    affected: set[str] = set()
    exact = evaluate_noisy(graph, feeds, random, 0.0, affected)
    suspects = [name for name in differences(found, exact) if name not in affected]
    if not suspects:
        return ""
    dtypes = {v.type.dtype.name for v in graph.values() if v.type.dtype.is_float}
    if "float4_e2m1fn" in dtypes:
        return ""  # one rounding is up to half of a value there: no error can be distinguished from rounding
    noise = NOISE * (2.0**-29 if dtypes == {"float64"} else 1 if dtypes <= {"float32", "float64"}
                     else 2.0**13 if "float16" in dtypes else 2.0**16)  # fmt: skip
    margin = MARGIN
    if rounding:
        noise, margin = noise + rounding, MARGIN_OF_ROUNDING
    moved = [evaluate_noisy(graph, feeds, random, noise) for _ in range(ROUNDS)]
    for name in suspects:
        allowance = margin * _noise_error(exact[name], [m[name] for m in moved])
        if allowance is None or not np.isfinite(allowance):
            continue
        bad = _far(found[name], exact[name], float(allowance))
        for _ in range(
            ROUNDS if bad.any() else 0
        ):  # a step of floor or a comparison that rounding falls to another side of
            other = evaluate_noisy(graph, feeds, random, margin * noise, absolute=True)[name]
            bad &= _far(found[name], other, float(allowance))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            text = f"{int(bad.sum())} of {bad.size} elements, first at {list(at)}: {found[name][at]}"
            return f"output {name!r}: {text} instead of {exact[name][at]}"
    return ""


def _far(found: Array, exact: Array, allowance: float) -> Array:
    """Per element: it is off by more than the tolerance and ``allowance``, or not finite where the other one is."""
    if found.shape != exact.shape:
        return np.ones((1,) * max(exact.ndim, found.ndim), np.bool_)
    if not _floating(found.dtype):
        return np.asarray(found != exact) if allowance == 0 else np.zeros(found.shape, np.bool_)
    a, b = found.astype(np.float64), exact.astype(np.float64)
    finite = np.isfinite(b)
    with np.errstate(all="ignore"):
        scale = float(np.abs(b[finite]).max(initial=0))
        limit = TOLERANCE.get(found.dtype.name, 0.5) * max(scale, 1e-15) + allowance
        largest = float(finfo(found.dtype).max)
        same = np.where(finite, np.abs(a - b) <= limit, (a == b) | (np.isnan(a) & np.isnan(b)))
        overflown = finite & (np.abs(b) >= 0.9 * largest)  # it may be infinite
    return np.asarray(~(same | overflown | (np.abs(b) < 1e-30) & (np.abs(a) < 1e-30)))


def _noise_error(exact: Array, moved: list[Array]) -> float:
    """By how much noise moved the result; infinite where it changed more than numbers."""
    worst = 0.0
    for array in moved:
        if array.shape != exact.shape or (exact.dtype.kind != "f" and (array != exact).any()):
            return np.inf
        if exact.dtype.kind == "f":
            if (np.isfinite(array) != np.isfinite(exact)).any():
                return np.inf
            finite = np.isfinite(exact)
            worst = max(worst, float(np.abs(array[finite] - exact[finite]).max(initial=0)))
    return worst


def _moved(array: Array, random: np.random.Generator, noise: float) -> Array:
    """A floating array, off by ``noise``."""
    return array * (1 + noise * random.standard_normal(array.shape)) if noise and array.dtype.kind == "f" else array


def _wrapped(array: Array, value: df.Value | None) -> Array:
    """Integers in the range of their declared dtype: NumPy computes those of 2 and 4 bits in wider ones."""
    narrow = value is not None and value.type.dtype.is_int and value.type.dtype.bits < 8
    return array.astype(np.int64).astype(value.type.dtype.numpy) if narrow and value is not None else array


def _gain(name: str, inputs: Sequence[Array | None], results: Sequence[Array]) -> float:
    """By how much a norm enlarges the error of its mean: that of the largest element, over the least deviation."""
    x, inverse = inputs[0], results[2] if name.endswith(("norm", "train")) and len(results) > 2 else None
    if x is None or inverse is None or not np.asarray(inverse).size:
        return 1.0
    return max(1.0, float(np.abs(x).max(initial=0) * np.abs(np.asarray(inverse)).max()))


def _finite(array: Array | None) -> bool:
    return array is None or array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _floating(dtype: np.dtype[Any]) -> bool:
    """True for NumPy's floats and those of ml_dtypes, which has integers of the same kind."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _to_float64(array: Any) -> Array:
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def _is_float(attribute: Any) -> bool:
    return isinstance(attribute, df.DType) and attribute.is_float
