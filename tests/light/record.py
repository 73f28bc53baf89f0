"""Records the values before Softmax of the seeded light models, computed by PyTorch in float64; run by hand."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from onnx import helper, numpy_helper
from seeded import HERE, NAMES, inputs_of, seeded


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def padded(x, a, value=0.0):
    pads, spatial = a.get("pads"), x.ndim - 2
    assert a.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    if not pads or not any(pads):
        return x
    return F.pad(x, [p for i in range(spatial - 1, -1, -1) for p in (pads[i], pads[i + spatial])], value=value)


def compute(node, x):
    """The result of a node, in torch."""
    a, kind = attributes(node), node.op_type
    if kind == "Conv":
        bias = x[2] if len(x) > 2 else None
        return F.conv2d(padded(x[0], a), x[1], bias, a.get("strides", 1), 0, a.get("dilations", 1), a.get("group", 1))
    if kind == "Relu":
        return torch.relu(x[0])
    if kind == "MaxPool":
        return F.max_pool2d(padded(x[0], a, -np.inf), a["kernel_shape"], a.get("strides", 1))
    if kind == "AveragePool":
        total = F.avg_pool2d(padded(x[0], a), a["kernel_shape"], a.get("strides", 1), divisor_override=1)
        ones = padded(torch.ones_like(x[0]), a, 1.0 if a.get("count_include_pad") else 0.0)
        return total / F.avg_pool2d(ones, a["kernel_shape"], a.get("strides", 1), divisor_override=1)
    if kind == "GlobalAveragePool":
        return x[0].mean((2, 3), keepdim=True)
    if kind == "BatchNormalization":
        scale, bias, mean, var = (v.reshape(1, -1, 1, 1) for v in x[1:5])
        return (x[0] - mean) / torch.sqrt(var + a.get("epsilon", 1e-5)) * scale + bias
    if kind == "LRN":
        size = a["size"]
        squares = F.pad(x[0] ** 2, (0, 0, 0, 0, (size - 1) // 2, size // 2))
        total = sum(squares[:, i : i + x[0].shape[1]] for i in range(size))
        return x[0] / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / size * total) ** a.get("beta", 0.75)
    if kind == "Gemm":
        left = x[0].T if a.get("transA") else x[0]
        right = x[1].T if a.get("transB") else x[1]
        return a.get("alpha", 1.0) * left @ right + a.get("beta", 1.0) * x[2]
    if kind == "Reshape":
        shape = [x[0].shape[i] if n == 0 else int(n) for i, n in enumerate(x[1].long().tolist())]
        return x[0].reshape(shape)
    simple = {
        "Concat": lambda: torch.cat(x, a["axis"]),
        "Transpose": lambda: x[0].permute(*a["perm"]),
        "Softmax": lambda: x[0],  # the last one; nothing behind it is recorded
        "Dropout": lambda: x[0],
        "Add": lambda: x[0] + x[1],
        "Sum": lambda: sum(x[1:], x[0]),
        "Mul": lambda: x[0] * x[1],
        "Unsqueeze": lambda: x[0].reshape(
            [1 if i in a["axes"] else next(it) for it in [iter(x[0].shape)] for i in range(x[0].ndim + len(a["axes"]))]
        ),
    }
    return simple[kind]()


def main():
    digests, logits = {}, {}
    for name in NAMES:
        model, target = seeded(name, check=False)
        digest = hashlib.sha256()
        made = [t for t in model.graph.initializer if t.name in {v.name for v in model.graph.input}]
        shipped = {t.name for t in original(name).graph.initializer}
        for tensor in made:
            if tensor.name not in shipped:
                digest.update(numpy_helper.to_array(tensor).tobytes())
        digests[name] = digest.hexdigest()
        stored = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()).double() for t in model.graph.initializer}
        for index, feeds in enumerate(inputs_of(model)):
            known = stored | {n: torch.from_numpy(x).double() for n, x in feeds.items()}
            for node in model.graph.node:
                if node.op_type == "Constant":
                    known[node.output[0]] = torch.from_numpy(numpy_helper.to_array(node.attribute[0].t).copy()).double()
                    continue
                known[node.output[0]] = compute(node, [known[n] for n in node.input])
                if node.output[0] == target:
                    break
            logits[f"{name}/{index}"] = known[target].numpy()
        values = logits[f"{name}/0"].reshape(-1)
        print(name, values.shape, f"mean {values.mean():.3g}, deviation {values.std():.3g}")
    (HERE / "weights.json").write_text(json.dumps(digests, indent=1) + "\n")
    np.savez_compressed(HERE / "logits.npz", **logits)


def original(name):
    import onnx
    from seeded import SHIPPED

    return onnx.load(SHIPPED / f"light_{name}.onnx")


if __name__ == "__main__":
    main()
