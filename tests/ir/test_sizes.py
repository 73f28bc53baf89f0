"""Sizes at the edge: none, huge, overflowing; each is computed, or refused before anything is allocated or run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.dims import Dim
from dataflow.ir.types import TensorType
from dataflow.passes.autodiff import vjp_graph
from dataflow.testing.sample import Sample
from dataflow.testing.samples import SAMPLES
from dataflow_numpy.evaluate import evaluate
from tests.support import refusal

ops = df.ops
LARGE = 2**31 - 1
SIZES = ("shape", "input_shape", "weight_shape", "sizes", "stops", "starts", "size", "depth", "count")


def emptied(sample: Sample) -> Iterator[Sample]:
    """The sample with one of its sizes 0: wherever it occurs, attributes left out or not; and one operand's axis."""

    def without(value: Any, size: int) -> Any:
        return (
            tuple(0 if v == size else v for v in value) if isinstance(value, tuple) else 0 if value == size else value
        )

    def shaped(index: int | None, shape: Any) -> tuple[Any, ...]:
        return tuple(
            o if o is None or index not in (None, i) else dataclasses.replace(o, shape=shape(o.shape), value=None)
            for i, o in enumerate(sample.inputs)
        )

    for size in sorted({d for o in sample.inputs if o is not None for d in o.shape if d}):
        changed = {k: without(v, size) if k in SIZES else v for k, v in sample.attributes.items()}
        for attributes in (sample.attributes, changed):
            inputs = shaped(None, lambda shape, size=size: without(shape, size))
            yield dataclasses.replace(sample, inputs=inputs, attributes=attributes)
    for index, operand in enumerate(sample.inputs):
        for axis in range(0 if operand is None else len(operand.shape)):
            inputs = shaped(index, lambda shape, axis=axis: (*shape[:axis], 0, *shape[axis + 1 :]))
            yield dataclasses.replace(sample, inputs=inputs)


def small_samples() -> dict[str, list[Sample]]:
    """Up to two samples of each op, by numbers of operands and axes."""
    found: dict[tuple[Any, ...], Sample] = {}
    for sample in SAMPLES:
        shapes = [o.shape for o in sample.inputs if o is not None]
        key = (sample.op.name, len(shapes), max(map(len, shapes), default=0))
        text = any(o is not None and o.dtype.kind == "s" for o in sample.inputs)
        if (
            not sample.bodies
            and not text
            and sum(int(np.prod(s)) for s in shapes) < 20000
            and not any(0 in s for s in shapes)
        ):
            found.setdefault(key, sample)
    by_op: dict[str, list[Sample]] = {}
    for (op, *_), sample in found.items():
        by_op.setdefault(op, []).append(sample)
    return {op: samples[:2] for op, samples in by_op.items()}


def result(graph: df.Graph, device: str, feeds: dict[str, Any]) -> dict[str, Any] | None:
    """The results; None where they are refused."""
    try:
        return df.Session(graph, [device], fold=False, threads=2).run(feeds)
    except df.DataflowError:
        return None


SMALL = small_samples()


@pytest.mark.parametrize("op", SMALL)
def test_empty_operands_give_what_the_reference_gives(op: str) -> None:
    for sample in SMALL[op]:
        for empty in emptied(sample):
            try:
                graph = empty.build()
            except df.InputError:
                continue
            feeds = {f"x{i}": array for i, array in enumerate(empty.arrays()) if array is not None}
            expected, found = (result(graph, device, feeds) for device in ("numpy", "cpu"))
            assert (found is None) == (expected is None), empty.name
            for name, array in (expected or {}).items():
                if array.dtype.kind == "O":
                    assert found[name].tolist() == array.tolist()
                else:
                    np.testing.assert_allclose(found[name], array, 1e-4, 1e-4, err_msg=empty.name)


# ---- windows ------------------------------------------------------------------------------------------


