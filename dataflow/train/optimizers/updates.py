"""What an optimizer step does to each trained parameter: groups resolved to parameters."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InputError, PluginError, blamed
from ...ir.types import DType, TensorType, float32, float64
from ...model import Model
from ..parameters import is_deferred, matching, nearest, positioned
from ..tied_weights import Tie
from .averages import Average, Averaged
from .eight_bit import with_moment_bits
from .groups import Group, changed, check_grouped
from .layers import layers_of
from .masters import kept_tensors
from .protocol import Optimizer, SlotTensor

_log = logging.getLogger("dataflow")
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What is done to some parameters.

    Attributes:
        rule: their optimizer, with the settings of their groups.
        norm: number of the set of parameters whose common norm is clipped.
        clip_value: the largest absolute value of an element of their gradients, or None.
        freeze: optimizer steps in which they don't change.
        start: where its hyperparameters begin.
    """

    rule: Optimizer
    norm: int
    clip_value: float | None
    freeze: int
    start: int

    @property
    def stop(self) -> int:
        """Where its hyperparameters end."""
        return self.start + self.rule.hyper_size

    def hyper(self, step: int, factor: float) -> np.ndarray[Any, Any]:
        """Its hyperparameters at this step, counted from 1: (K,) float64; ``factor`` is the schedule's."""
        own, lr = max(1, step - self.freeze), self.rule.lr * factor
        with blamed(f"optimizer {type(self.rule).__name__}: hyper()"):
            rule = self.rule
            given = rule.hyper_of_run(step, own, lr) if isinstance(rule, Averaged) else rule.hyper(own, lr)
            found = np.asarray(given, np.float64)
        if found.shape != (self.rule.hyper_size,):  # the step would read beside it
            raise PluginError(
                f"optimizer {type(self.rule).__name__}: hyper() gave {list(found.shape)} numbers; expected "
                f"[{self.rule.hyper_size}], its hyper_size"
            )
        return found


@dataclass(frozen=True, eq=False)
class Updates:
    """What an optimizer step does to each trained parameter.

    Attributes:
        rule: the optimizer that was given.
        kinds: what is done.
        kind_of: the index of what is done to a parameter, by name.
        norms: the largest norm of the averaged gradient for each set of parameters, or None.
        slots: the tensors that are kept, in groups by parameter: ``optimizer/<slot>/<parameter>`` of each.
        dtype: of hyperparameters, weights of batches and sums of squares: float64 where a parameter is, else float32.
    """

    rule: Optimizer
    kinds: tuple[Kind, ...]
    kind_of: Mapping[str, int]
    norms: tuple[float | None, ...]
    slots: Mapping[str, Mapping[str, SlotTensor]]
    dtype: DType = float32

    @property
    def described(self) -> str:
        """The names of the optimizer's class and of the average's: checkpoints of others don't fit."""
        averages = [kind.rule.average for kind in self.kinds if isinstance(kind.rule, Averaged)]
        name = type(self.rule).__name__
        return f"{name} with {type(averages[0]).__name__}" if averages else name

    @property
    def most(self) -> float:
        """The largest sum of squares that ``dtype`` holds."""
        return float(np.finfo(self.dtype.numpy).max)

    @property
    def hyper_size(self) -> int:
        """Length of all hyperparameters."""
        return self.kinds[-1].stop

    def hyper(self, step: int, factor: float) -> np.ndarray[Any, Any]:
        """The hyperparameters of all kinds at this step, counted from 1, in ``dtype``; ``factor`` is the schedule's."""
        return np.concatenate([kind.hyper(step, factor) for kind in self.kinds]).astype(self.dtype.numpy)

    def frozen(self, step: int) -> frozenset[int]:
        """Indices of the kinds whose parameters don't change at this step, counted from 1."""
        return frozenset(i for i, kind in enumerate(self.kinds) if kind.freeze >= step) if self._freezes else _NONE

    @functools.cached_property
    def _freezes(self) -> bool:
        """Whether some kind doesn't change from the first step on."""
        return any(kind.freeze for kind in self.kinds)

    @functools.cached_property
    def clips(self) -> bool:
        """Whether some norm is clipped."""
        return any(limit is not None for limit in self.norms)

    @property
    def reads_squares(self) -> bool:
        """Whether all parameters are clipped by one norm: that of what the training program has summed."""
        return self.clips and len(self.norms) == 1 and not any(kind.freeze for kind in self.kinds)

    def all_slots(self) -> dict[str, SlotTensor]:
        """The tensors that are kept for all parameters, by name."""
        return {name: tensor for found in self.slots.values() for name, tensor in found.items()}


