"""Converters of mixtures of experts: every expert sees every token, and a gate weights the results."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow import Dim, Value, bool_, float32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, number, slice_axis
from ...importer import Importer
from ...shape_eval import product
from ...tensor import Tensor, Unsized
from .block_quantized import dequantized_rows

T = Tensor
operator = Collector("com.microsoft")


def _gate(c: Importer, router: Value, k: int, normalized: int) -> Any:
    """Softmax of the router (tokens, experts); zeros but for the ``k`` largest, which may be made to add up to 1."""
    experts = router.type.shape[-1]
    if router.type.rank == 2 and isinstance(experts, Dim):
        raise Unsized(f"router_probs is {router.type}; the number of experts is known when it comes")
    if router.type.rank != 2 or isinstance(experts, Dim) or not 1 <= k <= experts:
        raise ModelError(f"router_probs is {router.type}, k {k}; expected (tokens, experts) with k of them")
    weights = ops.softmax(router, axis=-1)
    _, chosen = ops.topk(router, k=k, axis=-1, largest=1)
    hot = ops.one_hot(chosen, depth=experts, axis=-1, dtype=float32)
    kept = ops.mul(weights, cast_to(ops.reduce_sum(hot, axes=(1,), keepdims=0), weights.type.dtype))
    return ops.div(kept, ops.reduce_sum(kept, axes=(1,), keepdims=1)) if normalized else kept


def _layer(c: Importer, x: Value, weights: T, bias: T | None) -> Any:
    """The products with the transposes of (experts, out, in), (experts, tokens, out)."""
    y = ops.matmul(x, ops.transpose(c.weight(weights), perm=(0, 2, 1)))
    if bias is None:
        return y
    vectors = c.weight(bias)
    experts, size = vectors.type.shape
    return ops.add(y, ops.reshape(vectors, shape=(experts, 1, size)))


def _swiglu(c: Importer, gate: Value, linear: Value, alpha: float, beta: float, limit: float | None) -> Any:
    if limit is not None:
        high, low = (number(c.builder, n, gate.type.dtype) for n in (limit, -limit))
        gate, linear = ops.minimum(gate, high), ops.clip(linear, low, high)
    return ops.mul(ops.mul(gate, ops.sigmoid(ops.mul(gate, alpha))), ops.add(linear, beta))


@operator("MoE")
def MoE(
    c: Importer,
    x: T,
    router_probs: T,
    fc1: T,
    fc1_bias: T | None,
    fc2: T,
    fc2_bias: T | None = None,
    fc3: T | None = None,
    fc3_bias: T | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Any:
    """Every expert computes every token, so the cost is that of all experts and not of ``k``."""
    if swiglu_limit_after_activation:
        raise ModelError("swiglu_limit_after_activation is not supported; expected 0")
    if use_sparse_mixer:
        raise ModelError("use_sparse_mixer is not supported; expected 0")
    given = c.value(x)
    size = given.type.shape[-1]
    gate = _gate(c, c.value(router_probs), k, normalize_routing_weights)
    tokens, experts = gate.type.shape
    rows = ops.reshape(given, shape=(1, tokens, size))
    hidden = _layer(c, rows, fc1, fc1_bias)
    if activation_type == "swiglu":
        width = hidden.type.shape[-1]
        if swiglu_fusion == 1:
            first, second = (slice_axis(hidden, -1, start, width, 2) for start in (0, 1))
        elif swiglu_fusion == 2:
            first, second = slice_axis(hidden, -1, 0, width // 2), slice_axis(hidden, -1, width // 2, width)
        elif fc3 is not None:
            first, second = hidden, _layer(c, rows, fc3, fc3_bias)
        else:
            raise ModelError("swiglu_fusion is 0 and there is no third layer")
        active = _swiglu(c, first, second, activation_alpha, activation_beta, swiglu_limit)
    else:
        active = _activated(hidden, activation_type)
        active = active if fc3 is None else ops.mul(active, _layer(c, rows, fc3, fc3_bias))
    found = _layer(c, active, fc2, fc2_bias)
    weights = ops.reshape(ops.transpose(gate, perm=(1, 0)), shape=(experts, tokens, 1))
    return ops.reshape(ops.reduce_sum(ops.mul(found, weights), axes=(0,), keepdims=0), shape=given.type.shape)


@operator("QMoE")
def QMoE(
    c: Importer,
    x: T,
    router_probs: T,
    fc1: T,
    fc1_scales: T | None,
    fc1_bias: T | None,
    fc2: T,
    fc2_scales: T | None = None,
    fc2_bias: T | None = None,
    fc3: T | None = None,
    fc3_scales: T | None = None,
    fc3_bias: T | None = None,
    fc1_zeros: T | None = None,
    fc2_zeros: T | None = None,
    fc3_zeros: T | None = None,
    router_weights: T | None = None,
    fc1_global_scale: T | None = None,
    fc2_global_scale: T | None = None,
    fc1_act_scale: T | None = None,
    fc2_act_scale: T | None = None,
    fc1_act_block_scale: T | None = None,
    fc2_act_block_scale: T | None = None,
    *,
    accuracy_level: int = 0,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    block_size: int | None = None,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    k: int = 1,
    normalize_routing_weights: int = 0,
    quant_type: str = "int",
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
    weights_prepacked: int = -1,
) -> Any:
    """A mixture whose weights are integers with a scale for each row or block; its activations are not rounded."""
    globals_ = (fc1_global_scale, fc2_global_scale, fc1_act_scale, fc2_act_scale, fc1_act_block_scale)
    if quant_type != "int" or any(t is not None for t in (router_weights, *globals_, fc2_act_block_scale)):
        raise ModelError(f"quant_type is {quant_type!r}; expected 'int', and no weights or scales but those of layers")
    layers: list[T | None] = []
    for weights, scales, zeros, bits in (
        (fc1, fc1_scales, fc1_zeros, fc1_expert_weight_bits),
        (fc2, fc2_scales, fc2_zeros, fc2_expert_weight_bits),
        (fc3, fc3_scales, fc3_zeros, fc3_expert_weight_bits),
    ):
        if weights is None:
            layers.append(None)
            continue
        if scales is None:
            raise ModelError(f"{weights.name!r} has no scales")
        made = dequantized_rows(c, weights, scales, zeros, bits or expert_weight_bits, block_size or 0)
        layers.append(Tensor(weights.name, cast_to(made, c.value(x).type.dtype)))
    first, second, third = layers
    assert first is not None and second is not None
    return MoE(
        c, x, router_probs, first, fc1_bias, second, fc2_bias, third, fc3_bias, activation_alpha=activation_alpha,
        activation_beta=activation_beta, activation_type=activation_type, k=k,
        normalize_routing_weights=normalize_routing_weights, swiglu_fusion=swiglu_fusion, swiglu_limit=swiglu_limit,
        swiglu_limit_after_activation=swiglu_limit_after_activation, use_sparse_mixer=use_sparse_mixer,
    )  # fmt: skip


def _activated(x: Value, name: str) -> Any:
    if name == "relu":
        return ops.relu(x)
    if name == "gelu":
        return ops.gelu(x, approximate="tanh")
    if name == "silu":
        return ops.mul(x, ops.sigmoid(x))
    if name == "identity":
        return x
    raise ModelError(f"activation_type is {name!r}; expected relu, gelu, silu, swiglu or identity")


@operator("MoEGroupRouter")
def MoEGroupRouter(
    c: Importer,
    logits: T,
    expert_bias: T,
    projection_weight: T | None = None,
    *,
    top_k: int,
    group_topk: int = 2,
    n_group: int = 1,
    router_sentinel: float = -10000.0,
    topk_group: int = 1,
) -> Any:
    """Logarithms of the chosen experts' scores (tokens, experts), from groups of experts with the largest ones."""
    if projection_weight is not None:
        raise ModelError("projection_weight is not supported; expected the logits of a product before the node")
    given = c.value(logits)
    *outer, experts = given.type.shape
    if isinstance(experts, Dim) or n_group < 1 or experts % n_group or not 1 <= top_k <= experts:
        raise ModelError(
            f"logits is {given.type}, n_group {n_group}, top_k {top_k}; expected a known number of experts, which the "
            "groups divide, and so many of them"
        )
    tokens, own = product(outer), experts // n_group
    scores = ops.sigmoid(cast_to(ops.reshape(given, shape=(tokens, experts)), float32))
    chosen = ops.add(scores, c.value(expert_bias))
    wanted = [*map(bool, c.node.outputs), False, False][:3]
    routed: Any = None
    if wanted[0]:
        ranked = chosen
        if topk_group < n_group:
            groups = ops.reshape(chosen, shape=(tokens, n_group, own))
            largest, _ = ops.topk(groups, k=min(group_topk, own), axis=-1, largest=1)
            kept = _hot(ops.reduce_sum(largest, axes=(-1,), keepdims=0), topk_group)
            kept = ops.reshape(kept, shape=(tokens, n_group, 1))
            ranked = ops.where(kept, groups, number(c.builder, -np.inf, float32))
            ranked = ops.reshape(ranked, shape=(tokens, experts))
        logs = ops.log(ops.maximum(scores, number(c.builder, 1e-20, float32)))
        routed = ops.where(_hot(ranked, top_k), logs, number(c.builder, router_sentinel, float32))
        routed = cast_to(routed, given.type.dtype)
    return (routed, chosen if wanted[1] else None, scores if wanted[2] else None)[: max(1, len(c.node.outputs))]


def _hot(x: Value, k: int) -> Any:
    """Which elements of each row (rows, elements) are among its ``k`` largest."""
    _, indices = ops.topk(x, k=k, axis=-1, largest=1)
    hot = ops.one_hot(indices, depth=x.type.shape[-1], axis=-1, dtype=float32)
    return ops.cast(ops.reduce_max(hot, axes=(1,), keepdims=0), to=bool_)
