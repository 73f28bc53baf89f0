"""Model files: read and written by plugins, which are found by the suffix."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from .errors import InputError, ModelError, PluginError, blamed
from .host import checks
from .host.garbage_collection import collection_paused
from .host.keywords import UnknownKeyword, meant
from .host.limits import Limits, account_of, limited
from .host.new_file import new_file
from .model import Model
from .plugin.hookspecs import Format, Save
from .plugin.registry import Registry, registry_of


def load(path: str, *, registry: Registry | None = None, limits: Limits | None = None, **options: Any) -> Model:
    """The model in a file; the format is found by its suffix.

    Args:
        path: of the file.
        registry: of plugins; the installed ones by default.
        limits: the most memory and time that loading may take; a Session has limits of its own. See ``Limits``.
        options: the format's own, e.g. ``outputs=`` for ONNX.

    Raises:
        ModelError: the file can't be read or holds no valid model.
        InputError: no plugin reads this suffix.
        LimitExceeded: ``limits`` don't allow the memory or the time.
    """
    registry = registry_of(registry)
    form = _format(path, registry)
    if form.load is None:
        raise InputError(f"{path}: files with suffix {form.suffix!r} can be written but not read")
    account = account_of(limits)
    with limited(account, "loading"):
        if account is not None and Path(path).is_file():  # else its format says what is wrong
            account.require(Path(path).stat().st_size, f"{path}, which is read whole")
        if form.converts:
            options["converters"] = registry.converters
        with _named("load", path, form, options):
            model = collection_paused(functools.partial(form.load, str(path), **options))
    if not isinstance(model, Model):
        gave = f"load of the plugin {form.plugin} gave {type(model).__name__}"
        raise PluginError(f"{path}: {gave}; expected a Model of {form.suffix} files")
    return model


def save(model: Model, path: str, *, overwrite: bool = False, registry: Registry | None = None, **options: Any) -> None:
    """Writes a model; the format is found by the suffix. The file appears whole or not at all.

    Args:
        model: what to write.
        path: of the file.
        overwrite: replaces a file that exists.
        registry: of plugins; the installed ones by default.
        options: the format's own.

    Raises:
        InputError: the file exists, or can't be written; no plugin writes this suffix.
    """
    checks.instance("model", model, Model)
    registry = registry_of(registry)
    form = _written(path, registry)
    write: Save = form.save  # type: ignore[assignment] # it has one
    if form.exports:
        options["exporters"] = registry.exporters
    if form.replaces:
        with _named("save", path, form, options):
            write(model, str(path), overwrite=overwrite, **options)
        if not os.path.lexists(path):
            raise PluginError(f"{path}: save of the plugin {form.plugin} wrote no file; expected one of this name")
        return
    target = Path(path)
    if not overwrite and os.path.lexists(target):
        raise InputError(f"{path}: exists already; give overwrite=True (--force) to replace it")
    with _named("save", path, form, options), new_file(target, target.suffix, synced=True) as unfinished:
        write(model, str(unfinished), **options)
        if target.parent.is_dir() and not os.path.lexists(unfinished):
            expected = f"expected one at the path that it is given, {unfinished.name}"
            raise PluginError(f"{path}: save of the plugin {form.plugin} wrote no file; {expected}")


@contextlib.contextmanager
def _named(function: Literal["load", "save"], path: str, form: Format, options: Mapping[str, Any]) -> Iterator[None]:
    """Names the file and the plugin in what reading or writing raises beside this project's errors.

    Raises:
        ModelError: the file can't be read.
        InputError: it can't be written, or the format has no such option.
        PluginError: the plugin's code fails.
    """
    whose = f"{path}: {function} of the plugin {form.plugin}"
    try:
        with blamed(whose):
            try:
                yield
            except OSError as error:
                kind, done = (ModelError, "read") if function == "load" else (InputError, "written")
                raise kind(f"{path}: can't be {done}: {error.strerror or error}") from error
    except PluginError as error:
        found = re.search(r"unexpected keyword argument '(\w+)'$", str(error))
        if found is None or found[1] not in options:
            raise
        advice = meant(found[1], inspect.signature(getattr(form, function)).parameters)
        raise UnknownKeyword(f"{path}: {function} of {form.suffix} files has no option {found[1]!r}{advice}") from error


def check_target(path: str, *, registry: Registry | None = None) -> None:
    """Says before long work that a model couldn't be written to ``path``.

    Raises:
        InputError: no plugin writes this suffix, or there is no such folder, or it can't be written.
    """
    _written(path, registry_of(registry))
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InputError(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} can't be written")


def _written(path: str, registry: Registry) -> Format:
    """The format that writes a file; raises InputError where none does."""
    form = _format(path, registry)
    if form.save is None:
        raise InputError(f"{path}: files with suffix {form.suffix!r} can be read but not written")
    return form


def _format(path: str, registry: Registry) -> Format:
    path = checks.path("path", path)
    suffix = Path(path).suffix.lower()
    if suffix not in registry.formats:
        raise InputError(
            f"{path}: no plugin knows the suffix {suffix!r}; known: {', '.join(registry.formats) or 'none'}"
        )
    return registry.formats[suffix]
