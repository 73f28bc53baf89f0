"""The nine light models, with random weights, against onnxruntime and a recorded float64 run."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from tests.kit_samples import EVERY_VARIANT

LARGEST = ("vgg19", "zfnet512")  # whose random weights alone take longer than the others; ONNX's suite runs them too
FOLDER = Path(__file__).parent
spec = importlib.util.spec_from_file_location("seeded_light", FOLDER / "seeded.py")
seeded_light = importlib.util.module_from_spec(spec)
sys.modules["seeded_light"] = seeded_light
spec.loader.exec_module(seeded_light)


@pytest.mark.parametrize("name", seeded_light.NAMES)
def test_light_model_agrees_with_onnxruntime_before_the_softmax(name, tmp_path):
    if name in LARGEST and not EVERY_VARIANT:
        pytest.skip("the nightly script tries this: DATAFLOW_EVERY_VARIANT=1")
    model, target = seeded_light.seeded(name)
    if target not in {v.name for v in model.graph.output}:
        model.graph.output.append(helper.make_tensor_value_info(target, TensorProto.FLOAT, None))
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    feeds = seeded_light.inputs_of(model)
    with np.load(FOLDER / "logits.npz") as file:
        exact = [file[f"{name}/{i}"] for i in range(len(feeds))]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    engine = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    theirs = [engine.run([target], feed)[0] for feed in feeds]
    tolerance = [4 * np.abs(t - e).max() for t, e in zip(theirs, exact, strict=True)]

    # What is compared can differ: between the inputs, and between the classes.
    assert np.abs(exact[0] - exact[1]).max() > 100 * max(tolerance)
    for values, allowed in zip(exact, tolerance, strict=True):
        assert np.ptp(values) > 100 * allowed
        assert allowed > 0

    session = df.Session(df.load(str(path)), devices=["cpu"], threads=2)
    plan = session.plan()
    assert len(plan.segments) == 1 and len(plan.items) == 1
    for feed, values, allowed in zip(feeds, exact, tolerance, strict=True):
        ours = session.run(feed)[target]
        assert np.abs(ours.reshape(values.shape) - values).max() <= allowed
