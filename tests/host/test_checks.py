"""Whatever a public call is given, what leaves it is an error of ours, or of the system, or a wrong signature."""

import dataclasses
import traceback
import warnings

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.registry import default_registry
from dataflow.train.data.image_options import ImageOptions
from dataflow.train.data.table import TableOptions
from dataflow.train.data.text import TextOptions
from dataflow.train.data.tokenizer import Tokenizer

SILLY = {
    "none": None,
    "text": "nonsense",
    "empty text": "",
    "bytes": b"\xff",
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -1,
    "zero": 0,
    "huge": 1 << 70,
    "minus huge": -(1 << 70),
    "fraction": 1.5,
    "true": True,
    "complex": 1j,
    "object": object(),
    "list": [1, 2],
    "nested": [[1], [2, 3]],
    "unhashable": {"a": [1]},
    "set": {1},
    "type": int,
    "function": len,
    "sizes": (1 << 62, 1 << 62),
    "negative sizes": (-1, -1),
    "names": ("a", "b"),
    "mapping": {"x": None},
    "x": {"x": "text"},
    "objects": np.array([object()], object),
    "scalar": np.array(1.0, np.float32),
    "empty": np.empty((0, 6), np.float32),
    "strided": np.ones((4, 12), np.float32)[:, ::2],
    "reversed": np.ones((4, 6), np.float32)[::-1],
    "axes": np.ones((1,) * 64, np.float32),
    "swapped": np.ones((4, 6), ">f4"),
    "dates": np.array(["2020-01-01"], "datetime64[D]"),
    "records": np.zeros(2, [("a", "f4")]),
    "strings": np.array(["a"]),
}


def model():
    g = df.GraphBuilder("small")
    x = g.input("x", df.float32, ("batch", 6))
    g.output("y", df.ops.matmul(x, g.parameter("w", np.ones((6, 3), np.float32)), name="fc"))
    return df.Model(g.build())


X = np.ones((4, 6), np.float32)
BATCH = {"x": X, "labels": np.zeros(4, np.int64)}


def options(call, *names):
    return {f"{name}=": (lambda v, name=name: call(**{name: v})) for name in names}


def fields_of(kind):
    return tuple(field.name for field in dataclasses.fields(kind))


def trainer(**given):
    return df.Trainer(model(), **{"devices": ["cpu"], "threads": 1, **given})


