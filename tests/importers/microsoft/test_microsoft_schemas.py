"""Converters of onnxruntime's operators take what its schemas declare."""

import inspect

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as runtime
import pytest

from dataflow_onnx.operators import STANDARD

KINDS = {"int": "INT", "float": "FLOAT", "str": "STRING", "Sequence[int]": "INTS", "Sequence[float]": "FLOATS"}
KINDS |= {"Sequence[str]": "STRINGS"}
SCHEMAS = {s.name: s for s in runtime.get_all_operator_schema() if s.domain == "com.microsoft"}
CONVERTED = sorted(op for domain, op in STANDARD.versions if domain == "com.microsoft" and op in SCHEMAS)


def test_converted_operators_are_known_to_onnxruntime():
    converted = {op for domain, op in STANDARD.versions if domain == "com.microsoft"}
    assert len(converted.intersection(SCHEMAS)) > 0.8 * len(converted)  # an older onnxruntime has fewer


@pytest.mark.parametrize("op", CONVERTED)
def test_a_converter_takes_what_the_schema_has(op):
    schema = SCHEMAS[op]
    parameters = list(inspect.signature(STANDARD.find("com.microsoft", op, 1).function).parameters.values())[1:]
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        assert len(operands) >= len(schema.inputs)
        for declared, parameter in zip(schema.inputs, operands, strict=False):
            if declared.option.name == "Optional":
                assert parameter.annotation.endswith("| None"), declared.name
    for name, attribute in schema.attributes.items():
        assert name in named
        parameter = named[name]
        assert KINDS[parameter.annotation.removesuffix(" | None")] == attribute.type.name
        default = onnx.AttributeProto.FromString(attribute._default_value)
        if attribute.required:
            assert parameter.default is parameter.empty
        elif default.type:
            value = onnx.helper.get_attribute_value(default)
            value = value.decode() if isinstance(value, bytes) else value
            assert parameter.default == pytest.approx(value) if isinstance(value, float) else parameter.default == value
