"""CUDA graphs: captures that fail, and what a captured graph depends on."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import dataflow as df

DEVICES = ["cuda", "cpu"]


def elementwise(*shape):
    """exp(relu(x)) + sin(x)"""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, shape)
    g.output("y", df.ops.add(df.ops.exp(df.ops.relu(x)), df.ops.sin(x)))
    return df.Model(g.build())


# ---- captures that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["begin", "launch", "end", "instantiate"])
def test_a_capture_that_fails_leaves_a_session_that_launches_kernels(what, standin, standin_registry, caplog):
    session = df.Session(elementwise(3, 5), devices=DEVICES, registry=standin_registry)
    x = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)
    expected = np.exp(np.maximum(x, 0)) + np.sin(x)
    session.run(x)
    standin.fail(what)
    before = standin.graph_launches
    try:
        with caplog.at_level(logging.WARNING, "dataflow"):
            for _ in range(3):
                np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-5)
    finally:
        standin.fail("")
    assert standin.graph_launches == before
    (said,) = [r.message for r in caplog.records if "CUDA graph" in r.message]
    assert "kernels are launched one by one" in said


def test_a_card_that_fails_while_it_captures_is_said(standin, standin_registry):
    session = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry)
    x = np.zeros(7, np.float32)
    session.run(x)
    standin.fail("kernel", "df_map")
    try:
        with pytest.raises(df.DeviceError, match=r"cuda:0 \(stand-in\): .*illegal memory access"):
            session.run(x)
    finally:
        standin.fail("")
