"""Advice of errors in the terms of the command line: its options in place of Python's arguments."""

from __future__ import annotations

import logging
from collections.abc import Mapping

OPTIONS: Mapping[str, str] = {
    "Dataset(data, rename={'old': 'new'}) renames, {'old': None} leaves out": (
        "--map old=new renames, --map old= leaves out"
    ),
    "rename={'input_ids': NAME} says": "--map input_ids=NAME says",
    "name the layers with targets=": "name the layers with --lora-targets",
    "no_decay=() lets all decay": "--decay-all lets all decay",
    "give validation= or val_split=": "give --val or --val-split",
    "it needs validation= or val_split=": "it needs --val or --val-split",
    "leave them out with trainable=": "leave them out with --trainable",
    "give Dataset(data, text=COLUMN, tokenizer=FILE)": "give --tokenizer",
    "choose with columns=": "choose with --columns",
    "name the columns of each in columns=": "name the columns of each in --columns INPUT=A,B",
    "choose outputs that are alike with outputs=": "choose outputs that are alike with --value",
    "data is None, and no stored tensor is quantized in the graph; expected samples, or a model that "
    "quantize_static(train=True) gave, saved and loaded again where straight_through was trained": (
        "no stored tensor is quantized in the graph; expected a model of --train, or what --straight-through trained"
    ),
    "text= needs tokenizer=": "--text-column needs --tokenizer",
    "leave it out with targets=": "leave it out with --target",
}
"""By what Python's messages advise."""


def in_options(message: str) -> str:
    """The message with the options that stand for Python's arguments."""
    for advice, option in OPTIONS.items():
        message = message.replace(advice, option)
    return message


class OptionsFormatter(logging.Formatter):
    """What is logged, with the options that stand for Python's arguments."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record."""
        return in_options(super().format(record))
