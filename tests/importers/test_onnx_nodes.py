"""ONNX's own node tests, for every operator that has a converter."""

import warnings

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import dataflow as df
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.importing import load_bytes
from dataflow_onnx.table import find

# Cases of converted operators that are not supported, with the reason that the importer gives.
UNSUPPORTED = {
    "depends on data": "a shape or range that is an input of the graph",
    "must be a stored number": "the same",
    "element type": "strings",
    "expected a tensor": "sequences and optionals",
    "is not supported": "an output, mode or type that dataflow leaves out",
    "training mode": "dropout in training",
    "has no dataflow type": "strings",
    "has no shape": "an input of unknown rank",
    "dataflow reads opset": "an opset before 7",
}


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        model = case.model
        versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
        names = {("" if n.domain == "ai.onnx" else n.domain, n.op_type) for n in model.graph.node}
        known = all(d in versions and find(d, op, versions[d]) is not None for d, op in names)
        if names and known and not model.functions and case.data_sets:
            yield case


CASES = list(cases())


def array(given):
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_node(case):
    data = case.model.SerializeToString()
    try:
        model = load_bytes(data)
    except df.DataflowError as error:
        reason = next((why for text, why in UNSUPPORTED.items() if text in str(error)), None)
        assert reason is not None, error
        pytest.skip(f"{reason}: {error}")
    inputs, outputs = case.data_sets[0]
    given = dict(zip([v.name for v in case.model.graph.input], inputs, strict=False))
    feeds = {name: array(given[name]) for name in model.inputs}
    results = [evaluate(model.graph, feeds)]
    if all(v.type.dtype.kind != "s" for v in model.graph.values()):
        results.append(df.Session(model, devices=["cpu"]).run(feeds))
    for found in results:
        for value, expected in zip(case.model.graph.output, map(array, outputs), strict=True):
            ours = np.asarray(found[value.name])
            assert ours.dtype == expected.dtype and ours.shape == expected.shape
            if expected.dtype.kind in "fV":
                wide = expected.astype(np.float64)
                limit = {2: 2e-2 if expected.dtype.kind == "V" else 2e-3}.get(expected.dtype.itemsize, 1e-5)
                np.testing.assert_allclose(
                    ours.astype(np.float64), wide, rtol=max(limit, case.rtol), atol=max(limit, 1e-6)
                )
            else:
                np.testing.assert_array_equal(ours, expected)


def test_many_cases_were_found():
    assert len(CASES) > 400
