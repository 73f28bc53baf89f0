"""How data was read when a model was trained: it stands in the model's metadata, and holds for other data of the kind.

Without it a model that was trained on images of one mean and deviation, or on the columns of one file, would be
evaluated on others without a word.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from .batch import Request
from .dataset import Dataset
from .kinds import kind_of

_KEY = "dataflow.data"
_TABLES = ("CSV files", "Parquet files", "files of JSON lines", "tables")
_OF_TABLES, _OF_TEXTS = ("columns", "label"), ("text", "max_length", "label", "language_model")
_OF_IMAGES = ("size", "resize", "mean", "std", "layout")
_log = logging.getLogger("dataflow")


def with_reading(metadata: Mapping[str, str], dataset: Dataset, request: Request) -> dict[str, str]:
    """A model's metadata with the options by which a dataset was read; without any where they aren't known."""
    rest = {key: text for key, text in metadata.items() if key != _KEY}
    options = {name: option for name, option in dataset.likewise(request).items() if option is not None}
    return rest | ({_KEY: json.dumps({"kind": _kind(dataset.origin), **options})} if options else {})


def recalled(metadata: Mapping[str, str], data: Any, given: Mapping[str, Any], *, labels: bool) -> dict[str, Any]:
    """Options of a Dataset of ``data``: those that are given, and of others those of the training.

    Args:
        metadata: of the model.
        data: of another kind than that of the training, it has the given options alone.
        given: by the caller.
        labels: whether labels are read too.
    """
    try:
        known = json.loads(metadata.get(_KEY, "{}"))
    except (ValueError, RecursionError):  # another program's
        known = {}
    if not isinstance(known, dict) or "kind" not in known or known["kind"] != _kind(data):
        return dict(given)
    texts = "text" in known or known["kind"] == "texts"
    own = _OF_IMAGES if known["kind"] == "images" else _OF_TEXTS if texts else _OF_TABLES
    if ("tokenizer" in given or "text" in given) != texts:
        if texts and "columns" not in given:
            raise InputError("the model was trained on texts; give Dataset(data, text=COLUMN, tokenizer=FILE)")
        return dict(given)  # read otherwise than in training
    names = [name for name in own if name in known and name not in given and (labels or name != "label")]
    others = {name: known[name] for name in names}
    if others:
        _log.info("as in training: %s", ", ".join(f"{name}={option}" for name, option in others.items()))
    return {**others, **given}


def as_in_training(data: Any, metadata: Mapping[str, str], *, labels: bool) -> Any:
    """Of a path or table a Dataset that reads it as it was read in training; anything else as it is."""
    plain = isinstance(data, (str, os.PathLike)) or hasattr(data, "columns")
    return Dataset(data, **recalled(metadata, data, {}, labels=labels)) if plain else data


def _kind(data: Any) -> str | None:
    kind = kind_of(data)
    return "tables" if kind in _TABLES else kind
