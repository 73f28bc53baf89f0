"""Depthwise convolutions of 3x3, by vectors of rows (large images, addends) and of channels."""

from __future__ import annotations

import pytest

from tests.support import left_to_nightly, python_on

COMPARED = """
import numpy as np
import dataflow as df

random = np.random.default_rng(0)
channels = 18
for height, width in ((5, 7), (9, 40), (4, 300), (33, 33)):
    for down, across in ((1, 1), (2, 2), (1, 2), (2, 1)):
        x = random.standard_normal((2, channels, height, width)).astype(np.float32)
        weight = random.standard_normal((channels, 1, 3, 3)).astype(np.float32)
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        rows, columns = (height - 1) // down + 1, (width - 1) // across + 1
        exact = sum(
            padded[:, :, a : a + height : down, b : b + width : across] * weight[:, 0, a, b][:, None, None]
            for a in range(3) for b in range(3)
        )
        other = random.standard_normal(exact.shape).astype(np.float32)
        for added in (False, True):
            g = df.GraphBuilder()
            y = df.ops.conv(
                g.input("x", df.float32, x.shape), g.initializer("w", weight), strides=(down, across),
                pads=(1, 1, 1, 1), dilations=(1, 1), groups=channels,
            )
            if added:
                y = df.ops.relu(df.ops.add(y, g.input("r", df.float32, other.shape)))
            g.output("y", y)
            inputs = {"x": x, "r": other} if added else {"x": x}
            for threads in (1, 3):
                found = df.Session(df.Model(g.build()), ["cpu"], threads=threads).run(inputs)["y"]
                right = np.maximum(exact + other, 0) if added else exact
                np.testing.assert_allclose(found, right, rtol=1e-5, atol=2e-5)
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_results_are_those_of_float64(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", COMPARED)
