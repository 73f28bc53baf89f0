"""Groups of parameters, clipping, freezing and averages of weights, against PyTorch's as recorded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import dataflow as df
from dataflow.plugin import scalars, scaled
from dataflow.train.optimizers.layers import layers_of
from dataflow.train.parameters import select
from dataflow_onnx.loading import load_bytes
from tests.support import Stopped, onnx_model, recorded, stopping_at
from tests.train.test_optimizers import compare, gradients, trained
from tests.train.test_training import data, model

O = df.optim
QUIET: dict[str, Any] = {"progress": False}
GROUPS = [
    O.Group("w1", "b1", lr=0.01, clip_norm=0.05),
    O.Group("b2", freeze=10),
    O.Group("w2", clip_value=0.03),
]


def rates(optimizer: Any, made: df.Model | None = None, **options: Any) -> dict[str, tuple[float, float]]:
    """Learning rate and decay of each trained parameter."""
    with df.Trainer(made or model(), optimizer=optimizer, devices=["cpu"], **options) as trainer:
        updates = trainer.updates
        rules = {name: updates.kinds[index].rule for name, index in updates.kind_of.items()}
    return {name: (rule.lr, rule.weight_decay) for name, rule in rules.items()}


def test_groups_are_pytorchs() -> None:
    wanted = recorded("optimizers")
    optimizer = O.AdamW(lr=0.05, weight_decay=0.1, no_decay=["b2"], groups=GROUPS)
    losses, parameters, trainer = trained(optimizer, clip_norm=0.1)
    compare(losses, parameters, wanted["groups/losses"], {n: wanted[f"groups/{n}"] for n in parameters})
    assert sum(name.startswith("step") for name in trainer.programs.plans()) == 2  # without b2, and with it


def test_a_group_keeps_the_fused_step_and_the_norm_is_of_all() -> None:
    with df.Trainer(model(), optimizer=O.AdamW(groups=[O.Group("b1", lr=1.0)]), devices=["cpu"]) as trainer:
        trainer.step(data())
        plan = trainer.programs.plans()["step"]
    ops = [s.node.op.name for item in plan.items[plan.ranges["optimizer"].start :] for s in item.steps]
    assert sorted(ops) == ["adamw_step"] * 4 + ["reciprocal"]
    rows = []
    for groups in ([], [O.Group("w1", clip_norm=1e9)]):
        with df.Trainer(model(), optimizer=O.SGD(groups=groups), devices=["cpu"], clip_norm=1e9) as trainer:
            history = trainer.fit(data(), batch_size=16, **QUIET)
        rows.append(history.steps["gradient_norm"])
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)


def test_later_groups_win_by_setting_and_no_decay_over_all(caplog: pytest.LogCaptureFixture) -> None:
    groups = [O.Group("w*", lr=0.5, weight_decay=0.3), O.Group("*1", lr=0.25), O.Group("*", "!w*", weight_decay=0.7)]
    with caplog.at_level(logging.INFO, "dataflow"):
        found = rates(O.AdamW(lr=0.1, weight_decay=0.2, groups=groups))
    assert found == {"w1": (0.25, 0.3), "b1": (0.25, 0.0), "w2": (0.5, 0.3), "b2": (0.1, 0.0)}
    assert "2 biases and parameters of normalizations don't decay" in caplog.text
    found = rates(O.AdamW(lr=0.1, weight_decay=0.2, groups=groups, no_decay=()))
    assert found == {"w1": (0.25, 0.3), "b1": (0.25, 0.7), "w2": (0.5, 0.3), "b2": (0.1, 0.7)}
    assert rates(O.SGD(lr=0.1, weight_decay=0.2))["b1"] == (0.1, 0.2)  # the gradient's decay is of all, as it was


def test_a_group_may_have_another_optimizer() -> None:
    groups = [O.Group("head", optimizer=O.SGD(lr=0.5, momentum=0.9)), O.Group("b2", lr_factor=0.5)]
    assert rates(O.Muon(groups=groups), trainable=["w1", "w2", "b2"])["b2"] == (0.25, 0.0)
    with df.Trainer(model(), optimizer=O.Muon(groups=groups), devices=["cpu"]) as trainer:
        trainer.step(data())
        names = set(trainer.programs.state())
    slots = {"momentum/w1", "m/b1", "v/b1", "velocity/w2", "velocity/b2"}
    assert names == {f"optimizer/{n}" for n in slots} | {f"parameters/{n}" for n in ("w1", "b1", "w2", "b2")}


def stack(*names: str) -> df.Model:
    """A chain of products with matrices and additions of vectors, by their names."""
    g = df.GraphBuilder()
    y = g.input("x", df.float32, ("B", 2))
    for name in names:
        vector = name.endswith("b")
        p = g.parameter(name, np.ones(2 if vector else (2, 2), np.float32))
        y = df.ops.add(y, p) if vector else df.ops.matmul(y, p)
    g.output("y", y)
    return df.Model(g.build())


def test_rates_decay_by_layer() -> None:
    names = ("table", "h.0.q.w", "h.0.q.b", "h.0.k.w", "h.1.q.w", "h.1.b", "last", "last_b")
    assert list(layers_of(stack(*names), names).values()) == [0, 1, 1, 1, 2, 2, 3, 3]
    found = rates(O.SGD(lr=1.0, layer_decay=0.5, groups=[O.Group("h.1.b", lr=8.0)]), stack(*names), loss="mse")
    assert [found[name][0] for name in names] == [0.125, 0.25, 0.25, 0.25, 0.5, 4.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["ema", "swa"])
def test_averages_are_pytorchs_and_evaluation_reads_them(name: str) -> None:
    wanted = recorded("optimizers")
    average = {"ema": O.EMA(0.9, start=5), "swa": O.SWA(start=20, every=5)}[name]
    losses, newest, trainer = trained(O.SGD(lr=0.3, momentum=0.9), average=average)
    np.testing.assert_allclose(losses, wanted[f"{name}/losses"], rtol=2e-5)
    raw = trainer.evaluate(data())["loss"], trainer.predict({"x": data()["x"]})["z"]
    trainer.averaged = True
    for n, p in trainer.model.parameters.items():
        assert not np.array_equal(p.array, newest[n])
        np.testing.assert_allclose(p.array, wanted[f"{name}/{n}"], rtol=2e-4, atol=2e-5, err_msg=n)
    mean = trainer.evaluate(data())["loss"], trainer.predict({"x": data()["x"]})["z"]
    assert mean[0] != raw[0]
    trainer.close()
    session = df.Session(trainer.model, "cpu")
    np.testing.assert_allclose(session.run({"x": data()["x"]})["z"], mean[1], rtol=1e-5, atol=1e-6)


def test_before_averaging_starts_the_average_is_the_weights() -> None:
    for average in (O.EMA(start=100), O.SWA(start=100)):
        _, newest, trainer = trained(O.SGD(lr=0.1), average=average)
        trainer.averaged = True
        assert all(np.array_equal(p.array, newest[n]) for n, p in trainer.model.parameters.items())
    assert [O.EMA(0.99, start=2, every=2, ramp=True).share(s) for s in range(1, 8)] == pytest.approx(
        [1, 1, 1, 0, 1 - 2 / 11, 0, 1 - 3 / 12]
    )


@pytest.mark.parametrize(
    ("optimizer", "average"),
    [
        (O.ScheduleFreeAdamW(lr=0.05, groups=[O.Group("b2", freeze=7)]), None),
        (O.AdamW(lr=0.05, groups=[O.Group("head", optimizer=O.Adafactor())]), O.EMA(0.8, start=3)),
    ],
    ids=["schedule_free", "ema"],
)
@pytest.mark.parametrize("at", [3, 10])
def test_a_resumed_run_has_the_same_bits(optimizer: Any, average: Any, at: int, tmp_path: Path) -> None:
    def make() -> df.Trainer:
        return df.Trainer(model(), optimizer=optimizer, average=average, devices=["cpu"], accumulate=2, clip_norm=0.5)

    options: dict[str, Any] = {"epochs": 4, "batch_size": 5, "val_split": 0.25, "early_stop": df.EarlyStop(), **QUIET}
    uninterrupted = make()
    expected = uninterrupted.fit(data(), **options)
    options |= {"checkpoint": tmp_path, "every": 1}
    with pytest.raises(Stopped):
        make().fit(data(), callbacks=[stopping_at(at)], **options)
    resumed = make()
    history = resumed.fit(data(), resume="auto", **options)
    assert history.steps == expected.steps
    assert history["val_loss"] == expected["val_loss"]
    for averaged in (True, False):
        resumed.averaged = uninterrupted.averaged = averaged
        for name, p in resumed.model.parameters.items():
            np.testing.assert_array_equal(p.array, uninterrupted.model.parameters[name].array)
    others: list[tuple[Any, Any]] = [(O.Adagrad(), None)]
    if average is not None:  # which has the same tensors, of another meaning
        others.append((optimizer, O.SWA()))
    for rule, mean in others:
        other = df.Trainer(model(), optimizer=rule, average=mean, devices=["cpu"])
        with pytest.raises(df.InputError, match=r"the (optimizer state|optimizers) differ"):
            other.fit(data(), resume="auto", **options)
        other.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: O.Group(), "give a pattern"),
        (lambda: O.Group("!w1"), "give a pattern"),
        (lambda: O.Group("w1", schedule="cosine"), "the optimizer has the schedule"),
        (lambda: O.Group("w1", freeze=-1), "freeze"),
        (lambda: O.Group("w1", clip_norm=0), "expected a number above 0"),
        (
            lambda: rates(O.AdamW(groups=[O.Group("wx", lr=1.0)])),
            "pattern 'wx' matches no parameter; nearest",
        ),
        (lambda: rates(O.AdamW(groups=[O.Group("w1", speed=1)])), "a group sets 'speed', which AdamW doesn't have"),
        (lambda: rates(O.AdamW(groups=[O.Group("w1", lr=-1)])), "AdamW: lr is -1"),
        (lambda: rates(O.AdamW(groups=[O.Group("*", freeze=2)])), "freeze every parameter"),
        (lambda: rates(O.AdamW(groups={"w1": 1})), "expected a list of df.optim.Group"),
        (lambda: rates(O.SGD(groups=[O.Group("w1", optimizer=O.AdamW(layer_decay=0.5))])), "layer_decay of its own"),
        (lambda: rates(O.SGD(groups=[O.Group("w1", optimizer=O.SGD(schedule="cosine"))])), "has a schedule"),
        (lambda: rates(O.SGD(groups=[O.Group("w1", optimizer="newton")])), "there is no optimizer 'newton'"),
        (lambda: rates(O.AdamW(layer_decay=1.5)), "layer_decay is 1.5"),
        (lambda: rates(O.ScheduleFreeSGD(), average=O.EMA()), "averages weights itself"),
        (lambda: rates(O.SGD(), average=0.9), "average is 0.9; expected df.optim.EMA"),
        (lambda: rates(O.SGD(), clip_value=0), "clip_value is 0"),
        (lambda: O.EMA(1.0), "EMA: decay"),
        (lambda: O.RAdam(epsilon=0.0), "epsilon is 0"),
    ],
)
def test_impossible_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(df.InputError, match=message):
        make()


def test_tied_weights_are_one_parameter_of_groups_and_averages() -> None:
    g = df.GraphBuilder()
    table = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
    h = df.ops.gather(g.parameter("table", table), g.input("x", df.int64, ("B",)), axis=0)
    g.output("y", df.ops.matmul(h, g.parameter("out", table.T.copy())))
    made = df.Model(g.build())
    batch = {"x": np.array([0, 2, 3]), "labels": np.array([1, 3, 0])}
    optimizer = O.SGD(lr=1.0, groups=[O.Group("out", lr=0.125)])
    assert rates(optimizer, made, tie=True) == {"table": (0.125, 0.0)}
    with df.Trainer(made, optimizer=optimizer, average=O.EMA(0.5), tie=True, devices=["cpu"]) as trainer:
        for _ in range(3):
            trainer.step(batch)
        mean = trainer.model.parameters["table"].array
        np.testing.assert_array_equal(trainer.model.parameters["out"].array, mean.T)
        np.testing.assert_allclose(trainer.predict({"x": batch["x"]})["y"], mean[batch["x"]] @ mean.T, rtol=1e-5)
        trainer.averaged = False
        assert not np.array_equal(trainer.model.parameters["table"].array, mean)
        with pytest.raises(df.InputError, match="averaged is 1"):
            trainer.averaged = 1


def test_the_best_epoch_comes_back_with_its_averages() -> None:
    rule = df.EarlyStop(monitor="val_loss", patience=1, mode="max")  # a loss that falls: the first epoch is the best
    trainer = df.Trainer(model(), optimizer=O.SGD(lr=0.1), average="ema:decay=0.5", devices=["cpu"])
    history = trainer.fit(data(), data(), epochs=5, early_stop=rule, **QUIET)
    assert len(history["loss"]) == 2
    assert trainer.evaluate(data())["loss"] == history["val_loss"][0]


class Momentum:
    """An optimizer of somebody else: no dataclass, a slot that starts at 1, another only for matrices."""

    lr, schedule, hyper_size = 0.5, None, 1
    slots = (
        O.Slot("velocity", start=1.0),
        O.Slot("rows", shape=lambda shape: shape[:1] if len(shape) == 2 else None),
    )

    def hyper(self, step: int, lr: float) -> np.ndarray:
        return np.array([lr], np.float32)

    def build(self, g: Any, param: Any, grad: Any, slots: Any, hyper: Any, scale: Any) -> tuple[Any, ...]:
        assert len(slots) == (2 if param.type.rank == 2 else 1)
        (lr,) = scalars(hyper, param)
        velocity = df.ops.add(df.ops.mul(slots[0], 0.5), scaled(grad, scale))
        kept = [df.ops.add(rows, 1.0) for rows in slots[1:]]
        return df.ops.sub(param, df.ops.mul(velocity, lr)), velocity, *kept


def test_optimizers_of_others_declare_slots_of_any_shape() -> None:
    trainer = df.Trainer(model(), optimizer=Momentum(), average="swa", devices=["cpu"])
    before = {name: p.array.copy() for name, p in trainer.model.parameters.items()}
    trainer.step(data())
    state = trainer.programs.state()
    assert state["optimizer/rows/w1"].tolist() == [1.0] * 6
    assert "optimizer/rows/b1" not in state
    gradient = gradients({n: a.astype(np.float64) for n, a in before.items()})[1]["b1"]
    np.testing.assert_allclose(state["optimizer/velocity/b1"], 0.5 + gradient, rtol=1e-5)
    np.testing.assert_allclose(state["parameters/b1"], before["b1"] - 0.5 * (0.5 + gradient), rtol=1e-5)
    with pytest.raises(df.InputError, match="Momentum: groups need an optimizer that is a dataclass"):
        Momentum.groups = [O.Group("w1", lr=1.0)]
        try:
            rates(Momentum())
        finally:
            del Momentum.groups


def test_an_optimizer_that_loses_a_slot_is_named() -> None:
    class Careless(Momentum):
        def build(self, *arguments: Any) -> tuple[Any, ...]:
            return super().build(*arguments)[:2]

    with pytest.raises(df.PluginError, match=r"Careless: build\(\) gave 2 values for 'w1'; expected .* 2 slots"):
        df.Trainer(model(), optimizer=Careless(), devices=["cpu"]).step(data())


def exported(nodes: list[Any], stored: dict[str, tuple[int, ...]], inputs: tuple[int, ...] = (2, 4, 8)) -> df.Model:
    """A file with random tensors of these shapes."""
    random = np.random.default_rng(0)
    arrays = [(name, random.standard_normal(shape).astype(np.float32)) for name, shape in stored.items()]
    proto = onnx_model(nodes, [("x", 1, inputs)], [("y", 1, None)], arrays)
    return load_bytes(proto.SerializeToString())


def linear(names: list[tuple[str, str, str, str]]) -> tuple[list[Any], dict[str, tuple[int, ...]]]:
    """Nodes of layers in a row, each of weight, bias and names of its product and sum; and shapes of what is stored."""
    nodes: list[Any] = []
    stored: dict[str, tuple[int, ...]] = {}
    for i, (weight, bias, product, total) in enumerate(names):
        stored |= {weight: (8, 8), bias: (8,)}
        given, result = f"h{i}" if i else "x", f"h{i + 1}" if i + 1 < len(names) else "y"
        nodes.append(helper.make_node("MatMul", [given, weight], [f"m{i}"], name=product))
        nodes.append(helper.make_node("Add", [f"m{i}", bias], [result], name=total))
    return nodes, stored


def test_numbers_of_nodes_are_no_layers() -> None:
    """As PyTorch's default exporter names them: the tensors of a layer have the number of its module."""
    modules = [f"layers.{i // 2}.{'qf'[i % 2]}" for i in range(6)]
    nodes, stored = linear(
        [(f"val_{2 * i}", f"{m}.bias", f"node_MatMul_{3 * i + 1}", f"node_linear_{i}") for i, m in enumerate(modules)]
    )
    for i, node in enumerate(nodes):
        entry = node.metadata_props.add()
        entry.key = "pkg.torch.onnx.name_scopes"
        entry.value = f"['', 'layers.{i // 4}', '{modules[i // 2]}', 'linear']"
    made = exported(nodes, stored)
    found = layers_of(made, list(stored))
    assert [found[name] for name in stored] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_the_tensors_of_a_recurrent_node_are_one_layer_with_its_bias() -> None:
    stored = {"onnx::GRU_7": (2, 12, 8), "onnx::GRU_8": (2, 12, 4), "onnx::GRU_9": (2, 24), "onnx::MatMul_10": (4, 3)}
    nodes = [
        helper.make_node(
            "GRU", ["x", *list(stored)[:3]], ["h"], hidden_size=4, direction="bidirectional", name="/l/GRU"
        ),
        helper.make_node("MatMul", ["h", "onnx::MatMul_10"], ["y"], name="/head/MatMul"),
    ]
    made = exported(nodes, stored)
    assert [*layers_of(made, list(stored)).values()] == [0, 0, 0, 1]
    assert set(select(made, "bias")) == {"onnx::GRU_9"}
    assert set(select(made, "last:2")) == {*stored}
    assert set(select(made, "last:1")) == {"onnx::MatMul_10"}


