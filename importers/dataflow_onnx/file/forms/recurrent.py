"""Forms of recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow import Node

from .writer import Form, Writer, numbers, operand


def recurrent(kind: str) -> Form:
    """One layer in one direction. Here its inputs are multiplied already: there they are, by 1."""

    def form(w: Writer, node: Node) -> None:
        x, r = operand(node), operand(node, 1)
        named = dict(zip((name.rstrip("?") for name in node.op.inputs), node.inputs, strict=False))
        hidden, width = numbers([r.type.shape[1], r.type.shape[0]], "sizes of a state")
        eye = w.stored(np.eye(width, dtype=x.type.dtype.numpy)[None])
        added = ""
        if named.get("bias") is not None:
            nothing = w.stored(np.zeros(width, x.type.dtype.numpy))
            both = w.made("Concat", [nothing, w.name(named["bias"])], axis=0)
            added = w.made("Unsqueeze", [both, w.ints([0])])

        def state(name: str) -> str:
            value = named.get(name)
            return "" if value is None else w.made("Unsqueeze", [w.name(value), w.ints([0])])

        weight = w.made("Unsqueeze", [w.name(r), w.ints([0])])
        operands = [w.name(x), eye, weight, added, "", state("h"), *([state("c")] if kind == "LSTM" else [])]
        kept: dict[str, Any] = {
            "hidden_size": hidden,
            "direction": "reverse" if node.attributes["reverse"] else "forward",
        }
        if kind == "GRU":
            kept["linear_before_reset"] = 1
        if node.attributes.get("relu"):
            kept["activations"] = ["Relu"]
        outputs = w.outputs(node)
        inner = [w.unique(f"{name}.directions") for name in outputs]
        w.add(kind, operands, inner, node.name, **kept)
        for axis, (name, made) in enumerate(zip(outputs, inner, strict=True)):
            w.add("Squeeze", [made, w.ints([1 if axis == 0 else 0])], [name])

    return form
