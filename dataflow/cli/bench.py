"""``dataflow bench``: the time of each op of a model, beside what its device can do at most."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ..errors import InputError
from ..ir.types import DType
from ..model import Model
from .options import (
    batch_option,
    execution,
    execution_options,
    input_shapes,
    json_option,
    model_argument,
    print_json,
    read_arguments,
    read_model,
    shape_option,
)

if TYPE_CHECKING:
    from ..execute.profile import OpTime, Profile, StepTime
    from .roofline import Roofline

WIDTH = 150  # columns of a table that goes to no terminal


@click.command()
@model_argument
@shape_option
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="npy, or npz with input names.")
@batch_option
@execution_options
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Medians are taken.")
@click.option("--train", is_flag=True, help="Time a training step with AdamW instead.")
@click.option("--loss", default="cross_entropy", show_default=True, help="Of the training step.")
@click.option("--value", metavar="NAME", help="The value that the loss reads.")
@click.option("--nodes", is_flag=True, help="A line per node instead of per op.")
@click.option(
    "--gflops", type=click.FloatRange(0, min_open=True), help="The largest arithmetic rate, instead of measuring."
)
@click.option("--gbps", type=click.FloatRange(0, min_open=True), help="The bandwidth, in GB/s, likewise.")
@click.option("--trace", type=click.Path(dir_okay=False), metavar="FILE", help="Write a trace for Perfetto.")
@json_option
def bench(
    model: str,
    shapes: tuple[str, ...],
    inputs: tuple[str, ...],
    batch: str | None,
    rounds: int,
    train: bool,
    loss: str,
    value: str | None,
    nodes: bool,
    gflops: float | None,
    gbps: float | None,
    trace: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Times MODEL by op, with the share of what its devices can do at most.

    Inputs that no --input gives are random, whole numbers one; a named dim is 1 unless --shape says otherwise. Labels
    that a training step needs are zeros, unless there is an --input of that name.
    """
    from ..execute.execution import thread_count
    from ..session import Session
    from .roofline import described
    from .trace import trace_events

    how = execution(options)
    loaded = read_model(model, batch, how["limits"])
    how["threads"] = count = thread_count(how["threads"])
    given = read_arguments(loaded, inputs)
    sizes = {name: tuple(map(str, np.shape(array))) for name, array in given.items()}
    shapes = (*shapes, *(f"{name}={','.join(shape)}" for name, shape in sizes.items() if name in loaded.inputs))
    arguments = random_arguments(loaded, input_shapes(loaded, shapes)) | given
    if train:
        profiles = _training(loaded, arguments, loss, value, how, rounds)
    else:
        profiles = {"run": Session(loaded, **how).profile(arguments, rounds=rounds)}
    used = dict.fromkeys(step.device for profile in profiles.values() for step in profile.steps)
    rooflines = {device: _roofline(device, how, gflops, gbps) for device in used}
    if trace is not None:
        events = {"traceEvents": trace_events(*profiles.values()), "displayTimeUnit": "ns"}
        Path(trace).write_text(json.dumps(events), "utf-8")
    if as_json:
        programs = {name: _described(profile, rooflines, nodes) for name, profile in profiles.items()}
        limits = {device: {"flops": c.flops, "bandwidth": c.bandwidth} for device, c in rooflines.items()}
        print_json({"programs": programs, "rooflines": limits, "threads": count, "rounds": rounds, "trace": trace})
        return
    for name, profile in profiles.items():
        _print(name, profile, rooflines, nodes)
    click.echo(f"medians of {rounds} rounds, {count} threads")
    for device, most in rooflines.items():
        click.echo(f"roofline of {device}: {described(most)}")
    if trace is not None:
        click.echo(f"wrote {trace}; it opens in ui.perfetto.dev")


