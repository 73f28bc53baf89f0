"""No code path is keyed to what the benchmarks measure, and what they share computes what it says."""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df

ROOT = Path(__file__).parents[1]
PRODUCT = ("dataflow", "native", "plugins", "importers")
NAMES = (
    "alexnet", "caffenet", "densenet", "inception", "resnet", "shufflenet", "squeezenet", "vgg", "zfnet", "bert",
    "gpt2", "imagenet", "mnist",
)  # fmt: skip
# Widths, words and planes of the models, as far as nothing else (a vector, a cache, a format) asks for such a number.
SIZES = (
    49, 55, 56, 169, 196, 224, 227, 729, 784, 2304, 2916, 3025, 3072, 3136, 9216, 12544, 18432, 25088, 30522, 50176,
    50257, 150528, 154587,
)  # fmt: skip


def sources():
    """Code that is installed, without the samples of the conformance kit."""
    return sorted(
        path
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".c", ".h", ".cu", ".cuh")
        and "__pycache__" not in path.parts
        and (ROOT / "dataflow/testing") not in path.parents
    )


def _is_preset(path, line):
    """Whether a line is about the means of channels that most models of images were trained with."""
    preset = path.relative_to(ROOT).as_posix() in (
        "dataflow/train/data/image_options.py",
        "dataflow/cli/data_options.py",
    )
    return preset and "imagenet" in line.lower()


def test_no_code_path_knows_a_model_of_the_benchmarks():
    assert len(sources()) > 100
    model = re.compile(rf"{'|'.join(NAMES)}", re.IGNORECASE)
    size = re.compile(rf"(?<![\w.])(?:{'|'.join(map(str, SIZES))})(?![\w.])")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (model.search(line) or size.search(line)) and not _is_preset(path, line)
    ]
    assert found == []


@pytest.fixture
def shared(monkeypatch):
    """Imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:  # they are scripts: their names are nobody's
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_the_goal_of_a_row_is_a_tenth_above_the_floor_where_that_is_more(shared):
    report = shared("report")
    times = {"dataflow": [0.008, 0.010, 0.009], "slow": [0.05] * 3, "best": [0.010, 0.020, 0.010]}
    low = report.row("a", times, 0.5, {"arithmetic_ms": 1.0, "bytes_ms": 2.0})
    high = report.row("b", times, 0.5, {"arithmetic_ms": 7.0, "bytes_ms": 2.0})
    assert low["ratio"] == pytest.approx(0.8)  # the middle one of 0.8, 0.5 and 0.9
    assert low["goal"] == 0.5
    assert high["goal"] == pytest.approx(1.1 * 7 / 10)
    mean = report.geometric("mean", [low, high], 0.6)
    assert mean["ratio"] == pytest.approx(0.8)
    assert mean["goal"] == pytest.approx((0.6 * 0.77) ** 0.5)


def test_floors_count_declared_work_and_given_bytes(shared, monkeypatch):
    import dataflow as df
    from dataflow.cli.roofline import Roofline

    floors = shared("floors")
    monkeypatch.setattr(floors, "roofline", lambda threads: Roofline(1e9 * threads, 1e8))
    g = df.GraphBuilder()
    g.output("y", df.ops.matmul(g.input("x", df.float32, (6, 7)), g.input("w", df.float32, (7, 8))))
    found = floors.floors([df.Session(g.build(), "cpu").plan()], 5000, 2)
    assert found["arithmetic_ms"] == pytest.approx(2 * 6 * 7 * 8 / 2e9 * 1e3)
    assert found["bytes_ms"] == pytest.approx(0.05)


def test_traffic_counts_operands_once_and_rows_as_far_as_they_are_read(shared):
    import dataflow as df

    traffic = shared("gpu_traffic")
    g = df.GraphBuilder()
    table, index = g.input("table", df.float32, (1000, 8)), g.input("index", df.int64, (5,))
    rows = df.ops.gather(table, index, axis=0)
    square = g.input("square", df.float32, (8, 8))
    g.output("y", df.ops.matmul(rows, square))
    g.output("z", df.ops.matmul(square, square))
    table = traffic.count({"": df.Session(g.build(), "cpu", fuse=False).plan()})
    expected = {"gather": [1, 1, 5 * 8 * 4 * 2 + 5 * 8], "matmul": [2, 2, 5 * 8 * 4 * 2 + 8 * 8 * 4 * 3]}
    assert {op: row for (_, op), row in table.items()} == expected


def test_traffic_counts_rows_that_are_added_to_a_table_where_it_lies(shared):
    import dataflow as df
    from dataflow.ir.operand import Operand

    model = shared("gpu_model")

    def operand(offset, dtype, *shape):
        type_ = df.TensorType(dtype, shape)
        return Operand(0, offset, type_, tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape))), 0)

    index, rows = operand(0, df.int64, 5), operand(64, df.bfloat16, 5, 8)
    node = SimpleNamespace(op=df.ops.index_add)
    sizes = {}
    for offset in (1024, 65536):
        table, added = operand(1024, df.float32, 1000, 8), operand(offset, df.float32, 1000, 8)
        sizes[offset] = model.moved(SimpleNamespace(node=node, inputs=(index, rows, table), outputs=(added,)))
    read = 5 * 8 + 5 * 8 * 2
    assert sizes == {1024: read + 2 * 5 * 8 * 4, 65536: read + 2 * 1000 * 8 * 4}


@pytest.mark.parametrize("name", ["shufflenet", "inception_v2"])
def test_a_batch_of_two_is_two_of_one(shared, name):
    light = shared("light")
    model, logits, feeds = light.fresh(name)
    other, _, _ = light.fresh(name)
    assert model.SerializeToString() != other.SerializeToString()  # fresh weights
    ((key, x),) = feeds.items()
    rows = [results(model, logits, {key: image}) for image in (x, -x)]
    light.rebatch(model, 2)
    both = results(model, logits, {key: np.concatenate([x, -x])})
    np.testing.assert_allclose(both, np.concatenate(rows), atol=1e-4)
    assert np.abs(rows[0] - rows[1]).max() > 1e-2


def results(model, logits, feeds):
    """The value before Softmax, by onnxruntime."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.append(onnx.helper.make_empty_tensor_value_info(logits))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(shown.SerializeToString(), options).run([logits], feeds)[0]


