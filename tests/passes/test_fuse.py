"""Patterns of fused ops: found where they stand, whatever stands around them, and nowhere else."""

import inspect
import typing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.ir.kernel import Targets
from dataflow.passes.fuse import fuse
from dataflow.planning.verify import check_plan
from dataflow.plugin.hookspecs import hookimpl
from dataflow.plugin.registry import load
from dataflow.testing import SAMPLES
from tests.support import ops_of

ops = df.ops
RANDOM = np.random.default_rng(5)


def gate(x):
    return ops.mul(x, ops.sigmoid(x))


def crossed(a, b, c, d):
    return ops.tanh(ops.add(ops.mul(a, b), ops.mul(c, d)))


def scaled(x, bias=None, *, factor):
    y = ops.mul(ops.neg(x), factor)
    return y if bias is None else ops.add(y, bias)


def divided(x, bias=None, *, by):
    y = ops.div(ops.neg(x), by)
    return y if bias is None else ops.add(y, bias)


def summed(x, *, axes):
    return ops.reduce_sum(ops.exp(ops.sub(x, 1.0)), axes=axes, keepdims=0)


def weighted(x, *, k):
    values, indices = ops.topk(x, k=k)
    return ops.mul(values, ops.cast(indices, to=df.float32))


def like(*types, **_):
    shape = np.broadcast_shapes(*(t.shape for t in types if t is not None))
    return df.TensorType(df.float32, shape)


def reduced(x, *, axes):
    axes = {axis % len(x.shape) for axis in axes}
    return df.TensorType(x.dtype, tuple(d for axis, d in enumerate(x.shape) if axis not in axes))


def shortened(x, *, k):
    return df.TensorType(x.dtype, (*x.shape[:-1], k))


class Plugin:
    """Fused ops, with kernels for the device numpy."""

    OPS = (
        df.Op("gate", ("x",), like, decompose=gate, pattern=(df.Pattern(gate),)),
        df.Op("crossed", ("a", "b", "c", "d"), like, decompose=crossed, pattern=(df.Pattern(crossed),)),
        df.Op(
            "scaled",
            ("x", "bias?"),
            like,
            attributes={"factor": 1.0},
            decompose=scaled,
            pattern=(df.Pattern(scaled), df.Pattern(divided, lambda by: {"factor": 1 / by})),
        ),
        df.Op("summed", ("x",), reduced, attributes={"axes": ()}, decompose=summed, pattern=(df.Pattern(summed),)),
        df.Op("weighted", ("x",), shortened, attributes={"k": 1}, decompose=weighted, pattern=(df.Pattern(weighted),)),
    )
    CODE: typing.ClassVar = {
        "gate": lambda _, x: x / (1 + np.exp(-x)),
        "crossed": lambda _, a, b, c, d: np.tanh(a * b + c * d),
        "scaled": lambda given, x, bias=0: -x * np.float32(given["factor"]) + bias,
        "summed": lambda given, x: np.exp(x - 1).sum(tuple(given["axes"])),
        "weighted": lambda given, x: (np.sort(x) * np.argsort(x))[..., ::-1][..., : given["k"]],
    }

    @hookimpl
    def dataflow_ops(self):
        return self.OPS

    @hookimpl
    def dataflow_kernels(self, device):
        if device.name != "numpy":
            return []
        (spec,) = device.kernels()[0].inputs
        return [df.Kernel(name, f"test {name}", (spec,), (spec,), code) for name, code in self.CODE.items()]


REGISTRY = load([Plugin()])


def compared(graph, feeds, device="numpy"):
    """The ops that run when patterns are fused, once the results were compared with those of the graph as it is."""
    fused, plain = (df.Session(graph, devices=[device], fuse=fuse, registry=REGISTRY) for fuse in (True, False))
    expected = plain.run(feeds)
    for name, array in fused.run(feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-5, atol=2e-5)
    check_plan(fused.plan())
    return ops_of(fused.plan())


def around(make, *shapes):
    """A graph of what ``make`` builds from inputs of these shapes, and data for it."""
    g = df.GraphBuilder()
    values = [g.input(f"x{i}", df.float32, shape) for i, shape in enumerate(shapes)]
    make(g, *values)
    return g.build(), {v.name: RANDOM.standard_normal(v.type.sizes).astype(np.float32) for v in values}


