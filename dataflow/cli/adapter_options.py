"""Options of the command line for adapters: what is trained in the place of weights, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..adapters.adapter import AdaptedModel
from ..errors import InputError
from ..model import Model
from ..model_files import save

ADAPTERS = (
    "bits", "lora", "lora_alpha", "lora_targets", "lora_dropout", "dora", "rank_stabilized", "adapters", "form",
    "dropout", "dropout_at", "straight_through",
)  # fmt: skip
FORMS = ("merged", "nodes", "adapters")


def adapter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, whose names are in ``ADAPTERS``."""
    for option in reversed(
        [
            click.option("--quantize", "bits", type=click.Choice(["4", "8"]), help="Bits of weights, which then stay."),
            click.option(
                "--straight-through", is_flag=True, help="Train through pairs of QuantizeLinear, DequantizeLinear."
            ),
            click.option("--dropout", metavar="P|nodes", help="Drop behind --dropout-at, or where the file has nodes."),
            click.option("--dropout-at", multiple=True, metavar="PATTERN", help="Layers."),
            click.option("--lora", type=click.IntRange(min=1), metavar="RANK", help="Train adapters of this rank."),
            click.option(
                "--lora-alpha", type=float, default=16.0, show_default=True, help="Their factor, by the rank."
            ),
            click.option("--lora-targets", multiple=True, metavar="PATTERN", help="Layers; attention by default."),
            click.option("--lora-dropout", type=float, default=0.0, help="Share of their inputs left out."),
            click.option("--dora", is_flag=True, help="Train magnitudes of the weights too."),
            click.option("--rank-stabilized", is_flag=True, help="The factor is alpha by the root of the rank."),
            click.option("--adapters", type=click.Path(exists=True, file_okay=False), help="Go on with saved ones."),
            click.option(
                "--save", "form", type=click.Choice(FORMS), help="How adapters are written; merged if it can be."
            ),
        ]
    ):
        command = option(command)
    return command


def adapted(model: Model, options: Mapping[str, Any], trainable: Sequence[str], seed: int) -> Model:
    """The model with the weights and adapters that the options ask for; itself without.

    Args:
        model: what to train.
        options: by the names in ``ADAPTERS``.
        trainable: parameters that are trained too, and so keep their bits; saved adapters say it themselves.
        seed: of the first data.

    Raises:
        InputError: options don't fit the model or each other.
    """
    if options["straight_through"]:
        from ..layers.straight_through import straight_through

        model = straight_through(model)
    if options["bits"] is not None:
        from ..quantization.blocks import quantize

        model = quantize(model, int(options["bits"]), keep=trainable)
    if options["lora"] is None and options["adapters"] is None:
        given = next(
            (name for name in ("lora_targets", "lora_dropout", "dora", "rank_stabilized", "form") if options[name]),
            None,
        )
        if given is not None:
            raise InputError(f"--{'save' if given == 'form' else given.replace('_', '-')} needs --lora or --adapters")
        return model
    if options["adapters"] is not None:
        if options["lora"] is not None:
            raise InputError("--adapters goes on with saved adapters; it doesn't fit --lora")
        from ..adapters.folder import load_adapters

        return load_adapters(model, options["adapters"])
    from ..adapters.lora import lora

    return lora(
        model,
        rank=options["lora"],
        alpha=options["lora_alpha"],
        targets=list(options["lora_targets"]) or None,
        dropout=options["lora_dropout"],
        rank_stabilized=options["rank_stabilized"],
        dora=options["dora"],
        seed=seed,
        also=trainable,
    )


def dropping(model: Model, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a Trainer is given about dropout.

    Raises:
        InputError: options don't fit each other.
    """
    given, at = options["dropout"], list(options["dropout_at"]) or None
    own = isinstance(model, AdaptedModel) and model.settings["lora_dropout"] > 0
    if given is None and at is None:
        return {"dropout": own}
    if given == "nodes":
        return {"dropout": True, "dropout_at": at}
    try:
        return {"dropout": float(given), "dropout_at": at}
    except (TypeError, ValueError):
        raise InputError(f"--dropout {given}: expected a share, or nodes") from None


def write(model: Model, target: str, form: str | None, *, overwrite: bool) -> None:
    """Saves a trained model: with adapters in one of the ``FORMS``, of which the last is a folder."""
    if not isinstance(model, AdaptedModel):
        save(model, target, overwrite=overwrite)
    elif form == "adapters":
        from ..adapters.folder import save_adapters

        save_adapters(model, Path(target), overwrite=overwrite)
    else:
        from ..adapters.merge import can_merge, merge_lora

        merged = form == "merged" or (form is None and can_merge(model))
        save(merge_lora(model) if merged else model, target, overwrite=overwrite)
