"""Which variants of which samples the conformance kit runs where all of them would take minutes."""

import os
from collections.abc import Iterator, Sequence
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
