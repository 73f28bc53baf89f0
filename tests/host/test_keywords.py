"""Keywords of NumPy, PyTorch and Keras, and misspelt ones: the error names the right one."""

import copy
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

import dataflow as df

ops, nn, optim = df.ops, df.nn, df.optim


def small():
    g = df.GraphBuilder()
    return g, g.input("x", df.float32, (2, 3, 8, 8))


def model():
    g, x = small()
    g.output("y", x * g.parameter("w", np.ones(8, np.float32)))
    return df.Model(g.build())


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (lambda g, x: ops.softmax(x, dim=1), "dim", "axis"),
        (lambda g, x: ops.reduce_sum(x, axis=(1,), keepdims=False), "axis", "axes"),
        (lambda g, x: ops.reduce_mean(x, axes=(1,), keepdim=True), "keepdim", "keepdims"),
        (lambda g, x: ops.cast(x, dtype=df.float64), "dtype", "to"),
        (lambda g, x: ops.transpose(x, perms=(0, 1, 3, 2)), "perms", "perm"),
        (lambda g, x: ops.max_pool(x, kernel_size=(2, 2)), "kernel_size", "kernel"),
        (lambda g, x: ops.max_pool(x, kernel=(2, 2), padding=(0, 0, 0, 0)), "padding", "pads"),
        (lambda g, x: x.sum(axis=1), "axis", "axes"),
        (lambda g, x: x.mean(1, keepdim=True), "keepdim", "keepdims"),
        (lambda g, x: nn.layer_norm(g, x, eps=1e-6), "eps", "epsilon"),
        (lambda g, x: nn.linear(g, x, out_features=3), "out_features", "features"),
        (lambda g, x: nn.conv(g, x, 4, 3, padding=1), "padding", "pad"),
        (lambda g, x: nn.conv(g, x, 4, kernel_size=3), "kernel_size", "window"),
        (lambda g, x: optim.AdamW(eps=1e-6), "eps", "epsilon"),
        (lambda g, x: optim.AdamW(learning_rate=1e-3), "learning_rate", "lr"),
        (lambda g, x: optim.SGD(lr=0.1, momentun=0.9), "momentun", "momentum"),
        (lambda g, x: optim.AdamW(momentum=0.9), "momentum", "betas"),
        (lambda g, x: df.Trainer(model(), momentum=0.9), "momentum", "optimizer"),
        (lambda g, x: df.Session(model(), device="cpu"), "device", "devices"),
        (lambda g, x: df.Trainer(model(), lr=0.1), "lr", "optimizer"),
        (lambda g, x: df.Trainer(model(), criterion="mse"), "criterion", "loss"),
        (lambda g, x: df.quantize_static(model(), None, bit=8), "bit", "bits"),
        (lambda g, x: df.quantize_static(model(), None, providers=8), "providers", "devices"),
        (lambda g, x: df.evaluate(model(), None, metric="f1"), "metric", "metrics"),
        (lambda g, x: df.evaluate(model(), None, batchsize=3), "batchsize", "batch_size"),
        (lambda g, x: df.predict(model(), None, batch=3), "batch", "batch_size"),
        (lambda g, x: df.predict(model(), None, device="cpu"), "device", "devices"),
    ],
)
def test_the_keyword_that_is_meant_is_named(call, given, meant):
    with pytest.raises(df.InputError, match=rf"'{given}'.* use {meant}= for {given}=") as raised:
        call(*small())
    assert isinstance(raised.value, TypeError)  # as Python's own error is


def test_a_function_that_passes_options_on_names_itself():
    with pytest.raises(
        df.InputError, match=r"^evaluate has no argument 'loss_scale'; it has: model, data, loss, metrics"
    ):
        df.evaluate(model(), None, loss_scale=2)
    with pytest.raises(
        df.InputError, match=r"^quantize_static has no argument 'q'; .* progress, devices, threads, fallback"
    ):
        df.quantize_static(model(), None, q=2)


