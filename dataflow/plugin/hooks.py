"""Calls the hooks of plugins through pluggy, each plugin apart: one that fails is set aside and stops nobody else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pluggy

from . import hookspecs

GROUP = "dataflow"
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
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)

    def register(self, name: str, load: Callable[[], object]) -> None:
        """Adds the plugin that ``load`` gives, or sets it aside.

        A plugin whose hooks have other arguments than their specifications, or no specification, is set aside too.
        """
        try:
            plugin = load()
            self._manager.register(plugin, name)
        except Exception as error:  # anybody's code: whatever it raises is its reason
            self.set_aside(name, f"{type(error).__name__}: {error}")
            return
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            self._manager.unregister(plugin)
            self.set_aside(name, str(error))

    def set_aside(self, name: str, problem: str) -> None:
        """Keeps and logs the first problem of a plugin."""
        if name not in self.problems:
            self.problems[name] = problem
            _log.warning("plugin %s was set aside: %s", name, problem)

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
        try:
            found = self._manager.subset_hook_caller(hook, others)(**arguments)
            records = [record for given in found for record in given]
            wrong = next((record for record in records if not isinstance(record, kind)), None)
            if wrong is not None:
                raise TypeError(f"expected {kind.__name__} records, got {_described(wrong, kind)}")
        except Exception as error:
            self.set_aside(name, f"{hook}: {type(error).__name__}: {error}")
            return ()
        self.given.setdefault(name, {}).setdefault(hook, []).extend(records)
        return records


def _described(record: object, kind: type) -> str:
    """The record's type, and what it lacks of a protocol."""
    members = kind.__annotations__ if getattr(kind, "_is_protocol", False) else ()
    lacking = [name for name in members if not hasattr(record, name)]
    return type(record).__name__ + (f" without {', '.join(lacking)}" if lacking else "")
