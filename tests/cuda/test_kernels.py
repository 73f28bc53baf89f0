"""The CUDA kernels' arithmetic: the sample table of every device, over the stand-in and on a card."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow.planning.offsets import values_apart
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import BASIC, VARIANTS
from tests.cuda import launching
from tests.kit_samples import EVERY_VARIANT, sampled_variants
from tests.support import moved_logits

OPS = sorted({sample.op.name for sample in SAMPLES})


def failures(op, registry, variants, samples=None):
    samples = [sample for sample in SAMPLES if sample.op.name == op] if samples is None else samples
    outcomes = check_device("cuda", registry=registry, samples=samples, complete=False, variants=variants)
    return [o for o in outcomes if o.status == "failed"]


@pytest.mark.parametrize("op", OPS)
def test_kernels_agree_with_the_reference(op, cuda, request):
    on_card = request.node.callspec.params["cuda"] == "card"
    if on_card:
        assert not failures(op, cuda, VARIANTS)
        return
    # The stand-in is slow: plain is below, and of these each sample has one.
    others = [*(v for v in BASIC if v != "plain"), "mixed"]
    first = OPS.index(op) % len(others)
    for samples, variants in sampled_variants(
        [s for s in SAMPLES if s.op.name == op], [*others[first:], *others[:first]], 1
    ):
        assert not failures(op, cuda, variants, samples)


LAUNCHING = launching.read_table()


@pytest.mark.parametrize("op", OPS if EVERY_VARIANT else sorted({s.op.name for s in SAMPLES if s.name in LAUNCHING}))
def test_threads_in_reverse_order_agree_too(op, standin, standin_registry):
    """Each kernel once, as barriers don't depend on where operands lie; nightly by all samples."""
    samples = [s for s in SAMPLES if s.op.name == op and (EVERY_VARIANT or s.name in LAUNCHING)]
    standin.reverse(True)
    try:
        for sample in samples:
            variants = ["plain"] if EVERY_VARIANT else LAUNCHING[sample.name]
            assert not failures(op, standin_registry, variants, [sample])
    finally:
        standin.reverse(False)


def test_an_index_out_of_range_writes_nothing_beside_the_workspace(cuda):
    g = df.GraphBuilder()
    operands = (
        g.input("dy", df.float32, (2, 4)),
        g.input("index", df.int64, (4, 1)),
        g.input("weight", df.float32, (4, 1)),
    )
    g.output("dx", g.add(df.ops.resample_grad, operands, {"axis": 1, "size": 3}).outputs[0])
    ones = {"dy": np.ones((2, 4), np.float32), "weight": np.ones((4, 1), np.float32)}
    with values_apart():
        session = df.Session(df.Model(g.build()), devices=["cuda", "cpu"], registry=cuda)
        with pytest.raises(df.InputError, match="60 is out of range"):
            session.run({**ones, "index": np.array([[0], [60], [2], [2]])})
        found = session.run({**ones, "index": np.array([[0], [1], [2], [2]])})["dx"]
    np.testing.assert_array_equal(found, [[1, 1, 2]] * 2)
    assert [bound.damage() for program in session._loaded().engine.programs.values() for bound in program.bounds] == [
        None
    ]


# Ops without a kernel for CUDA, which run on the CPU beside it.
ON_THE_CPU = {
    "bitcast", "bitwise_and", "bitwise_or", "bitwise_xor", "bit_shift", "cofactor", "ctc_loss", "ctc_loss_grad",
    "ctc_loss_product", "cumprod", "decode_blocks", "det", "dequantize", "dft", "dynamic_quantize", "encode_blocks",
    "find", "grid_sample",
    "grid_sample_grad_grid", "grid_sample_grad_input",
    "linear_recurrence",
    "max_roi_pool", "max_roi_pool_grad", "mersenne_uniform", "non_max_suppression", "quantize", "roi_align",
    "roi_align_grad",
    "tree_ensemble",
    "unique",
}  # fmt: skip
COMPUTED_AGAIN = {"batch_norm_train": 5}  # what inputs from this one on hold, a card computes from the others
ON_THE_CPU_IN_DOUBLE = {
    "cumsum", "scatter_elements", "topk",
    "acos", "asin", "asinh", "atan", "atanh", "acosh", "cosh", "sinh", "tan", "softplus", "softsign", "relu_grad",
    "matmul", "conv", "conv_grad_input", "conv_grad_weight", "max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad",
    "softmax_cross_entropy", "softmax_cross_entropy_grad", "softmax_cross_entropy_with_grad",
}  # fmt: skip


