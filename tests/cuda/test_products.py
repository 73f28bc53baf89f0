"""Products and convolutions: sizes at which the CUDA kernels cut their work otherwise than for the sample table, and
the vendor's libraries, over stand-ins that are as strict with their arguments."""

from __future__ import annotations

import gc
import json
import math
import shutil

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.types import bfloat16, float32, int32
from dataflow.passes.rounding import products as products_pass
from dataflow.plugin.registry import default_registry, load
from dataflow.testing import SAMPLES, Sample, check_device
from dataflow.testing.conformance import BASIC, VARIANTS
from dataflow.testing.sample import Operand
from dataflow_numpy.evaluate import evaluate
from tests.kit_samples import sampled_variants
from tests.support import ops_of

CONVOLVING = ("conv", "conv_relu", "conv_add_relu", "conv_grad_input", "conv_grad_weight")
MULTIPLYING = ("matmul", "matmul_bias", "matmul_bias_relu")


def taking(op, registry):
    """The kernels that take the first sample of ``op``, the best one first."""
    (node,) = next(s for s in SAMPLES if s.op.name == op).build().nodes
    kernels = [k for k in registry.kernels["cuda"][op] if k.refuses(node) is None]
    return [k.name for k in sorted(kernels, key=lambda k: -k.priority)]