def _training(
    model: Model, arguments: Mapping[str, Any], loss: str, value: str | None, how: Mapping[str, Any], rounds: int
) -> dict[str, Profile]:
    """The profiles of a training step's programs."""
    from ..session import Session
    from ..train.losses import CrossEntropy
    from ..train.trainer import Trainer

    trainer = Trainer(model, loss, output=value, metrics=[], **how)
    missing = [key for key in trainer.objective.keys if key not in arguments]
    if missing:
        (read,) = trainer.objective.read
        shape = Session(model, **how).run(arguments, [read])[read].shape
        classes = isinstance(trainer.names.loss(loss), CrossEntropy)
        zeros = np.zeros(shape[:-1], np.int64) if classes else np.zeros(shape, np.float32)
        arguments = {**arguments, **dict.fromkeys(missing, zeros)}
    return trainer.profile(arguments, rounds=rounds)


def random_arguments(model: Model, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, Any]:
    """An array per input: floats are normal, whole numbers and truth values one, which most models take as an index.

    Raises:
        InputError: an input of strings, which have to be given.
    """
    random = np.random.default_rng(seed)
    return {name: _random(name, type_.dtype, shapes[name], random) for name, type_ in model.inputs.items()}


def _random(name: str, dtype: DType, shape: Sequence[int], random: np.random.Generator) -> Any:
    if dtype.kind == "s":
        raise InputError(f"input {name!r} holds strings: give it with --input {name}=FILE")
    if dtype.kind in "iub":
        return np.ones(shape, dtype.numpy)
    return random.standard_normal(shape).astype(dtype.numpy)


def _roofline(device: str, how: Mapping[str, Any], gflops: float | None, gbps: float | None) -> Roofline:
    from .roofline import Roofline, measure_roofline

    if gflops is not None and gbps is not None:
        return Roofline(gflops * 1e9, gbps * 1e9)
    found = measure_roofline(device, how["threads"], how["precision"])
    return Roofline(found.flops if gflops is None else gflops * 1e9, found.bandwidth if gbps is None else gbps * 1e9)


def _row(row: OpTime | StepTime, total: float, rooflines: Mapping[str, Roofline]) -> dict[str, Any]:
    """The figures of a line; shares are of the time and of what the device can do at most."""
    most = rooflines[row.device]
    return {
        "op": row.op,
        "device": row.device,
        "seconds": row.seconds,
        "share": row.seconds / total,
        "operations": row.operations,
        "bytes": row.bytes,
        "arithmetic": row.operations / row.seconds / most.flops,
        "bandwidth": row.bytes / row.seconds / most.bandwidth,
    }


def _described(profile: Profile, rooflines: Mapping[str, Roofline], nodes: bool) -> dict[str, Any]:
    total = profile.step_seconds
    found: dict[str, Any] = {
        "seconds": profile.seconds,
        "step_seconds": total,
        "ops": [{**_row(op, total, rooflines), "count": op.count} for op in profile.by_op()],
    }
    if nodes:
        found["nodes"] = [{"node": s.node, "kernel": s.kernel, **_row(s, total, rooflines)} for s in profile.steps]
    return found


def _print(name: str, profile: Profile, rooflines: Mapping[str, Roofline], nodes: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from .roofline import percent

    total = profile.step_seconds
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("op", "device", "node" if nodes else "count"):
        table.add_column(title, overflow="fold", justify="right" if title == "count" else "left")
    for title in ("µs", "time", "MFLOP", "MB", "arithmetic", "bandwidth"):
        table.add_column(title, justify="right", no_wrap=True)
    rows: list[tuple[OpTime | StepTime, str]]
    rows = [(s, s.node) for s in profile.steps] if nodes else [(op, str(op.count)) for op in profile.by_op()]
    for row, beside in rows:
        figures = _row(row, total, rooflines)
        table.add_row(
            row.op,
            row.device,
            beside,
            f"{row.seconds * 1e6:.1f}",
            f"{figures['share']:.1%}",
            f"{row.operations / 1e6:.3g}",
            f"{row.bytes / 1e6:.3g}",
            percent(figures["arithmetic"]),
            percent(figures["bandwidth"]),
        )
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=WIDTH)
    console.print(table)
    click.echo(f"{name}: {profile.seconds * 1e6:.1f} µs; steps called one by one: {total * 1e6:.1f} µs")
