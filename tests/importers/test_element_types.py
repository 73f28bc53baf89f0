"""Operators of every element type that their schema allows, against onnxruntime, else against onnx's reference."""

import numpy as np
import onnxruntime
import pytest
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow_onnx.loading import load_bytes

OPSET = 22
TYPES = (
    "float", "double", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bool",
)  # fmt: skip
CODES = {name: getattr(helper.TensorProto, name.upper()) for name in TYPES}


def own(*shape):
    """An operand of the type that is tried."""
    return shape


def ints(*values):
    """A stored operand of int64."""
    return np.array(values, np.int64)


UNARY = (
    "Abs", "Neg", "Sign", "Ceil", "Floor", "Round", "Sqrt", "Exp", "Log", "Relu", "Sigmoid", "Tanh", "Erf",
    "Reciprocal", "Not", "BitwiseNot", "IsNaN", "IsInf", "Softplus", "Identity", "Sin", "Cos", "LeakyRelu", "Elu",
    "Selu", "HardSigmoid", "Gelu", "Mish", "Softmax", "LogSoftmax", "Hardmax", "NonZero", "Size", "Shape", "Flatten",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Sum", "Mean", "PRelu",
)  # fmt: skip
REDUCED = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
OPERATORS = {
    **{name: ([own(3, 4)], {}) for name in UNARY},
    **{name: ([own(3, 4), own(4)], {}) for name in BINARY},
    **{name: ([own(3, 4), ints(1)], {"keepdims": 0}) for name in REDUCED},
    **{name: ([own(3, 4)], {"axis": 1}) for name in ("ArgMax", "ArgMin")},
    "BitShift": ([own(3, 4), own(4)], {"direction": "LEFT"}),
    "Clip": ([own(3, 4), own(), own()], {}),
    "Where": ([np.array([[True], [False], [True]]), own(3, 4), own(4)], {}),
    "TopK": ([own(3, 4), ints(2)], {}),
    "CumSum": ([own(3, 4), np.array(1)], {}),
    "Gather": ([own(3, 4), ints(2, 0)], {}),
    "GatherElements": ([own(3, 4), np.array([[0, 2, 1, 1]])], {}),
    "GatherND": ([own(3, 4), np.array([[0, 2], [1, 1]])], {}),
    "ScatterElements": ([own(3, 4), np.array([[0, 2, 1, 1]]), own(1, 4)], {"reduction": "add"}),
    "ScatterND": ([own(3, 4), np.array([[0], [2]]), own(2, 4)], {}),
    "Concat": ([own(3, 4), own(2, 4)], {"axis": 0}),
    "Transpose": ([own(3, 4)], {}),
    "Reshape": ([own(3, 4), ints(4, 3)], {}),
    "Expand": ([own(3, 1), ints(3, 4)], {}),
    "Tile": ([own(3, 1), ints(1, 4)], {}),
    "Slice": ([own(3, 4), ints(0), ints(2)], {}),
    "Pad": ([own(3, 4), ints(1, 0, 0, 1)], {}),
    "Trilu": ([own(3, 4)], {}),
    "EyeLike": ([own(3, 3)], {}),
    "MatMul": ([own(3, 4), own(4, 2)], {}),
    "Gemm": ([own(3, 4), own(4, 2), own(2)], {}),
    "Einsum": ([own(3, 4), own(4, 2)], {"equation": "ij,jk->ik"}),
    "DepthToSpace": ([own(1, 4, 2, 2)], {"blocksize": 2}),
    "SpaceToDepth": ([own(1, 1, 4, 4)], {"blocksize": 2}),
    "ReverseSequence": ([own(3, 4), ints(3, 2, 1, 1)], {}),
    "Compress": ([own(3, 4), np.array([True, False, True])], {"axis": 0}),
    "Unique": ([own(6)], {}),
    "MaxPool": ([own(1, 1, 4, 4)], {"kernel_shape": [2, 2]}),
    "LayerNormalization": ([own(3, 4), own(4)], {}),
    "Det": ([own(3, 3)], {}),
}
POSITIVE = {"Sqrt", "Log", "ReduceLogSum", "Pow", "Reciprocal"}
# Where the peer's own result has another type than the schema says, by operator and type.
OTHER_TYPE = {("ReduceSumSquare", "uint32"), ("Det", "bfloat16")}


