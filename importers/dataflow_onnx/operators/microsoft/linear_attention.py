"""Converters of attention whose state has one size, however long the sequence."""

from __future__ import annotations

import itertools
from typing import Any

from dataflow import Dim, Value, float32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, slice_axis
from ...importer import Importer
from ...shape_eval import product
from ...tensor import Tensor
from ..attention import heads_of, recurrent_attention, repeated_heads
from ..shape import reshaped

T = Tensor
operator = Collector("com.microsoft")


@operator("LinearAttention")
def linear_attention(
    c: Importer,
    query: T,
    key: T,
    value: T,
    past_state: T | None = None,
    decay: T | None = None,
    beta: T | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> Any:
    if state_window:
        raise ModelError(f"state_window is {state_window}; expected 0, the state behind the last position alone")
    q, v = heads_of(c.value(query), q_num_heads, "query"), heads_of(c.value(value), kv_num_heads, "value")
    keys, width, size = c.value(key), c.value(key).type.shape[-1], q.type.shape[3]
    if isinstance(width, Dim) or isinstance(size, Dim) or size == 0 or width % size:
        raise ModelError(f"key is {keys.type}; expected (batch, sequence, heads * {size}), as the queries have")
    q = _for_each_state(q, kv_num_heads, "queries") if q_num_heads < kv_num_heads else q
    k = _for_each_state(heads_of(keys, width // size, "key"), kv_num_heads, "keys")
    return recurrent_attention(c, q, k, v, past_state, decay, beta, scale=scale, update_rule=update_rule)


def _for_each_state(x: Value, heads: int, what: str) -> Any:
    """Queries or keys (batch, heads, sequence, size) of which several states share one, each repeated for them."""
    given = x.type.shape[1]
    if isinstance(given, Dim) or given == 0 or heads % given:
        raise ModelError(f"{given} heads of {what} don't fit {heads} of values")
    return x if given == heads else repeated_heads(x, heads // given)


@operator("GatedDeltaNet")
def GatedDeltaNet(
    c: Importer,
    query: T,
    key: T | None = None,
    value: T | None = None,
    cu_seqlens: T | None = None,
    decay: T | None = None,
    beta: T | None = None,
    initial_state: T | None = None,
    a_log: T | None = None,
    dt_bias: T | None = None,
    capture_count: T | None = None,
    state_update_active: T | None = None,
    *,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    state_update_capacity: int = 0,
    update_rule: str = "gated_delta",
) -> Any:
    """Tokens of all samples one after the other (tokens, heads, size), or (batch, length, heads, size)."""
    if cu_seqlens is not None or state_update_capacity:
        what = "state_update_capacity" if state_update_capacity else "cu_seqlens"
        raise ModelError(f"{what} is not supported; expected samples of one length, and the last state alone")
    given = c.value(query)
    tokens = given.type.shape[:-1] if key is None else given.type.shape[:-2]
    q, k, v = _tokens_of(c, given, key, value, initial_state)
    if len(tokens) == 1 and initial_state is None:
        raise ModelError(f"query is {given.type} and there is no initial_state, which says how many samples these are")
    batch = tokens[0] if len(tokens) == 2 or initial_state is None else initial_state.type.shape[0]

    def by_sample(x: Value, *last: Any) -> Any:
        return reshaped(cast_to(x, float32), [batch, -1, *last], allowzero=True)

    (heads, width), (shared, _size) = v.type.shape[-2:], k.type.shape[-2:]
    q, k, v = (ops.transpose(by_sample(x, *x.type.shape[-2:]), perm=(0, 2, 1, 3)) for x in (q, k, v))
    if qk_l2_norm:
        q, k = (_unit(x) for x in (q, k))
    if shared != heads:
        q, k = _for_each_state(q, heads, "queries"), _for_each_state(k, heads, "keys")
    rate = None if beta is None or not update_rule.endswith("delta") else by_sample(c.value(beta), heads)
    if rate is not None and beta_activation == "sigmoid":
        rate = ops.sigmoid(rate)
    gate: Any = None
    if decay is not None and update_rule.startswith("gated"):
        raw = c.value(decay)
        sizes = raw.type.shape[len(tokens) :]
        gate = _gate(c, by_sample(raw, *sizes), a_log, dt_bias, gate_activation, gate_lower_bound)
        gate = ops.reshape(gate, shape=(*gate.type.shape[:2], product(sizes)))
    state = None if initial_state is None else ops.transpose(c.value(initial_state), perm=(0, 1, 3, 2))
    y, last = recurrent_attention(
        c,
        q,
        k,
        v,
        None if state is None else Tensor("initial_state", state),
        None if gate is None else Tensor("decay", gate),
        None if rate is None else Tensor("beta", rate),
        scale=scale,
        update_rule=update_rule,
    )
    y = cast_to(ops.reshape(y, shape=(*tokens, heads, width)), given.type.dtype)
    return (y, ops.transpose(last, perm=(0, 1, 3, 2)))[: max(1, len(c.node.outputs))]


def _tokens_of(c: Importer, given: Value, key: T | None, value: T | None, state: T | None) -> tuple[Any, Any, Any]:
    """Queries, keys and values (..., heads, size), which one tensor may hold side by side."""
    if key is not None and value is not None:
        return given, c.value(key), c.value(value)
    if key is not None or value is not None or state is None:
        raise ModelError("expected key and value, or neither and an initial_state, which has their sizes")
    *outer, last = given.type.shape
    fixed = [int(n) for n in (*state.type.shape[1:], last) if not isinstance(n, Dim)]
    heads, width, size, columns = fixed if len(fixed) == 4 else (0, 0, 0, 0)
    if size == 0 or columns < heads * width or (columns - heads * width) % (2 * size):
        raise ModelError(f"query is {given.type}, initial_state {state.type}; expected fixed sizes that fit")
    own = (columns - heads * width) // 2
    bounds = (0, own, 2 * own, columns)
    slices = (slice_axis(given, -1, start, stop) for start, stop in itertools.pairwise(bounds))
    shapes = ((own // size, size), (own // size, size), (heads, width))
    q, k, v = (ops.reshape(x, shape=(*outer, *shape)) for x, shape in zip(slices, shapes, strict=True))
    return q, k, v


def _unit(x: Value) -> Any:
    """Vectors along the last axis, of length 1."""
    return ops.div(x, ops.sqrt(ops.add(ops.reduce_sum(ops.mul(x, x), axes=(-1,), keepdims=1), 1e-12)))


def _gate(c: Importer, raw: Value, a_log: T | None, dt_bias: T | None, activation: str, bound: float) -> Any:
    """The logarithm of what remains of a state, from projections (batch, length, heads) or (..., heads, size)."""
    if activation == "none":
        return raw
    if activation not in ("softplus", "qwen", "sigmoid", "kda") or a_log is None:
        raise ModelError(f"gate_activation is {activation!r}; expected 'none', or 'softplus' or 'sigmoid' with a_log")
    sizes = raw.type.shape[2:]
    factor = ops.reshape(ops.exp(c.weight(a_log)), shape=(sizes[0], *(1,) * (len(sizes) - 1)))
    if dt_bias is not None:
        shift = c.weight(dt_bias)
        per_head = len(sizes) > 1 and shift.type.shape == (sizes[0],)
        raw = ops.add(raw, ops.reshape(shift, shape=(sizes[0], 1) if per_head else sizes))
    if activation in ("softplus", "qwen"):
        return ops.neg(ops.mul(factor, ops.softplus(raw)))
    return ops.mul(ops.sigmoid(ops.mul(factor, raw)), bound)
