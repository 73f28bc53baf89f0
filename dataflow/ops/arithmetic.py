"""Two or three inputs that broadcast, as NumPy does: y[i] = f(a[i], b[i])."""

from __future__ import annotations

from typing import Any

from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType
from ..ir.value import Value
from .infer import broadcast, broadcast_shape, compare, logical, need_bool, need_real, same_dtype

_EITHER = ((0, 0), (0, 1))


def _ab(node: Node) -> tuple[Value, Value]:
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    return a, b


def _binary(name: str, gradient: Any, doc: str, **attributes: Any) -> Op:
    return Op(
        name,
        ("a", "b"),
        broadcast(name),
        attributes=attributes,
        gradient=gradient,
        inplace=_EITHER,
        cheap=True,
        doc=doc,
    )


def _comparison(name: str, doc: str) -> Op:
    return Op(name, ("a", "b"), compare(name), cheap=True, doc=doc)


def _connective(name: str, doc: str) -> Op:
    return Op(name, ("a", "b"), logical(name), cheap=True, doc=doc)


def _zero(value: Value) -> Value:
    assert value.builder is not None
    return value.builder.scalar(0, value.type.dtype)


def _pow_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    from .activation import log

    a, b = _ab(node)
    # b a^(b - 1), where b is 0 taken as b a^0: at a = 0, too, that is 0, and 0 times a^-1 would be nan.
    first = mul(dy, mul(b, pow(a, where(equal(b, _zero(b)), _zero(b), sub(b, 1.0)))))
    # d/db a^b = a^b ln a, and 0 where a is 0: there ln would give nan.
    positive = less(_zero(a), a)
    safe = where(positive, a, _one(a))
    return first, where(positive, mul(dy, mul(node.outputs[0], log(safe))), _zero(dy))


def _one(value: Value) -> Value:
    assert value.builder is not None
    return value.builder.scalar(1, value.type.dtype)


def _chosen_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    """Of maximum and minimum: to the operand that was taken, halves where both were."""
    a, b = _ab(node)
    y = node.outputs[0]
    both = equal(a, b)
    half = where(both, mul(dy, 0.5), dy)
    zero = _zero(dy)
    return where(equal(a, y), half, zero), where(equal(b, y), half, zero)


def _mod_infer(a: TensorType, b: TensorType, **_: Any) -> TensorType:
    need_real("mod", a, b)
    return TensorType(same_dtype("mod", a, b), broadcast_shape("mod", a.shape, b.shape))


def _mod_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    from .activation import floor, neg

    a, b = _ab(node)
    quotient = div(sub(a, node.outputs[0]), b)
    return dy, neg(mul(dy, floor(add(quotient, 0.5))))


add: Op = _binary("add", lambda n, dy: (dy, dy), "y = a + b")
sub: Op = _binary("sub", lambda n, dy: (dy, mul(dy, -1.0)), "y = a - b")
mul: Op = _binary("mul", lambda n, dy: (mul(dy, n.inputs[1]), mul(dy, n.inputs[0])), "y = a b")


def _div_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    _, b = _ab(node)
    da = div(dy, b)
    return da, mul(mul(da, node.outputs[0]), -1.0)


div: Op = _binary("div", _div_gradient, "y = a / b; of integers: towards zero, by 0: 0")
pow: Op = _binary("pow", _pow_gradient, "y = a^b")
maximum: Op = _binary("maximum", _chosen_gradient, "y = max(a, b)")
minimum: Op = _binary("minimum", _chosen_gradient, "y = min(a, b)")
mod: Op = Op(
    "mod",
    ("a", "b"),
    _mod_infer,
    attributes={"fmod": 0},
    gradient=_mod_gradient,
    inplace=_EITHER,
    cheap=True,
    doc="the rest of a / b, with b's sign; with a's sign for fmod=1; of integers by 0: 0",
)

equal: Op = _comparison("equal", "a = b")
less: Op = _comparison("less", "a < b")
less_equal: Op = _comparison("less_equal", "a <= b")
greater: Op = _comparison("greater", "a > b")
greater_equal: Op = _comparison("greater_equal", "a >= b")
logical_and: Op = _connective("logical_and", "a and b, of bools")
logical_or: Op = _connective("logical_or", "a or b, of bools")
logical_xor: Op = _connective("logical_xor", "a or b but not both, of bools")


def _where_infer(condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    need_bool("where", condition)
    return TensorType(same_dtype("where", x, y), broadcast_shape("where", condition.shape, x.shape, y.shape))


where: Op = Op(
    "where",
    ("condition", "x", "y"),
    _where_infer,
    gradient=lambda n, g: (None, where(n.inputs[0], g, _zero(g)), where(n.inputs[0], _zero(g), g)),
    inplace=((0, 1), (0, 2)),
    cheap=True,
    doc="x where the condition holds, else y",
)

OPS = (
    add, sub, mul, div, pow, maximum, minimum, mod, equal, less, less_equal, greater, greater_equal, logical_and,
    logical_or, logical_xor, where,
)  # fmt: skip
