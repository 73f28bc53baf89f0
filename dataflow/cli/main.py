"""The command line: ``dataflow COMMAND``; the group ``commands`` lists them.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 a test failed, 2 the user's input, 3 device or
memory, 130 interrupted.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import click
import numpy as np

from ..errors import DataflowError, DeviceError, InputError, ModelError
from ..model import Model
from ..model_files import check_target
from ..version import VERSION
from .adapter_options import ADAPTERS, adapter_options, write
from .advice import OptionsFormatter, in_options, options_of
from .bench import bench
from .compare import compare
from .data_options import DATA, data_arguments, data_options, epoch_options
from .evaluate import evaluate
from .ops import ops
from .optimizer_options import OPTIMIZER, optimizer_options
from .options import (
    DEVICE,
    EXECUTION,
    INTERRUPTED,
    USER,
    batch_option,
    check_new,
    device_option,
    execution,
    execution_options,
    input_shapes,
    json_option,
    limits_of,
    memory_option,
    mode_option,
    model_argument,
    print_json,
    read_arguments,
    read_model,
    shape_option,
    write_npz,
)
from .plugin import plugin
from .predict import predict
from .quantize import quantize


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and exits with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    command = next((commands.commands[text] for text in given if text in commands.commands), None)
    options = {} if command is None else options_of(command)
    log, shown = logging.getLogger("dataflow"), logging.StreamHandler(sys.stderr)
    shown.setFormatter(OptionsFormatter(options))
    log.addHandler(shown)
    log.setLevel(logging.INFO)
    try:
        code = commands.main(args=arguments, prog_name="dataflow", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = USER
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except (DataflowError, OSError, MemoryError) as error:
        click.echo(f"error: {in_options(str(error), options)}", err=True)
        code = DEVICE if isinstance(error, (DeviceError, MemoryError)) else USER
    finally:
        log.removeHandler(shown)
    sys.exit(code or 0)


_SHOWN = 200  # characters of a text of the metadata


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="dataflow")
def commands() -> None:
    """Runs and trains computation graphs, ONNX models first."""


commands.add_command(bench)
commands.add_command(compare)
commands.add_command(evaluate)
commands.add_command(ops)
commands.add_command(plugin)
commands.add_command(predict)
commands.add_command(quantize)


# ---- run ---------------------------------------------------------------------------------------------


@commands.command()
@model_argument
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="npy, or npz with input names.")
@click.option("--output", "target", type=click.Path(dir_okay=False), help="npz with all outputs, or npy with one.")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, help="Of random nodes without one.")
@batch_option
@mode_option
@memory_option
@execution_options
@json_option
def run(
    model: str,
    inputs: tuple[str, ...],
    target: str | None,
    seed: int,
    batch: str | None,
    mode: str | None,
    memory: Literal["small"] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Runs MODEL once; the elements of a sequence y are written as y[0], y[1] and so on."""
    from ..execute.sequences import flattened
    from ..session import Session

    loaded = read_model(model, batch, limits_of(options), mode)
    arguments = read_arguments(loaded, inputs)
    results: Mapping[str, Any] = Session(loaded, memory=memory, seed=seed, **execution(options)).run(arguments)
    outputs = flattened({name: _arrays(loaded, name, given) for name, given in results.items()})
    if target is not None:
        _write_arrays(Path(target), outputs)
    summary = {name: _summary(array) for name, array in outputs.items()}
    if as_json:
        print_json({"outputs": summary, "file": target})
        return
    for name, figures in summary.items():
        click.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))


def _arrays(model: Model, name: str, given: Any) -> Any:
    """A result as an array, or a tuple of them; of a list of maps the matrix."""
    if name in model.maps:
        return np.array([[*row.values()] for row in given], model.outputs[name].dtype.numpy)
    return tuple(given) if isinstance(given, list) else given


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    if path.suffix == ".npy":
        if len(arrays) != 1:
            raise InputError(f"{path}: the model has {len(arrays)} outputs, a npy file holds one; write a .npz")
        np.save(path, next(iter(arrays.values())))
    elif path.suffix == ".npz":
        write_npz(path, arrays)
    else:
        raise InputError(f"{path}: outputs are written as .npz or .npy")


