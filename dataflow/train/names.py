"""Losses, optimizers, metrics, schedules and callbacks by name: the core's, those of plugins, and ``module:object``.

Settings may stand behind each name: ``adamw:betas=(0.9,0.95)``, see ``host.settings``.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..errors import DataflowError, InputError
from ..host import checks
from ..host.settings import split_settings
from ..plugin.hookspecs import Named
from .losses import LOSSES
from .metrics import METRICS, TopK
from .optimizers import AVERAGES, OPTIMIZERS
from .optimizers.averages import Average
from .optimizers.protocol import Optimizer, Schedule
from .schedules import SCHEDULES

_log = logging.getLogger("dataflow")
# By kind and name: what it is, or a class of which one is made.
CORE: Mapping[str, Mapping[str, Any]] = {
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "metric": METRICS,
    "schedule": SCHEDULES,
    "callback": {},
    "average": AVERAGES,
}
_OBJECTS = {
    "loss": "a df.losses object, a callable (g, outputs, batch) -> Value, or df.losses.output('name')",
    "optimizer": "an object of df.optim",
    "metric": "top and any number, a df.metrics object, or a callable (g, outputs, batch)",
    "schedule": "an object of df.schedules",
    "callback": "a callable (event)",
    "average": "an object of df.optim",
}


@dataclass(frozen=True, slots=True)
class Names:
    """What names stand for; what isn't a text stands for itself.

    Attributes:
        offered: by kind and name what plugins offer.
    """

    offered: Mapping[str, Mapping[str, Named]] = field(default_factory=lambda: MappingProxyType({}))

    def loss(self, choice: Any) -> Any:
        """A loss, or a function that builds one; raises InputError with the known names."""
        return self._made("loss", choice)

    def metric(self, choice: Any) -> Any:
        """A metric, or a function that builds one; ``top`` with any number is TopK."""
        if isinstance(choice, str) and choice.startswith("top") and choice[3:].isdecimal() and int(choice[3:]) > 0:
            return TopK(int(choice[3:]))
        return self._made("metric", choice)

    def callback(self, choice: Any) -> Any:
        """What is called with the events of a run."""
        return self._made("callback", choice)

    def schedule(self, choice: Any) -> Schedule:
        """The factor on the learning rate; None is a constant one."""
        found: Schedule = self._made("schedule", "constant" if choice is None else choice)
        return found

    def average(self, choice: Any) -> Average:
        """The mean of weights that is kept.

        Raises:
            InputError: it isn't one.
        """
        found: Average = self._made("average", choice)
        if not callable(getattr(found, "share", None)):
            raise InputError(f"average is {checks.shown(choice)}; expected df.optim.EMA or df.optim.SWA")
        return found

    def optimizer(self, choice: Any, **settings: Any) -> Optimizer:
        """An optimizer; where ``choice`` names what makes one, that gets the settings.

        Raises:
            InputError: it isn't one, or doesn't have these settings.
        """
        found = choice
        if isinstance(choice, str):
            name, own = split_settings(choice)
            twice = own.keys() & settings.keys()
            if twice:
                raise InputError(f"optimizer {choice!r}: {', '.join(sorted(twice))} is set beside it too")
            found, settings = self._found("optimizer", name), {**own, **settings}
            if isinstance(found, type) or (callable(found) and not _is_optimizer(found)):
                found, settings = _call(f"optimizer {name!r}", found, settings), {}
        if settings:
            raise InputError(f"optimizer {choice!r} is an object already: {', '.join(settings)} can't be set")
        if not _is_optimizer(found):
            raise InputError(f"optimizer is {checks.shown(found)}; expected one of df.optim, e.g. AdamW()")
        made: Optimizer = found
        return made

    def _made(self, kind: str, choice: Any) -> Any:
        if isinstance(choice, type) and kind in ("loss", "metric"):
            raise InputError(f"{kind}: {choice.__name__} is a class; give an object of it, {choice.__name__}(...)")
        if not isinstance(choice, str):
            return choice
        name, settings = split_settings(choice)
        found = self._found(kind, name)
        if settings and not callable(found):
            raise InputError(f"{kind} {name!r} is an object already: {', '.join(settings)} can't be set")
        return _call(f"{kind} {name!r}", found, settings) if settings or isinstance(found, type) else found

    def _found(self, kind: str, name: str) -> Any:
        """What a name stands for, as it was registered or stands in its module."""
        core, offered = CORE[kind], self.offered.get(kind, {})
        if name in core:
            if name in offered:
                _log.warning(
                    "the %s %r of the plugin %s is not used: dataflow has one", kind, name, offered[name].plugin
                )
            return core[name]
        if name in offered:
            return offered[name].value
        if ":" in name:
            return _imported(kind, name)
        known = ", ".join([*core, *offered, "'module:object'"])
        raise InputError(f"there is no {kind} {name!r}; known: {known}, or {_OBJECTS[kind]}")


CORE_ONLY = Names()


def _is_optimizer(found: Any) -> bool:
    names = ("slots", "hyper_size", "hyper", "build", "lr", "schedule")
    return not isinstance(found, type) and all(hasattr(found, name) for name in names)


def _call(what: str, make: Any, settings: Mapping[str, Any]) -> Any:
    """What ``make`` makes of settings.

    Raises:
        InputError: it doesn't take them, or needs others.
    """
    try:
        return make(**settings)
    except TypeError as error:
        raise InputError(f"{what} can't be made with {dict(settings)}: {_misfit(make, settings) or error}") from error
    except DataflowError:
        raise
    except (Exception, SystemExit) as error:  # anybody's code; the process is the user's
        raise InputError(f"{what} can't be made with {dict(settings)}: {type(error).__name__}: {error}") from error


def _misfit(make: Any, settings: Mapping[str, Any]) -> str | None:
    """Which settings are too many or missing, and which there are; None where it isn't that."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of C
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    known = ", ".join(p.name for p in parameters) or "none"
    unknown = [name for name in settings if name not in {p.name for p in parameters}]
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in settings]
    if unknown:
        return f"there is no setting {unknown[0]!r}; its settings: {known}"
    return f"it needs the setting {missing[0]!r}; its settings: {known}" if missing else None


def _imported(kind: str, text: str) -> Any:
    """The object that ``module:object`` names.

    Raises:
        InputError: there is no such module, it can't be imported, or it has no such object.
    """
    module, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the module's own code runs
        raise InputError(f"{kind} {text!r}: {module} can't be imported: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise InputError(f"{kind} {text!r}: {module} has no {path!r}")
        found = getattr(found, name)
    return found
