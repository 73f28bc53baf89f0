"""Which plugins there are: entry points of installed packages, this project's first, without those left out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..version import DISTRIBUTION

GROUP = "dataflow"
VARIABLE = "DATAFLOW_PLUGINS"
_log = logging.getLogger("dataflow")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin and how loading it went.

    Attributes:
        name: of its entry point; with its distribution where two have one name.
        distribution: that offers it; empty for an object that a caller gave.
        version: of the distribution.
        problem: why it was set aside, or None.
    """

    name: str
    distribution: str
    version: str
    problem: str | None = None

    @property
    def own(self) -> bool:
        """Whether it is one of this project's."""
        return self.distribution == DISTRIBUTION


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that may be loaded.

    Attributes:
        plugin: with the problem of one that is left out.
        load: imports it.
    """

    plugin: Plugin
    load: Callable[[], object]


def installed(without: Collection[str] = ()) -> list[Candidate]:
    """The installed plugins: this project's, then the others by name, so that their order is that of every machine.

    Args:
        without: names of plugins to leave out, beside those that the variable ``DATAFLOW_PLUGINS`` leaves out.
    """
    found: list[Candidate] = []
    for entry in sorted(_entries(), key=lambda e: (_distribution(e)[0] != DISTRIBUTION, e.name, _distribution(e))):
        problem = _left_out(entry.name, without)
        found.append(Candidate(Plugin(entry.name, *_distribution(entry), problem), entry.load))
    names = {candidate.plugin.name for candidate in found}
    unknown = sorted({*without, *(text.removeprefix("-") for text in _listed())} - names)
    if unknown:
        _log.warning("%s: there is no plugin %s; there are: %s", VARIABLE, ", ".join(unknown), ", ".join(sorted(names)))
    return found


def named_apart(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """The candidates in their order; one that has the name of an earlier one gets its distribution or number too."""
    names: set[str] = set()
    for candidate in candidates:
        plugin = candidate.plugin
        name, others = plugin.name, iter([plugin.distribution] if plugin.distribution else [])
        for number in itertools.count(2):
            if name not in names:
                break
            name = f"{plugin.name} ({next(others, number)})"
        names.add(name)
        yield dataclasses.replace(candidate, plugin=dataclasses.replace(plugin, name=name))


def _listed() -> list[str]:
    """What the user wrote: names, with ``-`` before those to leave out."""
    return [name for name in (text.strip() for text in os.environ.get(VARIABLE, "").split(",")) if name]


def _left_out(name: str, without: Collection[str]) -> str | None:
    """Why a plugin isn't loaded, or None."""
    if name in without:
        return "left out by the caller"
    listed = _listed()
    only = [text for text in listed if not text.startswith("-")]
    if f"-{name}" in listed or (only and name not in only):
        return f"left out by {VARIABLE}={os.environ[VARIABLE]}"
    return None


def _entries() -> Iterator[importlib.metadata.EntryPoint]:
    """The entry points of all distributions; one whose metadata can't be read hides no other."""
    try:
        yield from importlib.metadata.entry_points(group=GROUP)
        return
    except Exception as error:  # whatever a file that others wrote makes of the parser
        _log.warning("the entry points of a distribution can't be read: %s: %s", type(error).__name__, error)
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            name = distribution.name
            if name not in seen:  # the first on the path hides the others
                seen.add(name)
                yield from distribution.entry_points.select(group=GROUP)
        except Exception as error:
            _log.warning("distribution %s is set aside: %s: %s", distribution, type(error).__name__, error)


def _distribution(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """Name and version of what offers an entry point, as far as they can be read."""
    try:
        return ("?", "?") if entry.dist is None else (str(entry.dist.name), str(entry.dist.version))
    except Exception:  # metadata that can't be read
        return "?", "?"
