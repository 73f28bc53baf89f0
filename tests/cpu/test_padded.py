"""Convolutions that read a padded copy of a band, on each instruction set: short rows, strides, groups, long bands."""

from __future__ import annotations

import pytest

from tests.support import left_to_nightly, python_on

COMPARED = """
import numpy as np
import dataflow as df
from tests.cpu.test_inference import convolved

random = np.random.default_rng(0)
others = ("winograd", "pointwise", "few_channels", "direct", "amx", "shifted")
for n, c, f, groups, size, kernel, strides, pads, dilations in [
    (2, 16, 16, 1, (5, 5), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),  # two rows in a tile, the last has one
    (1, 6, 33, 1, (9, 14), (3, 2), (2, 2), (0, 3, 2, 0), (1, 1)),
    (3, 64, 80, 4, (7, 30), (3, 3), (1, 2), (1, 1, 1, 1), (1, 1)),
    (1, 4, 20, 2, (11, 40), (2, 3), (3, 1), (2, 0, 0, 5), (2, 3)),  # padding wider than a window
    (1, 3, 24, 1, (130, 170), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),  # several bands
    (1, 70, 17, 1, (60, 61), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    (1, 12, 40, 1, (4, 6), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
]:
    x = random.standard_normal((n, c, *size)).astype(np.float32)
    w = random.standard_normal((f, c // groups, *kernel)).astype(np.float32)
    bias = random.standard_normal(f).astype(np.float32)
    plain = convolved(x, w, bias, strides, pads, dilations, groups)
    more = random.standard_normal(plain.shape).astype(np.float32)
    for threads in (1, 2):
        g = df.GraphBuilder()
        given, added = g.input("x", df.float32, x.shape), g.input("more", df.float32, more.shape)
        window = dict(strides=strides, pads=pads, dilations=dilations, groups=groups)
        y = df.ops.conv(given, g.parameter("w", w), g.parameter("b", bias), **window)
        g.output("y", df.ops.relu(df.ops.add(y, added)))
        session = df.Session(df.Model(g.build()), ["cpu"], threads=threads, algorithms=df.Algorithms(avoid=others))
        feeds = {"x": x, "more": more}
        (used,) = [s.kernel for s in session.profile(feeds, rounds=1).steps]
        assert used.endswith("padded"), used
        expected = np.maximum(plain + more, 0)
        np.testing.assert_allclose(session.run(feeds)["y"], expected, atol=1e-5 * np.abs(expected).max())
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_a_padded_copy_gives_what_the_sums_give(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", COMPARED)


CHOSEN = """
import numpy as np
import dataflow as df

def chosen(shape, weight, stride, groups, pad=1):
    g = df.GraphBuilder()
    w = g.parameter("w", np.ones(weight, np.float32))
    window = dict(strides=(stride,) * 2, pads=(pad,) * 4, dilations=(1, 1), groups=groups)
    g.output("y", df.ops.conv(g.input("x", df.float32, shape), w, **window))
    session = df.Session(df.Model(g.build()), ["cpu"], threads=1)
    (step,) = session.profile({"x": np.ones(shape, np.float32)}, rounds=1).steps
    return step.kernel.split()[-1]

assert chosen((2, 64, 5, 5), (64, 16, 3, 3), 1, 4) == "padded"
assert chosen((1, 32, 56, 56), (64, 32, 3, 3), 2, 1) == "padded"
assert chosen((1, 32, 28, 28), (5, 32, 3, 3), 2, 1) != "padded"  # most lanes would be empty
assert chosen((2, 40, 3, 3), (3, 40, 3, 3), 1, 1, 0) != "shifted"  # one window: its taps are channels
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_small_groups_and_strides_have_a_padded_copy(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", CHOSEN)
