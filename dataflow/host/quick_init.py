"""Frozen dataclasses with slots whose instances are made in less time."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")


def quick_init(cls: type[T]) -> type[T]:
    """The class with an ``__init__`` that sets its fields by the descriptors of its slots.

    What ``dataclass`` writes looks each field up by its name in ``object.__setattr__``, which takes twice as long; a
    model has tens of records per node.

    Args:
        cls: a frozen dataclass with slots and without ``__post_init__``, whose defaults are no factories.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    known: dict[str, Any] = {}
    parameters, lines = [], []
    for field in fields:
        known[f"set_{field.name}"] = cls.__dict__[field.name].__set__
        given = field.default is not dataclasses.MISSING
        known[f"default_{field.name}"] = field.default
        parameters.append(f"{field.name}=default_{field.name}" if given else field.name)
        lines.append(f"    set_{field.name}(self, {field.name})")
    exec("\n".join([f"def __init__(self, {', '.join(parameters)}):", *lines]), known)
    made = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = cls.__init__.__annotations__
    cls.__init__ = made  # type: ignore[method-assign]
    return cls
