"""What a file declares of its outputs, compared with what its nodes compute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from dataflow import DType
from dataflow.errors import ModelError
from dataflow.plugin import Size

from .file.records import GraphRecord, NodeRecord, passed_on_as
from .tensor import Tensor

_log = logging.getLogger("dataflow")


def check_dtypes(
    graph: GraphRecord, outputs: Iterable[str], tensors: Mapping[str, Tensor], where: Callable[[NodeRecord], str]
) -> None:
    """Refuses outputs that are no tensors, or of another dtype, where the file declares one.

    Args:
        graph: the main one.
        outputs: names.
        tensors: what they are.
        where: a node, for messages.

    Raises:
        ModelError: names the first such output, its type, what is declared and the node that computes it.
    """
    for name in outputs:
        tensor, declared, form = tensors[name], graph.declared.get(name), graph.forms.get(name)
        if tensor.is_sequence or tensor.is_absent:
            if declared is not None:
                raise ModelError(f"output {name!r} is declared as {declared}, but is no tensor")
            continue
        if declared is None and form is not None and not (form.sequence or form.optional):
            dtype: DType | None = form.dtype  # of any rank
        else:
            dtype = None if declared is None else declared.dtype
        if dtype is not None and tensor.type.dtype != dtype:
            node = _maker(name, graph)
            raise ModelError(
                f"{'' if node is None else where(node) + ': '}output {name!r} is {tensor.type}, and the file declares "
                f"it as {declared or dtype}: one of the two is wrong"
            )


def _maker(name: str, graph: GraphRecord) -> NodeRecord | None:
    """The node that computes a value, before those that pass it on; None: it isn't computed."""
    makers = {output: node for node in graph.nodes for output in node.outputs}
    return makers.get(passed_on_as(name, graph.nodes), makers.get(name))


def warn_of_shapes(path: str, graph: GraphRecord, outputs: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
    """Says once which outputs have another rank or other sizes than the file declares; what is computed counts.

    A size of 0 isn't compared: exporters write it where they know none.
    """
    found = []
    for name in outputs:
        declared, tensor = graph.declared.get(name), tensors[name]
        if declared is None or tensor.is_sequence or tensor.is_absent:
            continue
        if not _agree(declared.shape, tensor.type.shape):
            found.append(f"{name!r} is {tensor.type}, declared as {declared}")
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        _log.warning("%s: shapes of outputs aren't what the file declares: %s%s", path, found[0], more)


def _agree(declared: Sequence[Size], computed: Sequence[Size]) -> bool:
    """Whether the ranks are the same, and all sizes that both have as numbers."""
    return len(declared) == len(computed) and all(
        a == b or a == 0 or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(declared, computed, strict=True)
    )
