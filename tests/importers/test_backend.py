"""The interface of ONNX's backends, and a few cases of ONNX's runner through it."""

import unittest

import numpy as np
import onnx.backend.test
import pytest
from onnx import helper

import dataflow as df
import dataflow_onnx.backend

CASES = (
    "test_relu_cpu", "test_string_concat_cpu", "test_adam_multiple_cpu", "test_operator_pow_cpu",
    "test_PReLU_2d_multiparam_cpu", "test_gradient_of_add_cpu", "test_tfidfvectorizer_tf_only_bigrams",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the expected values of other cases
def test_the_runner_runs_cases():
    runner = onnx.backend.test.BackendTest(dataflow_onnx.backend, __name__)
    for pattern in CASES:
        runner.include(pattern)
    results = unittest.TestResult()
    runner.test_suite.run(results)
    assert not results.errors and not results.failures
    assert results.testsRun - len(results.skipped) >= len(CASES)


def test_nodes_run_alone_and_results_have_names():
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)
    x = np.arange(6, dtype=np.float32).reshape(1, 6)
    results = dataflow_onnx.backend.run_node(node, [x])
    assert results.a.tolist() == [[0, 1, 2]] and results["b"].tolist() == [[3, 4, 5]]
    old = helper.make_node("Split", ["x"], ["a", "b"], axis=1, split=[2, 4])
    assert dataflow_onnx.backend.run_node(old, [x], opset_version=2).a.tolist() == [[0, 1]]
    scaled = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", scale=[2.0])
    assert dataflow_onnx.backend.run_node(scaled, x[None][0:1]).y.tolist() == [[0, 2, 4, 6, 8, 10]]


def test_devices_and_operands_that_are_not_there():
    assert dataflow_onnx.backend.supports_device("CPU") and dataflow_onnx.backend.supports_device("CPU:0")
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, (2,))], [onnx.ValueInfoProto(name="y")]
    )
    model = dataflow_onnx.backend.prepare(helper.make_model(graph))
    assert model.run(np.array([-1, 1], np.float32))[0].tolist() == [0, 1]
    with pytest.raises(df.InputError, match="2 arrays for the inputs x"):
        model.run([np.zeros(2, np.float32)] * 2)
