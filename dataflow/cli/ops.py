"""``dataflow ops``: what ops are declared, and what a declaration says."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from .options import json_option, print_json

if TYPE_CHECKING:
    from ..ir.kernel import Kernel, OperandSpec
    from ..ir.op import AnyOp
    from ..plugin.registry import Registry


@click.command()
@click.argument("name", required=False)
@json_option
def ops(name: str | None, as_json: bool) -> None:
    """Lists all ops, or prints the declaration of the op NAME.

    Of one: operands ("?" may be absent, "*" repeats), attributes in the order in which kernels get them, who has
    kernels of which types, and the text of its gradient and decomposition.
    """
    from ..plugin.registry import default_registry

    registry = default_registry()
    if name is None:
        found: dict[str, Any] = {"ops": {op.name: op.doc.split("\n")[0] for op in registry.ops.values()}}
    elif name in registry.ops:
        found = _described(registry.ops[name], registry)
    else:
        near = difflib.get_close_matches(name, registry.ops, 3)
        raise InputError(f"there is no op {name!r}" + (f"; near: {', '.join(near)}" if near else ""))
    if as_json:
        print_json(found)
    elif name is None:
        for op, doc in sorted(found["ops"].items()):
            click.echo(f"{op}: {doc}")
    else:
        _print(found)


def _described(op: AnyOp, registry: Registry) -> dict[str, Any]:
    """What is printed of an op."""
    owners = {
        one.name: plugin for plugin, given in registry.hooks.given.items() for one in given.get("dataflow_ops", ())
    }
    return {
        "name": op.name,
        "declared_by": owners.get(op.name, "dataflow"),
        "doc": inspect.cleandoc(op.doc),
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "attributes": {key: repr(default) for key, default in op.attributes.items()},
        "bodies": list(op.bodies),
        "in_place": [f"{output}<{operand}" for output, operand in op.inplace],
        "effects": op.effects,
        "gradient": _text_of(op.gradient),
        "decomposition": _text_of(op.decompose),
        "kernels": [
            {"device": device, "name": kernel.name, "operands": _operands(kernel), "priority": kernel.priority}
            for device, kernels in registry.kernels.items()
            for kernel in kernels.get(op.name, ())
        ],
    }


def _text_of(function: Callable[..., Any] | None) -> str | None:
    """The source of a rule, or its name where there is none to read; None without a rule."""
    if function is None:
        return None
    with contextlib.suppress(OSError, TypeError):
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    return repr(function)


def _operands(kernel: Kernel) -> str:
    """What a record takes and gives, as in dataflow.h."""
    return ",".join(map(_spec, kernel.inputs)) + "->" + ",".join(map(_spec, kernel.outputs))


def _spec(spec: OperandSpec) -> str:
    types = "any" if spec.dtypes is None else "|".join(sorted(dtype.short for dtype in spec.dtypes))
    return ("~" if spec.strided else "") + types + ("?" if spec.optional else "") + ("*" if spec.repeated else "")


def _print(found: dict[str, Any]) -> None:
    click.echo(f"{found['name']}({', '.join(found['inputs'])}) -> {', '.join(found['outputs'])}")
    click.echo(f"  {found['doc']}")
    click.echo(f"declared by {found['declared_by']}")
    for number, (key, default) in enumerate(found["attributes"].items()):
        click.echo(f"attribute {number}: {key} = {default}")
    for key in ("bodies", "in_place"):
        if found[key]:
            click.echo(f"{key.replace('_', ' ')}: {', '.join(found[key])}")
    if found["effects"] != "none":
        click.echo(f"effects: {found['effects']}")
    for kernel in found["kernels"]:
        priority = f", priority {kernel['priority']}" if kernel["priority"] else ""
        click.echo(f"kernel on {kernel['device']}: {kernel['name']}, {kernel['operands']}{priority}")
    for key in ("gradient", "decomposition"):
        text = found[key]
        click.echo(
            f"{key}: none" if text is None else f"{key}:\n" + "\n".join(f"  {line}" for line in text.splitlines())
        )
