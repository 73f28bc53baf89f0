"""The options of commands that read datasets: what ``df.Dataset`` takes beside the path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ..errors import InputError


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options of a dataset; it gets them as ``**options``, see ``data_arguments``."""
    for option in (
        click.option("--workers", type=click.IntRange(min=0), help="Threads that read ahead."),
        click.option("--missing", metavar="error|drop|NUMBER", help="What stands for missing values of a table."),
        click.option("--delimiter", metavar="CHAR", help=r"Of the cells of a CSV file; \t is a tab."),
        click.option(
            "--text-column", "text", multiple=True, metavar="NAME", help="The column of texts; twice for pairs."
        ),
        click.option("--tokenizer", type=click.Path(exists=True), metavar="FILE", help="tokenizer.json, for texts."),
        click.option("--max-length", type=click.IntRange(min=1), help="Tokens of a text at most."),
        click.option("--buckets", metavar="N|L,L,...", help="How many lengths texts are padded to, or which."),
        click.option(
            "--language-model", type=click.Choice(["same", "next"]), help="Labels: tokens, or those after them."
        ),
        click.option("--join", is_flag=True, help="Texts follow each other in blocks of --max-length."),
        click.option("--image-size", "size", metavar="N|HxW", help="Of images, where the model takes any."),
        click.option("--resize", type=click.Choice(["crop", "pad", "stretch"]), help="How images get the size."),
        click.option("--mean", metavar="imagenet|M,M,M", help="Of the channels of images, from 0 to 1."),
        click.option("--std", metavar="imagenet|S,S,S", help="Likewise."),
        click.option("--layout", type=click.Choice(["NCHW", "NHWC"]), help="Of images, where it isn't clear."),
        click.option("--label", metavar="NAME,...", help="The column of the labels, or several of numbers."),
        click.option("--columns", multiple=True, metavar="[INPUT=]A,B,...", help="Columns that are an input."),
    ):
        command = option(command)
    return command


def epoch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with what ``df.Dataset`` takes for training alone; ``data_arguments`` knows these options too."""
    for option in (
        click.option("--drop-last", is_flag=True, help="Leave out the short last batch of an epoch."),
        click.option("--balance", metavar="KEY", help="Key of classes of which an epoch has equally many samples."),
        click.option(
            "--augment", metavar="flip,crop=0.5,...", help="Random changes: rotate=10, color=0.2, flip_vertical."
        ),
    ):
        command = option(command)
    return command


DATA = (
    "columns", "label", "delimiter", "missing", "balance", "drop_last", "workers", "augment", "size", "resize", "mean",
    "std", "layout", "text", "tokenizer", "max_length", "buckets", "language_model", "join",
)  # fmt: skip


def data_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``df.Dataset`` from ``data_options``: those that were given.

    Raises:
        InputError: a text that says none.
    """
    found = {name: value for name, value in options.items() if value is not None and value is not False and value != ()}
    if found.get("delimiter") == "\\t":  # as a shell gives it
        found["delimiter"] = "\t"
    if "," in found.get("label", ""):
        found["label"] = found["label"].split(",")
    if "columns" in found:
        found["columns"] = _columns(found["columns"])
    if found.get("missing") not in (None, "error", "drop"):
        try:
            found["missing"] = float(found["missing"])
        except ValueError:
            raise InputError(f"--missing {found['missing']}: expected error, drop, or a number") from None
    for name, separator in (("mean", ","), ("std", ","), ("size", "x"), ("buckets", ",")):
        if name in found and found[name] != "imagenet":
            found[name] = _numbers(name, found[name], separator)
    return found


def _numbers(name: str, text: str, separator: str) -> list[float] | int:
    """Numbers between separators; whole ones of a size or buckets, of which one may be all."""
    try:
        if name in ("mean", "std"):
            return [float(number) for number in text.split(separator)]
        sizes = [int(number) for number in text.split(separator)]
        return sizes[0] if len(sizes) == 1 else sizes  # type: ignore[return-value]
    except ValueError:
        raise InputError(
            f"--{'image-' * (name == 'size')}{name} {text}: expected numbers with {separator!r} between"
        ) from None


def _columns(given: Sequence[str]) -> list[str] | dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for text in given:
        before, equals, after = text.partition("=")
        named[before if equals else ""] = (after if equals else before).split(",")
    if "" not in named:
        return named
    if len(given) > 1:
        raise InputError("--columns: several of them need the names of their inputs: --columns INPUT=A,B")
    return named[""]
