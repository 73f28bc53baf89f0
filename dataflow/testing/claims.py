"""What kernel records claim, and samples of it: a dtype that no sample reaches gets one made from another's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import DataflowError
from ..ir.graph import Node
from ..ir.kernel import Kernel, OperandSpec
from ..ir.types import DType
from .sample import Operand, Sample


@dataclass(frozen=True, slots=True)
class Claim:
    """A dtype that a record takes or gives.

    Attributes:
        side: ``input`` or ``output``.
        index: of the operand.
    """

    side: str
    index: int
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype.short} at {self.side} {self.index}"

    def met_by(self, node: Node) -> bool:
        """Whether the operand of a node has the dtype; a repeated spec speaks of all operands from its own on."""
        values = node.inputs if self.side == "input" else node.outputs
        return any(v is not None and v.type.dtype == self.dtype for v in values[self.index :])


def claims_of(kernel: Kernel) -> list[Claim]:
    """Every dtype that a record names; ``any`` names none."""

    def side(name: str, specs: Sequence[OperandSpec]) -> Iterator[Claim]:
        for index, spec in enumerate(specs):
            yield from (Claim(name, index, d) for d in sorted(spec.dtypes or (), key=lambda d: d.code))

    return [*side("input", kernel.inputs), *side("output", kernel.outputs)]


def node_of(sample: Sample) -> Node | None:
    """The node of a sample, or None where its op refuses it."""
    try:
        node = sample.node
    except (DataflowError, ValueError, TypeError, OverflowError):
        return None
    return node


def missing(
    kernels: Iterable[Kernel], samples: Mapping[str, Sequence[Sample]]
) -> Iterator[tuple[Kernel, Claim, Sample | None]]:
    """The claims that no sample reaches, each with a sample that was made for it, or None.

    Args:
        kernels: of one device.
        samples: by name of the op.
    """
    for kernel in kernels:
        known = samples.get(kernel.op, ())
        nodes = [node for node in map(node_of, known) if node is not None and kernel.refuses(node) is None]
        left = [claim for claim in claims_of(kernel) if not any(claim.met_by(node) for node in nodes)]
        while left:
            claim = left.pop(0)
            made = next((s for s in _derived(known, claim) if _reaches(s, kernel, claim)), None)
            yield kernel, claim, made
            node = None if made is None else node_of(made)
            if node is not None:
                left = [other for other in left if not other.met_by(node)]


def _reaches(sample: Sample, kernel: Kernel, claim: Claim) -> bool:
    node = node_of(sample)
    return node is not None and claim.met_by(node) and kernel.refuses(node) is None


def _derived(samples: Sequence[Sample], claim: Claim) -> Iterator[Sample]:
    """Samples in which one dtype, that of one operand or an attribute is the claimed one."""
    for sample in samples:
        attributes = sample.op.complete(sample.attributes)
        dtypes = {operand.dtype for operand in sample.inputs if operand is not None}
        dtypes |= {value for value in attributes.values() if isinstance(value, DType)}
        for known in sorted(dtypes - {claim.dtype}, key=lambda d: d.code):
            operands = tuple(_with(operand, known, claim.dtype) for operand in sample.inputs)
            changed = {key: claim.dtype if value == known else value for key, value in attributes.items()}
            yield dataclasses.replace(sample, inputs=operands, attributes=changed)
            yield dataclasses.replace(sample, attributes=changed)
        if claim.side == "input":
            for index, operand in enumerate(sample.inputs):
                if operand is not None and operand.dtype != claim.dtype:
                    others = [*sample.inputs]
                    others[index] = dataclasses.replace(operand, dtype=claim.dtype)
                    yield dataclasses.replace(sample, inputs=tuple(others))


def _with(operand: Operand | None, known: DType, wanted: DType) -> Operand | None:
    return operand if operand is None or operand.dtype != known else dataclasses.replace(operand, dtype=wanted)
