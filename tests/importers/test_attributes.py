"""Every attribute of every operator, of the wrong kind, missing or extreme: no converter meets what it can't use."""

import inspect

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from dataflow_onnx.operators import STANDARD
from dataflow_onnx.signatures import arguments_of, parameters_of
from tests.kit_samples import EVERY_VARIANT
from tests.support import onnx_model

KINDS = {
    "int": AttributeProto.INT,
    "float": AttributeProto.FLOAT,
    "str": AttributeProto.STRING,
    "Sequence[int]": AttributeProto.INTS,
    "Sequence[float]": AttributeProto.FLOATS,
    "Sequence[str]": AttributeProto.STRINGS,
    "GraphRecord": AttributeProto.GRAPH,
    "Array": AttributeProto.TENSOR,
}
BODY = helper.make_graph([], "body", [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)])
NAN, FAR = float("nan"), 1 << 63
EXTREMES = {
    AttributeProto.INT: [0, 1, 2, -1, -2, 7, 64, 1 << 31, FAR - 1, -FAR],
    AttributeProto.FLOAT: [0.0, -1.0, NAN, float("inf"), -float("inf"), 1e-45, 3e38],
    AttributeProto.STRING: ["", "none", "SAME_UPPER", "ab,bc->ac", b"\xff\xfe", "x" * 10_000],
    AttributeProto.INTS: [[], [0], [1, 1], [-1] * 3, [2] * 4, [1] * 70, [FAR - 1] * 2, [-FAR], [0] * 8],
    AttributeProto.FLOATS: [[], [NAN], [0.0] * 4, [1e38] * 70],
    AttributeProto.STRINGS: [[], ["Tanh"], [b"\xff"], ["Relu"] * 70],
    AttributeProto.GRAPH: [BODY, onnx.GraphProto()],
    AttributeProto.TENSOR: [
        numpy_helper.from_array(np.ones((2, 0), np.float32)),
        numpy_helper.from_array(np.array([NAN], np.float16)),
        numpy_helper.from_array(np.array(["a"], object)),
        TensorProto(),
        TensorProto(data_type=1, dims=[1 << 62, 4]),
        TensorProto(data_type=1, dims=[1] * 65, raw_data=bytes(4)),
    ],
}


def attribute(name, kind, value):
    made = helper.make_attribute(name, value, attr_type=kind) if value != [] else AttributeProto(name=name, type=kind)
    assert made.type == kind
    return made


def converters():
    """Operator of ONNX, its opset, and its converter."""
    for (domain, op), versions in sorted(STANDARD.versions.items()):
        for index, converter in enumerate(versions if domain == "" else ()):
            opset = versions[index + 1].since - 1 if index + 1 < len(versions) else max(converter.since, 23)
            if opset >= 7 and onnx.defs.has(op, opset, ""):
                yield op, opset, converter


