"""Graph -> Graph: nodes of floats of fewer bits that a device computes in float32 only stand between casts.

Between two such nodes of float16 or bfloat16 the value stays float32: it is rounded where it is an output or a state,
where the model casts it, and where a node takes it as it is. ONNX Runtime rounds it after each node. Floats of 8 and 4
bits are rounded after each node, as by the reference; not within one that is decomposed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..errors import InputError, blamed
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.kernel import Kernel, Targets
from ..ir.op import Attribute
from ..ir.rewrite import rewrite
from ..ir.types import DTYPES, DType, TensorType, bfloat16, float16, float32
from ..ir.value import Value
from ..ops.cast import cast
from .dead_code import eliminate_dead_code

_HALVES = frozenset({float16, bfloat16})
_NARROW = _HALVES | {dtype for dtype in DTYPES if dtype.is_float and dtype.bits < 16}


def upcast(graph: Graph, targets: Targets) -> Graph:
    """The graph with nodes in float32 for those of fewer bits that the device which would run them has no kernel for.

    A node is computed as it is where a device takes that: most that only move elements are. These are moved as float32
    where most of their elements are float32 already. A stored operand stays as it is where a kernel of float32 reads
    it so, as products of matrices do. Bodies are graphs of their own.

    Args:
        graph: bound.
        targets: the devices and their kernels.
    """
    return eliminate_dead_code(_upcast(graph, targets), extras=False) if _has_narrow(graph) else graph


def _has_narrow(graph: Graph) -> bool:
    if not _NARROW.isdisjoint([value.type.dtype for value in graph.values()]):
        return True
    return any(_has_narrow(body) for node in graph.nodes if node.bodies for body in node.bodies)


def _upcast(graph: Graph, targets: Targets) -> Graph:
    return rewrite(graph, _Upcast(targets).replace)


class _Upcast:
    """What is known of the new graph while it is built.

    Attributes:
        float32: values of fewer bits as float32.
        computed: those of 16 bits that were computed in float32; the others are casts of the value.
        stored: initializers of fewer bits and views of them.
    """

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.float32: dict[Value, Value] = {}
        self.computed: set[Value] = set()
        self.stored: set[Value] = set()

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """What stands for the outputs of a node; None: the node as it is. See ``rewrite``."""
        if node.bodies:
            bodies = tuple(_upcast(body, self.targets) if _has_narrow(body) else body for body in node.bodies)
            return builder.again(dataclasses.replace(node, bodies=bodies), inputs).outputs
        if not any(value is not None and value.type.dtype in _NARROW for value in (*node.inputs, *node.outputs)):
            return None
        if node.op is cast:
            return self.converted(builder, node, inputs[0])
        self.stored.update(v for v in inputs if v is not None and builder.initializer_of(v) is not None)
        wanted = self.chosen(node, inputs)
        if wanted is not None:
            return self.add(builder, node, wanted, inputs)
        made = builder.again(node, inputs).outputs
        if node.op.view is not None and inputs[0] in self.stored:
            self.stored.update(v for v in made if v is not None)
        return made

    def converted(self, builder: GraphBuilder, node: Node, x: Value | None) -> Sequence[Value | None] | None:
        """A cast of the model: to another float from what was computed; from a float of more bits it rounds."""
        result = node.outputs[0]
        assert x is not None and result is not None
        exact = self.float32.get(x) if result.type.dtype.is_float else None
        if exact is None:
            return None
        return (exact,) if result.type.dtype == float32 else builder.again(node, (exact,)).outputs

    def chosen(self, node: Node, inputs: Sequence[Value | None]) -> Node | None:
        """The node as it is to be computed in float32; None: as it is."""
        wanted = _in_float32(node)
        if wanted is None:
            return None
        for device in self.targets.order(node):
            kernels = self.targets.kernels[device].get(node.op.name, ())
            as_float32 = node.op.view is not None or _takes(kernels, wanted)
            if node.op.view is not None or _takes(kernels, node):
                return wanted if as_float32 and self.is_mostly_float32(inputs) else None
            if as_float32 or node.op.decompose is not None:
                return self.with_stored(kernels, node, inputs) or wanted
        return None

    def with_stored(self, kernels: Sequence[Kernel], node: Node, inputs: Sequence[Value | None]) -> Node | None:
        """The node in float32 but for one stored operand that a kernel reads in 16 bits."""
        for index, value in enumerate(inputs):
            if value is None or value not in self.stored or value.type.dtype not in _HALVES:
                continue
            if any(value.type.dtype in (k.input_spec(index).dtypes or ()) for k in kernels):
                wanted = _in_float32(node, index)
                if wanted is not None and _takes(kernels, wanted):
                    return wanted
        return None

    def is_mostly_float32(self, inputs: Sequence[Value | None]) -> bool:
        """Whether fewer elements would be cast to compute in float32 than to compute as it is."""
        narrow = {v for v in inputs if v is not None and v.type.dtype in _NARROW}
        computed = sum(v.type.elements for v in narrow & self.computed)
        return computed > sum(v.type.elements for v in narrow - self.float32.keys() - self.stored)

    def add(
        self, builder: GraphBuilder, node: Node, wanted: Node, inputs: Sequence[Value | None]
    ) -> list[Value | None]:
        """Adds a node in float32, with casts of its results, which dead code elimination removes where nobody reads."""
        operands = [self.in_dtype(builder, node, v, like) for v, like in zip(inputs, wanted.inputs, strict=True)]
        outputs = tuple(
            new if old is None or new is None or new.type == old.type else _named(builder, old, new.type)
            for old, new in zip(node.outputs, wanted.outputs, strict=True)
        )
        made = builder.again(dataclasses.replace(wanted, outputs=outputs), operands)
        return [self.rounded(builder, node, *pair) for pair in zip(node.outputs, made.outputs, strict=True)]

    def rounded(self, builder: GraphBuilder, node: Node, old: Value | None, exact: Value | None) -> Value | None:
        """A result as the model has it, by name and dtype."""
        if old is None or exact is None or old.type == exact.type:
            return exact
        result = _add_cast(builder, node, exact, old)
        if old.type.dtype in _HALVES:
            self.float32[result] = exact
            self.computed.add(result)
        return result

    def in_dtype(self, builder: GraphBuilder, node: Node, value: Value | None, like: Value | None) -> Value | None:
        """An operand of ``node`` in the dtype of another value: as it is, or as float32, once."""
        if value is None or like is None or value.type.dtype == like.type.dtype:
            return value
        found = self.float32.get(value)
        if found is None:
            found = self.float32[value] = _add_cast(builder, node, value, _named(builder, value, like.type))
        return found


def _named(builder: GraphBuilder, value: Value, type_: TensorType) -> Value:
    """The name and type of a value as float32."""
    return Value(builder.free_name(f"{value.name}/float32"), type_, None)


def _add_cast(builder: GraphBuilder, node: Node, x: Value, result: Value) -> Value:
    """A cast beside ``node``, to the type of ``result`` and under its name."""
    attributes = _attributes_of_cast(result.type.dtype)
    new = Node(cast, f"{node.name}/cast", (x,), (result,), attributes, (), node.origin, node.pin)
    (made,) = builder.again(new, (x,)).outputs
    assert made is not None
    return made


@functools.cache
def _attributes_of_cast(to: DType) -> Mapping[str, Attribute]:
    """Of a cast that rounds as arithmetic in that dtype does."""
    rounds: dict[str, Attribute] = {"saturate": False, "round_mode": "nearest"} if to.bits < 16 else {}
    return MappingProxyType(cast.complete({"to": to, **rounds}))


def _takes(kernels: Sequence[Kernel], node: Node) -> bool:
    return any(kernel.refuses(node) is None for kernel in kernels)


def _in_float32(node: Node, kept: int = -1) -> Node | None:
    """The node with float32 for floats of fewer bits, but of one operand; None where its op gives other results then.

    Args:
        node: any.
        kept: index of the operand.
    """
    inputs = tuple(
        None if v is None else Value(v.name, v.type if index == kept else _type(v.type), None)
        for index, v in enumerate(node.inputs)
    )
    attributes: dict[str, Attribute] = {
        key: float32 if isinstance(given, DType) and given in _NARROW else given
        for key, given in node.attributes.items()
    }
    try:
        with blamed(f"{node.describe()}: infer"):
            inferred = node.op.infer(*[None if v is None else v.type for v in inputs], **attributes)
    except InputError:
        return None
    types = inferred if isinstance(inferred, tuple) else (inferred,)
    if any(old is not None and new != _type(old.type) for old, new in zip(node.outputs, types, strict=False)):
        return None
    outputs = tuple(None if v is None else Value(v.name, _type(v.type), None) for v in node.outputs)
    return dataclasses.replace(node, inputs=inputs, outputs=outputs, attributes=attributes)


def _type(of: TensorType) -> TensorType:
    return TensorType(float32, of.shape) if of.dtype in _NARROW else of
