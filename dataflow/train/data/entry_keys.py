"""What the entries of samples and batches are called: tuples get names, dicts may get others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import InputError
from ...host import checks


@dataclass(frozen=True, slots=True)
class EntryKeys:
    """Names of entries.

    Attributes:
        rename: old key to new; a new key of None drops the entry.
        names: of the elements of tuples; None until a request gives them.
    """

    rename: Mapping[str, str | None]
    names: tuple[str, ...] | None

    @classmethod
    def of(cls, rename: Any, keys: Any) -> EntryKeys:
        """Those that a caller gave.

        Raises:
            InputError: no mapping of texts, or no texts.
        """
        renamed = {} if rename is None else dict(checks.mapping("rename", rename))
        for new in renamed.values():
            checks.optional("rename: a new key", new, str)
        return cls(renamed, None if keys is None else checks.texts("keys", keys))

    def named(self, names: Sequence[str]) -> EntryKeys:
        """With names for the elements of tuples, where the caller gave none."""
        return replace(self, names=tuple(names)) if self.names is None else self

    def entries(self, item: Any) -> dict[str, Any]:
        """A sample or batch as a dict with its final keys.

        Raises:
            InputError: it is neither a dict nor a tuple of as many elements as there are names.
        """
        if isinstance(item, Mapping):
            return self.renamed({str(key): value for key, value in item.items()})
        if not isinstance(item, (tuple, list)):
            advice = "; arrays of all samples are a dict, {'x': X, 'labels': y}" if isinstance(item, np.ndarray) else ""
            raise InputError(f"Dataset: it gives {type(item).__name__}; expected dicts or tuples{advice}")
        keys = self.names or ()
        if len(item) != len(keys):
            raise InputError(
                f"Dataset: it gives tuples of {len(item)}, but knows {len(keys)} names ({', '.join(keys) or 'none'}); "
                "name the elements with Dataset(data, keys=(...))"
            )
        return self.renamed(dict(zip(keys, item, strict=True)))

    def renamed(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """The entries under their new keys.

        Raises:
            InputError: a key isn't there, or two become one.
        """
        missing = [key for key in self.rename if key not in entries]
        if missing:
            raise InputError(f"Dataset: rename has {missing}, but the keys are {list(entries)}")
        found: dict[str, Any] = {}
        for key, value in entries.items():
            new = self.rename.get(key, key)
            if new in found:
                raise InputError(f"Dataset: two entries are called {new!r} after rename={dict(self.rename)}")
            if new is not None:
                found[new] = value
        return found