@st.composite
def planted(draw):
    """A graph in which patterns stand between other ops, in any order of operands, some with readers of their own."""
    g = df.GraphBuilder()
    values = [g.input(f"x{i}", df.float32, (3, 4)) for i in range(draw(st.integers(1, 3)))]
    feeds = {v.name: RANDOM.uniform(-1, 1, (3, 4)).astype(np.float32) for v in values}

    def pick():
        return values[draw(st.integers(max(0, len(values) - 5), len(values) - 1))]

    def swapped(op, a, b):
        return op(a, b) if draw(st.booleans()) else op(b, a)

    def keep(value):
        if draw(st.integers(0, 5)) == 0:
            values.append(value)
        return value

    for index in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("gate", "crossed", "mul", "div", "other")))
        if kind == "gate":
            x = pick()
            made = swapped(ops.mul, x, keep(ops.sigmoid(x if draw(st.booleans()) else pick())))
        elif kind == "crossed":
            left, right = (keep(ops.mul(pick(), pick())) for _ in range(2))
            made = ops.tanh(keep(swapped(ops.add, left, right)))
        elif kind in ("mul", "div"):
            number = draw(st.sampled_from((0.25, 3.0)))
            made = keep(getattr(ops, kind)(keep(ops.neg(pick())), number))
            made = swapped(ops.add, made, pick()) if draw(st.booleans()) else made
        else:
            made = getattr(ops, draw(st.sampled_from(("neg", "tanh", "sigmoid"))))(pick())
        values.append(made)
        if draw(st.integers(0, 5)) == 0:
            g.output(f"inner{index}", pick())
    g.output("y", values[-1])
    return g.build(), feeds


@given(planted())
@settings(max_examples=150)
def test_planted_patterns_give_equal_results(made):
    compared(*made)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda g, a, b, c, d: gate(a), ["gate"]),
        (lambda g, a, b, c, d: ops.mul(ops.sigmoid(a), a), ["gate"]),
        (lambda g, a, b, c, d: ops.mul(ops.sigmoid(a), b), []),
        (lambda g, a, b, c, d: crossed(a, b, c, d), ["crossed"]),
        (lambda g, a, b, c, d: crossed(a, a, a, b), ["crossed"]),
        (lambda g, a, b, c, d: crossed(gate(a), b, c, d), ["gate", "crossed"]),
        (lambda g, a, b, c, d: ops.tanh(ops.sub(ops.mul(a, b), ops.mul(c, d))), []),
        (lambda g, a, b, c, d: scaled(a, factor=2.0), ["scaled"]),
        (lambda g, a, b, c, d: scaled(a, b, factor=2.0), ["scaled"]),
        (lambda g, a, b, c, d: divided(a, b, by=2.0), ["scaled"]),
        (lambda g, a, b, c, d: ops.add(b, ops.mul(0.5 * g.scalar(1.0, df.float32), ops.neg(a))), ["scaled"]),
        (lambda g, a, b, c, d: ops.mul(ops.neg(a), b), []),
        (lambda g, a, b, c, d: summed(a, axes=(0,)), ["summed"]),
        (lambda g, a, b, c, d: weighted(a, k=2), ["weighted"]),
        (lambda g, a, b, c, d: ops.mul(ops.cast(ops.topk(a, k=3)[1], to=df.float32), ops.topk(a, k=3)[0]), []),
        (lambda g, a, b, c, d: summed(a, axes=(0, 1)), ["summed"]),
        (lambda g, a, b, c, d: ops.reduce_sum(ops.exp(ops.sub(a, 2.0)), axes=(0,), keepdims=0), []),
        (lambda g, a, b, c, d: ops.reduce_sum(ops.exp(ops.sub(a, 1.0)), axes=(0,), keepdims=1), []),
    ],
)
def test_where_a_pattern_stands(make, expected):
    graph, feeds = around(lambda g, *x: g.output("y", make(g, *x)), *[(3, 4)] * 4)
    found = compared(graph, feeds)
    assert [name for name in found if name in Plugin.CODE] == expected


def test_what_is_read_elsewhere_stays():
    def two_readers(g, x):
        inner = ops.sigmoid(x)
        g.output("y", ops.mul(x, inner))
        g.output("z", ops.exp(inner))

    def an_output(g, x):
        inner = ops.sigmoid(x)
        g.output("y", ops.mul(x, inner))
        g.output("z", inner)

    def its_own_operand(g, x):  # sigmoid(x) is inside, and the other operand too
        inner = ops.mul(x, x)
        g.output("y", ops.tanh(ops.add(inner, ops.mul(inner, x))))

    for make in (two_readers, an_output, its_own_operand):
        assert not {*Plugin.CODE}.intersection(compared(*around(make, (2, 5))))


def test_a_constant_that_may_change_is_no_constant():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4, 3))
    factor = g.parameter("factor", np.full((), 0.5, np.float32))
    g.output("y", ops.mul(ops.neg(x), factor))
    graph = g.build()
    assert ops_of(df.Session(graph, devices=["numpy"], registry=REGISTRY).plan()) == [
        "scaled"
    ]  # it keeps today's weights
    batch = {"x": RANDOM.standard_normal((4, 3)).astype(np.float32), "labels": np.arange(4) % 3}
    with df.Trainer(df.Model(graph), trainable=["factor"], devices=["numpy"], registry=REGISTRY) as trainer:
        first = trainer.predict({"x": batch["x"]})["y"]
        trainer.step(batch)
        assert (trainer.predict({"x": batch["x"]})["y"] != first).any()
        assert not any("scaled" in str(plan) for plan in trainer.programs.plans().values())


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ({}, ["neg", "gate"]),
        ({"forward": {"r", "y"}, "backward": set()}, ["neg", "gate"]),
        ({"forward": {"r"}, "backward": {"y"}}, ["sigmoid", "neg", "mul"]),
    ],
)
def test_a_pattern_does_not_span_forward_and_backward(stages, expected):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3))
    inner = ops.sigmoid(x)
    g.output("r", ops.neg(x))
    g.output("y", ops.mul(x, inner))
    graph = g.build({name: frozenset(results) for name, results in stages.items()})
    made = fuse(
        graph,
        Targets({"numpy": REGISTRY.kernels["numpy"]}, lambda node: ("numpy",), lambda node: ""),
        REGISTRY.ops.values(),
    )
    assert [node.op.name for node in made.nodes] == expected
    assert made.stages == graph.stages