def test_cuda_takes_what_the_cpu_takes(standin_registry):
    """Op by op, and sample by sample; but for ops that it has no kernel of and runs in smaller ones."""
    missing = set()
    kernels = standin_registry.kernels
    for sample in SAMPLES:
        if sample.op.name not in kernels["cuda"] and (sample.op.decompose is not None or sample.op.name in ON_THE_CPU):
            continue
        if len(sample.inputs) > COMPUTED_AGAIN.get(sample.op.name, len(sample.inputs)):
            continue
        if sample.attributes.get("softcap"):
            continue  # the parts of attention with capped scores run one by one on a card
        given = [o.dtype for o in sample.inputs if o is not None]
        if sample.op.name in ON_THE_CPU_IN_DOUBLE and given[0] == df.float64:
            continue
        if any(d.bits < 32 and d.kind != "b" for d in given) or (given and given[0].kind in "iu"):
            continue  # integers and small types have kernels on the cpu alone, where masks and positions are computed
        (node,) = sample.build().nodes
        taken = {
            device: any(kernel.refuses(node) is None for kernel in kernels[device].get(sample.op.name, ()))
            for device in ("cpu", "cuda")
        }
        if taken["cpu"] and not taken["cuda"]:
            missing.add(sample.name)
    assert not missing, sorted(missing)


def test_every_kernel_is_launched_by_a_sample(standin, standin_registry):
    """An untested kernel fails the suite. The samples are those of a table: all would take a minute."""
    table = launching.read_table()
    assert table.keys() <= {sample.name for sample in SAMPLES}, "samples that there were; see launching.py"
    for sample in [s for s in SAMPLES if s.name in table]:
        list(
            check_device(
                "cuda", registry=standin_registry, samples=[sample], complete=False, variants=table[sample.name]
            )
        )
    named = launching.named()
    assert len(named) > 10
    missing = {name for name in named if not standin.was_launched(name)}
    assert not missing, "`python -m tests.cuda.launching` writes the table anew, or no sample launches them"


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("columns", [12, 7, 1300])
def test_kernels_round_what_only_products_of_16_bits_read(approximate, columns, cuda):
    """The bits are those of a cast behind them."""
    g = df.GraphBuilder()
    x, dy = g.input("x", df.float32, (70, columns)), g.input("dy", df.float32, (70, columns))
    slope, sums = g.add(df.ops.gelu_grad_sums, (dy, x), {"approximate": approximate}).outputs
    g.output("y", df.ops.cast(df.ops.gelu(x, approximate=approximate), to=df.bfloat16))
    g.output("dx", df.ops.cast(slope, to=df.bfloat16))
    g.output("sums", sums)
    g.output("norm", df.ops.cast(g.add(df.ops.layer_norm, (x,), {"axis": 1}).outputs[0], to=df.bfloat16))
    labels, loss = g.input("labels", df.int64, (70,)), g.input("loss", df.float32, (70,))
    how = {"axis": 1, "ignore_index": -100, "label_smoothing": 0.0, "classes": columns - 2}
    g.output(
        "dlogits", df.ops.cast(df.ops.softmax_cross_entropy_grad(loss, x, labels, loss, loss, **how), to=df.bfloat16)
    )
    both = g.add(df.ops.softmax_cross_entropy_with_grad, (loss, x, labels), how).outputs
    g.output("loss", both[0])
    g.output("dlogits with the loss", df.ops.cast(both[1], to=df.bfloat16))
    model, random = df.Model(g.build()), np.random.default_rng(3)
    feeds = {name: random.standard_normal((70, columns)).astype(np.float32) for name in ("x", "dy")}
    feeds |= {"labels": random.integers(0, columns - 2, 70), "loss": random.standard_normal(70).astype(np.float32)}
    rounding, casting = (df.Session(model, devices=["cuda"], registry=cuda, fuse=fuse) for fuse in (True, False))
    assert not [node for node in rounding.placement(feeds) if (node.kernel or "").startswith("cast")]
    expected = casting.run(feeds)
    for name, array in rounding.run(feeds).items():
        assert array.tobytes() == expected[name].tobytes()


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("axis", [1, 2])
def test_logits_far_from_0_have_the_losses_and_gradients_of_those_near_it(axis, joined, cuda):
    graph, near, far = moved_logits(axis, joined)
    run = df.Session(graph, devices=["cuda"], registry=cuda).run
    expected, found = run(near), run(far)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
