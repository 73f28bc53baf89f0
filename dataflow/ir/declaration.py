"""What is wrong with the declaration of an op, as far as it can be seen before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EFFECTS = ("none", "random", "host")
_OF_CALLS = ("name", "bodies")  # what a call of an op takes beside attributes
_REPEATED = "*"


def fault_of(
    name: Any, inputs: Any, outputs: Any, attributes: Any, inplace: Any, effects: str, infer: Any
) -> str | None:
    """Why an op can't be declared so, or None; see ``AnyOp`` for the arguments."""
    if not isinstance(name, str) or name.split() != [name]:
        return f"its name is {name!r}; expected a word"
    for what, names in (("inputs", inputs), ("outputs", outputs)):
        if not _texts(names):
            return f"its {what} are {names!r}; expected a tuple of names"
        repeated = [one for one in names if one.endswith(_REPEATED)]
        if repeated and ((what == "inputs" and names[-1] != repeated[0]) or len(repeated) > 1):
            return f"its {what} {', '.join(names)} have {repeated[0]!r} before others; only the last one repeats"
    if not isinstance(attributes, Mapping):
        return f"its attributes are {attributes!r}; expected a mapping from names to values by default"
    taken = next((one for one in _OF_CALLS if one in attributes), None)
    if taken is not None:
        return f"its attribute {taken!r} can't be given: calls of ops take {taken}= for something else"
    if effects not in EFFECTS:
        return f"its effects are {effects!r}; there are: {', '.join(EFFECTS)}"
    if not callable(infer):
        return f"its infer is {infer!r}; expected a function"
    pair = unpaired(inplace, inputs, outputs)
    return None if pair is None else f"inplace has {pair}; expected numbers of an output and of an input"


def unpaired(pairs: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> str | None:
    """The first of ``pairs`` that doesn't name an output and an input by number, shown; or None."""
    if not isinstance(pairs, (tuple, list)):
        return repr(pairs)
    return next((repr(pair) for pair in pairs if not _is_paired(pair, inputs, outputs)), None)


def _is_paired(pair: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return False
    if not all(isinstance(n, int) and n >= 0 for n in pair):
        return False
    return all(n < len(names) or _repeats(names) for n, names in zip(pair, (outputs, inputs), strict=True))


def _texts(names: Any) -> bool:
    return isinstance(names, (tuple, list)) and all(isinstance(one, str) and one.strip("+?*") for one in names)


def _repeats(names: Sequence[Any]) -> bool:
    """Whether one of the operands, by name or by spec, may stand for several."""
    return any(one.endswith(_REPEATED) if isinstance(one, str) else bool(one.repeated) for one in names)