def declared(converter):
    """Attributes of a converter with their kinds, and whether each is needed."""
    for parameter in inspect.signature(converter.function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            kind = KINDS[parameter.annotation.removesuffix(" | None")]
            yield parameter.name, kind, parameter.default is parameter.empty


def given(name, kind):
    """A value that most operators take."""
    plain = {
        AttributeProto.INT: 1,
        AttributeProto.FLOAT: 1.0,
        AttributeProto.INTS: [1, 1],
        AttributeProto.STRING: "ab->ba",
    }
    plain |= {AttributeProto.FLOATS: [1.0] * 4, AttributeProto.STRINGS: ["Tanh"], AttributeProto.GRAPH: BODY}
    return attribute(name, kind, "TF" if name == "mode" else plain[kind])


def load(op, opset, count, attributes, shape, stored):
    """A node whose first operands are fed, and the last ``stored`` ones are integers of the file."""
    names = [f"x{i}" for i in range(count)]
    fed = [(n, TensorProto.FLOAT, shape) for n in names[: count - stored]]
    kept = [(n, np.ones(len(shape), np.int64)) for n in names[count - stored :]]
    node = helper.make_node(op, names, ["y"], name="mine")
    node.attribute.extend(attributes)
    return load_bytes(onnx_model([node], fed, stored=kept, opset=opset, ir_version=10).SerializeToString())


def test_each_converter_declares_what_onnx_says():
    checked = 0
    for op, opset, converter in converters():
        schema = onnx.defs.get_schema(op, opset, "")
        for name, kind, needed in declared(converter):
            if name in schema.attributes:
                theirs = schema.attributes[name]
                assert int(theirs.type.value) == kind, (op, opset, name)
                assert theirs.required == needed or op == "Constant", (op, opset, name)  # which has one of several
                checked += 1
    assert checked > 250


def test_an_attribute_of_another_kind_is_refused_by_name():
    refused = 0
    for op, opset, converter in converters():
        least = arguments_of(converter).least
        attributes = {name: kind for name, kind, needed in declared(converter)}
        for name, kind in attributes.items():
            for other, values in EXTREMES.items():
                if other == kind:
                    continue
                wrong = attribute(name, other, values[0] if other == AttributeProto.GRAPH else values[1])
                with pytest.raises(df.ModelError, match=rf"{op} 'mine', opset {opset}.*{name}"):
                    load(op, opset, least, [wrong], (2, 2), 0)
                refused += 1
    assert refused > 1500


def test_a_needed_attribute_that_is_missing_is_refused_by_name():
    refused = 0
    for op, opset, converter in converters():
        needed = {name: kind for name, kind, needed in declared(converter) if needed}
        for name in needed:
            others = [given(n, kind) for n, kind in needed.items() if n != name]
            with pytest.raises(df.ModelError, match=rf"{op} 'mine', opset {opset}.*{name}"):
                load(op, opset, arguments_of(converter).least, others, (2, 2), 0)
            refused += 1
    assert refused > 20


def test_an_extreme_attribute_is_taken_or_refused():
    """Nothing but our own errors leaves, whatever the numbers: each with one of two inputs, nightly with both."""
    inputs = (((2, 2), 1), ((1, 4, 4, 4), 0))
    taken = refused = 0
    for op, opset, converter in converters():
        least = arguments_of(converter).least
        for name, kind, _ in declared(converter):
            needed = [given(n, k) for n, k, needed in declared(converter) if needed and n != name]
            for number, value in enumerate(EXTREMES[kind]):
                for shape, stored in inputs if EVERY_VARIANT else inputs[(number + opset) % 2 :][:1]:
                    try:
                        load(op, opset, max(least, stored), [*needed, attribute(name, kind, value)], shape, stored)
                        taken += 1
                    except df.ModelError as error:
                        assert f"{op} 'mine', opset {opset}" in str(error) or "node 0" in str(error), error
                        refused += 1
    assert taken > 250
    assert refused > 750


def test_parameters_of_a_plain_function_are_those_of_its_signature():
    for _, _, converter in converters():
        inspected = inspect.signature(converter.function).parameters.values()
        known = {p.name: (p.name, p.kind, p.default, p.annotation) for p in inspected}
        assert {p.name: p for p in parameters_of(converter)} == known


@pytest.mark.parametrize(
    "perm", [[0, -2, -1, 1], [-1, -2, -3, -4], [0, 3, 1, -2], [0, -1], [0, 1, 2, -5], [0, 0, 1, -1]]
)
def test_axes_of_a_transpose_may_count_from_the_last(perm):
    """As PyTorch's tracing exporter writes ``permute(0, -2, -1, 1)``."""
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4, 5])
    node = helper.make_node("Transpose", ["x"], ["y"], perm=perm)
    data = onnx_model([node], [info], [onnx.ValueInfoProto(name="y")], opset=18).SerializeToString()
    if sorted(a % 4 for a in perm) != [0, 1, 2, 3] or min(perm) < -4:
        with pytest.raises(df.ModelError, match="is no order of the 4 axes"):
            load_bytes(data)
        return
    for device in ("cpu", "numpy"):
        y = df.Session(load_bytes(data), devices=[device]).run({"x": x})["y"]
        np.testing.assert_array_equal(y, x.transpose(perm), err_msg=device)
