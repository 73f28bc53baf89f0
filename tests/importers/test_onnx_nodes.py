"""ONNX's own node tests, for every operator that has a converter, and its schemas."""

import inspect
import re
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import dataflow as df
from dataflow.passes.dynamic_regions import depends_on_data
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.file.functions import inlined
from dataflow_onnx.loading import load_bytes
from dataflow_onnx.operators import STANDARD

# Cases of converted operators that are refused: pattern of names, why, and what the message says.
REFUSED: list[tuple[str, str, str]] = []
RANDOM = r"test_bernoulli\w*"  # the expected values are of another generator
MOST_STORED = 32  # elements of an input that is stored in the model where the importer must know it


def operators(model):
    versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    nodes = list(model.graph.node)
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        yield domain, node.op_type, versions.get(domain)
        nodes += [inner for a in node.attribute for inner in a.g.node]


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        used = list(operators(inlined(case.model, "model")))
        known = all(v is not None and STANDARD.find(d, op, v) is not None for d, op, v in used)
        if used and known and case.data_sets and not re.fullmatch(RANDOM, case.name):
            yield case


CASES = list(cases())


def array(given):
    """An array; a list of them for a sequence, and None."""
    if given is None or isinstance(given, list):
        return None if given is None else list(map(array, given))
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)


def loaded(case, stored=False):
    """The model; sizes that are inputs of it are stored, or where the importer must know them."""
    try:
        if not stored:
            return load_bytes(case.model.SerializeToString())
    except df.ModelError as error:
        if not re.search("depends on data|must be a stored number", str(error)):
            raise
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value, given in zip(model.graph.input, map(array, case.data_sets[0][0]), strict=True):
        if isinstance(given, np.ndarray) and given.size <= MOST_STORED:
            model.graph.initializer.append(numpy_helper.from_array(given, value.name))
    return load_bytes(model.SerializeToString())


def check(found, expected, case):
    if expected is None or isinstance(expected, list):
        assert type(found) is type(expected) and len(found or ()) == len(expected or ())
        for one, other in zip(found or (), expected or (), strict=True):
            check(one, other, case)
        return
    found = np.asarray(found)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if expected.dtype.kind in "fV":
        limit = {2: 2e-2 if expected.dtype.kind == "V" else 2e-3}.get(expected.dtype.itemsize, 1e-5)
        upcast = (found.astype(np.float64), expected.astype(np.float64))
        np.testing.assert_allclose(*upcast, rtol=max(limit, case.rtol), atol=max(limit, 1e-6))
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case):
    for pattern, why, message in REFUSED:
        if re.fullmatch(pattern, case.name):
            with pytest.raises((df.ModelError, df.InputError), match=message):
                check_model(loaded(case), case)
            pytest.skip(why)
    check_model(loaded(case), case)


def is_deferred(graph):
    return any(node.op is df.ops.deferred for node in graph.nodes)


def check_model(model, case, stored=False):
    inputs, outputs = case.data_sets[0]
    given = dict(zip([v.name for v in case.model.graph.input], inputs, strict=False))
    feeds = {name: array(given[name]) for name in model.inputs}
    with np.errstate(divide="ignore"):  # the logarithm of an empty sum is meant
        if depends_on_data(model.graph) or is_deferred(model.graph):
            results = [df.Session(model, devices=["numpy"]).run(feeds)]
            if not stored:
                check_model(loaded(case, stored=True), case, stored=True)
        else:
            results = [evaluate(model.graph, feeds)]
        results.append(df.Session(model, devices=["cpu"]).run(feeds))
    for found in results:
        for value, expected in zip(case.model.graph.output, map(array, outputs), strict=True):
            check(found[value.name], expected, case)


def test_most_cases_of_converted_operators_are_checked():
    refused = [c for c in CASES if any(re.fullmatch(pattern, c.name) for pattern, _, _ in REFUSED)]
    assert len(CASES) - len(refused) > 900
    for pattern, _, _ in REFUSED:
        assert any(re.fullmatch(pattern, c.name) for c in CASES), f"{pattern} matches no case"


# ---- schemas ------------------------------------------------------------------------------------------

# Attributes without a parameter, by operator: what refuses them says so.
UNREAD = {"Constant": {"sparse_value"}}
# Where the schema's default is written otherwise: no bound at all.
OTHER_DEFAULTS = {("Clip", "min"), ("Clip", "max"), ("RNN", "activations")}


def schemas():
    """Every schema that holds in some opset from 7 on, or in one of another domain, of operators with a converter."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if (schema.domain, schema.name) in STANDARD.versions and not schema.deprecated:
            version = max(7, schema.since_version) if schema.domain == "" else schema.since_version
            held = onnx.defs.get_schema(schema.name, version, schema.domain).since_version == schema.since_version
            if held:
                yield schema, version


def test_every_operator_has_a_converter():
    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas() if not s.deprecated}
    assert known - STANDARD.versions.keys() == set()


@pytest.mark.parametrize(
    ("schema", "version"), list(schemas()), ids=lambda v: f"{v.name}" if hasattr(v, "name") else str(v)
)
def test_converters_take_what_the_schema_has(schema, version):
    converter = STANDARD.find(schema.domain, schema.name, version)
    assert converter is not None
    parameters = list(inspect.signature(converter.function).parameters.values())[1:]
    named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        assert set(schema.attributes) - UNREAD.get(schema.name, set()) <= set(named)
    operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        assert len(operands) >= schema.max_input
    for name, attribute in schema.attributes.items():
        given = attribute.default_value
        if name not in named or not given.type or (schema.name, name) in OTHER_DEFAULTS:
            continue
        default = onnx.helper.get_attribute_value(given)
        default = default.decode() if isinstance(default, bytes) else default
        default = tuple(default) if isinstance(default, list) else default
        assert named[name] == pytest.approx(default) if isinstance(default, float) else named[name] == default
