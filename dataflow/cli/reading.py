"""How data was read when a model was trained: it stands in the model's metadata, and holds for other data of the kind.

Without it a model that was trained on images of one mean and deviation, or on the columns of one file, would be
evaluated on others without a word.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..model import Model
from ..train.data.batch import Request
from ..train.data.dataset import Dataset
from ..train.data.kinds import kind_of
from ..train.losses.loss import LABELS

_KEY = "dataflow.data"
_OPTIONS = ("columns", "label", "text", "max_length", "language_model", "size", "resize", "mean", "std", "layout")
_SAME = {"CSV files": "tables", "Parquet files": "tables", "files of JSON lines": "tables"}
_log = logging.getLogger("dataflow")


def noted(model: Model, path: str, dataset: Dataset) -> None:
    """Writes into the model's metadata how a dataset of ``path`` becomes its inputs."""
    request = Request({v.name: v.type for v in model.graph.inputs}, (LABELS,))
    options = {name: option for name, option in dataset.likewise(request).items() if option is not None}
    if options:
        model.metadata[_KEY] = json.dumps({"kind": _kind(path), **options})


def recalled(model: Model, path: str, given: Mapping[str, Any], *, labels: bool) -> dict[str, Any]:
    """Options of a Dataset of ``path``: those that are given, and of others those of the training.

    Args:
        model: whose metadata says them.
        path: of the data; of another kind, it has the given options alone.
        given: by the caller.
        labels: whether labels are read too.
    """
    try:
        known = json.loads(model.metadata.get(_KEY, "{}"))
    except ValueError:  # another program's
        known = {}
    if not isinstance(known, dict) or known.get("kind") != _kind(path):
        return dict(given)
    if "text" in known and "tokenizer" not in given:
        raise InputError("the model was trained on texts; give --tokenizer, and what else finetune had of it")
    names = [name for name in _OPTIONS if name in known and name not in given and (labels or name != "label")]
    others = {name: known[name] for name in names}
    if others:
        _log.info("as in training: %s", ", ".join(f"{name}={option}" for name, option in others.items()))
    return {**others, **given}


def _kind(path: str) -> str | None:
    kind = kind_of(Path(path))
    return None if kind is None else _SAME.get(kind, kind)
