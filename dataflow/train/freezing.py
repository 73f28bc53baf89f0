"""Parameters that stay as they are for some steps in mid-training, with their moments kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError
from ..host import checks
from ..model import Model
from .optimizers.averages import Averaged
from .optimizers.updates import Kind, Updates
from .parameters import matching, nearest
from .tied_weights import Tie


@dataclass(frozen=True, slots=True)
class Freezing:
    """Which parameters are frozen, and what they missed.

    Attributes:
        since: frozen ones, each with the optimizer steps done when it was frozen.
        missed: optimizer steps that each missed in times that are over.
    """

    since: Mapping[str, int] = field(default_factory=dict)
    missed: Mapping[str, int] = field(default_factory=dict)

    def frozen(self, names: Sequence[str], steps: int) -> Freezing:
        """With these frozen from now on."""
        return replace(self, since={**dict.fromkeys(names, steps), **self.since})

    def unfrozen(self, names: Sequence[str], steps: int, updates: Updates) -> Freezing:
        """With these free again; steps in which their group freezes them anyway don't count twice."""
        missed = dict(self.missed)
        for name in names:
            if name in self.since:
                group = updates.kinds[updates.kind_of[name]].freeze
                missed[name] = missed.get(name, 0) + max(0, steps - max(self.since[name], group))
        return Freezing({n: step for n, step in self.since.items() if n not in set(names)}, missed)

    def state(self) -> dict[str, dict[str, int]]:
        """What JSON can hold of it."""
        return {"since": dict(self.since), "missed": dict(self.missed)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Freezing:
        """What ``state`` was made from."""
        return cls(state.get("since", {}), state.get("missed", {}))


def named(model: Model, patterns: Sequence[str] | str, trainable: Sequence[str], ties: Mapping[str, Tie]) -> list[str]:
    """The trained parameters that patterns match, in the model's order.

    Args:
        model: whose parameters.
        patterns: as for ``trainable=``; of tied parameters any name.
        trainable: names of the trained parameters.
        ties: stored tensors that are copies of others.

    Raises:
        InputError: a pattern matches none of them.
    """
    found: set[str] = set()
    for pattern in checks.texts("freeze", patterns):
        matched = matching(model, pattern, trainable)
        own = {ties[name].of if name in ties else name for name in matched} & set(trainable)
        if not own:
            why = "matches only what isn't trained" if matched else "matches no parameter"
            raise InputError(f"pattern {pattern!r} {why}; nearest names: {nearest(model, pattern)}")
        found |= own
    return [name for name in trainable if name in found]


def counting(updates: Updates, missed: Mapping[str, int]) -> Updates:
    """Updates by which a parameter's own count of steps, which corrects moments' bias, lacks those that it missed."""
    kinds: list[Kind] = []
    index: dict[tuple[int, int], int] = {}
    kind_of = {}
    for name, old in updates.kind_of.items():
        key = old, missed.get(name, 0)
        if key not in index:
            index[key] = len(kinds)
            kind, start = updates.kinds[old], kinds[-1].stop if kinds else 0
            kinds.append(replace(kind, freeze=kind.freeze + key[1], start=start))
        kind_of[name] = index[key]
    return replace(updates, kinds=tuple(kinds), kind_of=kind_of)


def kept_of_averages(updates: Updates, since: Mapping[str, int], steps: int) -> dict[str, float]:
    """How much is left of the averages of parameters that stood still until now, where there are averages.

    Args:
        updates: what an optimizer step does.
        since: by parameter the optimizer steps done when it was frozen.
        steps: those done now.
    """
    found, known = {}, dict[int, float]()
    for name, begin in since.items():
        kind = updates.kinds[updates.kind_of[name]]
        if not isinstance(kind.rule, Averaged):
            continue
        first = max(begin, kind.freeze)  # until then it had never changed
        if first not in known:
            shares = (kind.rule.average.share(step) for step in range(first + 1, steps + 1))
            known[first] = math.prod(1.0 - share for share in shares)
        found[name] = known[first]
    return found


def check_some_left(updates: Updates, freezing: Freezing, trainable: Sequence[str], steps: int) -> None:
    """Raises InputError where the next step would change no parameter."""
    waiting = updates.frozen(steps + 1)
    if all(name in freezing.since or updates.kind_of[name] in waiting for name in trainable):
        raise InputError("freeze: no parameter would be left to train; leave one, or stop the run")