def refused(build, inputs=("x",)):
    class Other:
        @hookimpl
        def dataflow_ops(self):
            return [df.Op("other", inputs, like, decompose=gate, pattern=(df.Pattern(build),))]

        @hookimpl
        def dataflow_kernels(self, device):
            (spec,) = device.kernels()[0].inputs if device.name == "numpy" else (None,)
            return [df.Kernel("other", "other", (spec,), (spec,), gate)] if spec else []

    graph, _ = around(lambda g, x: g.output("y", gate(x)), (2,))
    with pytest.raises(df.PluginError) as caught:
        df.Session(graph, devices=["numpy"], registry=load([Other()])).plan()
    return str(caught.value)


def test_a_pattern_that_can_not_be_one_is_refused():
    assert "'rank' of an operand" in refused(lambda x: ops.transpose(x, perm=range(x.type.rank)))
    assert "the one result" in refused(lambda x: x)
    assert "does not read 'bias?'" in refused(lambda x, bias: ops.neg(x), ("x", "bias?"))
    assert "no operand of a pattern" in refused(lambda x: ops.mul(x, np.ones(3)))


@pytest.mark.parametrize("op", [op for op in ops.ALL if op.pattern], ids=lambda op: op.name)
def test_each_pattern_of_an_op_is_what_the_op_computes(op):
    """Its samples, written as the pattern, give what the reference of the op gives, and the CPU takes it as the op."""
    taken: dict[df.Pattern, int] = dict.fromkeys(op.pattern, 0)
    for sample in (s for s in SAMPLES if s.op is op):
        for pattern in op.pattern:
            constants = attributes = op.complete(sample.attributes)
            if pattern.attributes is not None:
                names = inspect.signature(pattern.attributes).parameters
                constants = {name: attributes.get(name, 0.5 + index) for index, name in enumerate(names)}
                attributes = op.complete(pattern.attributes(**constants))
            g = df.GraphBuilder()
            given = [None if a is None else g.input(f"x{i}", a.dtype, a.shape) for i, a in enumerate(sample.inputs)]
            try:
                op.infer(*(None if v is None else v.type for v in given), **attributes)
                g.output("y", pattern.build(*given, **constants))
            except df.InputError:
                continue
            session = df.Session(g.build(), devices=["cpu"])
            taken[pattern] += ops_of(session.plan()) == [op.name]
            arrays = sample.arrays()
            found = session.run({f"x{i}": a for i, a in enumerate(arrays) if a is not None})["y"]
            upcast = [a if a is None or a.dtype != np.float32 else a.astype(np.float64) for a in arrays]
            results = REGISTRY.kernels["numpy"][op.name][0].code(attributes, *upcast)
            expected = results[0] if isinstance(results, tuple) else results
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            assert np.abs(found.astype(np.float64) - expected).max(initial=0) <= 4e-5 * scale, sample.name
    assert all(taken.values())


@pytest.mark.parametrize(
    "gate",
    [
        lambda x: ops.erf(ops.div(x, np.float32(2**0.5))),
        lambda x: ops.tanh((x + ops.pow(x, np.float32(3)) * 0.044715) * np.float32((2 / np.pi) ** 0.5)),
    ],
    ids=["erf", "tanh"],
)
def test_a_gelu_that_an_exporter_took_apart_keeps_its_operand_alone(gate):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 5))
    h = ops.matmul(x, g.parameter("w", RANDOM.standard_normal((5, 8)).astype(np.float32)))
    h = h * (gate(h) + 1.0) * 0.5
    g.output("y", ops.matmul(h, g.parameter("v", RANDOM.standard_normal((8, 3)).astype(np.float32))))
    batch = {"x": RANDOM.standard_normal((7, 5)).astype(np.float32), "labels": np.arange(7) % 3}
    losses = []
    for fused in (True, False):
        with df.Trainer(df.Model(g.build()), devices=["cpu"], fuse=fused, seed=0) as trainer:
            losses.append([trainer.step(batch) for _ in range(4)])
            found = {op for plan in trainer.programs.plans().values() for op in ops_of(plan)}
            assert found.issuperset({"gelu", "gelu_grad"}) == fused
            assert found.isdisjoint({"erf", "tanh"}) == fused
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
