"""Large weights read without protobuf: the same as it decodes, whatever the file looks like, and where they lie."""

import threading

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow.cdevice.host_memory import allocated, can_lend
from dataflow_onnx.file import wire
from dataflow_onnx.file.reader import read_bytes, read_file
from dataflow_onnx.file.wire import WORTH_SHARING, content_of, read_content
from tests.support import onnx_model


def model(sizes, *, typed=()):
    """Initializers of these sizes; those in ``typed`` are not stored as raw data."""
    random = np.random.default_rng(0)
    stored = []
    for index, size in enumerate(sizes):
        array = random.standard_normal(size).astype(np.float32)
        if index in typed:
            stored.append(helper.make_tensor(f"w{index}", TensorProto.FLOAT, array.shape, array))
        else:
            stored.append(numpy_helper.from_array(array, f"w{index}"))
    x, y = ((name, TensorProto.FLOAT, [1]) for name in "xy")
    return onnx_model([helper.make_node("Relu", ["x"], ["y"])], [x], [y], stored, opset=17)


@pytest.fixture(autouse=True)
def every_file_is_walked(monkeypatch, request):
    """A small file too, but where a test is of these."""
    if "small_file" not in request.node.name:
        monkeypatch.setattr(wire, "WORTH_WALKING", 0)


@pytest.mark.parametrize("on_disk", [False, True])
@given(sizes=st.lists(st.integers(0, 3000) | st.just(40_000), max_size=6), typed=st.sets(st.integers(0, 5)))
@settings(max_examples=60)
def test_what_is_left_out_and_the_rest_are_the_model(tmp_path_factory, on_disk, sizes, typed):
    proto = model(sizes, typed=typed)
    data = proto.SerializeToString()
    content = content_of(data)
    if on_disk:
        path = tmp_path_factory.getbasetemp() / "model.onnx"
        path.write_bytes(data)
        content = read_content(str(path))
    assert content.size == len(data)
    assert content.to_bytes() == data
    large = {index: array.tobytes() for index, array in content.large.items()}
    rest = onnx.ModelProto.FromString(content.small)
    for index, tensor in enumerate(proto.graph.initializer):
        if 4 * sizes[index] >= WORTH_SHARING and index not in typed:
            assert large.pop(index) == tensor.raw_data
            rest.graph.initializer[index].raw_data = tensor.raw_data
    assert not large
    assert rest == proto
    for name, array in read_bytes(data).graph.initializers.items():
        (tensor,) = (t for t in proto.graph.initializer if t.name == name)
        np.testing.assert_array_equal(array, numpy_helper.to_array(tensor))


def test_large_weights_are_views_of_the_bytes():
    data = model([5000]).SerializeToString()
    record = read_bytes(data)
    (array,) = record.graph.initializers.values()
    everything = np.frombuffer(data, np.uint8)
    assert np.shares_memory(everything, array)
    assert not array.flags.writeable


def test_a_session_uses_the_weights_of_a_file_where_they_lie(tmp_path):
    size = 1 << 18
    weight = numpy_helper.from_array(np.ones((size, 2), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    before = allocated()[0]
    loaded = df.load(str(tmp_path / "m.onnx"))
    assert 8 * size <= allocated()[0] - before < 8.1 * size
    session = df.Session(loaded, devices=["cpu"])
    assert (session.run(np.full((3, size), 0.5, np.float32))["y"] == size / 2).all()
    assert allocated()[0] - before < 8.1 * size
    del loaded
    assert (session.run(np.full((3, size), 0.5, np.float32))["y"] == size / 2).all()
    del session
    assert allocated()[0] == before


def test_tensors_of_a_small_file_lie_where_a_session_uses_them(tmp_path):
    """Each decoded, and then one behind another in a block of their own."""
    arrays = {
        f"w{size}": np.random.default_rng(size).standard_normal(size).astype(np.float32) for size in (3, 16, 5000)
    }
    proto = model([])
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    content = read_content(str(tmp_path / "m.onnx"))
    assert not content.large
    assert content.to_bytes() == proto.SerializeToString()
    read = read_file(str(tmp_path / "m.onnx")).graph.initializers
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert not read[name].flags.writeable
        assert can_lend(read[name])


def test_a_file_that_ends_before_its_tensors_is_refused(tmp_path):
    data = model([50_000, 60_000]).SerializeToString()
    for end in (100, 3000, 200_000, len(data) - 1):
        (tmp_path / "m.onnx").write_bytes(data[:end])
        with pytest.raises(df.ModelError, match="cut short"):
            df.load(str(tmp_path / "m.onnx"))


@given(dropped=st.integers(0, 25_000), damaged=st.integers(0, 25_000), bit=st.integers(0, 7))
@settings(max_examples=300)
def test_a_broken_file_is_refused_or_reads_as_protobuf_reads_it(dropped, damaged, bit):
    data = bytearray(model([2000, 3, 3000]).SerializeToString())
    data[damaged % len(data)] ^= 1 << bit
    broken = bytes(data[: len(data) - dropped] if dropped % 3 == 0 else data)
    try:
        record = read_bytes(broken)
    except df.ModelError:
        return
    proto = onnx.ModelProto.FromString(broken)
    for tensor in proto.graph.initializer:
        expected = numpy_helper.to_array(tensor)
        np.testing.assert_array_equal(record.graph.initializers[tensor.name], expected)


def test_a_model_twice_in_a_file_is_left_to_protobuf():
    """Encoded messages one behind another are merged."""
    data = model([5000]).SerializeToString()
    content = content_of(data + data)
    assert content.small == data + data
    assert not content.large


def test_an_interrupted_read_leaves_no_thread_behind(tmp_path, monkeypatch):
    """Ctrl-C just after the second thread began: it must not go on reading from a file that is closed."""
    path = tmp_path / "model.onnx"
    g = df.GraphBuilder()
    g.output("y", g.input("x", df.float32, (1, 1024)) @ g.parameter("w", np.ones((1024, 1024), np.float32)))
    df.save(df.Model(g.build()), str(path))
    start, failures = threading.Thread.start, []

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(wire, "_WORTH_A_THREAD", 1 << 20)
    monkeypatch.setattr(threading, "excepthook", failures.append)
    before = threading.active_count()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        df.load(str(path))
    assert threading.active_count() == before
    assert not failures
    assert (df.load(str(path)).parameters["w"].array == 1).all()
