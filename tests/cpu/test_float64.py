"""What models of float64 compute on the cpu, by no other device, against the reference."""

import itertools

import numpy as np
import pytest

import dataflow as df
from tests.support import again_on

ops = df.ops
random = np.random.default_rng(0)


def both(build, **arrays):
    """Results and gradients of the cpu, and the reference's."""
    found = []
    for device, fallback in (("cpu", "error"), ("numpy", "allow")):
        g = df.GraphBuilder()
        built = build(**{name: g.input(name, a.dtype, a.shape) for name, a in arrays.items()})
        for index, value in enumerate(built if isinstance(built, (list, tuple)) else [built]):
            g.output(f"y{index}", value)
        with df.Session(df.Model(g.build()), [device], threads=2, fallback=fallback) as session:
            found.append(session.run(arrays))
    for name, array in found[0].items():
        assert array.dtype == np.float64
        np.testing.assert_allclose(array, found[1][name], rtol=1e-11, atol=1e-12, err_msg=name)
    return found[0]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_at_a_grid(mode, padding):
    for corners, (image, positions) in itertools.product(
        (False, True), (((2, 3, 17, 19), (2, 13, 31, 2)), ((1, 2, 3, 4, 5), (1, 2, 3, 2, 3)))
    ):
        x, grid = random.standard_normal(image), random.uniform(-1.4, 1.4, positions)
        how = {"mode": mode, "padding": padding, "align_corners": corners}
        dy = random.standard_normal((*image[:2], *positions[1:-1]))
        both(
            lambda x, grid, dy: (
                ops.grid_sample(x, grid, **how),  # noqa: B023
                ops.grid_sample_grad_input(dy, grid, input_shape=image, **how),  # noqa: B023
                ops.grid_sample_grad_grid(dy, x, grid, **how),  # noqa: B023
            ),
            x=x,
            grid=grid,
            dy=dy,
        )


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions(mode):
    for channels, count, ratio, half_pixel in itertools.product((3, 40), (4, 60), (0, 2), (False, True)):
        first = random.uniform(-3, 12, (count, 2))
        rois = np.concatenate([first, first + random.uniform(1, 9, (count, 2))], 1)
        x, batch = random.standard_normal((2, channels, 11, 13)), random.integers(0, 2, count)
        how = {"size": (3, 2), "sampling_ratio": ratio, "spatial_scale": 0.7, "mode": mode, "half_pixel": half_pixel}
        both(lambda x, rois, batch: ops.roi_align(x, rois, batch, **how), x=x, rois=rois, batch=batch)  # noqa: B023
    how = {"size": (3, 2), "spatial_scale": 0.7}
    both(lambda x, rois, batch: ops.max_roi_pool(x, rois, batch, **how), x=x, rois=rois, batch=batch)


@pytest.mark.parametrize("beta", [0.75, 0.5, 1.0, 0.6])
def test_local_response_normalisation(beta):
    x = random.standard_normal((2, 7, 3, 100))
    y = both(lambda x: ops.lrn(x, size=5, alpha=0.3, beta=beta, bias=1.2), x=x)["y0"]
    padded = np.pad(x**2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    scale = 1.2 + 0.3 / 5 * sum(padded[:, c : c + 7] for c in range(5))
    np.testing.assert_allclose(y, x * scale**-beta, rtol=1e-12)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_other_instruction_sets(isa):
    again_on(isa, __file__, but="other_instruction_sets")
