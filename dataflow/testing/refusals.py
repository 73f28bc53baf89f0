"""Data that no kernel may accept: indices and labels that point outside of what they select from."""

from __future__ import annotations

from collections.abc import Iterator

from .. import ops
from ..errors import InputError
from ..ir.types import DType, int32, int64
from ..planning.algorithms import Algorithms
from .outcome import Outcome, Report, Task
from .sample import Operand, Sample, x
from .trial import Target


def _at(values: list[int], *shape: int, dtype: DType = int64) -> Operand:
    return Operand(shape, dtype, value=values)


REFUSED: tuple[Sample, ...] = (
    *(Sample(ops.gather, (x(4, 2), _at([0, 4, 1], 3, dtype=dtype))) for dtype in (int32, int64)),
    Sample(ops.gather, (x(4, 2), _at([0, -5, 1], 3))),
    Sample(ops.gather, (x(4, 2), _at([1 << 60, 0], 2)), {"axis": 1}),
    Sample(ops.gather_elements, (x(3, 4), _at([0, 1, 4], 3, 1)), {"axis": 1}),
    Sample(ops.gather_nd, (x(4, 5), _at([0, 0, 3, 5], 2, 2))),
    Sample(ops.scatter_elements, (x(3, 4), _at([0, 1, 4], 3, 1), x(3, 1)), {"axis": 1}),
    Sample(ops.scatter_nd, (x(4, 5), _at([0, -5], 2, 1), x(2, 5))),
    Sample(ops.softmax_cross_entropy, (x(3, 5), _at([0, 1, 5], 3))),
    Sample(ops.softmax_cross_entropy, (x(3, 8), _at([0, 1, 5], 3)), {"classes": 5}),
    Sample(ops.softmax_cross_entropy_with_grad, (x(3), x(3, 8), _at([0, 1, 5], 3)), {"classes": 5}),
)


def refusal_task(sample: Sample, target: Target) -> Task:
    """Runs a sample that must be refused with InputError; asynchronous devices raise it when they are waited for."""
    device, op, name = target.device, sample.op.name, sample.name
    names_nodes = getattr(target.registry.devices[device], "names_failures", True)

    def run(report: Report) -> Iterator[Outcome]:
        report("refused")
        try:
            target.session(sample.build(), Algorithms()).run(sample.feeds())
            text = (
                "an index out of range is accepted: no status or fault came by the end of the run, expected InputError"
            )
        except InputError as error:
            named = op in str(error) or not names_nodes
            text = "" if named else f"the error doesn't name the node: {error}"
        except Exception as error:  # a kernel is anybody's code
            text = f"an index out of range raises {type(error).__name__}, expected InputError: {error}"
        yield Outcome(device, op, name, "refused", "failed" if text else "passed", text)

    return Task(op, name, run)
