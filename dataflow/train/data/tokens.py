"""Encoded texts as samples: padded to one of a few lengths, with the masks and labels that a model wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import xxhash

from ...ir.types import Array
from .arrays import NONE
from .batch import Draw, Request
from .buckets import ordered
from .source import Source
from .tokenizer import Tokens

IGNORED = -100  # the label of what no loss counts


@dataclass(frozen=True)
class TokenSource:
    """Texts.

    Attributes:
        tokens: of all texts.
        boundaries: (K,) lengths to pad to, rising; the last holds the longest text.
        inputs: what the model wants, by its names for it: ``input_ids``, ``attention_mask``, ``token_type_ids``,
            ``position_ids``; each with its dtype.
        padding: number of the token that pads.
        left: it pads before the text.
        language_model: labels are the tokens, or those that follow.
        label: key of the labels of a language model.
        labels: arrays of one entry per text, by key.
        classes: see ``Source``.
        unusable: see ``Source``.
        caches: inputs for keys and values of tokens before, of which there are none: sizes beyond the batch, and dtype.
    """

    tokens: Tokens
    boundaries: Array
    inputs: Mapping[str, tuple[str, Any]]
    padding: int
    left: bool
    language_model: Literal["same", "next"] | None
    label: str
    labels: Mapping[str, Array]
    classes: Mapping[str, Sequence[str]]
    unusable: Array = field(default_factory=lambda: NONE)
    caches: Mapping[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)
    workers: int = field(default=0, init=False)  # padding costs less than a thread's attention

    def __len__(self) -> int:
        return len(self.tokens.starts) - 1

    def bound(self, request: Request) -> Source:
        """Itself: it was made for a model."""
        return self

    def keys(self) -> tuple[str, ...]:
        """The model's inputs, and the labels."""
        return (*self.inputs, *self.caches, *((self.label,) if self.language_model else ()), *self.labels)

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The texts, padded to the least boundary that holds the longest of them."""
        starts = self.tokens.starts[rows]
        lengths = self.tokens.starts[rows + 1] - starts
        length = int(self.boundaries[np.searchsorted(self.boundaries, lengths.max())])
        before = (length - lengths if self.left else np.zeros_like(lengths))[:, None]
        positions = np.arange(length)[None, :] - before  # in the text
        counted = (positions >= 0) & (positions < lengths[:, None])
        at = np.where(counted, starts[:, None] + positions, 0)
        ids = np.where(counted, self.tokens.ids[at] if len(self.tokens.ids) else 0, self.padding)
        made = {"input_ids": ids, "attention_mask": counted}
        kinds = {kind for kind, _ in self.inputs.values()}
        if "token_type_ids" in kinds:
            made["token_type_ids"] = np.where(counted, self.tokens.types[at], 0)
        if "position_ids" in kinds:
            made["position_ids"] = np.clip(positions, 0, lengths[:, None] - 1)
        found: dict[str, Array] = {name: made[kind].astype(dtype) for name, (kind, dtype) in self.inputs.items()}
        found |= {name: np.zeros((len(rows), *sizes), dtype) for name, (sizes, dtype) in self.caches.items()}
        if self.language_model is not None:
            found[self.label] = _following(ids, counted, 1 if self.language_model == "next" else 0)
        return found | {key: array[rows] for key, array in self.labels.items()}

    def column(self, key: str, rows: Array) -> Array | None:
        """Labels of one per text."""
        return self.labels[key][rows] if key in self.labels else None

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """Texts of about one length beside each other."""
        lengths = self.tokens.starts[rows + 1] - self.tokens.starts[rows]
        return ordered(rows, np.searchsorted(self.boundaries, lengths), batch_size, generator)

    def signature(self) -> dict[str, Any]:
        """The boundaries, and a hash of the tokens and labels."""
        content = xxhash.xxh3_128()
        for array in (self.tokens.ids, self.tokens.starts, *self.labels.values()):
            content.update(np.ascontiguousarray(array).tobytes())
        return {
            "lengths": [int(length) for length in self.boundaries],
            "entries": {name: str(np.dtype(dtype)) for name, (_, dtype) in self.inputs.items()},
            "language_model": self.language_model,
            "content": content.hexdigest(),
        }

    def likewise(self, request: Request) -> dict[str, Any]:
        """None: texts say how they are read before they are tokens."""
        return {}


def _following(ids: Array, counted: Array, shift: int) -> Array:
    """(B, T) int64: each token, or the one after it; IGNORED where there is none."""
    found = np.full(ids.shape, IGNORED, np.int64)
    end = ids.shape[1] - shift
    found[:, :end] = np.where(counted[:, shift:] & counted[:, :end], ids[:, shift:], IGNORED)
    return found
