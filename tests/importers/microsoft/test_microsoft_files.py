"""Files that onnxruntime's optimizers and quantizers wrote: they run as in onnxruntime, fused as before, and train."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("sympy", reason="onnxruntime's tools infer shapes with it")
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions

import dataflow as df
from tests.importers.peer_weights import saturates
from tests.models import data as made
from tests.support import onnx_model, ops_of

MODELS = Path(__file__).parents[2] / "models"
BERT = str(Path(__file__).parent / "bert.onnx")
KERNELS = {"attention", "layer_norm", "gelu", "conv", "conv_relu", "matmul", "matmul_bias", "matmul_bias_relu"}


@pytest.fixture(autouse=True)
def quiet():
    """onnxruntime's tools log what they fuse."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def session_of(path, level="BASIC", written=""):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(written)
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def optimized(tmp_path, model_type="bert", attention="Attention"):
    """The file after the optimizer of transformers, with the operators that it has then."""
    options = FusionOptions(model_type)
    options.use_multi_head_attention = attention == "MultiHeadAttention"
    arguments = {"num_heads": 2, "hidden_size": 16, "opt_level": 0, "optimization_options": options}
    found = optimizer.optimize_model(BERT, model_type=model_type, **arguments)
    path = tmp_path / "optimized.onnx"
    found.save_model_to_file(str(path))
    assert {attention, "EmbedLayerNormalization", "SkipLayerNormalization", "BiasGelu"} <= operators(path)
    return path


def fixed(tmp_path):
    """The file before the optimizer, with numbers for its sizes."""
    model = onnx.load(BERT)
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, (2, 6), strict=True):
            dim.dim_value = size
    onnx.save(model, tmp_path / "fixed.onnx")
    return tmp_path / "fixed.onnx"


def operators(path):
    return {node.op_type for node in onnx.load(str(path)).graph.node}


def sentences(path):
    """What to feed a file of BERT: the optimizer changes the dtype of tokens."""
    random = np.random.default_rng(0)
    arrays = {"input_ids": random.integers(0, 20, (2, 6)), "token_type_ids": random.integers(0, 2, (2, 6))}
    arrays["attention_mask"] = np.array([[1] * 6, [1, 1, 1, 1, 0, 0]])
    return {v.name: arrays[v.name].astype(v.type.dtype.numpy) for v in df.load(str(path)).graph.inputs}


def kernels(path, feeds):
    """How often a plan runs each of the kernels that cost most, products and those with biases as one."""
    plan = df.Session(df.load(str(path)), devices=["cpu"]).plan({n: a.shape for n, a in feeds.items()})
    merged = {"matmul_bias": "matmul", "matmul_bias_relu": "matmul", "conv_relu": "conv"}
    return Counter(merged.get(op, op) for op in ops_of(plan) if op in KERNELS)


def agrees(path, feeds, steps=0.0):
    """Whether the first output is that of onnxruntime, but for rounding, or so much where it is quantized last."""
    expected = session_of(path).run(None, feeds)[0]
    (found, *_) = df.Session(df.load(str(path)), devices=["cpu"]).run(feeds).values()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=steps + 1e-5 * np.abs(expected).max(), rtol=0)


def last_step(path):
    """The scale of what the file quantizes last."""
    model = onnx.load(str(path))
    made_by = {name: node for node in model.graph.node for name in node.output}
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    last = made_by[model.graph.output[0].name]
    assert last.op_type == "DequantizeLinear"
    return float(arrays[last.input[1]].max())


# ---- optimizers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["bert", "bert_script", "gpt", "gpt_script", "vit", "mobile", "unet", "recurrence"])
@pytest.mark.parametrize("level", ["BASIC", "EXTENDED"])
def test_files_that_a_session_optimized_run_the_same_kernels(file, level, tmp_path):
    path = tmp_path / "optimized.onnx"
    session_of(MODELS / f"{file}.onnx", level, path)
    (feeds, *_) = made.probes(file.removesuffix("_script"))
    agrees(path, feeds)
    assert kernels(path, feeds) == kernels(MODELS / f"{file}.onnx", feeds)


