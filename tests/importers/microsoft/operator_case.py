"""One operator of onnxruntime's domain: compared with its kernel, or a formula, and its gradients with differences."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import onnxruntime
from onnx import helper

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

STEP = 1e-6


@dataclass
class Case:
    """A node with its operands.

    Attributes:
        op: the operator.
        inputs: arrays; None is left out.
        attributes: of the node.
        outputs: how many; a tuple says which are read.
        stored: indices of operands that are stored in the file.
        expected: the outputs, where onnxruntime has no kernel for the CPU.
        domain: of the operator.
        shapes: shapes with named sizes, by index of the operand.
        gradient: whether the gradients by all float operands are checked.
        tolerance: of floats, relative and absolute; of integers the largest difference.
        opset: of ONNX's own operators.
    """

    op: str
    inputs: list
    attributes: dict = field(default_factory=dict)
    outputs: int | tuple = 1
    stored: tuple = ()
    expected: Callable | None = None
    domain: str = "com.microsoft"
    shapes: dict = field(default_factory=dict)
    gradient: bool = True
    tolerance: tuple = (1e-4, 1e-5)
    opset: int = 17

    def __post_init__(self):
        self.inputs = [None if x is None else np.asarray(x) for x in self.inputs]

    def __str__(self):
        shapes = "_".join("x".join(map(str, a.shape)) if a is not None else "-" for a in self.inputs)
        settings = "_".join(f"{key}{value}" for key, value in self.attributes.items())
        return f"{self.op}_{shapes}_{settings}"[:80]

    def names(self):
        return [f"x{i}" if array is not None else "" for i, array in enumerate(self.inputs)]

    def read(self):
        wanted = range(self.outputs) if isinstance(self.outputs, int) else self.outputs
        return [f"y{i}" if i in wanted else "" for i in range(max(wanted) + 1)]

    def feeds(self):
        given = zip(self.names(), self.inputs, strict=True)
        return {n: a for i, (n, a) in enumerate(given) if a is not None and i not in self.stored}

    def model(self, named=False):
        node = helper.make_node(self.op, self.names(), self.read(), domain=self.domain, **self.attributes)
        inputs, stored = [], []
        for index, (name, array) in enumerate(zip(self.names(), self.inputs, strict=True)):
            if array is None:
                continue
            if index in self.stored:
                stored.append((name, array))
            else:
                shape = self.shapes.get(index, array.shape) if named else array.shape
                inputs.append((name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.read() if name]
        return onnx_model([node], inputs, outputs, stored, domains=["com.microsoft"], opset=self.opset)


def of_onnxruntime(proto, feeds):
    """The outputs of onnxruntime, nothing optimized, by one thread: several quantize each row of a batch by itself."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def compare(found, expected, tolerance):
    """Dtype, shape and elements."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if expected.dtype.kind == "f":
        relative, absolute = tolerance
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute * largest)
    else:
        assert np.abs(found.astype(np.int64) - expected.astype(np.int64)).max(initial=0) <= tolerance[0]


def check(case):
    """Compares a case, once with named sizes where it has some, and its gradients."""
    feeds = case.feeds()
    expected = of_onnxruntime(case.model(), feeds) if case.expected is None else case.expected(*case.inputs)
    for named in {False, bool(case.shapes)}:
        model = load_bytes(case.model(named).SerializeToString())
        for device in ("cpu", "numpy"):
            found = df.Session(model, devices=[device]).run(feeds)
            for name, wanted in zip(filter(None, case.read()), expected, strict=True):
                compare(found[name], np.asarray(wanted), case.tolerance)
    if case.gradient:
        kept = tuple(i for i in case.stored if case.inputs[i].dtype.kind != "f")
        check_gradient(replace(case, stored=kept))


def check_gradient(case):
    """The gradients by all float operands along random directions, in double precision."""
    graph = load_bytes(case.model().SerializeToString()).graph
    feeds = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in case.feeds().items()}
    floats = [v for v in graph.inputs if v.type.dtype.is_float]
    random = np.random.default_rng(0)
    u = {n: random.standard_normal(v.type.sizes) for n, v in graph.outputs.items() if v.type.dtype.is_float}
    seeds = {f"grad.{n}": a for n, a in u.items()}
    found = evaluate(vjp_graph(graph, floats), {**feeds, **seeds}, dtype=np.float64)
    for name in (v.name for v in floats):
        v = random.standard_normal(feeds[name].shape)
        ends = (evaluate(graph, {**feeds, name: feeds[name] + step * v}, dtype=np.float64) for step in (STEP, -STEP))
        up, down = ends
        expected = sum(float((u[n] * (up[n] - down[n])).sum()) / (2 * STEP) for n in u)
        along = float((v * found[f"grad.{name}"]).sum())
        assert abs(along - expected) <= 1e-5 * max(abs(expected), abs(along), 1e-2), (name, along, expected)