CALLS = {
    "load": lambda v: df.load(v),
    **{f"load {k}": f for k, f in options(lambda **o: df.load("no.onnx", **o), "limits", "registry").items()},
    "Model": lambda v: df.Session(v, ["cpu"]).run(X),
    **{
        f"Session {k}": f
        for k, f in options(
            lambda **o: df.Session(model(), **{"devices": ["cpu"], **o}).run(X),
            "devices", "threads", "fallback", "plans", "concurrency", "precision", "algorithms", "pin", "limits",
        ).items()
    },
    "run": lambda v: df.Session(model(), ["cpu"]).run(v),
    "run x": lambda v: df.Session(model(), ["cpu"]).run({"x": v}),
    "run numpy": lambda v: df.Session(model(), ["numpy"]).run({"x": v}),
    "run outputs": lambda v: df.Session(model(), ["cpu"]).run(X, v),
    "run outputs of": lambda v: df.Session(model(), ["cpu"]).run(X, [v]),
    "run out": lambda v: df.Session(model(), ["cpu"]).run(X, out=v),
    "run out y": lambda v: df.Session(model(), ["cpu"]).run(X, out={"y": v}),
    "plan": lambda v: df.Session(model(), ["cpu"]).plan(v),
    "plan x": lambda v: df.Session(model(), ["cpu"]).plan({"x": v}),
    "plan x of": lambda v: df.Session(model(), ["cpu"]).plan({"x": (v, 6)}),
    "plan outputs": lambda v: df.Session(model(), ["cpu"]).plan({"x": (4, 6)}, v),
    "placement": lambda v: df.Session(model(), ["cpu"]).placement(v),
    "profile": lambda v: df.Session(model(), ["cpu"]).profile(v, rounds=1),
    "profile rounds": lambda v: df.Session(model(), ["cpu"]).profile(X, rounds=v),
    "parameter set": lambda v: model().parameters["w"].set(v),
    "vjp": lambda v: df.vjp(model(), v),
    "vjp cotangents": lambda v: df.vjp(model(), X, v),
    "vjp cotangent": lambda v: df.vjp(model(), X, {"y": v}),
    "vjp model": lambda v: df.vjp(v, X),
    "save": lambda v: df.save(model(), v),
    "save model": lambda v: df.save(v, "/nowhere/model.onnx"),
    "replace_head": lambda v: df.replace_head(model(), v),
    **{
        f"replace_head {k}": f
        for k, f in options(lambda **o: df.replace_head(model(), 2, **o), "at", "keep", "seed").items()
    },
    "Dataset": lambda v: df.Dataset(v),
    "Dataset x": lambda v: df.Dataset({"x": v}),
    **{
        f"Dataset {k}": f
        for k, f in options(
            lambda **o: df.Dataset(BATCH, **o), "rename", "keys", "balance", "drop_last", "workers", "prefetch"
        ).items()
    },
    **{f"TableOptions {k}": f for k, f in options(TableOptions, *fields_of(TableOptions)).items()},
    **{f"ImageOptions {k}": f for k, f in options(ImageOptions, *fields_of(ImageOptions)).items()},
    **{
        f"TextOptions {k}": f
        for k, f in options(lambda **o: TextOptions(**{"tokenizer": "t", **o}), *fields_of(TextOptions)[1:]).items()
    },
    "TextOptions tokenizer": lambda v: Tokenizer(v),
    **{f"Augment {k}": f for k, f in options(df.Augment, *fields_of(df.Augment)).items()},
    "map": lambda v: df.Dataset(BATCH).map(v),
    "filter": lambda v: df.Dataset(BATCH).filter(v),
    "take": lambda v: df.Dataset(BATCH).take(v),
    "shuffle": lambda v: df.Dataset(BATCH).shuffle(v),
    "split": lambda v: df.Dataset(BATCH).split(v, 0),
    "freeze": lambda v: trainer().freeze(v),
    "lr_factor": lambda v: setattr(trainer(), "lr_factor", v),
    "statistics": lambda v: trainer().statistics(v),
    "statistics names": lambda v: trainer().statistics("parameters", v),
    "statistics batch": lambda v: trainer().statistics("values", "*", v),
    **{
        f"TensorBoard {k}": f
        for k, f in options(lambda **o: df.callbacks.TensorBoard(**{"folder": "f", **o}), "folder", "every").items()
    },
    "CSV": lambda v: df.callbacks.CSV("/nowhere/f.csv", every=v),
    "history names": lambda v: df.History().text(names=v),
    "Trainer": lambda v: df.Trainer(v),
    **{
        f"Trainer {k}": f
        for k, f in options(
            lambda **o: trainer(**o).step(BATCH),
            "loss", "optimizer", "output", "trainable", "metrics", "devices", "threads", "accumulate", "clip_norm",
            "clip_value", "average",
            "seed", "batch_norm", "dropout", "tie", "precision", "algorithms", "pin", "limits",
        ).items()
    },
    "step": lambda v: trainer().step(v),
    "step x": lambda v: trainer().step({**BATCH, "x": v}),
    "step labels": lambda v: trainer().step({**BATCH, "labels": v}),
    "step weight": lambda v: trainer().step({**BATCH, "sample_weight": v}),
    "predict": lambda v: trainer().predict(v),
    "evaluate": lambda v: trainer().evaluate(v),
    "evaluate batch": lambda v: trainer().evaluate(BATCH, batch_size=v),
    "fit": lambda v: trainer().fit(v, progress=False),
    **{
        f"fit {k}": f
        for k, f in options(
            lambda **o: trainer().fit(BATCH, **{"progress": False, **o}),
            "validation", "val_split", "epochs", "batch_size", "callbacks", "every", "keep", "early_stop",
        ).items()
    },
    **{f"Limits {k}": f for k, f in options(df.Limits, "bytes", "seconds").items()},
    **{f"AdamW {k}": f for k, f in options(df.optim.AdamW, "lr", "weight_decay", "schedule", "betas", "eps").items()},
    **{f"SGD {k}": f for k, f in options(df.optim.SGD, "lr", "momentum", "weight_decay").items()},
    **{
        f"{name} {k}": f
        for name, rule in (("Muon", df.optim.Muon), ("Adafactor", df.optim.Adafactor), ("RMSprop", df.optim.RMSprop))
        for k, f in options(rule, *(f.name for f in dataclasses.fields(rule))).items()
    },
    **{
        f"AdamW {k}": f
        for k, f in options(
            lambda **o: trainer(optimizer=df.optim.AdamW(**o)), "groups", "no_decay", "layer_decay"
        ).items()
    },
    "Group": lambda v: trainer(optimizer=df.optim.SGD(groups=[df.optim.Group(v, lr=0.1)])),
    **{
        f"Group {k}": f
        for k, f in options(
            lambda **o: trainer(optimizer=df.optim.SGD(groups=[df.optim.Group("w", **o)])),
            "lr", "lr_factor", "clip_norm", "clip_value", "optimizer",
        ).items()
    },
    **{f"EMA {k}": f for k, f in options(df.optim.EMA, "decay", "start", "every", "ramp").items()},
    **{f"Cosine {k}": f for k, f in options(df.schedules.Cosine, "steps", "warmup", "final").items()},
    **{f"Plateau {k}": f for k, f in options(df.schedules.Plateau, "factor", "patience", "monitor", "mode").items()},
    "MultiStep at": lambda v: df.schedules.MultiStep(v)(3),
    "Warmup": lambda v: df.schedules.Warmup(v, 2),
    **{
        f"find_lr {k}": f
        for k, f in options(
            lambda **o: trainer().find_lr(**{"data": BATCH, "highest": 1e-9, **o}), "lowest", "highest", "data"
        ).items()
    },
    **{f"EarlyStop {k}": f for k, f in options(df.EarlyStop, "patience").items()},
    "empty": lambda v: df.empty(v, df.float32),
    "empty of": lambda v: df.empty((v,), df.float32),
    "empty dtype": lambda v: df.empty((2,), v),
    "Dim": lambda v: df.Dim(v),
    "input name": lambda v: df.GraphBuilder().input(v, df.float32, (1,)),
    "input dtype": lambda v: df.GraphBuilder().input("x", v, (1,)),
    "input shape": lambda v: df.GraphBuilder().input("x", df.float32, v),
    "input size": lambda v: df.GraphBuilder().input("x", df.float32, (v,)),
    "parameter": lambda v: df.GraphBuilder().parameter("w", v),
    "constant": lambda v: df.GraphBuilder().constant(v),
    "output": lambda v: df.GraphBuilder().output("y", v),
    "build": lambda v: df.GraphBuilder(v).build(),
}  # fmt: skip
OURS = (df.DataflowError, OSError)
# What is right: functions of the user's are called, and whoever wants so many epochs gets them.
MEANT = {"Trainer loss=": {"type", "function"}, "fit epochs=": {"huge"}}