def images(random: np.random.Generator) -> tuple[df.Graph, dict[str, Any]] | None:
    """A convolution or pool with random windows, some of them on nothing, beyond everything or one element only."""
    spatial = int(random.integers(1, 4))
    size, kernel = random.integers(0, 9, spatial), random.integers(1, 4, spatial)
    dilations, strides = random.choice([1, 1, 2, 5], spatial), random.choice([1, 1, 2, 3, LARGE], spatial)
    if random.random() < 0.3:
        kernel[0], dilations[0] = 1, LARGE
    pool = random.random() < 0.5
    reach = [(int(k) - 1) * int(d) + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [int(random.integers(0, r if pool else r + 2)) for r in (*reach, *reach)]
    window = {"strides": strides.tolist(), "pads": pads, "dilations": dilations.tolist()}
    g = df.GraphBuilder()
    channels = int(random.integers(1, 5))
    x = g.input("x", df.float32, (int(random.integers(0, 3)), channels, *size.tolist()))
    try:
        if pool:
            window |= {"kernel": kernel.tolist(), "ceil_mode": int(random.integers(0, 2))}
            largest = random.random() < 0.5
            counted = int(random.integers(0, 2))
            g.output(
                "y", ops.max_pool(x, **window) if largest else ops.avg_pool(x, **window, count_include_pad=counted)
            )
        else:
            groups = int(random.choice([1, channels]))
            w = g.input("w", df.float32, (groups * int(random.integers(1, 20)), channels // groups, *kernel.tolist()))
            g.output("y", ops.conv(x, w, **window, groups=groups))
    except df.InputError:  # the kernel is larger than the image
        return None
    forward = g.build()
    graph = vjp_graph(forward, [*forward.inputs])
    feeds = {v.name: random.standard_normal(v.type.sizes).astype(np.float32) for v in graph.inputs}
    if pool and feeds["x"].size:
        feeds["x"] = np.round(feeds["x"])  # several maxima of a window
        feeds["x"].flat[0] = random.choice([np.nan, np.inf, -np.inf])
    return graph, feeds


@pytest.mark.parametrize("seed", range(4))
def test_random_windows_and_their_gradients(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(60):
        made = images(random)
        if made is None:
            continue
        graph, feeds = made
        expected = evaluate(graph, feeds, dtype=np.float64)
        found = df.Session(graph, ["cpu"], threads=2).run(feeds)
        for name, array in expected.items():
            scale = np.abs(array[np.isfinite(array)]).max(initial=1.0)
            np.testing.assert_allclose(found[name], array, 1e-5, 1e-5 * scale, err_msg=str(graph))


def test_a_fused_convolution_and_pool_take_an_empty_image() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (1, 1, "height", "width"))
    w = g.parameter("w", np.ones((1, 1, 1, 1), np.float32))
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    planes = ops.relu(ops.conv(x, w, **window))
    g.output("y", ops.max_pool(planes, kernel=(1, 1), **window))
    assert df.Session(g.build(), ["cpu"]).run(np.zeros((1, 1, 0, 0), np.float32))["y"].shape == (1, 1, 0, 0)


@pytest.mark.parametrize("name", ["strides", "pads", "dilations"])
@pytest.mark.parametrize("value", [LARGE + 1, 2**62, 2**70])
def test_windows_beyond_31_bits_are_refused(name: str, value: int) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (1, 1, 4))
    window = {"strides": (1,), "pads": (0, 0), "dilations": (1,), name: (value,) * (2 if name == "pads" else 1)}
    for make in (
        lambda: ops.conv(x, g.constant(np.ones((1, 1, 1), np.float32)), **window),
        lambda: ops.max_pool(x, kernel=(1,), **window),
        lambda: ops.avg_pool(x, kernel=(1,), **window),
    ):
        with pytest.raises(df.InputError, match=name):
            make()


def test_a_kernel_without_elements_is_refused() -> None:
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, (1, 1, 4)), g.input("w", df.float32, (1, 1, 0))
    with pytest.raises(df.InputError, match="kernel"):
        ops.conv(x, w, strides=(1,), pads=(0, 0), dilations=(1,))


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_the_gradient_of_a_window_in_the_padding_goes_nowhere(device: str) -> None:
    g = df.GraphBuilder()
    dy, indices = g.input("dy", df.float32, (1, 1, 3)), g.input("indices", df.int32, (1, 1, 3))
    g.output("dx", ops.max_pool_grad(dy, indices, input_shape=(1, 1, 4)))
    session = df.Session(g.build(), [device])
    ones = np.ones((1, 1, 3), np.float32)
    found = session.run({"dy": ones, "indices": np.array([[[-1, 2, -1]]], np.int32)})
    np.testing.assert_array_equal(found["dx"], [[[0, 0, 1, 0]]])
    for wrong in (4, -2):
        with pytest.raises(df.InputError, match="outside the plane of 4 elements"):
            session.run({"dy": ones, "indices": np.array([[[0, wrong, 0]]], np.int32)})


# ---- overflow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (0, 1 << 40, 1 << 40), (1 << 62, 1 << 62, 0)])
def test_shapes_that_overflow_are_refused_where_they_are_made(shape: tuple[int, ...]) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (1,))
    with pytest.raises(df.InputError, match="more than can be addressed"):
        ops.broadcast_to(x, shape=shape)
    with pytest.raises(df.InputError, match="more than can be addressed"):
        _ = TensorType(df.float32, shape).elements