@pytest.mark.parametrize("attention", ["Attention", "MultiHeadAttention"])
def test_an_optimized_transformer_runs_the_same_kernels(attention, tmp_path):
    path = optimized(tmp_path, attention=attention)
    feeds = sentences(path)
    agrees(path, feeds)
    before = fixed(tmp_path)
    found, plain = kernels(path, feeds), kernels(before, sentences(before))
    merged = 2 if attention == "Attention" else 0  # one product for queries, keys and values
    assert found == {**plain, "matmul": plain["matmul"] - merged, "gelu": 1}


def losses(path, feeds):
    """Of a few steps towards ones."""
    model = df.load(str(path))
    optimizer_ = df.optim.SGD(lr=0.1)
    with df.Trainer(model, loss="mse", optimizer=optimizer_, devices=["cpu"]) as trainer:
        target = {"labels": np.ones(session_of(path).run(None, feeds)[0].shape, np.float32)}
        return [trainer.step({**feeds, **target}) for _ in range(4)], model


@pytest.mark.parametrize("attention", ["Attention", "MultiHeadAttention"])
def test_an_optimized_transformer_trains_as_before_and_is_saved(attention, tmp_path):
    path = optimized(tmp_path, attention=attention)
    found, model = losses(path, sentences(path))
    before = fixed(tmp_path)
    plain, _ = losses(before, sentences(before))
    assert found[-1] < 0.9 * found[0]
    np.testing.assert_allclose(found, plain, rtol=1e-4)
    saved = tmp_path / "saved.onnx"
    df.save(model, str(saved))
    assert operators(saved) == operators(path)
    agrees(saved, sentences(path))


# ---- quantizers ---------------------------------------------------------------------------------------


class Probes(CalibrationDataReader):
    """What calibration runs."""

    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


@pytest.mark.parametrize("form", list(QuantFormat), ids=lambda f: f.name)
@pytest.mark.parametrize("file", ["mobile", "vit"])
def test_statically_quantized_files_agree(file, form, tmp_path):
    path, probes = tmp_path / "quantized.onnx", made.probes(file)
    quantize_static(
        str(MODELS / f"{file}.onnx"),
        str(path),
        Probes(probes),
        quant_format=form,
        weight_type=QuantType.QInt8,
        reduce_range=saturates(),
    )
    steps = 2 * last_step(path)  # kernels sum floats in other orders
    agrees(path, probes[0], steps)
    again = tmp_path / "optimized.onnx"
    session_of(path, "EXTENDED", again)
    assert any(name.startswith("QLinear") for name in operators(again))
    agrees(again, probes[0], steps)


def test_a_dynamically_quantized_transformer_agrees(tmp_path):
    path = tmp_path / "quantized.onnx"
    extra = {"DefaultTensorType": TensorProto.FLOAT}
    quantize_dynamic(str(optimized(tmp_path)), str(path), weight_type=QuantType.QUInt8, extra_options=extra)
    assert {"QAttention", "QEmbedLayerNormalization", "DynamicQuantizeLinear"} <= operators(path)
    agrees(path, sentences(path))
    again = tmp_path / "optimized.onnx"
    session_of(path, "EXTENDED", again)
    assert {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"} & operators(again)
    agrees(again, sentences(path))


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_of_4_bits_agree(symmetric, tmp_path):
    random = np.random.default_rng(0)
    tensors = [("w", random.standard_normal((40, 9))), ("v", random.standard_normal((9, 3)))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    nodes.append(helper.make_node("MatMul", ["r", "v"], ["y"]))
    model = onnx_model(
        nodes, [("x", TensorProto.FLOAT, [2, 40])], stored=[(n, a.astype(np.float32)) for n, a in tensors]
    )
    quantizer = MatMulNBitsQuantizer(model, block_size=16, is_symmetric=symmetric)
    quantizer.process()
    path = tmp_path / "quantized.onnx"
    onnx.save(quantizer.model.model, path)
    assert "MatMulNBits" in operators(path)
    agrees(path, {"x": random.standard_normal((2, 40)).astype(np.float32)})
