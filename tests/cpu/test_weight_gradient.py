"""The cpu device's weight gradient of convolutions against float64 sums, for sizes that no tile, block or task
divides; on every instruction set, and with several numbers of threads, which decide how the work is split."""

from functools import partial

import numpy as np
import pytest

import dataflow as df
from tests import support
from tests.support import again_on

RANDOM = np.random.default_rng(23)

# x, weight, strides, pads, dilations, groups
CASES = [
    ((3, 21, 11, 13), (37, 21, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((3, 21, 11, 13), (37, 21, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    ((2, 5, 20, 17), (19, 5, 7, 5), (2, 3), (3, 0, 2, 4), (1, 1), 1),
    ((2, 16, 12, 15), (32, 16, 3, 2), (1, 2), (2, 0, 2, 3), (2, 3), 1),
    ((1, 3, 64, 64), (33, 3, 16, 16), (16, 16), (0, 0, 0, 0), (1, 1), 1),  # every element is a phase of its own
    ((3, 70, 9, 10), (50, 70, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),  # the product of matrices, and with the
    ((3, 50, 9, 10), (70, 50, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),  # roles exchanged
    ((3, 50, 9, 10), (70, 50, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    ((3, 50, 9, 10), (70, 50, 1, 1), (1, 1), (1, 2, 0, 1), (1, 1), 1),
    ((5, 20, 1, 1), (1100, 20, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # filters in parts; taps that read padding only
    ((9, 40, 2, 3), (24, 40, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((4, 24, 90, 70), (20, 24, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # several bands
    ((4, 600, 40, 40), (18, 600, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),  # several groups of channels
    ((1, 18, 3, 9000), (34, 18, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # rows longer than a block
    ((2, 36, 8, 9), (54, 12, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
    ((2, 12, 16, 16), (12, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),  # few filters
    ((3, 18, 500), (20, 18, 9), (2,), (4, 3), (1,), 1),
    ((1, 34, 7001), (17, 34, 4), (1,), (0, 9), (3,), 1),
    ((2, 17, 6, 9, 8), (18, 17, 3, 2, 3), (2, 1, 1), (1, 0, 1, 1, 1, 0), (1, 2, 1), 1),
    ((0, 20, 5, 5), (18, 20, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
]


normal = partial(support.normal, RANDOM)


def summed(x, dy, shape, strides, pads, dilations, groups):
    """Tap by tap: the product of dy with what the tap reads of x, summed over images and positions."""
    spatial = len(shape) - 2
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)])
    batch, out = dy.shape[0], dy.shape[2:]
    dy = dy.astype(np.float64).reshape(batch, groups, shape[0] // groups, int(np.prod(out)))
    dw = np.zeros((groups, shape[0] // groups, *shape[1:]))
    for tap in np.ndindex(*shape[2:]):
        begins = [t * d for t, d in zip(tap, dilations, strict=True)]
        ends = [b + (o - 1) * s + 1 for b, o, s in zip(begins, out, strides, strict=True)]
        window = tuple(slice(b, e, s) for b, e, s in zip(begins, ends, strides, strict=True))
        read = x[(slice(None), slice(None), *window)].reshape(batch, groups, shape[1], dy.shape[-1])
        dw[(slice(None), slice(None), slice(None), *tap)] = np.einsum("ngfp,ngcp->gfc", dy, read, optimize=True)
    return dw.reshape(shape)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weight_gradient(case):
    image, weight, strides, pads, dilations, groups = case
    window = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    spatial = len(image) - 2
    out = tuple(
        (image[2 + i] + pads[i] + pads[i + spatial] - dilations[i] * (weight[2 + i] - 1) - 1) // strides[i] + 1
        for i in range(spatial)
    )
    x, dy = normal(*image), normal(image[0], weight[0], *out)
    exact = summed(x, dy, weight, *window.values())
    g = df.GraphBuilder()
    values = g.input("x", df.float32, x.shape), g.input("dy", df.float32, dy.shape)
    g.output("dw", df.ops.conv_grad_weight(*values, weight_shape=weight, **window))
    model = df.Model(g.build())
    terms = max(2, dy[:, 0].size)
    for threads in (1, 2, 3, 7):
        session = df.Session(model, devices=["cpu"], threads=threads)
        found = session.run({"x": x, "dy": dy})["dw"]
        # A few units of the last place, scaled by what a sum of so many products of normal numbers is.
        assert np.abs(found - exact).max() <= 4e-6 * np.sqrt(terms) * (1 + np.log2(terms))
        np.testing.assert_array_equal(found, session.run({"x": x, "dy": dy})["dw"])  # the same bits from run to run


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_other_instruction_sets(isa):
    again_on(isa, __file__, but="other_instruction_sets")
