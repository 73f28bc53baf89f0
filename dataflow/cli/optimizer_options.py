"""Options of the command line for the optimizer: settings, groups, schedule, clipping, averages, and 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import click

from ..errors import InputError
from ..host.settings import split_settings
from ..train.storage import Storage

if TYPE_CHECKING:  # other commands need none of it
    from ..train.loss_scale import LossScaleChoice
    from ..train.names import Names
    from ..train.optimizers.groups import Group

OPTIMIZER = (
    "optimizer", "lr", "weight_decay", "groups", "layer_decay", "decay_all", "schedule", "warmup", "clip_norm",
    "clip_value", "average", "find_lr", "storage", "loss_scale",
)  # fmt: skip


def optimizer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, whose names are in ``OPTIMIZER``."""
    for option in reversed(
        [
            click.option("--optimizer", default="adamw", show_default=True, help="As --loss; adamw, sgd, lion, ..."),
            click.option("--lr", type=float, help="Learning rate."),
            click.option("--weight-decay", type=float),
            click.option(
                "--group", "groups", multiple=True, metavar="PATTERN:lr=1e-4,...", help="Settings of some parameters."
            ),
            click.option("--layer-decay", type=float, help="Factor on the rate per layer before the last."),
            click.option("--decay-all", is_flag=True, help="Let biases and parameters of normalizations decay too."),
            click.option("--schedule", default="constant", show_default=True, help="As --loss; cosine, linear, ..."),
            click.option("--warmup", type=float, help="Steps in which the rate rises; below 1 of the run."),
            click.option("--clip-norm", type=float, help="Largest norm of the gradient."),
            click.option("--clip-value", type=float, help="Largest absolute value of an element of the gradient."),
            click.option("--average", metavar="ema|swa", help="As --loss; evaluate and save an average of weights."),
            click.option(
                "--storage",
                type=click.Choice(get_args(Storage)),
                help="In which dtype values wait between forward and backward; as the model's parameters by default.",
            ),
            click.option("--loss-scale", metavar="dynamic|NUMBER", help="Factor on the loss; dynamic with float16."),
            click.option("--find-lr", is_flag=True, help="Sweep learning rates, print what was found, and end."),
        ]
    ):
        command = option(command)
    return command


def names_in(options: Mapping[str, Any]) -> Sequence[str]:
    """What may name an object of a module: ``module:object``."""
    return options["optimizer"], options["schedule"], options["average"] or ""


def optimizing(names: Names, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Trainer that the options give.

    Raises:
        InputError: a name or setting that doesn't exist, or options that don't fit each other.
    """
    settings: dict[str, Any] = {key: options[key] for key in ("lr", "weight_decay", "layer_decay")}
    settings = {key: value for key, value in settings.items() if value is not None}
    if options["groups"]:
        settings["groups"] = tuple(_group(text) for text in options["groups"])
    if options["decay_all"]:
        settings["no_decay"] = ()
    if options["schedule"] != "constant" or options["warmup"] is not None:
        from ..train.schedules.runs import warmed

        schedule = names.schedule(options["schedule"])
        settings["schedule"] = schedule if options["warmup"] is None else warmed(schedule, options["warmup"])
    return {
        "optimizer": names.optimizer(options["optimizer"], **settings),
        "clip_norm": options["clip_norm"],
        "clip_value": options["clip_value"],
        "storage": options["storage"],
        "loss_scale": _loss_scale(options["loss_scale"]),
        "average": None if options["average"] is None else names.average(options["average"]),
    }


def _loss_scale(text: str | None) -> LossScaleChoice:
    """The factor on the loss that a text stands for."""
    if text is None:
        return None
    if text == "dynamic":
        return "dynamic"
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--loss-scale {text}: expected dynamic, or a power of two") from None


def _group(text: str) -> Group:
    """``PATTERN:key=value,...`` as a group."""
    from ..train.optimizers.groups import Group

    pattern, settings = split_settings(text)
    if not settings:
        raise InputError(f"--group {text}: expected PATTERN:key=value,key=value, e.g. --group '*.bias:weight_decay=0'")
    return Group(pattern, **settings)
