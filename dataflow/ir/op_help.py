"""What ``help`` and notebooks show of an op: formula and signature, made from its declaration when it is asked for."""

from __future__ import annotations

from inspect import Parameter, Signature, cleandoc
from typing import Any


class Documentation:
    """The ``__doc__`` of a class of ops: of each of them its declaration, of the class itself its own.

    Args:
        own: of the class.
        required: of what stands for the default of attributes that have none.
    """

    def __init__(self, own: str | None, required: type) -> None:
        self._own, self._required = own, required

    def __get__(self, op: Any, kind: type) -> str | None:
        return self._own if op is None else documentation(op, self._required)


class Declared:
    """The ``__signature__`` of a class of ops: each has one, and the class itself that of its fields.

    Args:
        required: of what stands for the default of attributes that have none.
    """

    def __init__(self, required: type) -> None:
        self._required = required

    def __get__(self, op: Any, kind: type) -> Signature:
        if op is None:
            raise AttributeError("__signature__")
        return signature(op, self._required)


def documentation(op: Any, required: type) -> str:
    """Operands, attributes and results of an op, and its formula."""
    results = [name for name in op.outputs if not name.startswith("+")]
    return f"{op.name}{signature(op, required)} -> {', '.join(results)}\n\n{cleandoc(op.doc)}"


def signature(op: Any, required: type) -> Signature:
    """How an op is called: operands by position, attributes by keyword."""
    operands: list[Parameter] = []
    for declared in reversed(op.inputs):
        name, mark = declared.rstrip("?*"), declared[-1:]
        if mark == "*":
            operands.append(Parameter(name, Parameter.VAR_POSITIONAL))
            continue
        last = all(p.default is None or p.kind is Parameter.VAR_POSITIONAL for p in operands)
        default = None if mark == "?" and last else Parameter.empty
        operands.append(Parameter(name, Parameter.POSITIONAL_ONLY, default=default))
    attributes = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=Parameter.empty if isinstance(default, required) else default)
        for name, default in op.attributes.items()
    ]
    bodies = [Parameter("bodies", Parameter.KEYWORD_ONLY)] if op.bodies else []
    others = [*bodies, Parameter("name", Parameter.KEYWORD_ONLY, default=None)]
    return Signature([*reversed(operands), *attributes, *others])
