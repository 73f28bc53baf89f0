"""Tiny valid models, for nearly every operator that has a converter; ``python -m tests.fuzz.corpus`` collects them.

They are ONNX's own node tests, with the inputs stored that the importer must know, and a few models that those lack:
local functions, external data, nested bodies. They lie in one compressed file beside this one.
"""

from __future__ import annotations

import functools
import lzma
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PATH = Path(__file__).with_name("corpus.xz")
_HEAD = struct.Struct("<HI")
MOST_BYTES = 3000  # of a model
PER_OPERATOR = 2
MOST_STORED = 32


@functools.cache
def corpus() -> tuple[tuple[str, bytes], ...]:
    """Names and serialized models."""
    return tuple(unpack(PATH))


def unpack(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a compressed file of small ones."""
    data = lzma.decompress(path.read_bytes())
    at = 0
    while at < len(data):
        name, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield data[at : at + name].decode(), data[at + name : at + name + size]
        at += name + size


def archive(contents: Mapping[str, bytes]) -> bytes:
    """The file of these contents, before it is compressed."""
    records = [_HEAD.pack(len(name), len(data)) + name.encode() + data for name, data in sorted(contents.items())]
    return b"".join(records)


def write() -> None:
    """Collects the models anew."""
    models = {**_node_tests(), **{name: model.SerializeToString() for name, model in (*_special(), *_loops())}}
    PATH.write_bytes(lzma.compress(archive(models), preset=9 | lzma.PRESET_EXTREME))


def _node_tests() -> dict[str, bytes]:
    from onnx.backend.test.case.node import collect_testcases

    from dataflow_onnx.loading import load_bytes
    from dataflow_onnx.operators import STANDARD

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [c for c in collect_testcases(None) if c.data_sets]
    found: dict[str, bytes] = {}
    counts: dict[tuple[str, str], int] = {}
    for case in sorted(cases, key=lambda c: (c.model.ByteSize(), c.name)):
        versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in case.model.opset_import}
        keys = {(n.domain, n.op_type) for n in case.model.graph.node}
        if any(STANDARD.find(d, op, versions.get(d, 0)) is None for d, op in keys):
            continue
        if all(counts.get(key, 0) >= PER_OPERATOR for key in keys):
            continue
        model = _stored(case)
        if model.ByteSize() > MOST_BYTES:
            continue
        try:
            load_bytes(model.SerializeToString())
        except Exception:  # what is not supported is no valid model to begin with
            continue
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        found[case.name] = model.SerializeToString()
    return found


def _stored(case: Any) -> onnx.ModelProto:
    """The model with whole numbers that are inputs stored."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    kept = list(model.graph.input)
    for value, given in zip(case.model.graph.input, case.data_sets[0][0], strict=True):
        if isinstance(given, (list, tuple)) or given is None:  # a sequence or an optional
            continue
        array = numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)
        index = next(i for i, v in enumerate(kept) if v.name == value.name)
        if index and array.dtype.kind in "iu" and array.size <= MOST_STORED:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
            del kept[index]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def _loops() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Loops that the host runs, and loops that only append."""
    from onnx import parser

    from tests.importers import test_accumulators as stacked
    from tests.importers import test_interpreter as hosted

    for name in ("GROWING", "APPENDED", "SUPPRESSED", "NESTED", "JOINED"):
        yield f"loop_{name.lower()}", parser.parse_model(getattr(hosted, name))
    for name in ("LISTED", "BRANCHED", "GROWN", "READ", "COUNTED", "NOT_ONLY"):
        yield f"stacked_{name.lower()}", onnx.ModelProto.FromString(stacked.file(getattr(stacked, name)))


def _special() -> Iterator[tuple[str, onnx.ModelProto]]:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    body = [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Relu", ["b"], ["c"])]
    function = helper.make_function("mine", "twice", ["a"], ["c"], body, [helper.make_opsetid("", 17)])
    call = [helper.make_node("twice", ["x"], ["t"], domain="mine"), helper.make_node("MatMul", ["t", "w"], ["y"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    yield (
        "special_function",
        helper.make_model(
            helper.make_graph(call, "g", [x], [y], [weight]), functions=[function], opset_imports=opsets, ir_version=8
        ),
    )
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "64")):
        outside.external_data.add(key=key, value=value)
    product = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Softmax", ["t"], ["y"], axis=-1)]
    yield (
        "special_external",
        helper.make_model(helper.make_graph(product, "g", [x], [y], [outside]), opset_imports=opsets[:1], ir_version=8),
    )
    inner = helper.make_graph([helper.make_node("Neg", ["t"], ["u"])], "inner", [], [y.__class__(name="u")])
    other = helper.make_graph([helper.make_node("Identity", ["t"], ["v"])], "other", [], [y.__class__(name="v")])
    nested = [
        helper.make_node("Relu", ["x"], ["t"]),
        helper.make_node("ReduceSum", ["t"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["go"], to=TensorProto.BOOL),
        helper.make_node("If", ["go"], ["y"], then_branch=inner, else_branch=other),
    ]
    yield (
        "special_nested",
        helper.make_model(helper.make_graph(nested, "g", [x], [y]), opset_imports=opsets[:1], ir_version=8),
    )
    layers = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "two"], ["target"], axis=0),
        helper.make_node("Reshape", ["a", "target"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1]),
        helper.make_node("ReduceMean", ["c"], ["d"], axes=[-1]),
        helper.make_node("Sub", ["c", "d"], ["e"]),
        helper.make_node("Slice", ["e", "zero", "one", "one"], ["f"]),
        helper.make_node("Sigmoid", ["f"], ["y"]),
    ]
    numbers = [("zero", [0]), ("one", [1]), ("two", [2, 2])]
    stored = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in numbers]
    yield (
        "special_shapes",
        helper.make_model(
            helper.make_graph(layers, "g", [x], [y], [weight, *stored]), opset_imports=opsets[:1], ir_version=8
        ),
    )


if __name__ == "__main__":
    write()
    print(f"{len(corpus())} models, {PATH.stat().st_size} bytes")
