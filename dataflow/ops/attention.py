"""Attention as one op: softmax(scale * q k' + mask) v, and linear attention.

The first nobody writes by hand: it is found where exporters left its parts; see passes/fuse_attention.py. A device
without a kernel for it runs these.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.graph import Node
from ..ir.op import MultiOp, Op
from ..ir.types import TensorType
from ..ir.value import Value
from .arithmetic import abs_, add, div, exp, log, maximum, mul, sub, tanh
from .control_flow import scan
from .infer import builder_for, need_float, operand, same_dtype
from .linalg import matmul, swapped
from .logic import greater, is_nan, where
from .reduce import reduce_max, reduce_sum
from .rules.attention import attention_infer, grad_infer, grad_sums_infer, rows_first, scores_of
from .shape import reshape, transpose
from .softmax import softmax

INEXACT = 256.0
"""Beyond it float32 leaves too little of the logarithm in a log-sum, as where a mask of -10000 or the least number is
on all of a row: weights are divided by their sum then."""


def _heads_first(rank: int) -> tuple[int, ...]:
    """The permutation back."""
    return (0, *range(2, rank - 1), 1, rank - 1)


def _decompose(
    q: Value,
    kt: Value,
    v: Value,
    mask: Value | None = None,
    *,
    scale: float,
    transposed: bool,
    safe: bool,
    softcap: float,
) -> Any:
    scores = _masked(_scaled(q, kt, scale, softcap), mask)
    weights = softmax(scores, axis=-1)
    y = matmul(_instead_of_nan(weights, 0.0) if safe else weights, v)
    most = reduce_max(scores, axes=(-1,), keepdims=True)
    total = log(reduce_sum(exp(sub(scores, most)), axes=(-1,), keepdims=True))
    logsum = reshape(add(most, total), shape=scores.type.shape[:-1])
    if safe:
        logsum = _instead_of_nan(logsum, math.inf)
    return (transpose(y, perm=rows_first(y.type.rank)) if transposed else y), logsum


def _instead_of_nan(x: Value, number: float) -> Value:
    return where(is_nan(x), number, x)


def _scaled(q: Value, kt: Value, scale: float, softcap: float) -> Value:
    scores = matmul(q, kt)
    return mul(tanh(mul(scores, scale / softcap)), softcap) if softcap else mul(scores, scale)


def _masked(scores: Value, mask: Value | None) -> Value:
    return scores if mask is None else add(scores, mask)


def _before_cap(ds: Value, scores: Value, softcap: float) -> Value:
    """The cotangent of scores before they were capped, from that of the capped ones."""
    if not softcap:
        return ds
    tangent = mul(scores, 1 / softcap)
    return mul(ds, sub(1.0, mul(tangent, tangent)))


def _errors(
    dy: Value,
    y: Value,
    logsum: Value,
    q: Value,
    kt: Value,
    v: Value,
    mask: Value | None,
    scale: float,
    transposed: bool,
    safe: bool,
    softcap: float,
) -> tuple[Value, Value, Value, Value]:
    """The scores without mask, the weights, the cotangent of the masked scores, and dy with heads before rows."""
    if transposed:
        perm = _heads_first(dy.type.rank)
        dy, y = transpose(dy, perm=perm), transpose(y, perm=perm)
    column = (*logsum.type.shape, 1)
    scores = _scaled(q, kt, scale, softcap)
    weights = exp(sub(_masked(scores, mask), reshape(logsum, shape=column)))
    inexact = greater(reshape(abs_(logsum), shape=column), INEXACT)
    total = maximum(reduce_sum(weights, axes=(-1,), keepdims=True), 1e-30)
    weights = where(inexact, div(weights, total), weights)
    if safe:
        weights = _instead_of_nan(weights, 0.0)
    delta = reduce_sum(mul(dy, y), axes=(-1,), keepdims=True)
    return scores, weights, mul(weights, sub(matmul(dy, swapped(v)), delta)), dy


def _gradient(node: Node, dy: Value | None, dlogsum: Value | None = None) -> tuple[Value, ...]:
    q, kt, v, mask = (*node.inputs, None)[:4]
    y, logsum = node.outputs
    assert q is not None and kt is not None and v is not None and y is not None and logsum is not None
    scale, softcap, options = node.attributes["scale"], node.attributes["softcap"], node.attributes
    if dy is None:
        dy = mul(y, 0.0)
    dq, dk, dv = attention_grad(dy, y, logsum, q, kt, v, mask, **options)
    # Dead where the mask needs no gradient.
    scores, weights, ds, _ = _errors(dy, y, logsum, q, kt, v, mask, **options)
    dkt = swapped(dk)
    if dlogsum is not None:
        more = mul(weights, reshape(dlogsum, shape=(*dlogsum.type.shape, 1)))
        ds = add(ds, more)
        more = _before_cap(more, scores, softcap)
        dq = add(dq, mul(matmul(more, swapped(kt)), scale))
        dkt = add(dkt, mul(matmul(swapped(q), more), scale))
    return (dq, dkt, dv) if mask is None else (dq, dkt, dv, ds)


def _grad_decompose(
    dy: Value,
    y: Value,
    logsum: Value,
    q: Value,
    kt: Value,
    v: Value,
    mask: Value | None = None,
    *,
    scale: float,
    transposed: bool,
    safe: bool,
    softcap: float,
) -> tuple[Value, ...]:
    scores, weights, ds, dy = _errors(dy, y, logsum, q, kt, v, mask, scale, transposed, safe, softcap)
    ds = mul(_before_cap(ds, scores, softcap), scale)
    return matmul(ds, swapped(kt)), matmul(swapped(ds), q), matmul(swapped(weights), dy)


def _grad_cost(node: Node) -> int:
    """Five products, and what is done with each score."""
    q, kt, v = node.inputs[3:6]
    assert q is not None and kt is not None and v is not None
    scores = TensorType(q.type.dtype, scores_of(q.type, kt.type, v.type, None)).elements
    return scores * (6 * int(q.type.shape[-1]) + 4 * int(v.type.shape[-1]) + 10)


def _cost(node: Node) -> int:
    """Two products, and the softmax as its own op counts it."""
    q, kt, v = node.inputs[:3]
    assert q is not None and kt is not None and v is not None
    scores = TensorType(q.type.dtype, scores_of(q.type, kt.type, v.type, None)).elements
    return scores * (2 * int(q.type.shape[-1]) + 2 * int(v.type.shape[-1]) + 10)


attention: Op = Op(
    "attention",
    ("q", "kt", "v", "mask?"),
    attention_infer,
    outputs=("y", "+logsum"),
    attributes={"scale": 1.0, "transposed": False, "safe": False, "softcap": 0.0},
    gradient=_gradient,
    decompose=_decompose,
    cost=_cost,
    doc="y (..., M, E) = softmax(scale * q kt + mask) v with q (..., M, D), kt (..., D, N), v (..., N, E) and a mask "
    "that broadcasts to (..., M, N); transposed: y is (batch, M, heads..., E); softcap above 0: scores before the mask "
    "are softcap * tanh(scale * q kt / softcap). logsum (..., M): the logarithm of the sum "
    "of e^scores along rows. safe: weights that are NaN, as in a row of scores that are all -infinity, are 0, and the "
    "row's logsum is infinity",
)

attention_grad: MultiOp = MultiOp(
    "attention_grad",
    ("dy", "y", "logsum", "q", "kt", "v", "mask?"),
    grad_infer,
    outputs=("dq", "dk", "dv"),
    attributes={"scale": 1.0, "transposed": False, "safe": False, "softcap": 0.0},
    decompose=_grad_decompose,
    cost=_grad_cost,
    doc="the gradients by q (..., M, D), the transpose of kt (..., N, D) and v (..., N, E), for every entry of the "
    "scores' leading axes, from a cotangent dy and both results of attention; where |logsum| is above 256, weights are "
    "divided by their sum",
)


def _sums_decompose(*operands: Value | None, **attributes: Any) -> tuple[Value, ...]:
    found = attention_grad(*operands, **attributes)
    over = [(0, value.type.rank - 2) for value in found]
    return *found, *(reduce_sum(v, axes=axes, keepdims=False) for v, axes in zip(found, over, strict=True))


attention_grad_sums: MultiOp = MultiOp(
    "attention_grad_sums",
    attention_grad.inputs,
    grad_sums_infer,
    outputs=("dq", "dk", "dv", "+dq_sums", "+dk_sums", "+dv_sums"),
    attributes=attention_grad.attributes,
    decompose=_sums_decompose,
    cost=_grad_cost,
    doc="``attention_grad``, and the sums of its results over their first axis and their rows",
)

# ---- linear attention: a matrix per head that each token changes and reads --------------------------------


def _linear_infer(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    state: TensorType,
    decay: TensorType | None = None,
    beta: TensorType | None = None,
) -> tuple[TensorType, TensorType]:
    given = [t for t in (q, k, v, state, decay, beta) if t is not None]
    need_float("linear_attention", *given)
    dtype = same_dtype("linear_attention", *given)
    ranks = (q.rank, k.rank, v.rank, state.rank) == (4, 3, 3, 3)
    if not ranks:
        raise InputError(f"linear_attention: q is {q}, k {k}, v {v}, state {state}; expected 4, 3, 3 and 3 axes")
    heads, length, size, width = *k.shape, v.shape[-1]
    expected = [(q, (heads, q.shape[1], length, size)), (v, (heads, length, width)), (state, (heads, size, width))]
    if decay is not None:
        expected.append((decay, (heads, length, 1 if decay.shape[-1] == 1 else size)))
    if beta is not None:
        expected.append((beta, (heads, length, 1)))
    for type_, shape in expected:
        fits = TensorType(dtype, shape) == type_ or not type_.is_bound or not TensorType(dtype, shape).is_bound
        if not fits:
            raise InputError(
                f"linear_attention: k is {k}, v {v}; an operand is {type_}, expected {TensorType(dtype, shape)}"
            )
    return TensorType(dtype, (heads, q.shape[1], length, width)), state


def _token(q: Value, k: Value, v: Value, state: Value, decay: Value | None, beta: Value | None) -> tuple[Value, Value]:
    """What a token makes of the state, and reads: q (heads, readers, size), the others (heads, size)."""
    column, row = (*k.type.shape, 1), (k.type.shape[0], 1, k.type.shape[1])
    if decay is not None:
        state = mul(state, reshape(decay, shape=(*decay.type.shape, 1)))
    update = reshape(v, shape=(v.type.shape[0], 1, v.type.shape[1]))
    if beta is not None:
        update = mul(sub(update, matmul(reshape(k, shape=row), state)), reshape(beta, shape=(*beta.type.shape, 1)))
    state = add(state, matmul(reshape(k, shape=column), update))
    return state, matmul(q, state)


def _linear_decompose(
    q: Value, k: Value, v: Value, state: Value, decay: Value | None = None, beta: Value | None = None
) -> tuple[Value, Value]:
    """A scan over the tokens, of which a gradient is known."""
    rows = [transpose(q, perm=(2, 0, 1, 3))]
    rows += [transpose(x, perm=(1, 0, 2)) for x in (k, v, decay, beta) if x is not None]
    g = GraphBuilder("linear_attention")
    carry = g.input("state", state.type.dtype, state.type.shape)
    own: list[Any] = [g.input(f"row{i}", x.type.dtype, x.type.shape[1:]) for i, x in enumerate(rows)]
    rest = own[3:]
    factor = rest.pop(0) if decay is not None else None
    new, y = _token(own[0], own[1], own[2], carry, factor, rest[0] if rest else None)
    g.output("state", new)
    g.output("y", y)
    attributes = {"n_carries": 1, "n_xs": len(rows), "reverse": False}
    final, stacked = builder_for(q).add(scan, (state, *rows), attributes, bodies=(g.build(),)).outputs[:2]
    assert final is not None and stacked is not None
    return transpose(stacked, perm=(1, 2, 0, 3)), final


def _linear_cost(node: Node) -> int:
    """The state is decayed, changed and read."""
    q, v = operand(node).type, operand(node, 2).type
    return q.elements * int(v.shape[-1]) * 2 + operand(node, 1).type.elements * int(v.shape[-1]) * 5


linear_attention: MultiOp = MultiOp(
    "linear_attention",
    ("q", "k", "v", "state", "decay?", "beta?"),
    _linear_infer,
    outputs=("y", "last"),
    decompose=_linear_decompose,
    cost=_linear_cost,
    doc="with S from ``state`` (heads, size, width), for each token t in order: S = decay_t S; S = S + k_t u_t', where "
    "u_t = v_t, or beta_t (v_t - S' k_t); y_t = S' q_t. q is (heads, readers, length, size), k (heads, length, size), "
    "v (heads, length, width), decay a factor per row of S or one for all, beta (heads, length, 1)",
)

OPS = (attention, attention_grad, attention_grad_sums, linear_attention)