def _summary(array: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiub":
        upcast = array.astype(np.float64)
        figures |= {"min": float(upcast.min()), "mean": float(upcast.mean()), "max": float(upcast.max())}
    return figures


# ---- finetune ----------------------------------------------------------------------------------------


@commands.command()
@model_argument
@click.option("--data", required=True, type=click.Path(exists=True), help="npz, CSV, Parquet, JSON lines, a folder.")
@click.option("--val", type=click.Path(exists=True), help="The same, to validate on.")
@click.option("--val-split", type=float, default=0.0, help="Part of the data to validate on instead.")
@click.option("--classes", type=click.IntRange(min=1), help="Give the model a new last layer of so many classes.")
@click.option("--trainable", multiple=True, metavar="PATTERN", help="Names, globs, head, bias, norm, last:N, !PATTERN.")
@click.option(
    "--loss",
    "losses",
    multiple=True,
    default=("cross_entropy",),
    show_default="cross_entropy",
    help="A name or module:object; settings behind it as in name:key=value,key=value; several are added.",
)
@click.option("--output", "value", metavar="NAME", help="The value that the loss reads.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Of a micro-batch.")
@click.option("--accumulate", type=click.IntRange(min=1), default=1, help="Micro-batches per optimizer step.")
@click.option("--memory", metavar="0.5x|200M", help="Of what forward keeps for backward: compute the rest again.")
@click.option(
    "--update",
    type=click.Choice(["together", "as_ready"]),
    default="together",
    show_default=True,
    help="Parameters once all gradients are finite, or each when its gradient is complete: less memory.",
)
@click.option(
    "--batch-norm",
    type=click.Choice(["fixed", "update"]),
    default="fixed",
    show_default=True,
    help="By fixed statistics, or by the batch's, which update them.",
)
@click.option(
    "--shard", type=click.Choice(("optimizer", "gradients")), help="Under mpirun: each process keeps a share."
)
@click.option("--metric", "metrics", multiple=True, help="As --loss, instead of the loss's own; repeatable.")
@click.option("--callback", "callbacks", multiple=True, help="As --loss; repeatable.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--map", "renames", multiple=True, metavar="OLD=NEW", help="Rename a key of the data, e.g. y=labels.")
@click.option("--class-weights", metavar="W,W,...|balanced", help="One per class, or from how often each occurs.")
@click.option("--patience", type=click.IntRange(min=1), help="Epochs without a better validation before it ends.")
@click.option("--checkpoint", type=click.Path(file_okay=False), help="Folder.")
@click.option("--resume", metavar="auto|FILE", help="Go on from a checkpoint.")
@click.option(
    "--log", type=click.Path(dir_okay=False), metavar="FILE", help=".jsonl of steps and epochs, or .csv of epochs."
)
@click.option("--tensorboard", type=click.Path(file_okay=False), metavar="DIR", help="Event files for TensorBoard.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.png|-", help="Curves of the run; - as text.")
@click.option("-o", "target", type=click.Path(), help="The trained model; not with --find-lr.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@optimizer_options
@data_options
@epoch_options
@adapter_options
@batch_option
@mode_option
@execution_options
@json_option
def finetune(model: str, target: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Trains MODEL on data and writes it."""
    from .finetune import Options, find_lr
    from .finetune import finetune as train

    if target is None and not options["find_lr"]:
        raise click.UsageError("Missing option '-o', the trained model.")
    check_new(target, force)
    how = execution({name: options.pop(name) for name in EXECUTION})
    reading = data_arguments({name: options.pop(name) for name in DATA})
    adapters = {name: options.pop(name) for name in ADAPTERS}
    optimizer = {name: options.pop(name) for name in OPTIMIZER}
    if target is not None and Path(target).is_dir() and adapters["form"] != "adapters":
        raise InputError(f"{target} is a folder; only --save adapters writes one")
    if target is not None and adapters["form"] != "adapters":
        check_target(target)
    loaded = read_model(model, options.pop("batch"), how["limits"], options.pop("mode"))
    given = Options(execution=how, reading=reading, adapters=adapters, optimizer=optimizer, **options)
    if target is None or optimizer["find_lr"]:
        curve = find_lr(loaded, given)
        if curve is None:
            return  # another process prints
        if as_json:
            print_json({"suggestion": curve.suggestion, "rates": curve.rates, "losses": curve.losses})
        else:
            click.echo(str(curve))
        return
    try:
        result = train(loaded, lambda m: write(m, target, adapters["form"], overwrite=force), given)
    except KeyboardInterrupt:
        raise click.Abort from None
    if result is None:
        return  # another process prints
    result["model"] = target
    if as_json:
        print_json(result)
        return
    for key, figure in result["figures"].items():
        click.echo(f"{key}: {figure:.6g}")
    click.echo(f"wrote {target}")


# ---- inspect, plan -----------------------------------------------------------------------------------


@commands.command()
@model_argument
@shape_option
@batch_option
@device_option
@json_option
def inspect(model: str, shapes: tuple[str, ...], batch: str | None, devices: tuple[str, ...], as_json: bool) -> None:
    """Says what MODEL takes, gives and holds, and which device runs what."""
    loaded = read_model(model, batch)
    described: dict[str, Any] = {
        "metadata": dict(loaded.metadata),
        "inputs": {name: str(loaded.forms.get(name, type_)) for name, type_ in loaded.inputs.items()},
        "outputs": {name: str(loaded.forms.get(name, type_)) for name, type_ in loaded.outputs.items()},
        "maps": {name: list(keys) for name, keys in loaded.maps.items()},
        "parameters": [
            {
                "name": name,
                "type": str(p.type),
                "role": p.role,
                "trainable": p.trainable,
                "aliases": list(p.aliases),
            }
            for name, p in loaded.parameters.items()
        ],
        "ops": dict(Counter(node.op.name for node in loaded.graph.nodes).most_common()),
        "deferred": next((n.attributes["why"] for n in loaded.graph.nodes if n.op.name == "deferred"), None),
    }
    try:
        described |= _placement(loaded, shapes, devices)
    except InputError as error:
        if shapes or devices:
            raise
        described["placement_unknown"] = str(error)
    except ModelError as error:  # it depends on data
        described["placement_unknown"] = str(error)
    if as_json:
        print_json(described)
    else:
        _print_inspection(described)


def _placement(model: Model, shapes: Sequence[str], devices: Sequence[str]) -> dict[str, Any]:
    """How many nodes each device runs, by which kernels, and why some do not run on an earlier one."""
    from ..session import Session

    given = input_shapes(model, shapes)
    nodes = Session(model, list(devices) or None).placement(given)
    return {
        "shapes": {name: list(shape) for name, shape in given.items()},
        "devices": dict(Counter(p.device for p in nodes)),
        "kernels": {
            device: dict(Counter(p.kernel for p in nodes if p.device == device).most_common())
            for device in dict.fromkeys(p.device for p in nodes)
        },
        "fallbacks": [
            {"node": p.node, "op": p.op, "device": p.device, "reasons": dict(p.refusals)} for p in nodes if p.refusals
        ],
    }


def _print_inspection(described: Mapping[str, Any]) -> None:
    for side in ("inputs", "outputs"):
        click.echo(f"{side}:")
        for name, type_ in described[side].items():
            click.echo(f"  {name}: {type_}" + (", as a list of maps" if name in described["maps"] else ""))
    for key, text in described["metadata"].items():
        click.echo(f"metadata {key}: {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}")
    click.echo("parameters:")
    for p in described["parameters"]:
        kind = "trainable" if p["trainable"] else p["role"]
        aliases = f"  ({', '.join(p['aliases'])})" if p["aliases"] else ""
        click.echo(f"  {p['name']}: {p['type']}, {kind}{aliases}")
    click.echo("ops: " + ", ".join(f"{count} {name}" for name, count in described["ops"].items()))
    if described["deferred"]:
        click.echo(f"converted for each form of the inputs, since: {described['deferred']}")
    if "devices" not in described:
        click.echo(f"devices: not known: {described['placement_unknown']}")
        return
    sizes = ", ".join(f"{name} {tuple(shape)}" for name, shape in described["shapes"].items())
    click.echo(f"devices for {sizes or 'no inputs'}:")
    for device, count in described["devices"].items():
        click.echo(f"  {device}: {count} nodes")
        for kernel, times in described["kernels"][device].items():
            click.echo(f"    {times} {kernel}")
    for node in described["fallbacks"]:
        reasons = "; ".join(f"{device}: {reason}" for device, reason in node["reasons"].items())
        click.echo(f"  {node['op']} {node['node']!r} runs on {node['device']}: {reasons}")


@commands.command()
@model_argument
@shape_option
@click.option("--html", "page", type=click.Path(dir_okay=False), help="Write a drawing.")
@batch_option
@memory_option
@execution_options
@json_option
def plan(
    model: str,
    shapes: tuple[str, ...],
    page: str | None,
    batch: str | None,
    memory: Literal["small"] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Shows what runs where, in what order, at which offset."""
    from ..session import Session

    loaded = read_model(model, batch, limits_of(options))
    made = Session(loaded, memory=memory, **execution(options)).plan(input_shapes(loaded, shapes))
    if page is not None:
        made.save_html(page, Path(model).name)
    if as_json:
        print_json(
            {
                "peak_bytes": made.peak_bytes,
                "lower_bound_bytes": made.lower_bound_bytes,
                "memory": made.memory,
                "segments": [{"device": s.device, "steps": len(s.steps)} for s in made.segments],
                "html": page,
            }
        )
    elif page is None:
        click.echo(str(made))
    else:
        click.echo(f"wrote {page}")


# ---- devices, plugins --------------------------------------------------------------------------------


@commands.command()
@json_option
def devices(as_json: bool) -> None:
    """Lists plugins and devices, and what failed to load."""
    from ..plugin.registry import default_registry

    registry = default_registry()
    found: dict[str, Any] = {
        "version": VERSION,
        "plugins": [
            {"name": p.name, "distribution": p.distribution, "version": p.version, "problem": p.problem}
            for p in registry.plugins
        ],
        "devices": [
            {
                "id": key,
                "memory": d.memory,
                "kernels": sum(map(len, registry.kernels[key].values())),
                "unavailable": why,
                "by_default": key in registry.own,
            }
            for key, d in registry.devices.items()
            for why in [d.unavailable]
        ],
        "formats": sorted(registry.formats),
    }
    if as_json:
        print_json(found)
        return
    click.echo(f"dataflow {VERSION}")
    for p in found["plugins"]:
        click.echo(f"plugin {p['name']}: {p['distribution']} {p['version']}" + _reason("set aside", p["problem"]))
    for d in found["devices"]:
        named = "" if d["by_default"] else ", used where it is named"
        click.echo(f"device {d['id']}: {d['kernels']} kernels{named}" + _reason("unavailable", d["unavailable"]))
    click.echo(f"formats: {', '.join(found['formats']) or 'none'}")


def _reason(what: str, reason: str | None) -> str:
    return f", {what}: {reason}" if reason else ""
