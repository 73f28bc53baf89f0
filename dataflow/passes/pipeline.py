"""The passes between a bound graph and its placement on devices: the core's in their order, and where plugins' go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import Cancelled, DataflowError, LimitExceeded, OutOfMemoryError, PluginError, blamed, failure
from ..ir.graph import Graph, Node
from ..ir.kernel import Kernel, Targets
from ..ir.op import AnyOp
from .constant_folding import fold
from .conv_pads import pad_in_convs
from .dead_code import eliminate_dead_code
from .fold_affine import fold_affine
from .fuse import fuse
from .fuse_attention import fuse_attention
from .fuse_elementwise import fuse_elementwise
from .identities import remove_identities
from .layout.convolutions import put_convs_last
from .merged_transpose import transpose_without_merging
from .padding_taps import drop_padding_taps
from .product_factors import move_product_factors
from .quantized.channels_last import put_channels_last
from .quantized.integers import OPS as INTEGER_OPS
from .quantized.integers import expand_blocks, use_integers
from .quantized.large_biases import add_large_biases
from .quantized.lookups import use_lookups
from .rounding.classes import pad_classes
from .rounding.products import round_products
from .squares import multiply_squares
from .training.addends import add_to_gradients
from .training.attention_sums import sum_with_attention_gradients
from .training.channel_sums import sum_with_elementwise
from .training.loss_gradients import join_loss_gradients
from .training.norm_relu import fuse_norm_relu
from .training.scaled_convs import scale_convs
from .training.square_sums import join_square_sums
from .transposed_concat import transpose_before_concat
from .transposed_matmul import swap_transposed_matmuls
from .upcast import upcast

Phase = Literal["differentiate", "simplify", "fold", "fuse"]
"""When a pass runs. ``differentiate``: on a model in training, before its gradients are built, but not with
``fuse=False``. The others run in this order on every graph, which may be one with gradients: ``simplify`` always,
``fold`` but with ``fold=False``, ``fuse`` but with ``fuse=False``."""
CORE = "dataflow"


@dataclass(frozen=True, slots=True)
class Context:
    """What a pass may look at beside the graph.

    Attributes:
        mutable: names of initializers that some program changes: to a pass they are no constants.
        reference: kernels by op that compute constants: ``code(attributes, *arrays)``.
        targets: the devices that may run the graph, with their kernels.
        ops: declarations by name, those of plugins too.
        rounds: whether products are computed from operands rounded to bfloat16.
        reduced: whether products of float32 may be computed from operands rounded to TF32 or less.
    """

    mutable: Collection[str]
    reference: Mapping[str, tuple[Kernel, ...]]
    targets: Targets
    ops: Mapping[str, AnyOp]
    rounds: bool = False
    reduced: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """A function from graph to graph that runs when a plan is made.

    Attributes:
        name: unique in the phase.
        phase: when it runs.
        run: gives a graph with the same inputs, outputs and states; every dim is an int.
        before: names of passes of the phase that run later. Where they leave a choice, a pass runs as late as it can.
        after: names of passes of the phase that run earlier.
        plugin: who offers it; filled in when plugins are loaded.
    """

    name: str
    phase: Phase
    run: Callable[[Graph, Context], Graph]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    plugin: str = CORE


def _of_floats(at: Context) -> list[AnyOp]:
    """The ops but those that ``use_integers`` has found before constants were folded."""
    return [op for op in at.ops.values() if op.pattern and op.name not in INTEGER_OPS]


def _with_channels_last(graph: Graph, at: Context) -> Graph:
    """The graph with convolutions in the layout of a device's tensor cores, and constant weights in it too."""
    made = put_convs_last(graph, at.targets) if at.reduced else graph
    return graph if made is graph else eliminate_dead_code(fold(made, at.reference, at.mutable))


