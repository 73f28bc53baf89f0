"""Every op that the core declares; each is a name of this module, e.g. ``df.ops.relu``."""

from __future__ import annotations

from ..op import Op
from . import (
    attending,
    binary,
    control,
    convolution,
    datadims,
    elementwise,
    index,
    layernorm,
    linalg,
    loss,
    movement,
    norm,
    optim,
    ordering,
    patterns,
    pool,
    probability,
    random,
    recurrent,
    reduce,
    resampling,
    scattering,
)

_FAMILIES = (
    elementwise, binary, reduce, movement, index, datadims, scattering, ordering, linalg, convolution, pool, norm,
    layernorm, probability, loss, optim, random, recurrent, resampling, control, patterns,
    attending,
)  # fmt: skip

ALL: tuple[Op, ...] = tuple(op for family in _FAMILIES for op in family.OPS)
_BY_NAME = {op.name: op for op in ALL}


def __getattr__(name: str) -> Op:
    found = _BY_NAME.get(name)
    if found is None:
        import difflib

        near = ", ".join(difflib.get_close_matches(name, _BY_NAME, 3))
        raise AttributeError(f"there is no op {name!r}" + (f"; nearest: {near}" if near else ""))
    return found


def __dir__() -> list[str]:
    return sorted([*_BY_NAME, "ALL"])
