"""Operators of images and their regions, against onnxruntime: values on cpu and numpy, and with named sizes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

NAN = float("nan")


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def model(op, arrays, outputs, opset, stored, named, attributes):
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    infos = []
    for index, (name, array) in enumerate(zip(names, arrays, strict=True)):
        sizes = [f"{name}_{axis}" for axis in range(array.ndim)] if index in named else array.shape
        if index not in stored:
            infos.append((name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes))
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    kept = [(names[i], arrays[i]) for i in stored]
    return onnx_model([node], infos, results, kept, opset=opset, ir_version=10).SerializeToString()


def check(op, arrays, *, outputs=1, opset=22, stored=(), named=(0,), **attributes):
    """Compares with onnxruntime; also where the sizes of the operands ``named`` are."""
    feeds = {f"x{i}": array for i, array in enumerate(arrays) if i not in stored}
    fixed = model(op, arrays, outputs, opset, stored, (), attributes)
    expected = onnxruntime.InferenceSession(fixed, providers=["CPUExecutionProvider"]).run(None, feeds)
    free = model(op, arrays, outputs, opset, stored, named, attributes)
    for data, device in ((fixed, "cpu"), (fixed, "numpy"), (free, "cpu")):
        results = df.Session(load_bytes(data), devices=[device]).run(feeds)
        for index, array in enumerate(expected):
            found = results[f"y{index}"]
            assert found.dtype == array.dtype and found.shape == array.shape
            np.testing.assert_allclose(found, array, rtol=3e-5, atol=3e-5, err_msg=f"{op} {attributes} on {device}")
    return expected


# ---- pools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("spatial", [(9,), (6, 7), (4, 5, 6)])
def test_indices_of_maxima(spatial, order):
    rank = len(spatial)
    window = {"kernel_shape": [2] * rank, "strides": [2] * rank, "pads": [1] * rank + [0] * rank}
    check("MaxPool", [numbers(2, 3, *spatial)], outputs=2, storage_order=order, ceil_mode=1, **window)


def test_indices_behind_a_convolution_that_fuses_with_the_pool():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxUnpool", ["y", "i"], ["u"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    x, results = numbers(2, 3, 8, 10), [onnx.ValueInfoProto(name=name) for name in "yiu"]
    data = onnx_model(nodes, [("x", 1, x.shape)], results, [("w", numbers(4, 3, 3, 3))], opset=22, ir_version=10)
    peer = onnxruntime.InferenceSession(data.SerializeToString(), providers=["CPUExecutionProvider"])
    found = df.Session(load_bytes(data.SerializeToString()), devices=["cpu"]).run({"x": x})
    for name, expected in zip("yiu", peer.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows(p, ceil):
    window = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [1, 2]}
    check("LpPool", [numbers(2, 3, 8, 9)], p=p, ceil_mode=ceil, **window)


@pytest.mark.parametrize("stored", [(), (2,)])
def test_unpooling_to_a_larger_shape(stored):
    x, indices = numbers(1, 2, 2, 2), np.array([5, 7, 13, 15, 16, 19, 25, 31], np.int64).reshape(1, 2, 2, 2)
    shape = np.array([1, 2, 5, 6], np.int64)
    data = model("MaxUnpool", [x, indices, shape], 1, 22, stored, (), {"kernel_shape": [2, 2], "strides": [2, 2]})
    feeds = {f"x{i}": a for i, a in enumerate((x, indices, shape)) if i not in stored}
    found = df.Session(load_bytes(data), devices=["cpu"]).run(feeds)["y0"]
    expected = np.zeros(32, np.float32)
    expected[indices.reshape(-1)] = x.reshape(-1)  # of the shape that the windows give, 4 x 4
    np.testing.assert_array_equal(found, np.pad(expected.reshape(1, 2, 4, 4), [(0, 0), (0, 0), (0, 1), (0, 2)]))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_unpooling_what_was_pooled_from_odd_sizes(computed, named):
    shape = ("b", 2, "h", "w") if named else (2, 2, 5, 7)
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        *([helper.make_node("Shape", ["x"], ["s"])] if computed else []),
        helper.make_node("MaxUnpool", ["y", "i", "s"], ["u"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    stored = [] if computed else [("s", np.array([2, 2, 5, 7], np.int64))]
    data = onnx_model(nodes, [("x", 1, shape)], [onnx.ValueInfoProto(name="u")], stored, opset=18)
    feeds = {"x": numbers(2, 2, 5, 7)}
    peer = onnxruntime.InferenceSession(data.SerializeToString(), providers=["CPUExecutionProvider"])
    found = df.Session(load_bytes(data.SerializeToString()), devices=["cpu"]).run(feeds)["u"]
    np.testing.assert_array_equal(found, peer.run(None, feeds)[0])


# ---- sampling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "opset"), [("linear", 22), ("nearest", 22), ("cubic", 20), ("bicubic", 16)])
def test_samples_at_a_grid(mode, opset, padding, corners):
    grid = np.random.default_rng(0).uniform(-2.5, 2.5, (2, 4, 5, 2)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    check("GridSample", [numbers(2, 3, 5, 6), grid], named=(0, 1), opset=opset, **how)


# What PyTorch 2.13 gives on 1, 2, ... 9 at (NaN, 0), (0, NaN), (NaN, NaN) and (NaN, 5); ONNX's reference fails there.
LOST = {
    ("linear", "zeros"): [NAN] * 4, ("linear", "border"): [4, 2, 1, 7], ("linear", "reflection"): [4, 2, 1, 7],
    ("nearest", "zeros"): [0] * 4, ("nearest", "border"): [4, 2, 1, 7], ("nearest", "reflection"): [4, 2, 1, 7],
    ("cubic", "zeros"): [NAN] * 4, ("cubic", "border"): [NAN] * 4, ("cubic", "reflection"): [NAN] * 4,
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("mode", "padding"), LOST)
def test_samples_at_no_number_are_pytorchs(mode, padding, dtype, device):
    x = np.arange(1, 10, dtype=dtype).reshape(1, 1, 3, 3)
    grid = np.array([(NAN, 0), (0, NAN), (NAN, NAN), (NAN, 5), (0, 0)], dtype).reshape(1, 1, 5, 2)
    for many in (1, 40):  # beside one another, and in several blocks
        feeds = {"x0": x, "x1": np.tile(grid, (1, 1, many, 1))}
        data = model("GridSample", [x, feeds["x1"]], 1, 22, (), (), {"mode": mode, "padding_mode": padding})
        found = df.Session(load_bytes(data), devices=[device]).run(feeds)["y0"].reshape(many, 5)
        np.testing.assert_array_equal(found, np.tile([*LOST[mode, padding], 5], (many, 1)))


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_gradients_at_no_number_are_pytorchs(device):
    g = df.GraphBuilder("sampled")
    x, grid = g.input("x", "float32", (1, 1, 3, 3)), g.input("grid", "float32", (1, 1, 2, 2))
    y = df.ops.grid_sample(x, grid, mode="linear", padding="zeros", align_corners=False)
    g.output("dx", df.grad(df.ops.reduce_sum(y, axes=(0, 1, 2, 3), keepdims=False), x))
    g.output("dgrid", df.grad(df.ops.reduce_sum(y, axes=(0, 1, 2, 3), keepdims=False), grid))
    feeds = {"x": np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)}
    feeds["grid"] = np.array([(NAN, 0), (0, NAN)], np.float32).reshape(1, 1, 2, 2)
    found = df.Session(g.build(), devices=[device]).run(feeds)
    np.testing.assert_array_equal(found["dx"], np.zeros((1, 1, 3, 3), np.float32))
    np.testing.assert_array_equal(found["dgrid"].reshape(2, 2), [[0, NAN], [NAN, 0]])


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_samples_in_a_volume(mode):
    grid = np.random.default_rng(0).uniform(-2, 2, (1, 2, 3, 4, 3)).astype(np.float32)
    check("GridSample", [numbers(1, 2, 3, 4, 5), grid], named=(0, 1), mode=mode, padding_mode="reflection")


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 3, 3, 2, 5)])
def test_grids_of_affine_maps(size, corners):
    theta = numbers(size[0], len(size) - 2, len(size) - 1)
    for stored in ((1,), ()):
        check("AffineGrid", [theta, np.array(size, np.int64)], opset=20, stored=stored, align_corners=corners)


@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolutions(masked):
    inputs = [numbers(2, 4, 7, 6), numbers(6, 2, 3, 2), numbers(2, 24, 4, 5), numbers(6)]
    inputs += [np.abs(numbers(2, 12, 4, 5))] if masked else []
    more = {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2], "group": 2, "offset_group": 2}
    check("DeformConv", inputs, stored=(1, 3), named=(0, 2), **more)


# ---- detection ----------------------------------------------------------------------------------------


def regions(count, size, seed=0):
    random = np.random.default_rng(seed)
    first = random.uniform(-0.1, 0.6, (count, 2)) * size
    return np.concatenate([first, first + random.uniform(0.1, 0.6, (count, 2)) * size], axis=1).astype(np.float32)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel", None])
def test_regions_in_bins(coordinates, mode, ratio):
    how = {} if coordinates is None else {"coordinate_transformation_mode": coordinates}
    how |= {"mode": mode, "sampling_ratio": ratio, "output_height": 2, "output_width": 3, "spatial_scale": 0.5}
    inputs = [numbers(2, 3, 7, 9), regions(5, 16.0), np.array([0, 1, 1, 0, 1], np.int64)]
    check("RoiAlign", inputs, named=(0, 1, 2), opset=16 if coordinates else 10, **how)


def test_the_largest_of_regions_in_bins():
    rois = np.concatenate([np.array([[0], [1], [1], [0], [1]]), regions(5, 16.0)], axis=1).astype(np.float32)
    check("MaxRoiPool", [numbers(2, 3, 7, 9), rois], named=(0, 1), opset=21, pooled_shape=[2, 3], spatial_scale=0.5)


def test_a_region_of_no_sample_is_refused():
    inputs = [numbers(2, 3, 7, 9), regions(1, 16.0), np.array([2], np.int64)]
    data = model("RoiAlign", inputs, 1, 16, (), (), {"output_height": 2, "output_width": 2})
    for device in ("cpu", "numpy"):
        with pytest.raises(df.DataflowError, match="region 0 is of sample 2; there are 2"):
            df.Session(load_bytes(data), devices=[device]).run({f"x{i}": a for i, a in enumerate(inputs)})


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("given", [1, 2, 3])
def test_boxes_that_do_not_overlap(given, center):
    random = np.random.default_rng(given)
    boxes = random.uniform(0.2, 3, (2, 40, 4)).astype(np.float32)
    scores = np.round(random.uniform(0, 1, (2, 3, 40)), 1).astype(np.float32)  # with equal ones
    limits = [np.array([7], np.int64), np.array([0.3], np.float32), np.array([0.25], np.float32)][:given]
    for stored in (tuple(range(2, 2 + given)), ()):
        check("NonMaxSuppression", [boxes, scores, *limits], stored=stored, named=(0, 1), center_point_box=center)


def test_windows_added_back_to_an_image():
    sizes = [np.array(n, np.int64) for n in ([5, 6], [2, 3])]
    window = {"strides": [2, 1], "pads": [1, 0, 0, 1], "dilations": [1, 2]}
    check("Col2Im", [numbers(2, 12, 9), *sizes], stored=(1, 2), opset=18, **window)


# ---- resizing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scale", [0.6, 1.7, 0.8])
def test_the_nearest_element_by_a_scale_that_has_no_exact_number(scale, rounding, coordinates):
    scales = np.array([1, 1, scale, scale], np.float32)
    how = {"nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
    check("Resize", [numbers(1, 1, 10, 23), np.zeros(0, np.float32), scales], stored=(1, 2), named=(), **how)


@pytest.mark.parametrize("scale", [0.16, 3.0])
def test_the_nearest_element_by_tensorflows_rule(scale):
    how = {"nearest_mode": "floor", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    scales = np.array([1, 1, scale, scale], np.float32)
    check("Resize", [numbers(1, 1, 10, 51), np.zeros(0, np.float32), scales], stored=(1, 2), named=(), opset=11, **how)


@pytest.mark.parametrize("scale", [0.7, 1.1, 1.3, 0.1])
def test_sizes_by_a_scale_that_has_no_exact_number(scale):
    scales = np.array([1, 1, scale, scale], np.float32)
    inputs = [numbers(1, 1, 10, 20), np.zeros(0, np.float32), scales]
    check("Resize", inputs, stored=(1, 2), mode="linear", coordinate_transformation_mode="half_pixel")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float32"])
@pytest.mark.parametrize("size", [(7, 31), (20, 9), (10, 5)])
def test_the_nearest_of_any_elements(dtype, size):
    """Integers as they are: beyond 2^53, too, and with nothing but moves of elements."""
    random = np.random.default_rng(1)
    x = random.integers(0, 2 if dtype == "bool" else 100, (2, 3, 10, 13)).astype(dtype)
    if dtype == "int64":
        x += 2**62 + 1
    sizes = np.array([2, 3, *size])
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **how)]
    infos = [("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    data = onnx_model(nodes, infos, [onnx.ValueInfoProto(name="y")], [("sizes", sizes)], opset=19, ir_version=10)
    rows, columns = ((np.arange(n) * old) // n for n, old in zip(size, (10, 13), strict=True))
    for device in ("cpu", "numpy"):
        session = df.Session(load_bytes(data.SerializeToString()), devices=[device], fallback="error")
        np.testing.assert_array_equal(session.run(x)["y"], x[:, :, rows][..., columns])
        if dtype != "float32" and device == "cpu":
            assert {node.op for node in session.placement({"x": x.shape})} == {"gather"}


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("scales", [(1.025, 1.025), (1.2, 1.0), (1.1, 2.0), (0.5, 1.15)])
def test_axes_that_keep_their_size_are_not_resized_in_files_of_pytorch(mode, scales):
    """As PyTorch computes; onnxruntime does where no axis changes, in files of any producer."""
    x = numbers(1, 2, 4, 6)
    how = {
        "coordinate_transformation_mode": "half_pixel" if mode == "linear" else "asymmetric",
        "nearest_mode": "floor",
    }
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode, **how)

    def file(of, producer):
        stored = [("s", np.array([1, 1, *of], np.float32))]
        proto = onnx_model([node], [("x", onnx.TensorProto.FLOAT, x.shape)], stored=stored)
        proto.producer_name = producer
        return proto.SerializeToString()

    plain = [s if int(n * s) != n else 1.0 for n, s in zip(x.shape[2:], scales, strict=True)]
    (expected,) = onnxruntime.InferenceSession(file(plain, "pytorch")).run(None, {"x": x})
    for device in ("cpu", "numpy"):
        found = df.Session(load_bytes(file(scales, "pytorch")), devices=[device]).run({"x": x})["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=device)
    if plain == [1.0, 1.0]:
        np.testing.assert_array_equal(found, x)
    assert not np.allclose(df.Session(load_bytes(file(scales, "other"))).run({"x": x})["y"], expected)