def test_shapes_that_overflow_once_they_are_bound_name_the_node() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 1 << 20))
    y = ops.broadcast_to(ops.reshape(x, shape=(Dim("n"), 1, 1 << 20)), shape=(Dim("n"), 1 << 40, 1 << 20))
    g.output("y", ops.reduce_sum(y, axes=(0, 1, 2), keepdims=0))
    with pytest.raises(df.InputError, match=r"more than can be addressed.*broadcast_to"):
        df.Session(g.build(), ["cpu"]).run(np.zeros((1, 1 << 20), np.float32))


def test_sizes_that_become_negative_or_divide_by_zero_are_refused() -> None:
    n = Dim("n")
    with pytest.raises(df.InputError, match=r"divides by n, which is 0"):
        ((n + 3) // n).bind({"n": 0})  # type: ignore[union-attr]
    with pytest.raises(df.InputError, match="divided by zero"):
        _ = n // 0
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n",))
    g.output("y", g.add(ops.full, (), {"shape": (n - 3,), "value": 1.0}).outputs[0])
    g.output("z", ops.reshape(x, shape=((n * n) // n,)))
    session = df.Session(g.build(), ["cpu"])
    assert session.run(np.zeros(3, np.float32))["y"].shape == (0,)
    with pytest.raises(df.InputError, match="negative"):
        session.run(np.zeros(2, np.float32))


def test_slices_with_the_longest_steps() -> None:
    for device in ("numpy", "cpu"):
        g = df.GraphBuilder()
        x = g.input("x", df.float32, (3, 5))
        least, most = -(2**63), 2**63 - 1
        y = ops.slice(x, starts=(2, 1), stops=(-1, 5), steps=(least, most))
        g.output("y", y)
        g.output("dx", ops.slice_grad(y, shape=(3, 5), starts=(2, 1), stops=(-1, 5), steps=(least, most)))
        array = np.arange(15, dtype=np.float32).reshape(3, 5)
        found = df.Session(g.build(), [device]).run(array)
        np.testing.assert_array_equal(found["y"], [[11]])
        np.testing.assert_array_equal(found["dx"], np.where(array == 11, 11, 0))


refused = partial(refusal, df.InputError)


def test_attributes_that_no_kernel_could_compute_with_are_refused() -> None:
    g = df.GraphBuilder()
    x, empty = g.input("x", df.float32, (2, 3)), g.input("empty", df.float32, (0, 3))
    assert "crop more" in refused(lambda: ops.pad(x, pads=(-(2**62), 0, 2**62, 0)))
    assert "no elements to repeat" in refused(lambda: ops.pad(empty, pads=(1, 0, 0, 0), mode="edge"))
    assert "size is" in refused(lambda: ops.lrn(x, size=2**62))
    for name in ("alpha", "beta", "bias"):
        assert "finite numbers" in refused(lambda name=name: ops.lrn(x, size=3, **{name: float("inf")}))
    assert "alpha is 0" in refused(lambda: ops.celu(x, alpha=0.0))
    for scale in (0.0, 1e-30, 1e30, float("inf"), float("nan"), -1.0):
        assert "scales" in refused(lambda scale=scale: ops.resize(x, sizes=(2, 3), scales=(1.0, scale), mode="linear"))
    assert "roi" in refused(lambda: ops.resize(x, sizes=(2, 3), roi=(0.0, 0.0, 1.0, float("nan"))))
    assert "gets less" in refused(lambda: ops.resize(x, sizes=(2, 3), scales=(1.0, 1e-9), mode="linear", antialias=1))
    for value in (float("inf"), float("nan"), 300, -1):
        assert "no number of uint8" in refused(
            lambda value=value: g.add(ops.full, (), {"shape": (2,), "value": value, "dtype": df.uint8})
        )
    assert "64 bits" in refused(lambda: g.add(ops.range_, (), {"limit": float("inf")}))
    assert "addressed" in refused(lambda: g.add(ops.range_, (), {"start": -(2**63), "limit": 2**63 - 1}))
    assert "no mean" in refused(lambda: ops.batch_norm_train(empty, *[g.constant(np.ones(3, np.float32))] * 4))


def test_gradients_of_operands_of_another_shape_are_refused() -> None:
    """What a kernel would read behind an operand's end."""
    g = df.GraphBuilder()
    x, other = g.input("x", df.float32, (3, 5)), g.input("other", df.float32, (1, 5))
    rows, labels = g.input("rows", df.float32, (3,)), g.input("labels", df.int64, (3,))
    assert "one type" in refused(lambda: ops.softmax_grad(other, x))
    assert "one type" in refused(lambda: ops.log_softmax_grad(other, x))
    assert "one type" in refused(lambda: ops.gelu_grad(x, other))
    assert "one type" in refused(lambda: ops.relu_grad(other, x))
    assert "one type" in refused(lambda: ops.layer_norm_grad(other, x, None, rows, rows))
    assert "one type" in refused(lambda: ops.lrn_grad(x, other, x, x, size=3))
    assert "one type" in refused(
        lambda: ops.softmax_cross_entropy_grad(g.constant(np.zeros(2, np.float32)), x, labels, rows, rows)
    )
    assert "one type" in refused(lambda: ops.gather_nd(other, g.constant(np.zeros((3, 1), np.int64)), batch_dims=1))


# ---- whole numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("dtype", [df.int32, df.int64])
def test_quotients_and_remainders_of_the_ends_of_the_range(device: str, dtype: df.DType) -> None:
    """By zero gives 0; the least divided by -1 wraps around."""
    info = np.iinfo(dtype.numpy)
    numbers = [int(info.min), int(info.min) + 1, -7, -2, -1, 0, 1, 2, 7, int(info.max)]
    a, b = (np.array(v, dtype.numpy) for v in zip(*[(p, q) for p in numbers for q in numbers], strict=True))
    g = df.GraphBuilder()
    left, right = g.input("a", dtype, a.shape), g.input("b", dtype, b.shape)
    g.output("div", ops.div(left, right))
    g.output("mod", ops.mod(left, right))
    g.output("fmod", ops.mod(left, right, fmod=1))
    found = df.Session(g.build(), [device]).run({"a": a, "b": b})
    span = int(info.max) - int(info.min) + 1

    def wrapped(x: int) -> int:
        return (x - int(info.min)) % span + int(info.min)

    for i, (p, q) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        towards_zero = 0 if q == 0 else abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)
        assert found["div"][i] == wrapped(towards_zero), (p, q)
        assert found["mod"][i] == (0 if q == 0 else p % q), (p, q)
        assert found["fmod"][i] == (0 if q == 0 else p - towards_zero * q), (p, q)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_extremes_of_no_elements(device: str) -> None:
    g = df.GraphBuilder()
    x, n = g.input("x", df.float32, (2, 0)), g.input("n", df.int32, (2, 0))
    for name, value in (("x", x), ("n", n)):
        g.output(f"max_{name}", ops.reduce_max(value, axes=(1,), keepdims=0))
        g.output(f"min_{name}", ops.reduce_min(value, axes=(1,), keepdims=1))
    found = df.Session(g.build(), [device]).run({"x": np.zeros((2, 0), np.float32), "n": np.zeros((2, 0), np.int32)})
    np.testing.assert_array_equal(found["max_x"], [-np.inf, -np.inf])
    np.testing.assert_array_equal(found["min_x"], [[np.inf], [np.inf]])
    np.testing.assert_array_equal(found["max_n"], [-(2**31)] * 2)
    np.testing.assert_array_equal(found["min_n"], [[LARGE]] * 2)