def resolve(
    rule: Optimizer,
    model: Model,
    trained: Sequence[str],
    ties: Mapping[str, Tie],
    named: Callable[[Any], Optimizer],
    clip_norm: float | None = None,
    clip_value: float | None = None,
    average: Average | None = None,
) -> Updates:
    """What each trained parameter's groups say.

    Args:
        rule: perhaps with ``groups``, ``no_decay`` and ``layer_decay``.
        model: whose parameters.
        trained: their names.
        ties: stored tensors that are copies of others.
        named: the optimizer that a group names, or itself.
        clip_norm: the largest norm of the gradient of all that have no own one.
        clip_value: the largest absolute value of an element of a gradient, but for groups that say their own.
        average: what average of the weights is kept.

    Raises:
        InputError: a pattern matches nothing, a setting doesn't exist, or all parameters would be frozen.
    """
    groups, _, layer_decay = check_grouped(rule)
    find = _Finder(model, trained, ties)
    optimizers = {i: _alone(named(g.optimizer), g) for i, g in enumerate(groups) if g.optimizer is not None}
    members = [find(group.patterns, f"{group.patterns}") for group in groups]
    depth = _depths(model, trained) if layer_decay < 1.0 else {}
    spared = {i: _not_decaying(base, find) for i, base in {-1: rule, **optimizers}.items()}
    kinds: dict[tuple[Any, ...], Kind] = {}
    norms: dict[int, float | None] = {-1: clip_norm}  # by the last group that says one
    keys: dict[str, tuple[Any, ...]] = {}
    still = 0
    for name in trained:
        own = [i for i, found in enumerate(members) if name in found]
        source = max((i for i in own if i in optimizers), default=-1)
        base = optimizers.get(source, rule)
        key = (*own, name in spared[source], depth.get(name, 0))
        if key not in kinds:
            # Of the groups before the one that gives the optimizer, settings are those of another.
            settings = {k: v for i in own if i >= source for k, v in groups[i].settings.items()}
            factor = layer_decay ** depth.get(name, 0) * _last((groups[i].lr_factor for i in own), 1.0)
            made = with_moment_bits(_with_settings(base, settings, name in spared[source], factor))
            clips = max((i for i in own if groups[i].clip_norm is not None), default=-1)
            norms.setdefault(clips, groups[clips].clip_norm if clips >= 0 else clip_norm)
            kinds[key] = Kind(
                made if average is None else Averaged(made, average),
                [*norms].index(clips),
                _last((groups[i].clip_value for i in own), clip_value),
                _last((groups[i].freeze for i in own), 0),
                max((kind.stop for kind in kinds.values()), default=0),
            )
        keys[name] = key
        still += name in spared[source] and bool(getattr(base, "weight_decay", 0.0))
    if all(kind.freeze for kind in kinds.values()):
        raise InputError("groups freeze every parameter that is trained; leave some to be trained from the first step")
    if still:
        _log.info("%d biases and parameters of normalizations don't decay; no_decay=() lets all decay", still)
    elif getattr(rule, "no_decay", ()) and getattr(rule, "weight_decay", 0.0) and is_deferred(model.graph):
        _log.warning(
            "all parameters decay: the model is converted anew for each form of its inputs, and which are biases or of "
            "normalizations isn't known before; name them in no_decay="
        )
    numbers = {key: number for number, key in enumerate(kinds)}
    kind_of = {name: numbers[key] for name, key in keys.items()}
    parameters = model.parameters  # made at each look
    slots = {name: _slots(kinds[key].rule, name, parameters[name].type) for name, key in keys.items()}
    dtype = float64 if any(parameters[name].type.dtype == float64 for name in keys) else float32
    return Updates(rule, tuple(kinds.values()), kind_of, tuple(norms.values()), slots, dtype)


