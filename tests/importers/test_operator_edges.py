"""Converters at the edges of operators, against onnxruntime: least and infinite numbers, NaN, ties, empty tensors.

Each model runs on cpu and on numpy, and with all of its operands stored: computed at load or while running, and by
whichever kernel, the results are the same.
"""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

INF, NAN = np.inf, np.nan
FLOATS = np.array([0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 3, 1e30, INF, -INF, NAN, 20, -100], np.float32)


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def model(op, arrays, outputs, opset, stored, attributes):
    """One node; operands that are None are left out, those in ``stored`` are part of the model."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    given = [(n, a) for i, (n, a) in enumerate(zip(names, arrays, strict=True)) if n and i not in stored]
    kept = [(f"x{i}", arrays[i]) for i in stored if arrays[i] is not None]
    infos = [(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given]
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    proto = onnx_model([node], infos, results, kept, opset=opset, ir_version=10)
    return proto.SerializeToString(), dict(given)


def agree(found, expected, where):
    assert found.dtype == expected.dtype and found.shape == expected.shape, where
    if expected.dtype.kind == "f":
        tolerance = 3e-3 if expected.dtype.itemsize == 2 else 3e-5
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=where)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=where)


def check(op, arrays, *, outputs=1, opset=21, stored=(), expected=None, **attributes):
    """Compares with onnxruntime, or with ``expected`` where that leaves an edge open."""
    data, feeds = model(op, arrays, outputs, opset, stored, attributes)
    if expected is None:
        peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        expected = peer.run(None, feeds)
    computed, nothing = model(op, arrays, outputs, opset, range(len(arrays)), attributes)
    runs = [(data, feeds, device, True) for device in ("cpu", "numpy")]
    runs += [(computed, nothing, "cpu", fold) for fold in (True, False)]
    for proto, inputs, device, fold in runs:
        with np.errstate(all="ignore"):
            results = df.Session(load_bytes(proto), devices=[device], fold=fold).run(inputs)
        for index, array in enumerate(expected):
            agree(results[f"y{index}"], array, f"{op} {attributes} on {device}, fold={fold}, {len(inputs)} fed")


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_division_of_integers_truncates_also_the_least(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    a = np.array([low, high, 0, 1, 7, 100], dtype)
    b = np.array([high, 1, 2, 3, 7], dtype)
    if low:
        a, b = np.append(a, np.array([-7, -1], dtype)), np.append(b, np.array([-2, -7, low], dtype))
    quotients = [[abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for y in b.tolist()] for x in a.tolist()]
    feeds = dict(zip("ab", (a[:, None], b[None]), strict=True))
    for device in ("cpu", "numpy"):  # what is stored is a size, and held to 64 bits
        g = df.GraphBuilder("quotients")
        g.output("y", df.ops.div(*(g.input(n, dtype, v.shape) for n, v in feeds.items())))
        found = df.Session(g.build(), devices=[device]).run(feeds)["y"]
        np.testing.assert_array_equal(found, np.array(quotients, dtype))


@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_numbers_out_of_the_range_of_integers_become_its_ends(source, to):
    """ONNX leaves it open; on every device, and where it is computed at load, it is the same."""
    with np.errstate(over="ignore"):
        x = np.array([NAN, INF, -INF, 1e30, -1e30, 300.5, -300.5, -0.5, 1.5, 60000], source)
    low, high = np.iinfo(to).min, np.iinfo(to).max
    digits = 53 if source == "float64" else 24  # of the floats in which the end is compared
    high -= high % (1 << max(0, high.bit_length() - digits))
    held = [low if np.isnan(v) or v < low else high if v > high else int(v) for v in x.tolist()]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    check("Cast", [x], to=code, expected=[np.array(held, to)])


@pytest.mark.parametrize("values", [[0, INF], [INF, 1], [1, -INF], [NAN, 1]])
def test_one_hot_keeps_values_that_have_no_difference(values):
    check("OneHot", [np.array([0, 2, -1, 5]), np.array([4]), np.array(values, np.float32)], stored=[1])


def test_one_hot_of_bools():
    hot = np.array([[False, True, True], [True, True, False]])
    check("OneHot", [np.array([0, 2]), np.array([3]), np.array([True, False])], stored=[1], expected=[hot])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64"])
def test_the_largest_and_smallest_with_equal_values_and_nan(dtype):
    rows = np.array([[1, 2, 2, 1, 2], [7, 7, 7, 7, 7], [-5, 5, -5, 0, 5]], dtype)
    ordered = {1: np.argsort(-rows.astype(np.float64), -1, "stable"), 0: np.argsort(rows, -1, "stable")}
    for k, largest in itertools.product((0, 1, 3, 5), (0, 1)):
        index = ordered[largest][:, :k]
        best = [np.take_along_axis(rows, index, -1), index]
        check("TopK", [rows, np.array([k])], outputs=2, stored=[1], largest=largest, expected=best)
    if dtype[0] == "f":  # counts as the largest
        rows = np.array([[NAN, 1, INF, NAN, -INF]], dtype)
        for largest, index in ((1, [0, 3, 2]), (0, [4, 1, 2])):
            best = [rows[:, index], np.array([index])]
            check("TopK", [rows, np.array([3])], outputs=2, stored=[1], largest=largest, expected=best)


@pytest.mark.parametrize("x", [np.zeros((2, 2)), [0, 2, -1, -2.5], [3, 4], [-3, -4], [5]], ids=str)
def test_a_tensor_of_zeros_has_a_scale(x):
    check("DynamicQuantizeLinear", [np.array(x, np.float32)], outputs=3, opset=11)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_that_keeps_the_ratio_scales_by_the_ratio(mode):
    for policy, wanted, axes in itertools.product(("not_larger", "not_smaller"), ([7, 3], [3, 9]), ([2, 3], [3, 2])):
        given = {"mode": mode, "axes": axes, "keep_aspect_ratio_policy": policy}
        check("Resize", [numbers(1, 2, 4, 5), None, None, np.array(wanted)], opset=19, stored=[3], **given)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scale", [1.7, 0.6])
@pytest.mark.parametrize("shape", [(1, 2, 4, 5), ("batch", 2, "height", "width")])
def test_corners_of_what_pytorch_scales_are_elements(mode, scale, shape):
    """As in PyTorch and onnxruntime; in files of others as in ONNX's tests, see its suite."""
    x = numbers(1, 2, 4, 5)
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode, coordinate_transformation_mode="align_corners")
    proto = onnx_model([node], [("x", onnx.TensorProto.FLOAT, shape)], stored=[("s", np.float32([1, 1, scale, scale]))])
    proto.producer_name = "pytorch"
    found = df.Session(load_bytes(proto.SerializeToString())).run({"x": x})["y"]
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_the_nearest_element_where_a_coordinate_is_an_integer(rounding):
    for scales in ([1, 1, 2, 1.5], [1, 1, 3, 2.5]):
        given = {"nearest_mode": rounding, "coordinate_transformation_mode": "half_pixel_symmetric"}
        check("Resize", [numbers(1, 1, 4, 5), None, np.float32(scales)], opset=19, stored=[2], **given)


