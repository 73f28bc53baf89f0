"""Patterns of RE2, in which ONNX writes regular expressions, as patterns of Python's ``re`` with the same matches.

What the two read differently is rewritten or refused. Syntax: https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

import re

from dataflow.errors import ModelError

MOST_REPEATS = 1000  # RE2's own limit

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}  # of ASCII, as in RE2
_TOKEN = re.compile(
    r"""
      (?P<group>\((?:\?:|\?[is]+:|\?P?<[A-Za-z_]\w*>)?(?!\?))
    | (?P<set>\[\^?\]?(?:\\.|[^\\\]])*\])
    | (?P<repeat>[*+?]|\{\d+(?:,\d*)?\})
    | (?P<escape>\\(?:x[0-9A-Fa-f]{2}|.))
    | (?P<plain>[^\\()\[*+?{}]|[{}])
    | (?P<close>\))
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_FLAGS = re.compile(r"\A\(\?[is]+\)")
_UNFIT_BRACE = re.compile(r"\{,\d*\}")  # a repetition for Python, plain characters for RE2


def python_pattern(pattern: str) -> str:
    """The pattern for ``re.fullmatch``.

    Raises:
        ModelError: it is malformed, or has syntax that only one of the two knows; says where.
    """
    flags = _FLAGS.match(pattern)
    at = flags.end() if flags else 0
    found = [flags.group()] if flags else []
    before = ""  # kind of the token before: "repeat" also where it was made lazy
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or _UNFIT_BRACE.match(pattern, at):
            raise _refused(pattern, at)
        kind, text = str(token.lastgroup), token.group()
        if kind == "repeat" and before in ("repeat", "lazy"):
            if text != "?" or before == "lazy":
                raise _refused(pattern, at)
            kind = "lazy"
        found.append(_translated(kind, text, pattern, at))
        before, at = kind, token.end()
    result = "".join(found)
    try:
        re.compile(result)
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(f"the pattern {pattern!r:.200} is no regular expression: {error}") from None
    return result


def first_is_longest(pattern: str) -> bool:
    """Whether the first match is the longest: it has no alternatives, and one repetition at most, which is greedy."""
    tokens = [(token.lastgroup, token.group()) for token in _TOKEN.finditer(_FLAGS.sub("", pattern))]
    return ("plain", "|") not in tokens and sum(kind == "repeat" for kind, _ in tokens) <= 1


def _refused(pattern: str, at: int) -> ModelError:
    rest = pattern[at : at + 10]
    return ModelError(
        f"the pattern {pattern!r:.200} has at {at} ({rest!r}...) what RE2 and Python's re don't read alike; expected "
        "characters, classes, groups, alternatives and repetitions"
    )


def _translated(kind: str, text: str, pattern: str, at: int) -> str:
    """A token in Python's syntax."""
    if kind == "group":
        return text.replace("(?<", "(?P<")
    if kind == "repeat" and any(int(n) > MOST_REPEATS for n in re.findall(r"\d+", text)):
        raise _refused(pattern, at)
    if kind == "plain" and text == "$":
        return r"\Z"  # Python's also matches before a last line break
    if kind == "set":
        return _set(text, pattern, at)
    if kind == "escape":
        return _escape(text, pattern, at)
    return text


def _escape(text: str, pattern: str, at: int) -> str:
    name = text[1]
    if name.lower() in _CLASSES:
        return f"[{'^' if name.isupper() else ''}{_CLASSES[name.lower()]}]"
    if name in "bB":
        return rf"(?a:\{name})"
    if name == "z":
        return r"\Z"
    if name in "Atnrfvax" or (name.isascii() and not name.isalnum()):
        return text
    raise _refused(pattern, at)


def _set(text: str, pattern: str, at: int) -> str:
    """A set of characters, whose classes are written out; refuses what Python reserves for operations on sets."""
    start = 2 if text[1] == "^" else 1
    found, position = text[:start], start
    while position < len(text) - 1:
        pair = text[position : position + 2]
        if pair[0] == "\\":
            if pair[1] in _CLASSES:
                found += _CLASSES[pair[1]]
            elif pair[1] in "tnrfvax" or (pair[1].isascii() and not pair[1].isalnum()):
                found += pair
            else:
                raise _refused(pattern, at)
            position += 2
        elif pair == "[:" or pair in ("--", "&&", "||", "~~"):
            raise _refused(pattern, at)
        else:
            found += "\\[" if pair[0] == "[" else pair[0]
            position += 1
    return found + "]"