def foreign(call, value):
    """What else leaves a call than an error of ours, as text; None when nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(value)
    except OURS:
        return None
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "dataflow" in f.filename]
        if isinstance(error, TypeError) and not frames:
            return None  # of a Python call with a wrong signature
        frame = frames[-1] if frames else None
        return f"{type(error).__name__}: {str(error)[:80]} at {frame and f'{frame.name}, line {frame.lineno}'}"
    return None


@pytest.mark.parametrize("name", CALLS)
def test_what_leaves_a_public_call_is_ours(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {s: foreign(CALLS[name], value) for s, value in SILLY.items() if s not in MEANT.get(name, ())}
    assert not {silly: text for silly, text in found.items() if text}


def operand_kinds(g):
    return [g.input("x", df.float32, (4, 6)), g.input("i", df.int64, (2,)), g.input("b", df.bool_, ())]


@pytest.mark.parametrize("name", sorted(default_registry().ops))
def test_what_leaves_an_op_is_ours(name):
    """Each op, each attribute, each silly value; and silly operands."""
    op = default_registry().ops[name]
    problems = []
    count = len(op.inputs)
    for silly, value in SILLY.items():
        for attribute in (*op.attributes, None):
            for kind in range(3):

                def call(value, attribute=attribute, kind=kind):
                    g = df.GraphBuilder()
                    operands = [operand_kinds(g)[kind]] * max(count, 1)
                    if attribute is None:
                        return g.add(op, [*operands[: count - 1], value], {})
                    others = {a: () if a.endswith("s") else 0 for a in op.attributes}
                    return g.add(op, operands, {**others, attribute: value})

                text = foreign(call, value)
                if text:
                    problems.append(f"{attribute}={silly} on {kind}: {text}")
    assert not problems[:20]


class Recording:
    """As a tensor of PyTorch's that records gradients."""

    shape = (4, 6)

    def detach(self):
        raise AssertionError

    def __dlpack__(self, **_):
        raise BufferError("can't export")

    def __dlpack_device__(self):
        return 1, 0

    def __array__(self, *_, **__):
        raise RuntimeError("can't call numpy()")


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda v: df.Session(model(), ["cpu"]).run({"x": v}), "input 'x': Recording gives no array: can't export"),
        (lambda v: df.Session(model(), ["numpy"]).run(v), "input 'x': Recording gives no array"),
        (lambda v: model().parameters["w"].set(v), "parameter 'w': the value is .* no array: can't call numpy"),
        (lambda v: df.GraphBuilder().parameter("w", v), "the data of 'w' is .* no array: can't call numpy"),
        (lambda v: df.GraphBuilder().input("x", df.float32, (4, 6)) + v, "add of 'x': an operand is .* no array"),
        (lambda v: df.ops.add(df.GraphBuilder().input("x", df.float32, (4, 6)), v), "add: an operand is .* no array"),
    ],
    ids=["run", "run one", "set", "parameter", "operator", "op"],
)
def test_objects_that_refuse_to_be_arrays_are_refused_with_advice(call, where):
    with pytest.raises(df.InputError, match=rf"{where}.*convert it, e.g. with .detach\(\).cpu\(\).float\(\).numpy\(\)"):
        call(Recording())


