from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.train.optimizers.updates import resolve
from dataflow.train.parameters import select


@pytest.fixture
def model() -> df.Model:
    """An embedding, a convolution-like pair of layers with a norm between, and a head through a transpose."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    g = df.GraphBuilder("m")
    tokens = g.input("tokens", df.int64, ("batch",))
    x = ops.gather(g.parameter("table", weight(20, 8)), tokens, axis=0)
    x = ops.add(ops.matmul(x, g.parameter("onnx::MatMul_17", weight(8, 6))), g.parameter("l0.bias", weight(6)))
    scale, shift = g.parameter("bn.weight", weight(6)), g.parameter("bn.bias", weight(6))
    mean = g.initializer("bn.mean", weight(6), role="statistic")
    var = g.initializer("bn.var", np.ones(6, np.float32), role="statistic")
    x = ops.relu(ops.batch_norm(x, scale, shift, mean, var))
    x = ops.mul(x, g.constant(weight(6), "mask"))
    x = ops.add(ops.matmul(x, g.parameter("l1.weight", weight(6, 6))), g.parameter("l1.bias", weight(6)))
    head = ops.transpose(g.parameter("fc.weight", weight(5, 6)), perm=(1, 0))
    g.output("y", ops.add(ops.matmul(x, head), g.parameter("fc.bias", weight(5))))
    return df.Model(g.build(), aliases={"onnx::MatMul_17": ("/encoder/l0/MatMul.weight", "encoder.l0.weight")})


ALL = ("table", "onnx::MatMul_17", "l0.bias", "bn.weight", "bn.bias", "l1.weight", "l1.bias", "fc.weight", "fc.bias")


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (None, ALL),
        ("fc.*", ("fc.weight", "fc.bias")),
        (["fc.bias", "table"], ("table", "fc.bias")),
        ("encoder.l0.weight", ("onnx::MatMul_17",)),
        ("/encoder/*", ("onnx::MatMul_17",)),
        ("head", ("fc.weight", "fc.bias")),
        ("last:1", ("fc.weight", "fc.bias")),
        ("last:2", ("l1.weight", "l1.bias", "fc.weight", "fc.bias")),
        ("last:99", ALL),
        ("bias", ("l0.bias", "bn.bias", "l1.bias", "fc.bias")),
        ("norm", ("bn.weight", "bn.bias")),
        (["head", "norm", "!fc.bias"], ("bn.weight", "bn.bias", "fc.weight")),
        (["!table", "!*.bias"], ("onnx::MatMul_17", "bn.weight", "l1.weight", "fc.weight")),
        ("mask", ("mask",)),
        ("bn.mean", ("bn.mean",)),
    ],
)
def test_patterns(model: df.Model, patterns: object, expected: tuple[str, ...]) -> None:
    assert sorted(select(model, patterns)) == sorted(expected)


def test_names_come_in_the_models_order(model: df.Model) -> None:
    order = list(model.parameters)
    names = select(model, ["fc.bias", "table", "l1.*"])
    assert list(names) == sorted(names, key=order.index)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ("fc.wieght", "matches no parameter; nearest names: 'fc.weight'"),
        ("decoder.*", "matches no parameter"),
        ("last:0", "matches no parameter"),
        (["head", "!fc.*"], "nothing is left to train"),
        ("bn.m*", "give its exact name: 'bn.mean'"),
        (["!nothing"], "'nothing' matches no parameter"),
    ],
)
def test_what_matches_nothing_is_refused(model: df.Model, patterns: object, message: str) -> None:
    with pytest.raises(df.InputError, match=message):
        select(model, patterns)


def test_integers_cannot_be_trained() -> None:
    g = df.GraphBuilder("q")
    x = g.input("x", df.int8, ("batch", 2))
    g.output("y", ops.add(x, g.parameter("w", np.ones(2, np.int8))))
    with pytest.raises(df.InputError, match="only float tensors"):
        select(df.Model(g.build()))


def test_parameters_of_8_bits_are_refused():
    g = df.GraphBuilder()
    w = g.parameter("w", np.ones((2, 2), df.float8e4m3fn.numpy))
    g.output("y", df.ops.matmul(g.input("x", df.float32, (1, 2)), df.ops.cast(w, to=df.float32)))
    with pytest.raises(df.InputError, match=r"fewer than 16 bits can't be .*: 'w' is float8_e4m3fn\[2, 2\].*export"):
        select(df.Model(g.build()), "w")


@pytest.mark.parametrize("dtype", [df.float16, df.bfloat16], ids=str)
def test_layers_around_frozen_weights_of_16_bits_train_as_around_float32(dtype):
    """The frozen product stays in 16 bits; what goes through it, also backward, is float32."""
    random = np.random.default_rng(2)
    weight = (random.standard_normal((6, 9)) / 3).astype(df.bfloat16.numpy)
    first, last = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (9, 2)))
    batch = {"x": random.standard_normal((8, 4)).astype(np.float32), "labels": np.arange(8) % 2}

    def losses(dtype):
        g = df.GraphBuilder()
        x = df.ops.matmul(g.input("x", df.float32, (8, 4)), g.parameter("first", first))
        h = df.ops.matmul(x, g.parameter("weight", weight.astype(dtype.numpy), trainable=False))
        g.output("y", df.ops.matmul(df.ops.tanh(h), g.parameter("last", last)))
        trainer = df.Trainer(df.Model(g.build()), "cross_entropy", df.optim.SGD(lr=0.1), devices=["cpu"])
        return [trainer.step(batch) for _ in range(5)]

    np.testing.assert_allclose(losses(dtype), losses(df.float32), 1e-6)


def waiting():
    """A model that is converted when its inputs come."""
    g = df.GraphBuilder("g")
    x = g.input("x", df.float32, (2, 3))
    weights = [g.parameter(name, np.ones((3, 3), np.float32)) for name in ("first", "last")]
    made = {"dtypes": (df.float32,), "shapes": ((2, 3),), "why": "a size is computed"}
    g.output("y", g.add(df.ops.deferred, [x, *weights], made).outputs[0])
    return df.Model(g.build())


@pytest.mark.parametrize("pattern", ["head", "last:2"])
def test_last_layers_of_a_graph_that_waits_for_sizes_are_refused(pattern):
    """One node stands for the whole graph then, and would make every parameter one of the last layer."""
    with pytest.raises(df.InputError, match=r"converted anew for each form of its inputs.*name parameters"):
        select(waiting(), pattern)


def test_that_biases_are_not_known_before_sizes_is_said(caplog):
    resolve(df.optim.AdamW(), waiting(), ["first", "last"], {}, lambda rule: rule)
    assert "all parameters decay" in caplog.text
    caplog.clear()
    resolve(df.optim.AdamW(no_decay=()), waiting(), ["first", "last"], {}, lambda rule: rule)
    resolve(df.optim.AdamW(weight_decay=0.0), waiting(), ["first", "last"], {}, lambda rule: rule)
    assert not caplog.text


def test_the_table_of_parameters_is_made_as_often_for_many_as_for_few(monkeypatch):
    made = []
    table = df.Model.parameters.fget
    monkeypatch.setattr(df.Model, "parameters", property(lambda self: made.append(self) or table(self)))
    counts = []
    for layers in (2, 8):
        g = df.GraphBuilder()
        h = g.input("x", df.float32, (3, 4))
        for index in range(layers):
            h = h @ g.parameter(f"w{index}", np.eye(4, dtype=np.float32))
        g.output("y", h)
        made.clear()
        with df.Trainer(df.Model(g.build()), "mse", df.optim.SGD(lr=0.1), devices=["numpy"]):
            counts.append(len(made))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("nothing", [[], ()])
def test_an_empty_list_trains_nothing_which_is_refused(model: df.Model, nothing: object) -> None:
    with pytest.raises(df.InputError, match=r"nothing is left to train: trainable=\[\], where None stands for all"):
        select(model, nothing)  # type: ignore[arg-type]