PIPELINE: tuple[Pass, ...] = (
    Pass("identities", "differentiate", lambda graph, at: remove_identities(graph)),
    Pass("merged_transpose", "differentiate", lambda graph, at: transpose_without_merging(graph)),
    Pass("conv_pads", "differentiate", lambda graph, at: pad_in_convs(graph, at.mutable)),
    Pass("padding_taps", "differentiate", lambda graph, at: drop_padding_taps(graph)),
    # Before gradients are built: these are then computed in float32 too, and fused as those of float32 are.
    Pass("upcast", "differentiate", lambda graph, at: upcast(graph, at.targets)),
    Pass("expand_blocks", "differentiate", lambda graph, at: expand_blocks(graph, at.targets)),
    Pass("scaled_convs", "differentiate", lambda graph, at: scale_convs(graph, at.mutable)),  # folded next
    Pass("constant_folding", "differentiate", lambda graph, at: fold(graph, at.reference, at.mutable)),
    # What a fused op keeps for its gradient is less than what its parts would keep.
    Pass(
        "fuse_attention",
        "differentiate",
        lambda graph, at: fuse_attention(graph, at.targets, at.mutable, differentiable=True),
    ),
    Pass(
        "fuse",
        "differentiate",
        lambda graph, at: fuse(graph, at.targets, at.ops.values(), at.mutable, differentiable=True),
    ),
    Pass("norm_relu", "differentiate", lambda graph, at: fuse_norm_relu(graph, at.targets)),
    Pass("squares", "differentiate", lambda graph, at: multiply_squares(graph, at.mutable)),  # after norms'
    Pass("identities", "simplify", lambda graph, at: remove_identities(graph)),
    Pass("merged_transpose", "simplify", lambda graph, at: transpose_without_merging(graph)),
    Pass("conv_pads", "simplify", lambda graph, at: pad_in_convs(graph, at.mutable)),
    Pass("dead_code", "simplify", lambda graph, at: eliminate_dead_code(graph)),
    Pass("padding_taps", "simplify", lambda graph, at: drop_padding_taps(graph)),
    Pass("upcast", "simplify", lambda graph, at: upcast(graph, at.targets)),
    Pass("transposed_matmul", "simplify", lambda graph, at: swap_transposed_matmuls(graph)),
    Pass("transposed_concat", "simplify", lambda graph, at: transpose_before_concat(graph)),
    Pass("expand_blocks", "fold", lambda graph, at: expand_blocks(graph, at.targets)),
    Pass("use_integers", "fold", lambda graph, at: use_integers(graph, at.targets, at.mutable)),
    Pass("channels_last", "fold", lambda graph, at: put_channels_last(graph, at.targets)),
    Pass("lookups", "fold", lambda graph, at: use_lookups(graph, at.targets, at.mutable)),  # tables are folded next
    Pass("constant_folding", "fold", lambda graph, at: eliminate_dead_code(fold(graph, at.reference, at.mutable))),
    Pass("large_biases", "fold", lambda graph, at: add_large_biases(graph, at.reference)),
    Pass("fold_affine", "fold", lambda graph, at: fold_affine(graph, at.reference, at.mutable)),
    Pass("fuse_attention", "fuse", lambda graph, at: fuse_attention(graph, at.targets, at.mutable)),
    Pass("fuse", "fuse", lambda graph, at: fuse(graph, at.targets, _of_floats(at), at.mutable)),
    Pass("conv_layout", "fuse", lambda graph, at: _with_channels_last(graph, at)),
    Pass("product_factors", "fuse", lambda graph, at: move_product_factors(graph, at.mutable)),  # after attention's
    Pass("squares", "fuse", lambda graph, at: multiply_squares(graph, at.mutable)),
    Pass("addends", "fuse", lambda graph, at: add_to_gradients(graph, at.targets)),
    Pass("fuse_elementwise", "fuse", lambda graph, at: fuse_elementwise(graph, at.targets)),
    Pass("channel_sums", "fuse", lambda graph, at: sum_with_elementwise(graph, at.targets)),
    Pass("attention_sums", "fuse", lambda graph, at: sum_with_attention_gradients(graph, at.targets)),
    Pass("square_sums", "fuse", lambda graph, at: join_square_sums(graph, at.targets)),
    Pass("pad_classes", "fuse", lambda graph, at: pad_classes(graph, at.targets) if at.reduced else graph),
    Pass("loss_gradients", "fuse", lambda graph, at: join_loss_gradients(graph, at.targets)),
    Pass(
        "round_products",
        "fuse",
        lambda graph, at: round_products(graph, at.targets, at.mutable) if at.rounds else graph,
    ),
)


def run_phases(passes: Iterable[Pass], phases: Collection[Phase], graph: Graph, context: Context) -> Graph:
    """The graph after all passes of some phases.

    Raises:
        PluginError: a plugin's pass fails or returns an invalid graph.
    """
    for one in passes:
        if one.phase in phases:
            graph = one.run(graph, context) if one.plugin == CORE else _run_checked(one, graph, context)
    return graph


