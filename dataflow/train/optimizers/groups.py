"""Parameter groups: settings of an optimizer for the parameters that patterns match."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer

DECAYED: tuple[str, ...] = ("bias", "norm")
"""What optimizers with decoupled weight decay leave out of it by default."""
_OWN = ("optimizer", "lr_factor", "clip_norm", "clip_value", "freeze")


@dataclass(frozen=True, slots=True, init=False)
class Group:
    """What differs for the parameters that the patterns match: ``Group("encoder.*", lr=1e-4, freeze=100)``.

    Patterns are those of ``Trainer(trainable=)``: names, aliases, globs, ``"bias"``, ``"norm"``, ``"head"``,
    ``"last:3"``, and ``"!pattern"`` to leave out. A parameter may be in several groups; of a setting that several have,
    the last one counts.

    Attributes:
        patterns: of names.
        optimizer: another optimizer for them, or its name; or None.
        lr_factor: on their learning rate.
        clip_norm: the largest norm of their gradient, which then doesn't count in the Trainer's ``clip_norm``.
        clip_value: the largest absolute value of an element of it.
        freeze: for so many optimizer steps they don't change; the optimizer's count of steps begins after.
        settings: fields of the optimizer, such as ``lr``, ``weight_decay`` and ``betas``.
    """

    patterns: tuple[str, ...]
    optimizer: Any
    lr_factor: float | None
    clip_norm: float | None
    clip_value: float | None
    freeze: int | None
    settings: Mapping[str, Any] = field(hash=False)

    def __init__(self, *patterns: str, **settings: Any) -> None:
        name = f"Group{patterns!r}"
        found = checks.texts(f"{name}: patterns", patterns)
        if not any(not pattern.startswith("!") for pattern in found):
            raise InputError(f"{name}: give a pattern of the parameters that it is for, e.g. Group('*.bias', lr=1e-4)")
        if "schedule" in settings or "groups" in settings:
            raise InputError(
                f"{name}: the optimizer has the schedule and groups of all parameters; use lr= or lr_factor="
            )
        own = {key: settings.pop(key, None) for key in _OWN}
        for key in ("lr_factor", "clip_norm", "clip_value"):
            if own[key] is not None:
                checks.number(f"{name}: {key}", own[key])
        for key in ("clip_norm", "clip_value"):
            if own[key] == 0.0:
                raise InputError(f"{name}: {key} is 0; expected a number above 0; freeze= keeps parameters as they are")
        if own["freeze"] is not None:
            integer(f"{name}: freeze", own["freeze"], 0)
        for key, value in {"patterns": found, "settings": MappingProxyType(settings), **own}.items():
            object.__setattr__(self, key, value)

    def __reduce__(self) -> Any:
        own = {key: value for key in _OWN if (value := getattr(self, key)) is not None}
        return _remade, (self.patterns, {**own, **self.settings})


def _remade(patterns: Sequence[str], settings: Mapping[str, Any]) -> Group:
    return Group(*patterns, **settings)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """What every optimizer here takes beside its own settings; others may take the same by this base.

    Attributes:
        groups: settings for some of the parameters.
        no_decay: patterns of parameters whose weight_decay is 0, whatever else is said; a pattern may match none.
        layer_decay: factor on the rate per layer before the last one.
    """

    groups: Sequence[Group] = ()
    no_decay: Sequence[str] = ()
    layer_decay: float = 1.0


class Decaying(Grouped):
    """An optimizer whose update reads the rate and the decay alone."""

    weight_decay: float

    @property
    def hyper_size(self) -> int:
        """Two numbers."""
        return 2

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, weight_decay]: (2,) float64."""
        return np.array([lr, self.weight_decay])


def check_grouped(rule: Any) -> tuple[tuple[Group, ...], tuple[str, ...], float]:
    """An optimizer's groups, no_decay and layer_decay, where it has them.

    Raises:
        InputError: they are something else.
    """
    name = type(rule).__name__
    groups = getattr(rule, "groups", ())
    if not isinstance(groups, (tuple, list)):
        raise InputError(f"{name}: groups is {checks.shown(groups)}; expected a list of df.optim.Group")
    for group in groups:
        checks.instance(f"{name}: one of groups", group, Group)
    no_decay = checks.texts(f"{name}: no_decay", getattr(rule, "no_decay", ()))
    layer_decay = checks.number(f"{name}: layer_decay", getattr(rule, "layer_decay", 1.0))
    if not 0.0 < layer_decay <= 1.0:
        raise InputError(f"{name}: layer_decay is {layer_decay}; expected a number above 0, up to 1")
    return tuple(groups), no_decay, layer_decay


def changed(rule: Any, settings: Mapping[str, Any]) -> Any:
    """The optimizer with other settings.

    Raises:
        InputError: it has no such setting, or none that can be changed.
    """
    if not settings:
        return rule
    name = type(rule).__name__
    if not dataclasses.is_dataclass(rule):
        raise InputError(f"{name}: groups need an optimizer that is a dataclass; this one's settings can't be changed")
    known = [f.name for f in dataclasses.fields(rule) if f.init]
    for key in settings:
        if key not in known:
            raise InputError(f"a group sets {key!r}, which {name} doesn't have; it has {', '.join(known)}")
    return dataclasses.replace(rule, **settings)  # type: ignore[type-var]