@pytest.mark.parametrize("axis", [{}, {"axis": 1}])
def test_elements_are_chosen_by_a_condition_of_any_shape(axis):
    """Paddle's converter writes a selection by a mask so."""
    x = numbers(2, 6)
    chosen = np.array([[True, False, True], [False, True, True]]) if axis else x > 0
    check("Compress", [x, chosen], opset=11, **axis)


@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.7, 0.3), (0.5, 1.5), (2.5, 0.9)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_of_opset_10_takes_the_next_element_where_it_shrinks(mode, scales):
    """ONNX's test of that version makes [1, 3] of [1, 2, 3, 4] by a scale of 0.6."""
    check("Resize", [numbers(1, 1, 14, 20), np.float32([1, 1, *scales])], opset=10, stored=[1], mode=mode)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_rows_without_elements_or_with_infinities(op):
    rows = np.float32([[-INF, 0, 1], [1, 1, 1], [-1e30, 1e30, 0], [2, -INF, 2]])
    for x, axis in ((rows, -1), (rows, 0), (numbers(0, 3), 1), (numbers(3, 0), 1), (numbers(3, 0), 0)):
        check(op, [x], axis=axis)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_of_any_length(op):
    for size, periodic in itertools.product((1, 2, 9), (0, 1)):
        check(op, [np.array(size)], opset=17, stored=[0], periodic=periodic)


def test_negative_infinities_in_a_log_of_sums():
    for row in ([-INF, -INF], [-INF, 1], [INF, 1], [200, 201], [-200, -201]):
        check("ReduceLogSumExp", [np.float32([row]), np.array([1])], stored=[1], keepdims=0)


# ---- a sweep --------------------------------------------------------------------------------------------

