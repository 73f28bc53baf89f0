"""Settings behind a name, as one text: ``focal:gamma=2,alpha=0.25``; the form of options of the command line."""

from __future__ import annotations

import ast
from typing import Any

from ..errors import InputError

_WORDS = {"true": True, "false": False, "none": None}
_OPENING, _CLOSING = "([{", ")]}"


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """The name before the settings, and the settings.

    The name ends at the last colon before the first equals sign, so it may be ``module:object``. Settings stand between
    commas. A value that reads as a number, a quoted text, or a bracketed list or tuple of those is that; ``true``,
    ``false`` and ``none`` are what they say; everything else is a text.

    Args:
        text: ``name`` or ``name:key=value,key=value``.

    Raises:
        InputError: a setting isn't ``key=value`` with an identifier, stands twice, or a bracket isn't closed.
    """
    head, equals, _ = text.partition("=")
    name, colon, _ = head.rpartition(":")
    if not equals:
        return text, {}
    if not colon or not name:
        raise InputError(f"{text!r}: expected name:key=value,key=value, got no name before the settings")
    found: dict[str, Any] = {}
    for setting in _entries(text, text[len(name) + 1 :]):
        key, equals, value = (word.strip() for word in setting.partition("="))
        if not equals or not key.isidentifier():
            raise InputError(f"{text!r}: expected key=value between commas behind the name, got {setting!r}")
        if key in found:
            raise InputError(f"{text!r}: {key} is set twice")
        found[key] = _value(value)
    return name, found


def _entries(text: str, settings: str) -> list[str]:
    """Texts between those commas that stand in no bracket and no quotes."""
    entries, depth, quote = [""], 0, ""
    for character in settings:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += 0 if quote else (character in _OPENING) - (character in _CLOSING)
        if character == "," and not depth and not quote:
            entries.append("")
        else:
            entries[-1] += character
    if depth or quote:
        raise InputError(f"{text!r}: a bracket or quote isn't closed")
    return entries


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
