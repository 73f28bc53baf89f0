"""Which samples of a batch are a process's."""

from __future__ import annotations

from ..data.batch import Batch
from .collectives import Collectives


def share_of(collectives: Collectives, batch: Batch) -> tuple[Batch, bool]:
    """The samples of this process, and whether they count: one without a share gets a sample that doesn't.

    Args:
        collectives: the processes.
        batch: of all of them, at least one sample.
    """
    rank, size, samples = collectives.rank, collectives.size, batch.size
    begin, end = rank * samples // size, (rank + 1) * samples // size
    rows = slice(begin, end) if end > begin else slice(0, 1)
    arrays = {key: array[rows] if array.ndim else array for key, array in batch.arrays.items()}
    return Batch(arrays, None if batch.indices is None else batch.indices[rows]), end > begin
