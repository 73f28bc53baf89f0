"""Whether the libraries of a plugin were built from its sources as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ..plugin.registry import Registry
from .outcome import Outcome, Report, Task

_LIBRARIES = (".so", ".dylib")
_SOURCES = {".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh"}
_INSTALLING = 2.0  # seconds in which an installer writes the files of a package, in any order
_MOST = 2000  # files of a project that are looked at


def freshness_task(plugin: str, registry: Registry) -> Task:
    """Says which library of a plugin's package is older than a source in the package or in the project around it."""

    def run(report: Report) -> Iterator[Outcome]:
        text = stale_library(_module_of(plugin, registry))
        yield Outcome(plugin, "", "libraries", "built", "failed" if text else "passed", text or "")

    return Task("", "libraries", run)


def _module_of(plugin: str, registry: Registry) -> str:
    """The file of a plugin's module; empty where it is an object of another kind."""
    found = registry.hooks.plugin(plugin)
    return str(getattr(found, "__file__", "") or getattr(sys.modules.get(type(found).__module__), "__file__", "") or "")


def stale_library(module: str) -> str | None:
    """The first library beside a module that is older than a source, or None.

    Sources are those of its package, and of the folder around it where that is a project: it has a pyproject.toml.
    """
    if not module:
        return None
    package = Path(module).parent
    libraries = [path for path in package.iterdir() if path.suffix in _LIBRARIES]
    project = package.parent if (package.parent / "pyproject.toml").exists() else package
    sources = [path for path in _files(project) if path.suffix in _SOURCES] if libraries else []
    newest = max(sources, key=lambda path: path.stat().st_mtime, default=None)
    for library in sorted(libraries):
        if newest is not None and library.stat().st_mtime + _INSTALLING < newest.stat().st_mtime:
            return f"{library.name} is older than {newest.relative_to(project)}: build it again"
    return None


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, but those of hidden folders and builds, up to a number."""
    found = 0
    folders = [folder]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_dir() and not path.name.startswith((".", "build", "dist")) and not path.is_symlink():
                folders.append(path)
            elif path.is_file():
                found += 1
                if found > _MOST:
                    return
                yield path
