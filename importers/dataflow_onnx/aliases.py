"""Aliases of stored tensors: an exporter may number them, and users look for the names of modules and nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .file.records import NodeRecord

_OPERANDS = {
    "Conv": {1: "weight", 2: "bias"},
    "Gemm": {1: "weight", 2: "bias"},
    "MatMul": {0: "weight", 1: "weight"},
    "Add": {0: "bias", 1: "bias"},
    "Mul": {0: "scale", 1: "scale"},
    "BatchNormalization": {1: "scale", 2: "bias", 3: "mean", 4: "var"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "Gather": {0: "weight"},
    "GroupNormalization": {1: "weight", 2: "bias"},
    "InstanceNormalization": {1: "weight", 2: "bias"},
    "LayerNormalization": {1: "weight", 2: "bias"},
    "PRelu": {1: "weight"},
    "RMSNormalization": {1: "weight"},
    **{op: {1: "W", 2: "R", 3: "B", 5: "initial_h", 6: "initial_c", 7: "P"} for op in ("GRU", "LSTM", "RNN")},
}


def aliases_of(nodes: Sequence[NodeRecord], stored: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Per stored tensor: names of the nodes that read it, and of their modules, with the operand's name."""
    stored = set(stored)
    found: dict[str, list[str]] = {}
    for node in nodes if stored else ():
        if stored.isdisjoint(node.inputs):
            continue
        path = node.name or (node.outputs[0] if node.outputs else "")
        scope = node.scope
        operands = {} if node.domain else _OPERANDS.get(node.op, {})
        for index, name in enumerate(node.inputs):
            if name in stored:
                label = operands.get(index, f"input{index}")
                known = found.setdefault(name, [])
                known.append(f"{path}.{label}")
                if scope:
                    known.append(f"{scope}.{label}")
    return {name: tuple(path for path in dict.fromkeys(paths) if path != name) for name, paths in found.items()}
