"""The module that a node comes from, as exporters note it, or as its name says it."""

from __future__ import annotations

import ast

NOTED = "pkg.torch.onnx.name_scopes"  # "['', 'encoder', 'encoder.fc', 'linear']": the last is the op
_MOST = 10_000  # letters of a text that is looked at


def scope_of(name: str, noted: str | None) -> str:
    """The module, dotted: of the text under ``NOTED``, or else of a name like ``/encoder/fc/MatMul``."""
    if noted is not None:
        scopes = _listed(noted[:_MOST])
        return scopes[-2] if isinstance(scopes, list) and len(scopes) > 1 and isinstance(scopes[-2], str) else ""
    return ".".join(name.split("/")[1:-1]) if name.startswith("/") else ""


def _listed(text: str) -> object:
    """What Python's text of a list of strings stands for; None where it is no literal."""
    items = text[2:-2].split("', '")
    plain = text.startswith("['") and text.endswith("']") and text.count("'") == 2 * len(items)
    if plain and "\\" not in text and text.isprintable():
        return items  # as Python writes names; its compiler takes ten times as long
    try:
        return ast.literal_eval(text)
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError):
        return None
