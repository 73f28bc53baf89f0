"""Drops the taps of a convolution that read nothing but its padding.

On a small map a kernel with large dilations reaches beyond both edges: of 3x3 taps that lie 12 apart, with as much
padding, only the middle one reads an element of a 6x6 map, and the other eight would be nine tenths of the work.
A transposed convolution of a map of one position, as generators of images begin with, is a convolution whose windows
read that element and padding: y[n, c, t] = sum over f of x[n, f] w[f, c, t], a product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.value import Value
from ..ops.conv import conv, conv_grad_input
from ..ops.linalg import matmul
from ..ops.shape import reshape, slice_


def drop_padding_taps(graph: Graph) -> Graph:
    """The graph with smaller kernels, slices of the weights, where first or last taps read zeros only, and products.

    A weight that such a tap would multiply with zero counts as finite.
    """
    ranges = {node: _read_taps(node) for node in graph.nodes if node.op is conv}
    products = {node for node in graph.nodes if node.op is conv_grad_input and _is_product(node)}
    if not products and all(_is_complete(node, kept) for node, kept in ranges.items()):
        return graph

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if node in products:
            return (_product(node, inputs),)
        kept = ranges.get(node)
        if kept is None or _is_complete(node, kept):
            return None
        x, w, *rest = inputs
        assert x is not None
        assert w is not None
        rank, sizes = len(kept), w.type.sizes
        starts, stops = (0, 0, *(first for first, _ in kept)), (*sizes[:2], *(stop for _, stop in kept))
        weight = slice_(w, starts=starts, stops=stops, steps=(1,) * (rank + 2))
        pads, dilations = node.attributes["pads"], node.attributes["dilations"]
        before = [pads[i] - kept[i][0] * dilations[i] for i in range(rank)]
        after = [pads[rank + i] - (sizes[2 + i] - kept[i][1]) * dilations[i] for i in range(rank)]
        return (conv(x, weight, *rest, **{**node.attributes, "pads": (*before, *after)}, name=node.name),)

    return rewrite(graph, replace)


def _read_taps(node: Node) -> list[tuple[int, int]]:
    """For each axis of a convolution the first tap to keep and the one behind the last."""
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    assert x is not None
    assert w is not None
    assert y is not None
    a = node.attributes
    rank = w.type.rank - 2
    axes = zip(x.type.sizes[2:], w.type.sizes[2:], y.type.sizes[2:], a["strides"], a["dilations"], strict=True)
    found = []
    for i, (size, taps, results, stride, dilation) in enumerate(axes):
        before, after = a["pads"][i], a["pads"][rank + i]
        reach = (results - 1) * stride  # from the first window to the last
        read = [t for t in range(taps) if t * dilation - before + reach >= 0 and t * dilation - before < size]
        # What is dropped is taken off the padding, which can't become negative.
        first = min(read[0], before // dilation) if read else 0
        dropped = min(taps - 1 - read[-1], after // dilation) if read else 0
        found.append((first, taps - dropped))
    return found


def _is_complete(node: Node, kept: Sequence[tuple[int, int]]) -> bool:
    """True where no tap can go."""
    w = node.inputs[1]
    assert w is not None
    return all(pair == (0, taps) for pair, taps in zip(kept, w.type.sizes[2:], strict=True))


def _is_product(node: Node) -> bool:
    """Whether a transposed convolution gives each tap times the only element of a map; single taps stay as they are."""
    dy, w = node.inputs[:2]
    assert dy is not None
    assert w is not None
    kernel = w.type.sizes[2:]
    one = (1,) * len(kernel)
    complete = tuple(node.attributes["input_shape"][2:]) == kernel != one and dy.type.sizes[2:] == one
    return complete and node.attributes["groups"] == 1 and not any(node.attributes["pads"])


def _product(node: Node, inputs: Sequence[Value | None]) -> Value:
    dy, w = inputs
    assert dy is not None
    assert w is not None
    filters, *sizes = w.type.sizes
    rows = reshape(dy, shape=(dy.type.sizes[0], filters))
    product = matmul(rows, reshape(w, shape=(filters, math.prod(sizes))), name=node.name)
    return reshape(product, shape=node.attributes["input_shape"])