def data(random, name, index, shape, dtype):
    if dtype == np.bool_:
        return random.random(shape) < 0.5
    if name == "Clip" and index:
        return np.array((2, 5)[index - 1]).astype(dtype)
    if dtype.kind in "fV":
        found = random.standard_normal(shape) * 2
        return np.asarray(np.abs(found) + 0.5 if name in POSITIVE else found).astype(dtype)
    least = 0 if dtype.kind == "u" or name in POSITIVE or (name == "BitShift" and index) else -4
    divides = name in ("Div", "Mod", "Pow") and index
    ends = (1, 4) if divides else (least, 4 if name == "BitShift" else 6)
    return np.asarray(random.integers(*ends, shape)).astype(dtype)


def expected_of(model, feeds):
    """What another engine gives; None where none computes this type."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)
    except Exception:  # of many classes: not implemented, or a type that it refuses
        try:
            with np.errstate(all="ignore"):
                return ReferenceEvaluator(model).run(None, feeds)
        except Exception:
            return None


def types_of(name, operands):
    """The element types that the schema allows for the operands that are tried."""
    schema = defs.get_schema(name, OPSET)
    first = next(index for index, operand in enumerate(operands) if isinstance(operand, tuple))
    parameter = schema.inputs[min(first, len(schema.inputs) - 1)].type_str
    allowed = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}.get(parameter, [parameter])
    return [name for name in TYPES if f"tensor({name})" in allowed]


@pytest.fixture(autouse=True, scope="module")
def quiet():
    onnxruntime.set_default_logger_severity(4)
    yield
    onnxruntime.set_default_logger_severity(2)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore")
def test_every_element_type(name):
    operands, attributes = OPERATORS[name]
    random, compared = np.random.default_rng(0), 0
    for kind in types_of(name, operands):
        dtype = helper.tensor_dtype_to_np_dtype(CODES[kind])
        names = [f"i{index}" for index in range(len(operands))]
        feeds = {names[i]: data(random, name, i, o, dtype) for i, o in enumerate(operands) if isinstance(o, tuple)}
        inputs = [helper.make_tensor_value_info(n, CODES[kind], a.shape) for n, a in feeds.items()]
        stored = [numpy_helper.from_array(o, names[i]) for i, o in enumerate(operands) if not isinstance(o, tuple)]
        more = {"fmod": 1} if name == "Mod" and dtype.kind in "fV" else {}
        outputs = [f"o{i}" for i in range({"TopK": 2, "Unique": 4}.get(name, 1))]
        nodes = [helper.make_node(name, names, outputs, **attributes, **more)]
        found_types = [helper.make_value_info(o, helper.TypeProto()) for o in outputs]
        graph = helper.make_graph(nodes, "one", inputs, found_types, stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        expected = expected_of(model, feeds)
        if expected is None:
            continue
        compared += 1
        found = df.Session(load_bytes(model.SerializeToString()), devices=["cpu"]).run(feeds)
        for output, array in zip(outputs, map(np.asarray, expected), strict=True):
            own_result = found[output]
            assert own_result.shape == array.shape
            assert own_result.dtype == array.dtype or (name, kind) in OTHER_TYPE
            if own_result.dtype.kind in "fV":
                limit = {"bfloat16": 2e-2, "float16": 3e-3}.get(own_result.dtype.name, 1e-5)
                both = own_result.astype(np.float64), array.astype(np.float64)
                np.testing.assert_allclose(*both, rtol=limit, atol=limit, err_msg=kind)
            else:
                np.testing.assert_array_equal(own_result, array, err_msg=kind)
    assert compared


# ---- reductions whose exact result has more digits than a float of the same size ------------------------


def reduced(name, x, axes, device, fuse=True, named=False, **attributes):
    code = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("x", code, [f"n{i}" for i in range(x.ndim)] if named else x.shape)]
    node = helper.make_node(name, ["x"] if axes is None else ["x", "axes"], ["y"], **attributes)
    stored = [] if axes is None else [numpy_helper.from_array(np.array(axes, np.int64), "axes")]
    graph = helper.make_graph([node], "one", inputs, [helper.make_tensor_value_info("y", code, None)], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return df.Session(load_bytes(model.SerializeToString()), devices=[device], fuse=fuse).run({"x": x})["y"]


def centered(x):
    return x - x.mean((0, 2, 3), keepdims=True)


FLOAT16 = {
    "ReduceL2": (lambda x: np.sqrt((x * x).sum(1)), {"keepdims": 0}),
    "ReduceSumSquare": (lambda x: (x * x).sum(1), {"keepdims": 0}),
    "ReduceLogSum": (lambda x: np.log(x.sum(1)), {"keepdims": 0}),
    "ReduceLogSumExp": (lambda x: x.max(1) + np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)), {"keepdims": 0}),
    "GlobalLpPool": (lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)), {}),
    "LpPool": (lambda x: np.sqrt((x * x).reshape(2, 3, 3, 2, 4, 2).sum((3, 5))),
               {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "LpNormalization": (lambda x: x / np.sqrt((x * x).sum(3, keepdims=True)), {}),
    "MeanVarianceNormalization": (
        lambda x: centered(x) / np.sqrt((centered(x) ** 2).mean((0, 2, 3), keepdims=True)), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_means_of_integers_beyond_float64s_are_exact(dtype, device, named):
    limits, random = np.iinfo(dtype), np.random.default_rng(0)
    cases = [random.integers(limits.min, limits.max, (3, 4, 5), dtype, endpoint=True), np.full((3, 4, 5), limits.max)]
    cases += [np.full((3, 4, 5), limits.min), random.integers(0 if dtype == "uint64" else -9, 10, (3, 4, 5))]
    cases += [random.integers(0, 1000, (3, 4, 5)) + 1_700_000_000_000_000_000]  # times in nanoseconds
    for x in (case.astype(dtype) for case in cases):
        for axes, keepdims in ((None, 0), ((1,), 1), ((0, -1), 0), ((2,), 0)):
            found = reduced("ReduceMean", x, axes, device, named=named, keepdims=keepdims)
            over = tuple(range(3)) if axes is None else axes
            sums = np.sum(x.astype(object), axis=over, keepdims=bool(keepdims))
            count = x.size // np.size(sums)
            towards_zero = np.vectorize(lambda n, c=count: abs(n) // c * (1 if n > 0 else -1), otypes=[dtype])(sums)
            assert found.dtype == dtype and np.array_equal(found, towards_zero)
        np.testing.assert_array_equal(reduced("ReduceMean", x, None, device, noop_with_empty_axes=1), x)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_logarithms_of_sums_of_integers_drop_the_fraction(dtype, device):
    """As ONNX's definition by Cast, Exp, ReduceSum, Log and CastLike; onnxruntime gives 5 and 3 of the first two."""
    x = np.array([[5, 4, 4, 4, 4, 4], [3, 3, 2, 2, 2, 2], [700, 700, 700, 699, 0, 9]], dtype)
    exact = x.max(1) + np.log(np.exp(x.astype(np.float64) - x.max(1, keepdims=True)).sum(1))
    np.testing.assert_array_equal(reduced("ReduceLogSumExp", x, (1,), device, keepdims=0), exact.astype(dtype))
    np.testing.assert_array_equal(reduced("ReduceLogSum", x, (1,), device, keepdims=0), np.log(x.sum(1)).astype(dtype))


@pytest.mark.parametrize(("device", "fuse"), [("cpu", True), ("cpu", False), ("numpy", True)])
@pytest.mark.parametrize("name", FLOAT16)
def test_squares_and_sums_of_float16_neither_overflow_nor_vanish(name, device, fuse):
    random = np.random.default_rng(0)
    exact, attributes = FLOAT16[name]
    for scale in (900, 2e-4):
        x = np.abs(random.standard_normal((2, 3, 6, 8)) * scale).astype(np.float16)
        with np.errstate(over="ignore"):
            found = reduced(name, x, (1,) if name.startswith("Reduce") else None, device, fuse, **attributes)
            expected = exact(x.astype(np.float64)).astype(np.float16)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=6e-8)
