"""Tables of resampling: the elements that each result is made of."""

import sys
import tracemalloc

import numpy as np
import pytest

from dataflow.ops.resize import taps

HOW = [
    {"mode": "linear", "coordinates": "half_pixel"},
    {"mode": "cubic", "coordinates": "half_pixel", "exclude_outside": True},
    {"mode": "cubic", "coordinates": "align_corners"},
    {"mode": "linear", "coordinates": "half_pixel", "antialias": True},
    {"mode": "nearest", "coordinates": "half_pixel_symmetric", "nearest": "ceil"},
    {"mode": "linear", "coordinates": "tf_crop_and_resize", "crop": (0.2, 0.7)},
]


@pytest.mark.parametrize("how", HOW, ids=lambda how: f"{how['mode']}-{how['coordinates']}")
@pytest.mark.parametrize(("size", "result"), [(5, 23), (23, 5), (7, 14)])
def test_a_table_made_in_blocks_is_the_table(monkeypatch, how, size, result):
    full = taps(size, result, result / size, **how)
    monkeypatch.setattr(sys.modules[taps.__module__], "BLOCK", 4)  # the name in the package is the op
    for block, array in zip(taps(size, result, result / size, **how), full, strict=True):
        np.testing.assert_array_equal(block, array)


@pytest.mark.parametrize("how", HOW[:5], ids=lambda how: f"{how['mode']}-{how['coordinates']}")
def test_what_is_resized_from_one_element_repeats_it(how):
    index, weight = taps(1, 9, 9.0, **how)
    assert index.shape == weight.shape == (9, 1)
    assert not index.any() and (weight == 1).all()


def test_a_long_table_takes_little_more_than_it_holds():
    tracemalloc.start()
    index, weight = taps(3, 1 << 20, (1 << 20) / 3, mode="cubic", coordinates="half_pixel")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.3 * (index.nbytes + weight.nbytes)
