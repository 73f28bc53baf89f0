"""Calls the hooks of plugins through pluggy, each plugin apart: one that fails is set aside and stops nobody else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pluggy

from ..host.source_lines import innermost
from . import hookspecs
from .installed import GROUP, Plugin

_log = logging.getLogger("dataflow")


class Hooks:
    """Registered plugins.

    Attributes:
        problems: by plugin why it was set aside; the first reason counts.
        given: by plugin and hook the records that it gave.
    """

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.given: dict[str, dict[str, list[Any]]] = {}
        self._later: dict[str, list[tuple[str, Any]]] = {}
        self._versions: dict[str, str] = {}
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)

    def register(self, plugin: Plugin, load: Callable[[], object]) -> None:
        """Adds the plugin that ``load`` gives, or sets it aside.

        A plugin whose hooks have other arguments than their specifications, no specification or no mark is set aside
        too.
        """
        name = plugin.name
        self._versions[name] = f" ({plugin.distribution} {plugin.version})" if plugin.distribution else ""
        with self.guarded(name):
            found = load()
            self._manager.register(found, name)
        if name in self.problems:
            return
        unmarked = [hook for hook in hookspecs.HOOKS if _is_unmarked(getattr(found, hook, None))]
        try:
            self._manager.check_pending()
            if unmarked:
                raise pluggy.PluginValidationError(found, f"{', '.join(unmarked)}: not marked with @hookimpl")
            if not self._manager.get_hookcallers(found):
                raise pluggy.PluginValidationError(found, f"it has no hook; there are: {', '.join(hookspecs.HOOKS)}")
        except pluggy.PluginValidationError as error:
            self._manager.unregister(found)
            self.set_aside(name, str(error))

    def plugin(self, name: str) -> object:
        """The plugin of a name; None where it was set aside as it was registered."""
        return self._manager.get_plugin(name)

    def set_aside(self, name: str, problem: str) -> None:
        """Keeps and logs the first problem of a plugin."""
        if name not in self.problems:
            self.problems[name] = problem
            _log.warning("plugin %s%s was set aside: %s", name, self._versions.get(name, ""), problem)

    @contextmanager
    def guarded(self, name: str, where: str = "") -> Iterator[None]:
        """Sets a plugin aside when its code raises anything in this block, ``SystemExit`` too; Ctrl-C goes through."""
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # anybody's code: whatever it raises is its reason
            line = innermost(error.__traceback__)
            text = f"{type(error).__name__}: {error}" + (f" ({line})" if line else "")
            self.set_aside(name, f"{where}: {text}" if where else text)

    def offers(self, hook: str, kind: type, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """What plugins that weren't set aside give for a hook, each record with the plugin's name.

        Args:
            hook: its name.
            kind: the type of the records; a plugin that gives another is set aside.
            arguments: of the hook.
        """
        for name, plugin in self._manager.list_name_plugin():
            if name not in self.problems:
                yield from ((name, record) for record in self._ask(name, plugin, hook, kind, arguments))

    def later(self, hook: str, kind: type) -> Sequence[tuple[str, Any]]:
        """As ``offers``, for a hook that is called when somebody first needs what it gives."""
        if hook not in self._later:
            self._later[hook] = [*self.offers(hook, kind)]
        return self._later[hook]

    def _ask(self, name: str, plugin: object, hook: str, kind: type, arguments: dict[str, Any]) -> Sequence[Any]:
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        caller = self._manager.subset_hook_caller(hook, others)
        records: list[Any] = []
        with self.guarded(name, hook):
            found = caller(**arguments)
            if len(found) != len(caller.get_hookimpls()):  # pluggy leaves None out
                raise TypeError(f"returned None; expected a list of {kind.__name__} records, [] for nothing")
            records = [record for given in found for record in given]
            wrong = next((record for record in records if not isinstance(record, kind)), None)
            if wrong is not None:
                raise TypeError(f"expected {kind.__name__} records, got {_described(wrong, kind)}")
        if name in self.problems:
            return ()
        self.given.setdefault(name, {}).setdefault(hook, []).extend(records)
        return records


def _is_unmarked(member: object) -> bool:
    """Whether what has the name of a hook is a function of the plugin's own without the mark of one."""
    return callable(member) and not hasattr(member, "dataflow_impl") and not hasattr(member, "dataflow_spec")


def _described(record: object, kind: type) -> str:
    """The record's type, and what it lacks of a protocol."""
    members = kind.__annotations__ if getattr(kind, "_is_protocol", False) else ()
    lacking = [name for name in members if not hasattr(record, name)]
    return type(record).__name__ + (f" without {', '.join(lacking)}" if lacking else "")
