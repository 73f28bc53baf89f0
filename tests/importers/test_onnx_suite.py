"""ONNX's whole suite in its own runner: how many cases pass, and exactly which don't."""

import re
import unittest

import numpy as np
import onnx.backend.test
import pytest
from onnx.backend.test.loader import load_model_tests

import dataflow_onnx.backend

COUNTED = "1.23.2"  # the version of onnx whose cases these numbers are of
CASES, PASSING = 2033, 2027
# Cases that don't pass: a pattern of names, how many they are, and why.
FAILING = {
    r"test_bernoulli\w*": (6, "the expected values are random numbers of NumPy's generator"),
}
# Cases whose expected values were computed in float32: they miss the suite's own limits by their distance from float64.
INEXACT = ("test_dft_inverse", "test_dft_inverse_opset19")


class Suite(onnx.backend.test.BackendTest):
    """ONNX's runner, which takes the length of each element of a sequence: a scalar has none."""

    @classmethod
    def assert_similar_outputs(cls, ref_outputs, outputs, *args, **options):
        for found, expected in zip(outputs, ref_outputs, strict=True):
            if isinstance(expected, list):
                assert isinstance(found, list)
                cls.assert_similar_outputs(expected, found, *args, **options)
            else:
                super().assert_similar_outputs([expected], [found], *args, **options)


def name_of(test):
    return test.id().rpartition(".")[2].removesuffix("_cpu")


def compared_with_float64(case, monkeypatch):
    """Puts the inverse transform in float64 in the place of the expected values, which must need it."""
    (x, *others), (stored,) = case.data_sets[0]
    numbers = np.fft.ifft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=int(others[-1]) if others else 1)
    exact = np.stack([numbers.real, numbers.imag], -1)
    np.testing.assert_allclose(stored, exact, rtol=0, atol=2e-6)
    assert not np.allclose(stored, exact, rtol=case.rtol, atol=case.atol)
    monkeypatch.setattr(case, "data_sets", [((x, *others), (exact.astype(stored.dtype),))])


@pytest.mark.filterwarnings("ignore")  # of the expected values, and of nodes that run on NumPy
def test_all_cases_pass_but_those_that_are_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))  # the inputs of the light models are written there
    nodes = {case.name: case for case in load_model_tests(kind="node")}
    for name in INEXACT:
        compared_with_float64(nodes[name], monkeypatch)
    groups = Suite(dataflow_onnx.backend, __name__).test_cases.values()
    suite = unittest.TestSuite(case(name) for case in groups for name in dir(case) if name.endswith("_cpu"))
    results = unittest.TestResult()
    suite.run(results)
    assert results.skipped == []
    failed = {name_of(test): text for test, text in (*results.errors, *results.failures)}
    listed = {name: pattern for name in failed for pattern in FAILING if re.fullmatch(pattern, name)}
    assert {name: text for name, text in failed.items() if name not in listed} == {}
    assert {p: list(listed.values()).count(p) for p in FAILING} == {p: count for p, (count, _) in FAILING.items()}
    if onnx.__version__ == COUNTED:
        assert (results.testsRun, results.testsRun - len(failed)) == (CASES, PASSING)
