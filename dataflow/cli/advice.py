"""Advice of errors in the terms of the command line: its options in place of Python's arguments."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import click

OPTIONS: Mapping[str, str] = {
    "Dataset(data, rename={'old': 'new'}) renames, {'old': None} leaves out": (
        "--map old=new renames, --map old= leaves out"
    ),
    "rename={'input_ids': NAME} says": "--map input_ids=NAME says",
    "name the layers with targets=": "name the layers with --lora-targets",
    "no_decay=() lets all decay": "--decay-all lets all decay",
    "give Dataset(data, text=COLUMN, tokenizer=FILE)": "give --tokenizer",
    "name the columns of each in columns=": "name the columns of each in --columns INPUT=A,B",
    "data is None, and no stored tensor is quantized in the graph; expected samples, or a model that "
    "quantize_static(train=True) gave, saved and loaded again where straight_through was trained": (
        "no stored tensor is quantized in the graph; expected a model of --train, or what --straight-through trained"
    ),
    "load the model with batch='free' (--batch free)": "give --batch free",
    "give overwrite=True (--force)": "give --force",
    "give size=(height, width)": "give --image-size HxW",
    "raise Limits(bytes=...) if": "raise --limit-memory if",
}
"""By what Python's messages advise, where it takes more than the name of an option."""

NAMES = {"rename": "renamed", "output": "value", "outputs": "values", "early_stop": "patience", "validation": "val"}
"""Parameters of commands by Python's arguments, where they have other names."""

# Behind a space or a bracket: what stands in paths and in reprs is no advice.
_ARGUMENT = re.compile(r"""(?<![^\s(])([a-z][a-z_]+)=(?:'([\w.%*]+)'|(True)|(\d[\w.]*)|(?=[\s,;:.)]|$))""")


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by the names of Python's arguments."""
    found = {str(option.name): option for option in command.params if isinstance(option, click.Option)}
    renamed = {name: found[parameter] for name, parameter in NAMES.items() if parameter in found}
    return found | renamed


def in_options(message: str, options: Mapping[str, click.Option]) -> str:
    """The message with the options that stand for Python's arguments.

    Args:
        message: of an error or a line of the log.
        options: of the command that runs, see ``options_of``.
    """
    for advice, option in OPTIONS.items():
        message = message.replace(advice, option)

    def option_of(found: re.Match[str]) -> str:
        name, text, _, number = found.groups()
        if name not in options or _in_call(message[: found.start()]):
            return found[0]
        option = options[name]
        return option.opts[0] if option.is_flag else " ".join(filter(None, (option.opts[0], text, number)))

    return _ARGUMENT.sub(option_of, message)


def _in_call(before: str) -> bool:
    """Whether what follows stands within the brackets of a call, which stays Python's."""
    return re.search(r"\w\([^()]*$", before) is not None


class OptionsFormatter(logging.Formatter):
    """What is logged, with the options that stand for Python's arguments."""

    def __init__(self, options: Mapping[str, click.Option]) -> None:
        super().__init__()
        self._options = options

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record."""
        return in_options(super().format(record), self._options)
