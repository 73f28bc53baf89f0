"""The order of a file's nodes. ONNX wants them sorted; converters to float16 append the casts that nodes read."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .records import NodeRecord


def sort_nodes(nodes: Sequence[NodeRecord]) -> tuple[NodeRecord, ...]:
    """The nodes, each behind those whose results it reads, else as in the file; what is in a cycle comes last."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    if all(makers.get(name, -1) < index for index, node in enumerate(nodes) for name in node.reads()):
        return tuple(nodes)  # as in almost every file
    waits: list[int] = []  # for how many nodes each still waits
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        sources = {makers[name] for name in node.reads() if name in makers}
        waits.append(len(sources))
        for source in sources:
            readers.setdefault(source, []).append(index)
    ready = [index for index, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers.get(order[-1], ()):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    order += [index for index, count in enumerate(waits) if count]
    return tuple(nodes[index] for index in order)
