"""What each op is written as: samples of the conformance kit as files, which onnxruntime computes as float64 does."""

import dataclasses
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df
from dataflow.plugin import Exporter
from dataflow.testing import SAMPLES
from dataflow_onnx.file.to_onnx import build_proto
from tests.fuzz.comparing import wrong
from tests.importers.peer_weights import saturates
from tests.kit_samples import EVERY_VARIANT

ops = df.ops
# Training alone, and what ONNX has no operator for that is as general.
WITHOUT = {
    "sgd_step", "adamw_step", "softmax_cross_entropy_with_grad", "ctc_loss", "ctc_loss_grad", "ctc_loss_product",
    "cofactor", "resample_grad",
    "grid_sample_grad_input", "grid_sample_grad_grid", "roi_align_grad", "max_roi_pool", "max_roi_pool_grad",
    "random_uniform", "random_normal", "mersenne_uniform", "bitcast", "linear_recurrence", "find", "encode_blocks",
    "decode_blocks", "non_max_suppression", "keyed", "read_shape", "unique", "image_size", "decode_image",
    "deform_conv",
    "string_case", "string_split_count", "string_split", "string_token_count", "string_tokens", "regex_full_match",
    "murmur_hash",
    "tree_ensemble", "inverse", "deferred",
}  # fmt: skip
# With a key it drops here; a file is of inference.
RANDOM = {"dropout"}
# onnxruntime takes no bfloat16 by NumPy, which are the sums that these are for.
NOT_THERE = {"matmul_rounded"}
# What onnxruntime says of attributes, zero points and dtypes that it doesn't take.
REFUSED = (
    "zero point must be a scalar", "IsScalarOr1ElementVector", "IsBQuantParamSupported", "mode_ != Cubic",
    "Only 4-D or 5-D tensor", "can't be converted to MLDataType",
)  # fmt: skip
# Where it computes something else than ONNX says: integers in floating point, which saturates; a difference of
# exponentials that cancels; positions in a scalar, which have no axis; samples at 1e30, which its indices can't hold.
DIFFERENT = {
    "pow-i32-8x1-i32-7", "pow-i64-8x1-i64-7", "reduce_prod-i32-5x40-axes=0", "reduce_prod-i32-5x40-axes=1",
    "celu-f32-4x9-alpha=10000.0", "nonzero-bool-scalar-count=1",
    *(f"grid_sample-f32-1x2x4x4-f32-1x2x3x2-padding={name}" for name in ("zeros", "border", "reflection")),
}  # fmt: skip


def saturated(sample):
    """Whether its sums of products of uint8 and int8 may be others in onnxruntime on this machine."""
    if not sample.op.name.startswith(("matmul_", "conv_")):
        return False
    first, *others = (str(operand.dtype) for operand in sample.inputs if operand is not None)
    return first == "uint8" and "int8" in others and saturates()


def chosen():
    """A few samples per op, of some elements."""
    most, found = 100 if EVERY_VARIANT else 3, Counter()
    for sample in SAMPLES:
        sizes = [int(np.prod(o.shape)) for o in sample.inputs if o is not None]
        if 0 in sizes or max(sizes, default=1) > 2000 or sample.op.name in WITHOUT | RANDOM | NOT_THERE:
            continue
        if sample.name in DIFFERENT or saturated(sample):
            continue
        if sample.op is ops.bit_shift and not sample.inputs[0].dtype.name.startswith("u"):
            continue  # ONNX's are unsigned
        found[sample.op.name] += 1
        if found[sample.op.name] <= most:
            yield sample


