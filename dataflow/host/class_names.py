"""Names of classes in the metadata of a model, as exporters write them."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

KEYS = ("classes", "class_names", "labels", "names", "id2label")
_LONGEST = 1 << 22  # characters that are decoded


def class_names(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names in the order of their numbers, or None where there are none that can be read.

    Args:
        metadata: the first of ``KEYS`` counts: a JSON or Python list of texts, a mapping from number to text, or texts
            between commas or on lines of their own.
    """
    text = next((metadata[key] for key in KEYS if key in metadata), None)
    if text is None or len(text) > _LONGEST:
        return None
    found = _decoded(text)
    if found is None:
        names = text.splitlines() if "\n" in text else text.split(",")
        return tuple(name.strip() for name in names if name.strip()) or None
    if isinstance(found, Mapping):
        numbered = {str(key): name for key, name in found.items()}
        found = [numbered.get(str(number)) for number in range(len(numbered))]
    if not isinstance(found, (list, tuple)) or not all(isinstance(name, str) for name in found):
        return None
    return tuple(found) or None


def with_class_names(metadata: Mapping[str, str], names: Any) -> dict[str, str]:
    """The metadata with these names of classes and no others; None: with no names."""
    rest = {key: text for key, text in metadata.items() if key not in KEYS}
    return rest if names is None else {**rest, KEYS[0]: json.dumps([str(name) for name in names])}


def _decoded(text: str) -> Any:
    """What a JSON or Python text holds, or None."""
    for decode in (json.loads, ast.literal_eval):
        try:
            return decode(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return None