@pytest.mark.parametrize(
    ("statement", "call", "meant"),
    [
        ("from dataflow.optim import AdamW", "AdamW(learning_rate=1)", "lr"),
        ("from dataflow.callbacks import CSV", "CSV('x', evry='step')", "every"),
        ("from dataflow.init import normal", "normal((2,), random_state=1)", "seed"),
        ("from dataflow.losses import Focal", "Focal(gama=2)", "gamma"),
        ("from dataflow.losses import output", "output(nam='loss')", "name"),
        ("from dataflow.metrics import TopK", "TopK(kk=2)", "k"),
        ("from dataflow.nn import linear", "linear(None, None, units=3)", "features"),
        ("from dataflow.schedules import Warmup", "Warmup(warmups=3)", "warmup"),
        ("from dataflow.testing import check_device", "check_device(devices='cpu')", "device"),
        ("import dataflow as df", "df.optim.AdamW(learning_rate=1)", "lr"),
        ("import dataflow.optim, dataflow as df", "df.optim.AdamW(learning_rate=1)", "lr"),
    ],
)
def test_the_order_of_imports_does_not_matter(statement, call, meant):
    """In a process of its own: what another test imported answers already."""
    done = subprocess.run([sys.executable, "-c", f"{statement}\n{call}"], capture_output=True, text=True, timeout=60)
    assert f"use {meant}= for " in done.stderr


def test_a_keyword_that_is_like_none_is_answered_with_those_that_there_are():
    with pytest.raises(TypeError, match=r"AdamW has no argument 'xyz'; it has: lr, weight_decay, .*moment_bits$"):
        optim.AdamW(xyz=1)
    with pytest.raises(TypeError, match=r"Trainer.fit has no argument 'xyz'; it has: data, validation"):
        df.Trainer(model(), "mse").fit({}, xyz=1)


def test_other_errors_of_signatures_and_from_within_stay():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'features'"):
        nn.linear(*small())
    with pytest.raises(TypeError, match="multiple values for argument 'lr'"):
        optim.AdamW(1e-3, lr=1e-3)

    class Broken(optim.AdamW):
        def __post_init__(self):
            len(1, 2)

    with pytest.raises(TypeError, match=r"len\(\) takes exactly one argument"):
        Broken(lr=1e-3)


def test_functions_and_classes_keep_names_signatures_and_copies():
    assert str(inspect.signature(nn.linear)).startswith("(g: 'GraphBuilder', x: 'Value', features: 'int', *, bias")
    assert list(inspect.signature(optim.AdamW).parameters)[:2] == ["lr", "weight_decay"]
    assert "product with a weight" in nn.linear.__doc__
    rule = optim.AdamW(lr=0.1)
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule
    assert pickle.loads(pickle.dumps(df.load)) is df.load and pickle.loads(pickle.dumps(nn.linear)) is nn.linear
    assert isinstance(rule, optim.AdamW) and df.Session is type(df.Session(model(), ["cpu"]))


def test_all_names_are_those_that_users_read():
    taken: dict[str, object] = {}
    exec("from dataflow import *", taken)
    assert not {"answer", "install_operators", "install_ops"} & taken.keys()


@pytest.mark.parametrize(
    ("call", "name", "meant"),
    [
        ("trainer.checkpoint('x', kep=1)", "Trainer.checkpoint", "keep"),
        ("trainer.evaluate({}, batch=3)", "Trainer.evaluate", "batch_size"),
        ("trainer.freeze(pattern='x')", "Trainer.freeze", "patterns"),
        ("trainer.step(btch={})", "Trainer.step", "batch"),
        ("session.run({}, output=1)", "Session.run", "outputs"),
        ("session.profile(round=1)", "Session.profile", "rounds"),
        ("model.with_outputs(output='y')", "Model.with_outputs", "outputs"),
        ("g.parameter('w', 1, trainble=1)", "GraphBuilder.parameter", "trainable"),
        ("g.input('a', dtype=df.float32, size=())", "GraphBuilder.input", "shape"),
        ("df.GraphBuilder(nam='a')", "GraphBuilder", "name"),
    ],
)
def test_methods_answer(call, name, meant):
    made = model()
    given = {"df": df, "model": made, "g": df.GraphBuilder(), "session": df.Session(made)}
    given["trainer"] = df.Trainer(made, "mse")
    with pytest.raises(df.InputError, match=rf"^{name} has no argument .*; use {meant}= for "):
        eval(call, given)
    given["trainer"].close()