def _alone(rule: Optimizer, group: Group) -> Optimizer:
    """The optimizer of a group; raises InputError where it has what only that of all parameters can have."""
    groups, _, layer_decay = check_grouped(rule)
    if groups or layer_decay < 1.0 or rule.schedule is not None:
        raise InputError(
            f"group {group.patterns}: its optimizer {type(rule).__name__} has a schedule, groups or layer_decay of its "
            "own; give them to the Trainer's optimizer, which has those of all parameters"
        )
    return rule


def _slots(rule: Optimizer, name: str, type_: TensorType) -> dict[str, SlotTensor]:
    """The tensors that are kept for a parameter.

    Raises:
        InputError: more than one is read in the parameter's place.
        PluginError: two have one name.
    """
    tensors = kept_tensors(rule, name, type_)
    names = [tensor.slot.name for tensor in tensors]
    twice = next((slot for slot in names if names.count(slot) > 1), None)
    if twice is not None:
        whose = type(getattr(rule, "rule", rule)).__name__
        raise PluginError(f"optimizer {whose}: two of its slots are called {twice!r}; give each a name of its own")
    if sum(tensor.slot.evaluated for tensor in tensors) > 1:
        raise InputError(f"{type(getattr(rule, 'rule', rule)).__name__} averages weights itself; leave out average=")
    return {f"optimizer/{tensor.slot.name}/{name}": tensor for tensor in tensors}


class _Finder:
    """Finds the trained parameters that patterns match."""

    def __init__(self, model: Model, trained: Sequence[str], ties: Mapping[str, Tie]) -> None:
        self._model, self._trained, self._ties = model, frozenset(trained), ties
        self._names = [name for name, p in model.parameters.items() if p.trainable or name in self._trained]

    def __call__(self, patterns: Sequence[str], what: str | None) -> frozenset[str]:
        """Names of the trained parameters.

        Args:
            patterns: see ``Group``.
            what: they are of, for messages; None: they may match nothing.

        Raises:
            InputError: a pattern matches no parameter of the model.
        """
        found: set[str] = set()
        for pattern in patterns:
            bare = pattern.removeprefix("!")
            # A single layer's parameter may be called "bias", which then isn't what no_decay means by it.
            matched = positioned(self._model, bare, self._names) if what is None else None
            matched = matching(self._model, bare, self._names) if matched is None else matched
            if not matched and what is not None and not matching(self._model, bare, [*self._model.parameters]):
                raise InputError(
                    f"group {what}: pattern {bare!r} matches no parameter; nearest names: {nearest(self._model, bare)}"
                )
            matched = {self._ties[name].of if name in self._ties else name for name in matched}
            found = found - matched if pattern.startswith("!") else found | matched
        return frozenset(found) & self._trained


def _depths(model: Model, trained: Sequence[str]) -> dict[str, int]:
    """How many layers lie between each parameter's and the last one."""
    layers = layers_of(model, trained)
    last = max(layers.values())
    return {name: last - layer for name, layer in layers.items()}


def _not_decaying(rule: Optimizer, find: _Finder) -> frozenset[str]:
    """Names of the parameters that don't decay where others do."""
    return find(check_grouped(rule)[1], None) if hasattr(rule, "weight_decay") else frozenset()


def _with_settings(rule: Optimizer, settings: dict[str, Any], spared: bool, factor: float) -> Optimizer:
    """The optimizer with other settings, its rate times ``factor``, and without decay where ``spared``."""
    if spared and (bool(getattr(rule, "weight_decay", None)) or "weight_decay" in settings):
        settings["weight_decay"] = 0.0
    if factor != 1.0:
        settings["lr"] = settings.get("lr", rule.lr) * factor
    made: Optimizer = changed(rule, settings)
    return made


def _last(values: Iterable[Any], otherwise: Any) -> Any:
    """The last one that isn't None."""
    found = [value for value in values if value is not None]
    return found[-1] if found else otherwise