def test_the_model_of_a_card_counts_bytes_operations_and_nodes(shared):
    model = shared("gpu_model")
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, (64, 32)), g.parameter("w", np.ones((32, 16), np.float32))
    g.output("y", df.ops.tanh(df.ops.matmul(x, w)))
    session = df.Session(g.build(), "cpu", fuse=False)
    session.run(np.ones((64, 32), np.float32))
    plans = {"forward": session.plans[0]}
    slow, fast = 10.0, 1e12  # of memory; of arithmetic
    card = model.Card("none", bandwidth=slow, rates={"bf16": fast, "float32": fast}, node=3.0)
    found = model.predict(plans, card, "bf16", device="cpu")
    read = 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert (found["matmul"].launches, found["matmul"].bytes, found["matmul"].operations) == (1, read, 2 * 64 * 32 * 16)
    assert found["matmul"].seconds == pytest.approx(read / slow + 3.0)
    assert found["tanh"].seconds == pytest.approx(2 * 4 * 64 * 16 / slow + 3.0)
    card = model.Card("none", bandwidth=fast, rates={"bf16": 100.0, "float32": 10.0}, node=0.0)
    found = model.predict(plans, card, "bf16", device="cpu")
    assert found["matmul"].seconds == pytest.approx(2 * 64 * 32 * 16 / 100.0)
    assert found["tanh"].seconds == pytest.approx(64 * 16 / 10.0)


@pytest.mark.parametrize(
    ("path", "algorithms", "precision", "fell"),
    [
        ("matmul f32 cublaslt bf16", ("bf16", "own"), "bf16", False),
        ("conv f32 cudnn tf32 #2", ("tf32", "own"), "bf16", False),
        ("conv f32 cudnn tf32", ("tf32", "own"), "tf32", False),
        ("conv_grad_weight f32 cudnn own", ("tf32", "own"), "tf32", False),  # chosen as the faster one
        ("matmul f32 cublaslt float32", ("float32", "own"), "tf32", True),
        ("matmul f32 cublaslt own", ("own",), "bf16", True),
        ("matmul f32", (), "tf32", False),
    ],
)
def test_a_path_slower_than_asked_for_is_a_fall_back(shared, monkeypatch, path, algorithms, precision, fell):
    model = shared("gpu_model")
    op, prepared = SimpleNamespace(name=path.split()[0]), SimpleNamespace(algorithms=algorithms)
    step = SimpleNamespace(node=SimpleNamespace(op=op), path=path, prepared=prepared)
    monkeypatch.setattr(model, "steps_of", lambda plans, device: [(step, False)])
    monkeypatch.setattr(model, "work", lambda step: (7, 0))
    assert model.fallen_back({}, precision) == ({path: 1.0} if fell else {})


def test_the_page_and_the_readme_have_the_recorded_figures(shared, monkeypatch, tmp_path):
    """What benchmarks/table.py writes of the records is what stands in both."""
    table = shared("table")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(table.MARKED.sub("", (ROOT / "README.md").read_text()))
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.setattr(table, "HERE", tmp_path / "benchmarks")
    table.main()
    for name in ("README.md", "docs/benchmarks.md"):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), f"run benchmarks/table.py: {name}"


def test_the_mean_of_ratios_is_geometric(shared):
    table = shared("table")
    ratios = {"a": 0.5, "b": 2.0, "geometric mean": 9.0}
    rows = [{"what": "c"}, *({"what": what, "ratio": ratio} for what, ratio in ratios.items())]
    record = {"date": "2020-01-02", "machine": {"processor": "P"}, "results": rows}
    assert "| ONNX Runtime | 1.00 | 0.50 to 2.00 of 2 | 2020-01-02, P |" in table.means({"tokens": record})
