"""Which variants of which samples the tests run each time: all of them, as .ci/nightly does, would take minutes."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Sample = TypeVar("Sample")
Name = TypeVar("Name", bound=str)

EVERY_VARIANT = bool(os.environ.get("DATAFLOW_EVERY_VARIANT"))  # as .ci/nightly asks


def sampled_variants(
    samples: Sequence[Sample], variants: Sequence[Name], count: int
) -> Iterator[tuple[Sequence[Sample], tuple[Name, ...]]]:
    """Each sample once, with ``count`` of the variants: of samples that follow each other, every time other ones.

    Samples of an op follow each other, so an op with as many samples as there are variants is tried in all of them.
    With ``EVERY_VARIANT`` each sample has all.
    """
    if EVERY_VARIANT:
        yield samples, tuple(variants)
        return
    number = len(variants)
    for first in range(number):
        yield samples[first::number], tuple(variants[(first + i) % number] for i in range(count))


def half_of(samples: Sequence[Sample], op_of: Callable[[Sample], str]) -> list[Sample]:
    """Every second sample of each op, the first included; with ``EVERY_VARIANT`` all."""
    seen: Counter[str] = Counter()
    chosen = []
    for sample in samples:
        if EVERY_VARIANT or seen[op_of(sample)] % 2 == 0:
            chosen.append(sample)
        seen[op_of(sample)] += 1
    return chosen
