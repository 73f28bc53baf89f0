"""Converters of attention whose state has one size, however long the sequence."""

from __future__ import annotations

from typing import Any

from dataflow import Dim, Value
from dataflow.errors import ModelError

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor
from ..attention import heads_of, recurrent_attention, repeated_heads

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
