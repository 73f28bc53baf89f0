"""Forms of convolutions, pools and resampling; and of products with weights in blocks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dataflow import Dim, Node, int64
from dataflow.errors import ModelError

from ...shape_eval import product
from ..value_types import CODE_OF
from .writer import Form, Writer, numbers, operand, same

MICROSOFT = "com.microsoft"  # the domain of onnxruntime's own operators
CONV = {"strides": "strides", "pads": "pads", "dilations": "dilations", "groups": "group"}
MAX_POOL = {
    "kernel": "kernel_shape",
    "strides": "strides",
    "pads": "pads",
    "dilations": "dilations",
    "ceil_mode": "ceil_mode",
}
AVERAGE_POOL = {
    "kernel": "kernel_shape",
    "strides": "strides",
    "pads": "pads",
    "ceil_mode": "ceil_mode",
    "count_include_pad": "count_include_pad",
}


def window(kind: str, renamed: Mapping[str, str]) -> Form:
    """A convolution or a pool."""

    def form(w: Writer, node: Node) -> None:
        a = node.attributes
        numbers(a["pads"], "pads")
        more = dict(renamed)
        if kind == "AveragePool" and any(d != 1 for d in a["dilations"]):
            w.need(19)
            more["dilations"] = "dilations"
        same(kind, more)(w, node)

    return form


def max_pool(w: Writer, node: Node) -> None:
    """``MaxPool``, with indices where they are read."""
    indices = node.outputs[1] if len(node.outputs) > 1 else None
    if indices is None or not w.reads(indices):
        window("MaxPool", MAX_POOL)(w, node)
        return
    numbers(node.attributes["pads"], "pads")
    found = w.unique(f"{w.name(indices)}.all")  # they count through all planes
    kept = {there: node.attributes[own] for own, there in MAX_POOL.items()}
    w.add("MaxPool", w.inputs(node), [*w.outputs(node), found], node.name, **kept)
    within = w.made("Mod", [found, w.sizes([product(operand(node).type.shape[2:])])])
    w.add("Cast", [within], [w.name(indices)], to=CODE_OF[indices.type.dtype])


def conv_transpose(w: Writer, node: Node) -> None:
    """``ConvTranspose``, whose result is cropped or padded where its attributes can't say how large it is."""
    a, dy, weight = node.attributes, operand(node), operand(node, 1)
    count = len(a["strides"])
    before, after = numbers(a["pads"], "pads")[:count], []  # what the result has beyond all windows: less, or more
    for axis, wanted in enumerate(a["input_shape"][2:]):
        reach = (weight.type.shape[2 + axis] - 1) * a["dilations"][axis] + 1
        after.append(wanted + before[axis] - (dy.type.shape[2 + axis] - 1) * a["strides"][axis] - reach)
    kept = {there: a[own] for own, there in CONV.items()}
    more = [n + pad for n, pad in zip(after, a["pads"][count:], strict=True)]
    most = [max(pair) - 1 for pair in zip(a["strides"], a["dilations"], strict=True)]
    if all(not isinstance(n, Dim) and 0 <= n <= high for n, high in zip(more, most, strict=True)):
        w.add("ConvTranspose", w.inputs(node), w.outputs(node), node.name, output_padding=more, **kept)
        return
    found = w.made("ConvTranspose", w.inputs(node), **{**kept, "pads": [0] * (2 * count)})
    w.add("Pad", [found, w.sizes([0, 0, *(-n for n in before), 0, 0, *after])], w.outputs(node), node.name)


def resize(w: Writer, node: Node) -> None:
    """``Resize``, by sizes or by scales."""
    a = node.attributes
    w.need(18 if a["antialias"] else 13)
    dtype = np.float32
    roi = w.stored(np.asarray(a["roi"], dtype)) if a["roi"] else ""
    scales = w.stored(np.asarray(a["scales"], dtype)) if a["scales"] else ""
    operands = [w.inputs(node)[0], roi, scales, *([] if scales else [w.sizes(a["sizes"])])]
    kept = {"mode": a["mode"], "coordinate_transformation_mode": a["coordinates"], "nearest_mode": a["nearest"]}
    kept |= {"cubic_coeff_a": a["cubic_a"], "exclude_outside": a["exclude_outside"]}
    kept |= {"antialias": 1} if a["antialias"] else {}
    w.add("Resize", operands, w.outputs(node), node.name, **kept)


def grid_sample(w: Writer, node: Node) -> None:
    """``GridSample``."""
    a = node.attributes
    if not a["normalized"]:
        raise ModelError("positions in elements have no ONNX form; scale them to -1 to 1")
    w.need(20)
    kept = {"mode": a["mode"], "padding_mode": a["padding"], "align_corners": a["align_corners"]}
    w.add("GridSample", w.inputs(node), w.outputs(node), node.name, **kept)


def roi_align(w: Writer, node: Node) -> None:
    """``RoiAlign``."""
    a = node.attributes
    if len(a["size"]) != 2:
        raise ModelError(f"ONNX's regions have two axes, not {len(a['size'])}")
    if any(value is not None for value in node.inputs[3:]):
        raise ModelError("ONNX's regions read no other map where the samples of one are the largest")
    x, rois, batch = w.inputs(node)[:3]
    if operand(node, 2).type.dtype.name != "int64":
        batch = w.made("Cast", [batch], to=CODE_OF[int64])
    kept = {name: a[name] for name in ("mode", "sampling_ratio", "spatial_scale")}
    kept |= {"output_height": a["size"][0], "output_width": a["size"][1]}
    kept["coordinate_transformation_mode"] = "half_pixel" if a["half_pixel"] else "output_half_pixel"
    w.add("RoiAlign", [x, rois, batch], w.outputs(node), node.name, **kept)


def matmul_blocks(w: Writer, node: Node) -> None:
    """``MatMulNBits`` of onnxruntime."""
    scale, a = node.inputs[2], node.attributes
    if a["transposed"] or scale is None:
        raise ModelError("the product with the transposed weight has no ONNX form")
    kept = {"K": a["size"], "N": scale.type.sizes[0], "bits": a["bits"], "block_size": a["block"]}
    domain = w.domain(MICROSOFT, 1)
    w.add("MatMulNBits", w.inputs(node), w.outputs(node), node.name, domain=domain, **kept)