def test_what_stands_behind_a_norm_belongs_to_it() -> None:
    """A group norm as exporters write it: an instance norm of ones and zeros, a product and a sum."""
    stored = {"c.weight": (4, 4, 1), "onnx::Mul_3": (4, 1), "onnx::Add_4": (4, 1), "other": (4, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "c.weight"], ["c"]),
        helper.make_node("Constant", [], ["one"], value_floats=[1.0, 1.0]),
        helper.make_node("Constant", [], ["zero"], value_floats=[0.0, 0.0]),
        helper.make_node("Constant", [], ["grouped"], value_ints=[0, 2, -1]),
        helper.make_node("Reshape", ["c", "grouped"], ["g"]),
        helper.make_node("InstanceNormalization", ["g", "one", "zero"], ["n"]),
        helper.make_node("Shape", ["c"], ["sizes"]),
        helper.make_node("Reshape", ["n", "sizes"], ["r"]),
        helper.make_node("Mul", ["r", "onnx::Mul_3"], ["m"]),
        helper.make_node("Add", ["m", "onnx::Add_4"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "other"], ["y"]),
    ]
    made = exported(nodes, stored, (2, 4, 6))
    assert set(select(made, "norm")) == {"onnx::Mul_3", "onnx::Add_4"}


def test_nodes_of_one_name_and_modules_with_capitals_are_layers_of_their_own() -> None:
    modules = [f"EncoderBlock_{i // 2}.dense{i % 2}" for i in range(4)]
    nodes, stored = linear([(f"{m}.kernel", f"{m}.bias", "same", "same") for m in modules])
    made = exported(nodes, stored)
    assert [*layers_of(made, list(stored)).values()] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(select(made, "head")) == set(list(stored)[-2:])


def test_vectors_behind_a_norm_with_its_own_are_no_norms() -> None:
    stored = {"scale": (8,), "bias": (8,), "position": (8,), "gate": (8,)}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["n"]),
        helper.make_node("Add", ["n", "position"], ["a"]),
        helper.make_node("Mul", ["a", "gate"], ["y"]),
    ]
    made = exported(nodes, stored)
    assert set(select(made, "norm")) == {"scale", "bias"}