def _run_checked(one: Pass, graph: Graph, context: Context) -> Graph:
    named = f"pass {one.name!r} of the plugin {one.plugin}"
    try:
        made = one.run(graph, context)
    except (Cancelled, LimitExceeded, MemoryError, OutOfMemoryError):
        raise  # not the pass's alone
    except (Exception, SystemExit) as error:  # anybody's code; the process is the user's
        raise failure(named, error) from error
    problem = _invalid(graph, made)
    if problem is not None:
        raise PluginError(f"{named} returned an invalid graph: {problem}")
    return made


def _invalid(before: Graph, after: object) -> str | None:
    """Why ``after`` can't replace ``before``, or None."""
    if not isinstance(after, Graph):
        return f"expected a Graph, got {type(after).__name__}"
    for what, old, new in (
        ("inputs", [(v.name, v.type) for v in before.inputs], [(v.name, v.type) for v in after.inputs]),
        ("outputs", {n: v.type for n, v in before.outputs.items()}, {n: v.type for n, v in after.outputs.items()}),
        ("states", {s.name: s.after.type for s in before.states}, {s.name: s.after.type for s in after.states}),
    ):
        if old != new:
            return f"its {what} were {old} and are {new}"
    known = set(before.nodes)
    try:
        after.check()
        return next(filter(None, (_ill_typed(node) for node in after.nodes if node not in known)), None)
    except DataflowError as error:
        return str(error)


def _ill_typed(node: Node) -> str | None:
    """Where the types of a node's results aren't those that its op infers, or None."""
    types = [None if v is None else v.type for v in node.inputs]
    bodies = {"bodies": node.bodies} if node.op.bodies else {}
    with blamed(f"{node.describe()}: infer"):
        inferred = node.op.infer(*types, **bodies, **node.attributes)
    for value, expected in zip(node.outputs, inferred if isinstance(inferred, tuple) else (inferred,), strict=False):
        if value is not None and value.type != expected:
            return f"{node.describe()}: its result {value!r} should be {expected}"
    return None


# ---- where passes of plugins go ----------------------------------------------------------------------------


def arranged(offered: Sequence[Pass]) -> tuple[Pass, ...]:
    """The core's passes and those of plugins in the order in which they run.

    Raises:
        PluginError: a phase or a pass that there is not, a name that occurs twice, or a cycle; names the plugins.
    """
    phases: tuple[Phase, ...] = get_args(Phase)
    for one in offered:
        if one.phase not in phases:
            raise PluginError(f"{_shown(one)} has the phase {one.phase!r}; there are: {', '.join(phases)}")
    found: list[Pass] = []
    for phase in phases:
        own = [one for one in PIPELINE if one.phase == phase]
        found += _ordered(own, [one for one in offered if one.phase == phase])
    return tuple(found)


def _ordered(own: Sequence[Pass], offered: Sequence[Pass]) -> list[Pass]:
    """The passes of a phase: the core's in their order, each other one as late as it may run."""
    named: dict[str, Pass] = {}
    for one in (*own, *offered):
        known = named.setdefault(one.name, one)
        if known is not one:
            text = f"pass {one.name!r} of the phase {one.phase!r}"
            raise PluginError(f"{text} is offered twice: by {known.plugin} and by {one.plugin}")
    earlier: dict[str, set[str]] = {name: set() for name in named}
    for first, second in itertools.pairwise(own):
        earlier[second.name].add(first.name)
    for one in offered:
        for name in (*one.before, *one.after):
            if name not in named:
                raise PluginError(
                    f"{_shown(one)} refers to {name!r}; passes of the phase {one.phase!r} are: {', '.join(named)}"
                )
        earlier[one.name] |= set(one.after)
        for name in one.before:
            earlier[name].add(one.name)
    found: dict[str, Pass] = {}
    while len(found) < len(named):
        # The core's stand first in ``named``: a plugin's pass runs when the next of the core's must wait for it.
        ready = next((n for n in named if n not in found and earlier[n] <= found.keys()), None)
        if ready is None:
            left = ", ".join(_shown(one) for one in offered if one.name not in found)
            raise PluginError(f"these run before and after each other in a circle: {left}")
        found[ready] = named[ready]
    return [*found.values()]


def _shown(one: Pass) -> str:
    return f"pass {one.name!r} of the plugin {one.plugin}"