@pytest.fixture(scope="session")
def vendor(standin, tmp_path_factory):
    """A registry and a copy of the stand-in, whose plugin finds the vendor's libraries: they are in the stand-in too.

    It notes their paths when it is opened.
    """
    path = tmp_path_factory.mktemp("vendor") / "_cuda_vendor.so"
    shutil.copy(standin.path, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STANDIN_DEVICES", "2")
        for variable in ("DATAFLOW_CUDA_LIBRARY", "DATAFLOW_CUBLASLT", "DATAFLOW_CUDNN"):
            patch.setenv(variable, str(path))
        registry = load()
        for op in (*CONVOLVING, *MULTIPLYING):
            assert taking(op, registry)[0].endswith((" cudnn", " cublaslt"))
    return registry, type(standin)(path)


@pytest.fixture(params=["standin", "vendor", pytest.param("card", marks=pytest.mark.card)])
def products(request):
    """A registry: our own kernels and the vendor's, both over stand-ins, and what a card has."""
    if request.param == "vendor":
        return request.getfixturevalue("vendor")[0]
    return default_registry() if request.param == "card" else request.getfixturevalue("standin_registry")


def x(*shape):
    return Operand(shape)


MATMULS = {
    "many small tiles": ((200, 100), (100, 200)),
    "nothing aligned": ((41, 19), (19, 39)),
    "few rows, k in parts": ((8, 1000), (1000, 140)),
    "few columns, written turned, k in parts": ((300, 520), (520, 3)),
    "one row": ((1, 700), (700, 5)),
    "k in parts that don't end with it": ((33, 1030), (1030, 36)),
    "a batch that shares factors": ((3, 2, 20, 44), (3, 1, 44, 24)),
}


def agree(registry, samples, device="cuda", variants=BASIC):
    """On a card in all variants; the stand-in is slow."""
    chosen = VARIANTS if registry is default_registry() else variants
    outcomes = list(check_device(device, registry=registry, samples=samples, complete=False, variants=chosen))
    assert outcomes
    assert not [o for o in outcomes if o.status != "passed"]


@pytest.mark.parametrize("sizes", MATMULS.values(), ids=MATMULS)
def test_matmul(sizes, products):
    a, b = sizes
    agree(products, [Sample(ops.matmul_bias_relu, (x(*a), x(*b), x(b[-1])))])


@pytest.mark.parametrize("sizes", [((1540, 20), (20, 1400)), ((1541, 19), (19, 1399))], ids=["aligned", "not aligned"])
def test_matmul_in_large_tiles(sizes, cuda):
    """Our own kernels alone choose tiles by such sizes."""
    a, b = sizes
    agree(cuda, [Sample(ops.matmul_bias_relu, (x(*a), x(*b), x(b[-1])))], variants=("plain", "transposed"))


# image, weight, strides, pads, dilations, groups
CONVOLUTIONS = {
    "many filters": ((1, 20, 9, 11), (130, 20, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "all that can differ": ((2, 6, 15, 17), (20, 6, 5, 4), (2, 3), (2, 1, 1, 2), (2, 1), 1),
    "a product per image": ((3, 32, 9, 8), (16, 32, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "points with strides": ((3, 32, 9, 9), (40, 32, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    "k in parts": ((1, 64, 14, 14), (32, 64, 3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 1),
    "windows side by side": ((2, 3, 33, 33), (16, 3, 8, 8), (8, 8), (0, 0, 0, 0), (1, 1), 1),
    "strides and dilations without a common divisor": ((2, 16, 11), (130, 16, 3), (4,), (1, 0), (3,), 1),
    "groups": ((2, 12, 8, 8), (36, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
}
DEPTHWISE = {
    "two filters a channel": ((2, 24, 19, 9), (48, 1, 3, 5), (2, 1), (1, 2, 1, 2), (1, 2), 24),
    "three axes": ((2, 8, 5, 8, 9), (8, 1, 2, 3, 3), (1, 2, 1), (1, 1, 1, 0, 1, 1), (1, 1, 2), 8),
}


def convolutions(image, weight, strides, pads, dilations, groups):
    """The operator, one with all that may follow it, and the two gradients."""
    axes = len(strides)
    window = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    out = tuple(
        (image[2 + i] + pads[i] + pads[axes + i] - dilations[i] * (weight[2 + i] - 1) - 1) // strides[i] + 1
        for i in range(axes)
    )
    y = x(image[0], weight[0], *out)
    return [
        Sample(ops.conv, (x(*image), x(*weight)), window),
        Sample(ops.conv_add_relu, (x(*image), x(*weight), x(weight[0]), y), window),
        Sample(ops.conv_grad_input, (y, x(*weight)), {"input_shape": image, **window}),
        Sample(ops.conv_grad_weight, (x(*image), y), {"weight_shape": weight, **window}),
    ]


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution(case, products):
    agree(products, convolutions(*case))


@pytest.mark.parametrize("case", DEPTHWISE.values(), ids=DEPTHWISE)
def test_depthwise_convolution(case, cuda):
    """Our own kernels take it wherever the vendor's are."""
    agree(cuda, convolutions(*case))


def test_convolution_in_large_tiles(cuda):
    """More than a hundred of them: one operator, one sample."""
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    agree(cuda, [Sample(ops.conv, (x(1, 16, 130, 131), x(128, 16, 1, 2)), window)], variants=("plain", "strided"))


# Sums of ``hidden`` products grow like its square root; the states between them are bounded, so errors stay small.
def recurrent(steps, batch, hidden):
    state, stack = x(batch, hidden), x(steps, batch, hidden)
    lengths = Operand((batch,), int32, kind="range", low=0, high=steps + 1)
    lstm, gru = x(steps, batch, 4 * hidden), x(steps, batch, 3 * hidden)
    near = {"tolerance": 1e-4 * math.sqrt(hidden / 64)}
    return [
        Sample(ops.lstm, (lstm, x(4 * hidden, hidden), state, state, lengths), {"reverse": 1}, **near),
        Sample(ops.gru, (gru, x(3 * hidden, hidden), x(3 * hidden), state, lengths), {"reverse": 0}, **near),
        Sample(ops.rnn, (stack, x(hidden, hidden), state, lengths), {"reverse": 0, "relu": 0}, **near),
        Sample(
            ops.lstm_grad,
            (x(4 * hidden, hidden), lstm, stack, stack, state, state, state, lengths),
            {"reverse": 0},
            **near,
        ),
        Sample(
            ops.gru_grad,
            (x(3 * hidden, hidden), x(steps, batch, 4 * hidden), stack, stack, state, state, lengths),
            {"reverse": 1},
            **near,
        ),
        Sample(ops.rnn_grad, (x(hidden, hidden), stack, stack, state, lengths), {"reverse": 0, "relu": 1}, **near),
    ]


@pytest.mark.parametrize("sizes", [(3, 2, 150), (2, 20, 68), (3, 70, 40)], ids=str)
def test_recurrent(sizes, cuda):
    agree(cuda, recurrent(*sizes))


# ---- The vendor's libraries -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [*CONVOLVING, *MULTIPLYING])
def test_samples_by_the_vendor(op, vendor):
    registry, library = vendor
    samples = [s for s in SAMPLES if s.op.name == op and all(i is None or i.dtype == float32 for i in s.inputs)]
    for some, variants in sampled_variants(samples, ("plain", "unaligned"), 1):
        agree(registry, some, variants=variants)
    launched = {"conv_grad_input": "cudnnConvolutionBackwardData", "conv_grad_weight": "cudnnConvolutionBackwardFilter"}
    forward = "cublasLtMatmul" if op in MULTIPLYING else "cudnnConvolutionForward"
    assert library.was_launched(launched.get(op, forward))


def test_without_the_libraries_the_reason_is_reported(standin_registry):
    for op, name in (("matmul", "cuBLASLt"), ("conv", "cuDNN")):
        sample = next(s for s in SAMPLES if s.op.name == op)
        (node,) = sample.build().nodes
        reasons = [k.refuses(node) for k in standin_registry.kernels["cuda"][op]]
        assert f"{name} was not found: pip install 'dataflow-engine[cuda]'" in reasons
        assert None in reasons


def test_padding_that_differs_is_left_to_our_own_kernel(vendor):
    registry, _ = vendor
    window = {"strides": (1, 1), "pads": (0, 0, 1, 1), "dilations": (1, 1), "groups": 1}
    (node,) = Sample(ops.conv, (x(1, 2, 5, 5), x(3, 2, 3, 3)), window).build().nodes
    taking = [k.name for k in registry.kernels["cuda"]["conv"] if k.refuses(node) is None]
    assert taking == ["conv f32 cuda"]


def rounded(array, bits):
    """``array`` with ``bits`` of mantissa, ties to even."""
    raw = array.astype(np.float32).view(np.uint32)
    dropped = 23 - bits
    raw = raw + np.uint32((1 << (dropped - 1)) - 1) + (raw >> np.uint32(dropped) & np.uint32(1))
    return (raw & ~np.uint32((1 << dropped) - 1)).view(np.float32).astype(np.float64)


@pytest.mark.parametrize(("precision", "bits"), [("float32", 23), ("bf16x6", 23), ("tf32", 10), ("bf16", 7)])
def test_products_are_as_precise_as_is_asked(precision, bits, vendor):
    registry, _ = vendor
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((12, 40), (40, 16)))
    g = df.GraphBuilder()
    g.output("y", ops.matmul(g.input("a", float32, a.shape), g.input("b", float32, b.shape)))
    session = df.Session(df.Model(g.build()), devices=["cuda"], registry=registry, precision=precision)
    found, _, replayed = (session.run({"a": a, "b": b})["y"].copy() for _ in range(3))  # the second run is recorded
    exact = bits == 23
    expected = (a.astype(np.float64) @ b) if exact else rounded(a, bits) @ rounded(b, bits)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(found, replayed)


def test_suggestions_of_the_library_are_timed_with_their_operands_on_the_card(vendor, tmp_path):
    registry, _ = vendor
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((12, 40), (40, 16)))
    g = df.GraphBuilder()
    g.output("y", ops.matmul(g.input("a", float32, a.shape), g.input("b", float32, b.shape)))
    model, file = df.Model(g.build()), tmp_path / "algorithms.json"
    found = df.Algorithms(file)
    session = df.Session(model, devices=["cuda"], registry=registry, precision="tf32", algorithms=found)
    np.testing.assert_allclose(session.run({"a": a, "b": b})["y"], a @ b, atol=3e-2)
    (times,) = (t for nodes in json.loads(file.read_text())["machines"].values() for t in nodes.values())
    assert times.keys() == {"own", "tf32", "tf32 #2"}
    assert all(0 < seconds < 1 for seconds in times.values())
    (used,) = found.used.values()
    kernels = [step.kernel for step in session.profile({"a": a, "b": b}, rounds=1).steps if step.op == "matmul"]
    assert kernels == [f"matmul f32 cublaslt {used}"]


# Which matrix has rows that are no multiple of 16 bytes: a (m, k), b (k, n); factors may be transposed views.
UNEVEN = {
    "the result": ((70, 24), (24, 37), (False, True)),
    "the result, all rows in one strip": ((9, 24), (24, 43), (False, True)),
    "the first factor": ((70, 37), (37, 24), (False, False)),
    "the first factor, transposed": ((37, 70), (70, 24), (True, False)),
    "the second factor, transposed": ((24, 37), (37, 72), (True, True)),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("a", "b", "transposed"), UNEVEN.values(), ids=UNEVEN)
def test_uneven_rows_go_to_the_library_in_strips(a, b, transposed, bias, vendor):
    registry, standin = vendor
    random = np.random.default_rng(3)
    values = [random.standard_normal(shape).astype(np.float32) for shape in (a, b)]
    g = df.GraphBuilder()
    factors, feeds = [], {}
    for name, value, transpose in zip("ab", values, transposed, strict=True):
        feeds[name] = value.T.copy() if transpose else value
        factor = g.input(name, float32, feeds[name].shape)
        factors.append(ops.transpose(factor, perm=(1, 0)) if transpose else factor)
    row = random.standard_normal(b[1]).astype(np.float32)
    g.output("y", ops.matmul_bias_relu(*factors, g.constant(row)) if bias else ops.matmul(*factors))
    feeds = {
        name: (value.T.copy() if transpose else value)
        for name, value, transpose in zip("ab", values, transposed, strict=True)
    }
    exact = values[0].astype(np.float64) @ values[1]
    exact = np.maximum(exact + row, 0) if bias else exact
    session = df.Session(df.Model(g.build()), devices=["cuda"], registry=registry, precision="tf32", fold=False)
    before = standin.launches
    session.run(feeds)
    in_strips = not bias or b[1] % 4 != 0  # bias and relu come after the last sum, so sums are not cut
    assert (standin.launches - before > 2) == in_strips
    for _ in range(2):  # the last one replays a graph
        (y,) = session.run(feeds).values()
        np.testing.assert_allclose(y, exact, atol=3e-2)


def test_algorithms_are_chosen_for_the_card_that_runs_them(vendor):
    registry, library = vendor
    before, asked = library.launches, (library.questions(0), library.questions(1))
    agree(registry, [Sample(ops.matmul_bias, (x(6, 20), x(20, 9), x(9)))], "cuda:1")
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    agree(registry, [Sample(ops.conv_relu, (x(2, 3, 5, 5), x(4, 3, 3, 3), x(4)), window)], "cuda:1")
    assert library.launches > before
    assert library.questions(0) == asked[0]
    assert library.questions(1) > asked[1]


def product(registry, op="matmul", **how):
    """A session of the op's first sample on ``cuda``, and what it is fed."""
    sample = next(s for s in SAMPLES if s.op.name == op)
    return df.Session(df.Model(sample.build()), devices=["cuda"], registry=registry, **how), sample.feeds()


def test_each_session_has_handles_of_its_own(vendor):
    registry, library = vendor
    gc.collect()
    before = library.handles
    made = []
    for count in (1, 2, 3):
        made.append([product(registry, op) for op in ("matmul", "conv")])
        for session, feeds in made[-1]:
            session.run(feeds)
        assert library.handles == before + 2 * count
    del session, feeds
    made.clear()
    gc.collect()
    assert library.handles == before


@pytest.mark.parametrize(
    ("op", "precision", "refused", "found"),
    [
        ("matmul", "bf16", (), "matmul f32 cublaslt bf16"),
        ("matmul", "bf16", ("bf16",), "matmul f32 cublaslt tf32"),
        ("matmul", "tf32", ("tf32",), "matmul f32 cublaslt float32"),
        ("matmul", "bf16", ("bf16", "tf32", "float32"), "matmul f32 cublaslt own"),
        ("matmul", "float32", (), "matmul f32 cublaslt float32"),
        ("conv", "bf16", (), "conv f32 cudnn tf32"),
        ("conv", "tf32", ("tf32",), "conv f32 cudnn float32"),
        ("conv", "float32", ("float32",), "conv f32 cudnn own"),
    ],
)
def test_what_the_library_lacks_is_computed_by_the_next_precision_and_said(op, precision, refused, found, vendor):
    registry, library = vendor
    try:
        library.refuse(*refused)
        session, feeds = product(registry, op, precision=precision)
        expected = product(registry, op)[0].run(feeds)
        assert found in [step.kernel for step in session.profile(feeds, rounds=1).steps]
        assert found in [node.kernel for node in session.placement(feeds)]
        for name, array in session.run(feeds).items():
            np.testing.assert_allclose(array, expected[name], rtol=2e-2, atol=2e-2)
    finally:
        library.refuse()


ROUNDED = [
    Sample(ops.matmul_rounded, (Operand(a, bfloat16), Operand(b, bfloat16), x(b[-1]), x(*a[:-1], b[-1])))
    for a, b in (((24, 40), (40, 16)), ((41, 19), (19, 39)), ((3, 2, 20, 44), (3, 1, 44, 24)), ((5, 0), (0, 8)))
]


@pytest.mark.parametrize("refused", [(), ("bf16",)], ids=["the library", "our own kernel"])
def test_rounded_operands(refused, vendor):
    registry, library = vendor
    try:
        library.refuse(*refused)
        agree(registry, ROUNDED)
    finally:
        library.refuse()


@pytest.mark.parametrize("refused", [(), ("bf16",)], ids=["the library", "our own kernel"])
@pytest.mark.parametrize("ends", [(), ("bias",), ("bias", "addend")], ids=["plain", "bias", "addend"])
@pytest.mark.parametrize("relu", [False, True])
def test_a_product_rounds_what_is_only_read_in_bfloat16(refused, ends, relu, vendor):
    """Once, and it reads an addend of bfloat16; the library alone rounds the bias too."""
    registry, library = vendor
    a, b, rows = (3, 2, 20, 44), (3, 1, 44, 24), (3, 2, 20, 24)
    g = df.GraphBuilder()
    x, y = (g.input(name, bfloat16, shape) for name, shape in (("a", a), ("b", b)))
    bias = g.input("bias", float32, b[-1:]) if "bias" in ends else None
    addend = ops.cast(g.input("addend", bfloat16, rows), to=float32) if "addend" in ends else None
    g.output("y", ops.cast(g.add(ops.matmul_rounded, (x, y, bias, addend), {"relu": relu}).outputs[0], to=bfloat16))
    graph, random = g.build(), np.random.default_rng(7)
    feeds = {v.name: random.standard_normal(v.type.sizes).astype(v.type.dtype.numpy) for v in graph.inputs}
    try:
        library.refuse(*refused)
        how = {"devices": ["cuda"], "registry": registry}
        fused, plain = df.Session(graph, **how), df.Session(graph, fuse=False, **how)
        (found,) = fused.run(feeds).values()
        assert ops_of(fused.plan()) == ["matmul_rounded"]
        if bias is not None and not refused:
            feeds["bias"] = feeds["bias"].astype(bfloat16.numpy).astype(np.float32)
        (expected,) = plain.run(feeds).values()
        assert found.tobytes() == expected.tobytes()
    finally:
        library.refuse()


def rounding(monkeypatch):
    """Lets the smallest products read rounded operands."""
    monkeypatch.setattr(products_pass, "_LEAST_WORK", 1)
    monkeypatch.setattr(products_pass, "_LEAST_SIDE", 1)


def test_products_in_bfloat16_are_those_of_rounded_operands(vendor, monkeypatch):
    registry, _ = vendor
    rounding(monkeypatch)
    random = np.random.default_rng(6)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((24, 40), (40, 16)))
    g = df.GraphBuilder()
    g.output("y", ops.matmul(g.input("a", float32, a.shape), g.input("b", float32, b.shape)))
    exact = np.matmul(*(v.astype(bfloat16.numpy).astype(np.float64) for v in (a, b)))
    for precision, kernel in (("bf16", "matmul_rounded bf16 cublaslt bf16"), ("tf32", "matmul f32 cublaslt tf32")):
        session = df.Session(df.Model(g.build()), devices=["cuda"], registry=registry, precision=precision)
        assert kernel in [node.kernel for node in session.placement({"a": a, "b": b})]
        error = np.abs(session.run({"a": a, "b": b})["y"] - exact).max()
        assert (error < 1e-5) == (precision == "bf16")


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_a_training_in_bfloat16_follows_that_in_float32(storage, vendor, monkeypatch):
    registry, _ = vendor
    rounding(monkeypatch)
    random = np.random.default_rng(8)
    g = df.GraphBuilder()
    value = g.input("x", float32, (16, 24))
    for index, (inner, columns) in enumerate(((24, 32), (32, 32), (32, 8))):
        w = random.standard_normal((columns, inner)).astype(np.float32) / np.sqrt(inner).astype(np.float32)
        value = ops.matmul(value, ops.transpose(g.parameter(f"w{index}", w), perm=(1, 0)))
        value = ops.add(value, g.parameter(f"b{index}", np.zeros(columns, np.float32)))
        value = ops.gelu(value) if index < 2 else value
    g.output("logits", value)
    batch = {"x": random.standard_normal((16, 24)).astype(np.float32), "labels": random.integers(0, 8, 16)}
    losses = {}
    for how in ({}, {"precision": "bf16", "storage": storage}):
        trainer = df.Trainer(
            df.Model(g.build()), optimizer=df.optim.SGD(lr=0.1), devices=["cuda", "cpu"], registry=registry, **how
        )
        losses[len(how)] = [float(trainer.step(batch)) for _ in range(6)]
        trainer.close()
    np.testing.assert_allclose(losses[2], losses[0], rtol=2e-2)
    assert losses[2] != losses[0]
    assert losses[2][-1] < losses[2][0]


def test_what_kernels_of_a_training_in_bfloat16_hand_to_each_other_is_stored_so(vendor, monkeypatch):
    """Forward, as what waits for backward, and the gradients between products, norms and GELU; losses follow."""
    registry, _ = vendor
    rounding(monkeypatch)
    random = np.random.default_rng(9)
    g = df.GraphBuilder()

    def parameter(name, *shape, scale=1.0):
        return g.parameter(name, (scale * random.standard_normal(shape)).astype(np.float32))

    def linear(value, name, rows):
        inner = value.type.sizes[-1]
        weight = ops.transpose(parameter(f"{name}.w", rows, inner, scale=inner**-0.5), perm=(1, 0))
        return ops.add(ops.matmul(value, weight), parameter(f"{name}.b", rows, scale=0.1))

    stream = linear(g.input("x", float32, (16, 24)), "in", 32)
    for index in range(2):
        rows = [parameter(f"{name}{index}", 32) for name in ("scale", "shift")]
        normed = g.add(ops.layer_norm, (stream, *rows), {"axis": -1}).outputs[0]
        stream = ops.add(stream, linear(ops.gelu(linear(normed, f"up{index}", 64)), f"down{index}", 32))
    g.output("logits", linear(stream, "out", 8))
    labels = random.integers(0, 8, 16)
    batch = {"x": random.standard_normal((16, 24)).astype(np.float32), "labels": labels}
    losses = {}
    for how in ({}, {"precision": "bf16", "storage": "bfloat16"}):
        trainer = df.Trainer(
            df.Model(g.build()), optimizer=df.optim.SGD(lr=0.05), devices=["cuda", "cpu"], registry=registry, **how
        )
        losses[len(how)] = [float(trainer.step(batch)) for _ in range(6)]
        steps = [step for plan in trainer.plans().values() for s in plan.segments for step in s.steps]
        trainer.close()
    np.testing.assert_allclose(losses[2], losses[0], rtol=3e-2)
    assert losses[2][-1] < losses[2][0]
    backward = {"layer_norm_grad_sums": (0, 1), "gelu_grad_sums": (0, 1)}
    found = [step for step in steps if step.node.op.name in backward]
    assert len(found) >= 4
    for step in found:
        touched = [step.inputs[index] for index in backward[step.node.op.name]] + [step.outputs[0]]
        assert {operand.type.dtype for operand in touched} == {bfloat16}, step.node.name


def test_a_result_that_products_read_rounded_is_stored_so_for_its_gradient_too(vendor, monkeypatch):
    """And the gradients by slices that products and the sum for a bias read."""
    registry, _ = vendor
    rounding(monkeypatch)
    batch, heads, m, d = 2, 3, 24, 8
    g = df.GraphBuilder()
    x = g.input("x", float32, (batch, m, 3, heads, d))
    q, k, v = (
        ops.transpose(
            ops.reshape(
                ops.slice(x, starts=(0, 0, i, 0, 0), stops=(batch, m, i + 1, heads, d), steps=(1,) * 5),
                shape=(batch, m, heads, d),
            ),
            perm=(0, 2, 1, 3),
        )
        for i in range(3)
    )
    how = {"scale": 0.3, "transposed": True}
    operands = (q, ops.transpose(k, perm=(0, 1, 3, 2)), v)
    y, logsum = g.add(ops.attention, operands, how).outputs
    w = g.input("w", float32, (heads * d, 16))
    g.output("z", ops.matmul(ops.reshape(y, shape=(batch * m, heads * d)), w))
    dy = g.input("dy", float32, (batch, m, heads, d))
    found = ops.attention_grad(dy, y, logsum, *operands, **how)
    columns = [ops.reshape(ops.transpose(one, perm=(0, 2, 1, 3)), shape=(batch, m, 1, heads, d)) for one in found]
    flat = ops.reshape(ops.concat(*columns, axis=2), shape=(batch * m, 3 * heads * d))
    g.output("dw", ops.matmul(ops.transpose(flat, perm=(1, 0)), g.input("h", float32, (batch * m, 16))))
    g.output("db", ops.reduce_sum(flat, axes=(0,), keepdims=False))
    random = np.random.default_rng(3)
    shapes = {"x": x.type.sizes, "w": w.type.sizes, "dy": dy.type.sizes, "h": (batch * m, 16)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    graph = g.build()
    session = df.Session(graph, devices=["cuda"], registry=registry, precision="bf16")
    results, expected = session.run(feeds), evaluate(graph, feeds, dtype=np.float64)
    for name, array in expected.items():
        assert np.abs(results[name] - array).max() <= 1.5e-2 * np.abs(array).max(), name
    run = ops_of(session.plan())
    assert run.count("cast") == 2  # of w and h
    assert "concat" not in run


def test_our_own_kernel_is_chosen_by_avoiding_the_others(vendor):
    registry, _ = vendor
    session, feeds = product(registry, algorithms=df.Algorithms(avoid=["float32"]))
    assert "matmul f32 cublaslt own" in [node.kernel for node in session.placement(feeds)]
    expected = product(registry)[0].run(feeds)
    for name, array in session.run(feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "call", "text"),
    [
        ("matmul", "cublasLtMatmul", "cuBLASLt: the execution"),
        ("conv", "cudnnConvolutionForward", "cuDNN: the execution"),
    ],
)
def test_a_call_that_fails_is_reported(op, call, text, vendor):
    registry, library = vendor
    sample = next(s for s in SAMPLES if s.op.name == op)
    session = df.Session(df.Model(sample.build()), devices=["cuda"], registry=registry)
    try:
        library.fail("launch", call)
        with pytest.raises(df.DeviceError, match=text):
            session.run(sample.feeds())
    finally:
        library.fail("")
