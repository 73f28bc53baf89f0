"""Chooses a device and kernel for each node; nodes that no device has a kernel for are decomposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ModelError, PluginError
from ..ir.builder import GraphBuilder
from ..ir.decomposition import check_steps, decomposed
from ..ir.graph import Graph, Node
from ..ir.kernel import Kernel, has_work
from ..ir.rewrite import rewrite
from ..ir.value import Value
from ..ops.control_flow import OPS as CONTROL_FLOW
from ..ops.control_flow import loop
from ..ops.fused import OPS as FUSED
from ..passes.dead_code import eliminate_dead_code
from ..plugin.registry import Registry
from .declared import check_declared
from .placement import Pins


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel on a device, or a device that runs the node's bodies itself."""

    device: str
    kernel: Kernel | None
    bodies: tuple[Selection, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """A graph in which every node that isn't a view has a choice.

    Attributes:
        refusals: (node name, device) to the reason why the device did not take it.
    """

    graph: Graph
    choices: Mapping[Node, Choice]
    refusals: Mapping[tuple[str, str], str]


def select(graph: Graph, pins: Pins, registry: Registry, steps: int = 0) -> Selection:
    """The graph with a kernel for every node, decomposing where that is needed.

    Per node: a kernel of the first device that takes it, or all nodes of its decomposition, then the next device; a
    pinned node asks its own device first. ``steps``: how often nodes were decomposed before.

    Raises:
        ModelError: no device takes a node; the message lists every such node with reasons.
        PluginError: two kernels of one plugin and priority take the same node, its op isn't the one of its name, or a
            decomposition doesn't end.
    """
    check_declared(graph.nodes, registry)  # decompositions have nodes that the graph of the user hadn't
    choices: dict[Node, Choice] = {}
    known: dict[object, Choice | None] = {}  # by op and dtypes, where no kernel looks further
    refusals: dict[tuple[str, str], str] = {}
    missing: list[str] = []
    expand: set[Node] = set()
    refusing = {name for name, *_ in pins.refused}
    terms: dict[object, bool] = {}  # by what a node is: whether devices before its taker take its terms instead

    def takes_terms(node: Node, devices: Sequence[str], taker: str) -> bool:
        if taker == devices[0]:
            return False
        types = tuple([None if v is None else v.type for v in node.inputs])
        form = node.op, types, str(node.attributes), tuple(devices), taker, node.name if pins.refused else ""
        if form not in terms:
            terms[form] = _in_terms(node, devices, taker, pins, registry, steps)
        return terms[form]

    for node in graph.nodes:
        if node.op.view is not None:
            continue
        devices = pins.order(node)
        key = None if node.name in refusing else _key(node, devices, registry)
        choice = known.get(key) if key is not None else None
        if choice is None:
            choice = _choose(node, devices, registry, refusals, pins.refused)
            if key is not None and choice is not None and choice.device == devices[0]:
                known[key] = choice
        if node.op.decompose is not None and (choice is None or takes_terms(node, devices, choice.device)):
            expand.add(node)
        elif choice is not None:
            choices[node] = choice
        else:
            reasons = "; ".join(f"{d}: {refusals[node.name, d]}" for d in pins.devices)
            missing.append(f"{node.describe()}: {reasons}")
    if missing:
        raise ModelError("no device takes these nodes:\n  " + "\n  ".join(missing))
    check_steps(steps, expand)
    if expand:
        return select(_decompose(graph, expand), pins, registry, steps + 1)
    return Selection(graph, choices, refusals)


def _key(node: Node, devices: Sequence[str], registry: Registry) -> object:
    """What alone decides about the choice for a node that the first device takes by dtypes; None when more does."""
    kernels = registry.kernels[devices[0]].get(node.op.name, ())
    if not kernels or node.bodies or any(kernel.accepts is not None for kernel in kernels):
        return None
    dtypes = tuple(None if v is None else v.type.dtype.code for v in (*node.inputs, *node.outputs))
    return devices[0], node.op.name, len(node.inputs), dtypes


def _choose(
    node: Node,
    devices: Sequence[str],
    registry: Registry,
    refusals: dict[tuple[str, str], str],
    refused: Mapping[tuple[str, str, str], str],
) -> Choice | None:
    for device in devices:
        if (node.name, device, "") in refused:
            refusals[node.name, device] = refused[node.name, device, ""]
            continue
        accepted: Kernel | None = None
        reasons = []
        if node.op in CONTROL_FLOW and registry.devices[device].bodies:
            try:
                return Choice(device, None, _select_bodies(node, device, registry, refused))
            except ModelError as error:
                reasons.append(f"its body: {error}")
        for kernel in registry.kernels[device].get(node.op.name, ()):
            if accepted is not None and (kernel.priority, kernel.plugin) != (accepted.priority, accepted.plugin):
                break  # what an earlier plugin has comes first
            reason = refused.get((node.name, device, kernel.name)) or kernel.refuses(node)
            if reason is not None:
                reasons.append(reason)
            elif accepted is not None:
                if not has_work(node):
                    break
                raise PluginError(
                    f"{node.describe()}: kernels {accepted.name!r} and {kernel.name!r} of device {device!r} by plugin "
                    f"{kernel.plugin} both take it with priority {kernel.priority}; give one of them a higher one, or "
                    f"leave the plugin out, DATAFLOW_PLUGINS=-{kernel.plugin}"
                )
            else:
                accepted = kernel
        if accepted is not None:
            return Choice(device, accepted)
        refusals[node.name, device] = "; ".join(reasons) or f"has no kernel for {node.op.name}"
    return None


def _in_terms(node: Node, devices: Sequence[str], taker: str, pins: Pins, registry: Registry, steps: int) -> bool:
    """Whether devices before the one that takes a node take its decomposition instead.

    They take all nodes of it: else intermediate results would go back and forth between memories, and what has a kernel
    would be computed without it. Of what passes fuse they take any, as they would if it weren't fused.
    """
    earlier = devices[: devices.index(taker)]
    if node.bodies:
        return True
    builder = GraphBuilder(node.name)
    given = [
        None if value is None else builder.input(f"x{index}", value.type.dtype, value.type.shape)
        for index, value in enumerate(node.inputs)
    ]
    builder.origin = node.origin or node.name
    with builder.scope(node.name):
        for index, value in enumerate(decomposed(node, given)):
            if value is not None and node.outputs[index] is not None:
                builder.output(f"y{index}", value)
    made = eliminate_dead_code(builder.build())
    if all(inner.op.view is not None for inner in made.nodes):
        return True
    try:
        taken = [choice.device in earlier for choice in select(made, pins, registry, steps + 1).choices.values()]
    except ModelError:  # what it is made of has no kernel at all
        return False
    return any(taken) if node.op.pattern or node.op in FUSED else all(taken)


def _select_bodies(
    node: Node, device: str, registry: Registry, refused: Mapping[tuple[str, str, str], str]
) -> tuple[Selection, ...]:
    """The bodies with a kernel of ``device`` for every node; raises ModelError when there is none."""
    inner = [n for body in node.bodies for n in body.nodes if n.bodies]
    if inner and not registry.devices[device].nested_bodies:
        raise ModelError(f"{inner[0].describe()} has a body of its own, which the device takes in no body")
    if node.op is loop and len(node.outputs) > 1 + node.attributes["n_carries"]:
        raise ModelError("a loop whose number of iterations depends on data stacks results")
    return tuple(select(eliminate_dead_code(body), Pins((device,), refused=refused), registry) for body in node.bodies)


def _decompose(graph: Graph, expand: set[Node]) -> Graph:
    """The graph with these nodes replaced by their decompositions."""

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if node not in expand:
            return None
        with builder.scope(node.name):
            return decomposed(node, inputs)

    return eliminate_dead_code(rewrite(graph, replace))
