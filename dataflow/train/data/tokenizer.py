"""Texts to numbers of tokens, through the package tokenizers and a ``tokenizer.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.types import Array

_TEXTS = 1024  # that are encoded at a time
_NO_LENGTH = 1 << 40  # transformers has 1e30 where a tokenizer has no length of its own
_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")  # tokens that stand for nothing, first found


@dataclass(frozen=True, slots=True)
class Tokens:
    """Encoded texts, one after the other.

    Attributes:
        ids: (T,) int32 numbers of tokens.
        types: (T,) uint8: 1 in the second text of a pair.
        starts: (N + 1,) where each text begins, and the end of the last.
    """

    ids: Array
    types: Array
    starts: Array

    @property
    def lengths(self) -> Array:
        """(N,) tokens of each text."""
        return np.diff(self.starts)


class Tokenizer:
    """A tokenizer.

    Args:
        given: the path of a ``tokenizer.json`` or its folder, with its ``tokenizer_config.json`` if there is one; or a
            tokenizer of the package tokenizers, or of transformers' fast ones. It isn't changed.

    Attributes:
        most: tokens of a text at most, where the tokenizer says it.
        left: padding is before the text.
        padding: number of the token that pads.

    Raises:
        InputError: no tokenizer, or the package isn't installed.
    """

    def __init__(self, given: Any) -> None:
        self._tokenizer = _opened(given)
        truncation, padding = self._tokenizer.truncation, self._tokenizer.padding
        self.most: int | None = truncation["max_length"] if truncation else _longest(given)
        self.left = bool(padding) and padding["direction"] == "left"
        known = (self._tokenizer.token_to_id(token) for token in _PADDING)
        self.padding: int = padding["pad_id"] if padding else next((n for n in known if n is not None), 0)
        self._tokenizer.no_padding()

    def encoded(self, texts: Iterable[str | tuple[str, str]], most: int | None) -> Tokens:
        """The texts or pairs of texts, each of at most ``most`` tokens; None: of any number."""
        if most is None:
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(most)
        ids: list[Array] = []
        types: list[Array] = []
        remaining = iter(texts)
        while block := list(islice(remaining, _TEXTS)):
            try:
                encodings = self._tokenizer.encode_batch(block)
            except Exception as error:  # as where it is opened
                raise InputError(f"tokenizer: it can't encode a text: {error}") from error
            for encoding in encodings:
                ids.append(np.array(encoding.ids, np.int32))
                types.append(np.array(encoding.type_ids, np.uint8))
        starts = np.concatenate([[0], np.cumsum([len(own) for own in ids], dtype=np.int64)])
        return Tokens(_joined(ids, np.int32), _joined(types, np.uint8), starts)


def _joined(arrays: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate([np.zeros(0, dtype), *arrays])


def _longest(given: Any) -> int | None:
    """The ``model_max_length`` of transformers' tokenizers and of the file that they write; a huge one means none."""
    found = getattr(given, "model_max_length", None)
    if isinstance(given, (str, os.PathLike)):
        folder = Path(given) if Path(given).is_dir() else Path(given).parent
        path = folder / "tokenizer_config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise InputError(f"tokenizer: {path}: can't be read as JSON: {error}") from error
        found = config.get("model_max_length") if isinstance(config, dict) else None
    is_length = isinstance(found, (int, float)) and not isinstance(found, bool) and 0 < found < _NO_LENGTH
    return int(found) if is_length and found is not None else None


def _opened(given: Any) -> Any:
    try:
        from tokenizers import Tokenizer as Loaded
    except ImportError:
        raise InputError("tokenizer: needs the package tokenizers; pip install dataflow-engine[text]") from None
    given = getattr(given, "backend_tokenizer", given)
    if isinstance(given, Loaded):
        return Loaded.from_str(given.to_str())
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(
            f"tokenizer is a {type(given).__name__}; expected the path of a tokenizer.json, or a tokenizer"
        )
    path = Path(given)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists():
        raise InputError(f"tokenizer: {path}: there is no such file")
    try:
        return Loaded.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise InputError(f"tokenizer: {path}: can't be read as a tokenizer.json: {error}") from error