def theirs(proto, feeds):
    """The outputs by onnxruntime; None where it has no kernel for them, as of some operators for float64."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error):
            return None
        raise
    try:
        return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    except Exception as error:
        if any(text in str(error) for text in REFUSED):
            return None
        raise


def test_every_op_has_a_form_or_is_named_here():
    sampled = {sample.op.name for sample in SAMPLES}
    written = set()
    for sample in SAMPLES:
        if sample.op.name not in written:
            try:
                build_proto(df.Model(sample.build()), {}, None, None)
            except df.DataflowError:
                continue
            written.add(sample.op.name)
    assert sampled - written == WITHOUT & sampled


@pytest.mark.parametrize("op", sorted({sample.op.name for sample in chosen()}))
def test_onnxruntime_computes_the_same(op):
    compared = 0
    for sample in chosen():
        if sample.op.name != op:
            continue
        graph, feeds = sample.build(), sample.feeds()
        try:
            proto = build_proto(df.Model(graph), {}, None, None)
        except df.ModelError:
            continue  # of these attributes
        onnx.checker.check_model(proto)
        if any(np.size(a) and a.dtype.kind in "iu" and not np.all(a) for a in feeds.values()) and op in ("div", "mod"):
            continue  # by zero, which ends there in an error
        found = theirs(proto, feeds)
        if found is not None:
            assert not wrong(graph, feeds, found), sample.name
            compared += 1
    assert compared


def test_a_trained_recurrent_classifier_is_saved(tmp_path):
    """By hand: an embedding, an LSTM, a scan and a head."""
    g = df.GraphBuilder("tagger")
    tokens = g.input("tokens", df.int64, ("steps", 2))
    table = g.parameter("table", df.init.normal((11, 8), seed=1))
    rows = ops.gather(table, tokens, axis=0)
    gates = ops.matmul(rows, g.parameter("w", df.init.normal((8, 24), seed=2)))
    states = ops.lstm(gates, g.parameter("r", df.init.normal((24, 6), seed=3)))[0]
    body = df.GraphBuilder("decay")
    carried, row = body.input("carried", df.float32, (2, 6)), body.input("row", df.float32, (2, 6))
    body.output("after", ops.add(ops.mul(carried, 0.5), row))
    start = g.add(ops.full, (), {"shape": (2, 6), "value": 0.0, "dtype": df.float32}).outputs[0]
    last = ops.scan(start, states, n_carries=1, n_xs=1, reverse=1, bodies=(body.build(),))[0]
    g.output("logits", df.nn.linear(g, last, 3, name="head"))
    model = df.Model(g.build())
    path = tmp_path / "tagger.onnx"
    df.save(model, str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    again = df.Session(df.load(str(path)), devices=["cpu"])
    for steps in (1, 5):
        feeds = {"tokens": np.random.default_rng(steps).integers(0, 11, (steps, 2))}
        expected = df.Session(model, devices=["numpy"]).run(feeds)["logits"]
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(again.run(feeds)["logits"], expected, rtol=1e-5, atol=1e-6)


def test_a_graph_of_gradients_is_saved(tmp_path):
    """A convolutional classifier with its loss and the gradients of its weights."""
    g = df.GraphBuilder("classifier")
    x, labels = g.input("x", df.float32, (4, 2, 8, 8)), g.input("labels", df.int64, (4,))
    h = ops.relu(df.nn.conv(g, x, 4, (3, 3), pad=1, name="conv"))
    h = ops.max_pool(h, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
    h = df.nn.layer_norm(g, ops.reshape(h, shape=(4, 64)))
    loss = ops.softmax_cross_entropy(df.nn.linear(g, h, 3, name="head"), labels, label_smoothing=0.1)
    g.output("loss", ops.reduce_mean(loss, axes=(0,), keepdims=False))
    graph = df.value_and_grad(g.build())
    path = tmp_path / "gradients.onnx"
    df.save(df.Model(graph), str(path))
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((4, 2, 8, 8)).astype(np.float32), "labels": random.integers(0, 3, 4)}
    expected = df.Session(df.Model(graph), devices=["numpy"]).run(feeds)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    assert "grad.conv/weight" in expected
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_extra_results_are_refused_where_nothing_computes_them():
    g = df.GraphBuilder()
    node = g.add(ops.attention, [g.input(n, df.float32, (2, 3, 3)) for n in ("q", "k", "v")], {})
    g.output("y", node.outputs[0])
    g.output("logsum", node.outputs[1])
    graph = g.build()
    build_proto(df.Model(graph), {}, None, None)  # by its decomposition
    bare = dataclasses.replace(ops.max_pool, name="bare", decompose=None)
    g = df.GraphBuilder()
    attributes = {"kernel": (2,), "strides": (1,), "pads": (0, 0), "dilations": (1,)}
    node = g.add(bare, [g.input("x", df.float32, (1, 1, 4))], attributes)
    g.output("y", node.outputs[0])
    g.output("indices", node.outputs[1])
    with pytest.raises(df.ModelError, match=r"its extra result 'bare:1' has no ONNX form"):
        build_proto(df.Model(g.build()), {"bare": Exporter("bare", "", "MaxPool")}, None, None)


def test_names_that_a_file_uses_later_stay_free():
    """What the builder makes up avoids names that are reserved, also where it would be their first use."""
    g = df.GraphBuilder()
    g.reserve(["constant", "scalar"])
    made = g.constant(np.ones(2, np.float32)), g.scalar(2.0, df.float32)
    stored = [g.initializer(name, np.zeros(2, np.float32)) for name in ("constant", "scalar")]
    assert [v.name for v in stored] == ["constant", "scalar"]
    assert not {v.name for v in made} & {"constant", "scalar"}


def test_made_up_names_with_strokes_stay_free():
    """A pass before made up the name with a stroke: what the next makes up has one more."""
    g = df.GraphBuilder()
    g.reserve(["constant", "constant'", "relu", "relu'"])
    made = [g.constant(np.ones(2, np.float32))]
    made.append(df.ops.relu(made[0]))
    stored = [g.initializer(name, np.zeros(2, np.float32)) for name in ("constant", "constant'", "relu", "relu'")]
    assert len({v.name for v in (*made, *stored)}) == 6