UNARY = "Abs Atan Ceil Cos Elu Erf Exp Floor HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Selu Sigmoid Sin "
UNARY += "Softplus Softsign Sqrt Tanh ThresholdedRelu"
BINARY = "Add Sub Mul Div Pow Min Max Less LessOrEqual Greater GreaterOrEqual Equal"
REDUCE = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp"
SHAPES = [((), ()), ((2, 1), (1, 3)), ((2, 0, 3), (1, 3)), ((1,), (1, 1))]


@pytest.mark.parametrize("op", UNARY.split())
def test_elementwise(op):
    check(op, [FLOATS])
    for shape in ((), (2, 0, 3)):
        check(op, [numbers(*shape)])


@pytest.mark.parametrize("op", BINARY.split())
def test_two_operands(op):
    small = FLOATS[np.abs(FLOATS) < 4] if op == "Pow" else FLOATS[np.isfinite(FLOATS)]
    check(op, [small[:, None], small[None]])
    for a, b in SHAPES:
        check(op, [np.asarray(np.abs(numbers(*a))), numbers(*b)])


@pytest.mark.parametrize("op", REDUCE.split())
def test_reductions(op):
    x = numbers(2, 3, 4)
    for axes, keepdims in (([], 1), ([0], 0), ([-1], 1), ([0, -1], 0)):
        check(op, [x, np.array(axes, np.int64)], stored=[1], keepdims=keepdims)
    check(op, [x], noop_with_empty_axes=1)
    check(op, [numbers()])


def test_weights_of_one_element_are_parameters():
    """A product with one feature and the slope of a PRelu have a matrix of one element; a scalar is no weight."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("PRelu", ["h", "slope"], ["p"]),
        helper.make_node("Mul", ["p", "half"], ["y"]),
    ]
    arrays = {"w": np.full((1, 1), 2, np.float32), "slope": np.full((1, 1), 0.25, np.float32), "half": np.float32(0.5)}
    file = onnx_model(nodes, [("x", onnx.TensorProto.FLOAT, ["n", 1])], [("y", onnx.TensorProto.FLOAT, None)],
                      [(name, np.asarray(array)) for name, array in arrays.items()])  # fmt: skip
    model = load_bytes(file.SerializeToString())
    assert {name for name, p in model.parameters.items() if p.trainable} == {"w", "slope"}
    with df.Trainer(model, "mse", df.optim.SGD(lr=1.0), devices="cpu") as trainer:
        trainer.step({"x": np.array([[-1.0]], np.float32), "labels": np.array([[0.0]], np.float32)})
    # y = -0.25, its square's gradient -0.5; dy/dw = slope * x / 2 and dy/dslope = w * x / 2
    assert model.parameters["w"].array == 2 - 0.5 * 0.125
    assert model.parameters["slope"].array == 0.25 - 0.5 * 1.0


@pytest.mark.parametrize(("axis", "at"), [(0, 1), (1, -1), (-1, 4), (-3, 0), (2, -5)])
def test_a_gather_of_one_known_index_is_a_view(axis, at):
    index = np.array(at, np.int64)
    check("Gather", [numbers(2, 3, 5), index], stored=(1,), axis=axis)
    data, _ = model("Gather", [numbers(2, 3, 5), index], 1, 21, (1,), {"axis": axis})
    assert {node.op.name for node in load_bytes(data).graph.nodes} <= {"slice", "reshape"}


def test_a_gather_that_reads_beyond_the_end_is_refused_when_it_runs():
    data, feeds = model("Gather", [numbers(2, 3), np.array(2, np.int64)], 1, 21, (1,), {"axis": 0})
    with pytest.raises(df.DataflowError, match="index"):
        load_bytes(data)(feeds, devices=["cpu"])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize(("mode", "antialias"), [("linear", 0), ("linear", 1), ("cubic", 1), ("nearest", 0)])
@pytest.mark.parametrize("scales", [(2, 2), (1.5, 0.6), (0.5, 0.5)])
def test_integers_are_resized_as_images_are(dtype, mode, antialias, scales):
    """Towards zero, or with antialiasing rounded axis by axis; onnxruntime's fixed-point weights may differ by one."""
    x = np.random.default_rng(0).integers(0, 100, (1, 3, 8, 10)).astype(dtype)
    if dtype == np.int8 and mode == "cubic":  # below zero, where it overshoots, onnxruntime saturates
        x = x // 4 + 40
    operands = [x, None, np.array([1, 1, *scales], np.float32)]
    data, feeds = model("Resize", operands, 1, 18, [2], {"mode": mode, "antialias": antialias})
    (expected,) = onnxruntime.InferenceSession(data).run(None, feeds)
    found = df.Session(load_bytes(data), devices=["cpu"], fallback="allow").run(feeds)["y0"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    apart = np.abs(found.astype(np.int64) - expected)
    assert apart.max(initial=0) <= 1
    assert np.mean(apart > 0) <= 0.1


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_integers_shrink_as_floats_without_their_fractions(dtype):
    x = np.arange(0 if dtype == "uint8" else -4, 5).astype(dtype)
    check("Shrink", [x], bias=1.25, lambd=1.5)
    check("Shrink", [x])


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((3,), (2, 3, 4)), ((2, 5, 3), (3,)), ((1,), (1, 4))], ids=str)
def test_integer_products_take_vectors(shapes):
    random = np.random.default_rng(0)
    a, b = (random.integers(low, 100, shape).astype(t) for low, shape, t in zip((0, -99), shapes, "Bb", strict=True))
    check("MatMulInteger", [a, b, np.uint8(7)[None], np.array(-3, np.int8)])
    check("MatMulInteger", [a, b, None, np.array(5, np.int8)], stored=(3,))