def test_unknown_names_are_key_errors_that_say_what_there_is():
    parameters = model().parameters
    with pytest.raises(KeyError) as caught:
        parameters["v"]
    assert isinstance(caught.value, df.InputError)
    assert str(caught.value) == "there is no parameter 'v'; there are: 'w'"
    assert parameters.get("v") is None and "v" not in parameters
    with pytest.raises(df.InputError, match="there is no parameter 'ww'; nearest: 'w'"):
        parameters["ww"]


def test_a_builder_is_no_graph_yet():
    with pytest.raises(df.InputError, match=r"expected a Graph; give what its build\(\) returns"):
        df.Model(df.GraphBuilder())


def test_names_near_an_unknown_one_are_those_of_outputs_too():
    g = df.GraphBuilder()
    g.output("logits", df.ops.relu(g.input("x", df.float32, (2,))))
    with pytest.raises(df.ModelError, match="no value 'logit'; nearest: 'logits'"):
        df.Session(g.build(), ["numpy"]).run(np.ones(2, np.float32), ["logit"])


@pytest.mark.parametrize("size", [None, 1.5, True, (2,)])
def test_sizes_of_an_input_are_numbers_or_names(size):
    with pytest.raises(df.InputError, match=r"input 'x': a size is .*; expected a whole number, or a name.*'batch'$"):
        df.GraphBuilder().input("x", df.float32, (size, 4))


def test_numbers_below_one_say_so():
    with pytest.raises(df.InputError, match=r"val_split is 1.0; expected a number from 0 on, below 1$"):
        trainer().fit(BATCH, val_split=1.0)
    with pytest.raises(df.InputError, match=r"early_stop is 3; expected an EarlyStop$"):
        trainer().fit(BATCH, early_stop=3)
