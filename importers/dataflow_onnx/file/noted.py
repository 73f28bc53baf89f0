"""What a file says of its stored floats: parameters of a module, or tables, masks and frequencies beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .records import GraphRecord, Noted

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
REWRITTEN = "pkg.onnxscript.rewriter.rule_name"
CALL = "pkg.torch.onnx.fx_node"
# torch/export/graph_signature.py, torch/onnx/_internal/exporter/_core.py, onnxscript/optimizer/_constant_folding.py and
# onnxscript/rewriter/_rewrite_rule.py of 2.13 and 0.7 write them
_TARGET = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']*)'", re.MULTILINE)
_OPERAND = re.compile(r"%(\w+)")
_OF_A_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")  # as in its state_dict
_NAME = re.compile(r"'([^']*)'")


def text_under(key: str, proto: Any) -> str:
    """The text that a tool noted of a value or a graph of the file; "" where there is none."""
    for entry in proto.metadata_props:
        if entry.key == key:
            return str(entry.value)
    return ""


def texts_under(key: str, values: Iterable[Any]) -> dict[str, str]:
    """The texts of those values that have one, by name."""
    described = [value for value in values if value.metadata_props]
    return {value.name: text for value in described if (text := text_under(key, value))}


def noted(graph: GraphRecord, proto: Any, producer: str) -> Noted:
    """What a file says of its stored tensors.

    PyTorch notes in a graph what is a parameter of its module, and of which values it computed an initializer. Of other
    files: where weights are initializers, what nodes of ``Constant`` have is no parameter.

    Args:
        graph: the main one.
        proto: its protobuf, with the notes.
        producer: what wrote the file.
    """
    found, folded = _TARGET.findall(text_under(SIGNATURE, proto)), texts_under(FOLDED, proto.value_info)
    kinds = {target: kind for _, kind, target in found}
    learned = {target for target, kind in kinds.items() if kind == "PARAMETER"}
    buffers = set(kinds.keys() - learned)
    origins = {name: name for name in learned}
    computed = set()
    for name, sources in folded.items():
        of = learned.intersection(_NAME.findall(sources))
        if of:
            computed.add(name)
        if len(of) == 1:
            origins[name] = next(iter(of))
    if learned:
        buffers |= folded.keys() - computed
    if any(are_floats(array.dtype, array.shape) for array in graph.initializers.values()):
        buffers.update(_constants(graph))
    named = () if learned or producer != "pytorch" else _named(graph)
    stored = {*graph.initializers, *(origins[name] for name in computed & origins.keys())}
    absent = _biases_left_out(proto, {name: target for name, _, target in found if target in learned - stored})
    return Noted(frozenset(learned | computed), frozenset(buffers), frozenset(named), origins=origins, absent=absent)


def _biases_left_out(proto: Any, absent: Mapping[str, str]) -> tuple[str, ...]:
    """Biases that the module has and the file hasn't: onnxscript left them out, since they are zeros.

    Args:
        proto: the main graph.
        absent: parameters that the file doesn't store by their names, by the names that calls have for them.
    """
    found: dict[str, None] = {}
    for node in proto.node if absent else ():
        if "RemoveOptionalBias" in text_under(REWRITTEN, node):
            called = [absent[name] for name in _OPERAND.findall(text_under(CALL, node)) if name in absent]
            found.update(dict.fromkeys(name for name in called if "bias" in name.rpartition(".")[2]))
    return tuple(found)


def _named(graph: GraphRecord) -> Iterator[str]:
    """Floats that PyTorch's older exporter stores by the names of the module's parameters and buffers.

    What it computes is called ``onnx::Mul_12``, and literals come from nodes. The newer one has ``val_12`` for both,
    in files that lost their notes: a name without a dot counts where nodes have the older one's names.
    """
    older = any(node.name.startswith("/") for node in graph.nodes)
    for name, array in graph.initializers.items():
        if array.dtype.kind in "fV" and _OF_A_MODULE.fullmatch(name) and (older or "." in name):
            yield name


def has_floats(graph: GraphRecord) -> bool:
    """Whether initializers of a graph, or of bodies in it, are floats."""
    own = any(are_floats(array.dtype, array.shape) for array in graph.initializers.values())
    return own or any(has_floats(body) for node in graph.nodes for body in node.bodies)


def are_floats(dtype: np.dtype[Any], shape: Sequence[int]) -> bool:
    """Whether a tensor is of floats, and no literal of one element."""
    return dtype.kind in "fV" and math.prod(shape) > 1


def _constants(graph: GraphRecord) -> Iterator[str]:
    """What nodes of the main graph hold; of bodies see ``distinct``."""
    for node in graph.nodes:
        if node.op == "Constant":
            yield from node.outputs