@pytest.mark.parametrize("number", [(1 << 63) - 1, (1 << 63) - 2, (1 << 53) + 1, -(1 << 63) + 1, (1 << 64) - 1])
def test_computed_shapes_are_filled_with_exactly_the_number(number):
    value = np.array([number], "int64" if -(1 << 63) <= number < 1 << 63 else "uint64")
    check("ConstantOfShape", [np.array([2, 3])], value=onnx.numpy_helper.from_array(value))


@pytest.mark.parametrize("k", [(1 << 63) - 1, -(1 << 63), 1 << 62, 2, -1])
@pytest.mark.parametrize("upper", [0, 1])
def test_diagonals_may_lie_outside_of_a_matrix(k, upper):
    check("Trilu", [numbers(2, 3, 4), np.array(k)], upper=upper, stored=(1,))


@pytest.mark.parametrize("bounds", [{}, {"max": 0.5}, {"min": 0.5}, {"min": -1.0, "max": 1.0}], ids=str)
def test_clip_of_old_opsets_keeps_to_finite_numbers(bounds):
    """Of float32: those of float16 are computed in it, where the usual bounds are beyond what float16 holds."""
    check("Clip", [FLOATS], opset=8, **bounds)
    halves = FLOATS[np.abs(FLOATS) != np.float32(1e30)].astype(np.float16)
    check("Clip", [halves], opset=8, **bounds)
    assert load_bytes(model("Clip", [halves], 1, 8, (), bounds)[0]).outputs["y0"].dtype == df.float16  # no warning


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("shape", "axis"), [((0, 5, 3), 1), ((0, 5, 3), 2), ((2, 0, 3), 2), ((2, 3, 0), 1)], ids=str)
def test_rows_of_several_axes_may_be_empty(op, shape, axis):
    check(op, [np.zeros(shape, np.float32)], opset=11, axis=axis)


EMPTY_POOLS = [
    ((1, 2, 4), [5], [1], 0),  # the kernel is a stride larger than the input
    ((2, 1, 4, 5), [6, 2], [2, 1], 0),
    ((1, 1, 3, 4), [1, 6], [1, 2], 1),
    ((1, 2, 4), [8], [3], 1),
]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("shape", "kernel", "strides", "ceil_mode"), EMPTY_POOLS)
def test_pools_without_a_window_give_no_elements(op, shape, kernel, strides, ceil_mode):
    check(op, [numbers(*shape)], kernel_shape=kernel, strides=strides, ceil_mode=ceil_mode)


CROPS = [
    (6, 5, [-0.2, 0.7], "round_prefer_ceil"),
    (6, 3, [0.3, 0.8], "round_prefer_floor"),
    (6, 3, [0.3, 0.8], "ceil"),
    (8, 4, [-0.1, 1.0], "floor"),  # the last lies on the last element
    (6, 7, [0.1, 1.2], "round_prefer_floor"),
    (7, 4, [0.2, 0.9], "floor"),
]


@pytest.mark.parametrize(("size", "result", "roi", "rounding"), CROPS)
def test_crops_choose_the_nearest_element_in_the_precision_of_their_region(size, result, roi, rounding):
    arrays = [numbers(size), np.array(roi, np.float32), None, np.array([result])]
    how = {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize", "nearest_mode": rounding}
    check("Resize", arrays, stored=(1, 3), **how)


@pytest.mark.parametrize("size", [2, 3, 8, 16])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_of_integers_have_ones_where_they_are_largest(op, size, periodic):
    check(op, [np.array(size, np.int64)], periodic=periodic, output_datatype=onnx.TensorProto.INT64)
