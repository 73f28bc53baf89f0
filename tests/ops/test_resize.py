"""Tables of resampling: the elements that each result is made of."""

import sys
import tracemalloc

import numpy as np
import pytest

import dataflow as df
from dataflow.ops.resize import taps
from tests.support import left_to_nightly, python_on

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


SAME = """
import numpy as np
import dataflow as df

random = np.random.default_rng(0)
for size, results, taps in ((12, 24, 2), (6, 33, 1), (40, 13, 3), (5, 70, 2), (64, 9, 2)):
    x, weight = (random.standard_normal(s).astype(np.float32) for s in ((21, size), (results, taps)))
    first = np.linspace(0, size - 1, results).astype(np.int64)
    index = np.minimum(first[:, None] + np.arange(taps), size - 1)

    def resampled(x, axis, threads):
        g = df.GraphBuilder()
        types = (df.float32, x.shape), (df.int64, index.shape), (df.float32, weight.shape)
        operands = [g.input(name, dtype, shape) for name, (dtype, shape) in zip("xiw", types)]
        g.output("y", df.ops.resample(*operands, axis=axis))
        return df.Session(df.Model(g.build()), ["cpu"], threads=threads).run({"x": x, "i": index, "w": weight})["y"]

    exact = np.sum(x.astype(np.float64)[:, index] * weight, 2)
    for threads in (1, 3):
        last, before = resampled(x, 1, threads), resampled(np.ascontiguousarray(x.T), 0, threads)
        np.testing.assert_allclose(last, exact, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(last, before.T)
"""


@pytest.mark.parametrize("dtype", [df.string, df.complex64, df.bool_, df.uint64, df.float16], ids=str)
def test_nearest_elements_of_any_dtype_are_moved_as_they_are(dtype):
    numbers = 2**53 + np.arange(6).reshape(2, 3) if dtype == df.uint64 else np.arange(6).reshape(2, 3) % 4
    x = numbers.astype(str).astype(object) if dtype == df.string else numbers.astype(dtype.numpy)
    g = df.GraphBuilder()
    g.output("y", df.ops.resize(g.input("x", dtype, x.shape), sizes=(4, 2), coordinates="asymmetric", nearest="floor"))
    for device in ("cpu", "numpy"):
        with df.Session(df.Model(g.build()), [device]) as session:
            np.testing.assert_array_equal(session.run(x)["y"], x[[0, 0, 1, 1]][:, [0, 1]])


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_sums_have_the_same_bits_along_any_axis(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", SAME)
