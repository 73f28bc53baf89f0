"""The module that a node comes from, as exporters note it."""

import ast

import pytest
from onnx import TensorProto, helper

from dataflow_onnx.file.reader import read_bytes
from dataflow_onnx.file.scopes import NOTED, scope_of

LISTS = [
    ["", "encoder", "encoder.fc", "linear"],
    ["", "linear"],
    ["linear"],
    [],
    ["", "it's", "x"],
    ["", 'a "name"', "x"],
    ["a\\b", "x"],
    ["a\nb", "x"],
    ["a', 'b", "x"],
    ["ä", "x"],
]
TEXTS = [
    "['a', 'b'",
    "['a' , 'b']",
    "['a', \"b\"]",
    "['a\nb', 'c']",
    "['a', 'b',]",
    "('a', 'b')",
    "['']",
    "[']",
    "['a', 3]",
]


@pytest.mark.parametrize("text", [*map(repr, LISTS), *TEXTS])
def test_a_scope_is_what_the_text_stands_for(text):
    try:
        wanted = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        wanted = []
    known = isinstance(wanted, list) and len(wanted) > 1
    assert scope_of("/of/name/Relu", text) == (wanted[-2] if known else "")


def test_without_a_note_the_name_says_it():
    assert scope_of("/encoder/fc/MatMul", None) == "encoder.fc"
    assert scope_of("node_1", None) == ""


@pytest.mark.parametrize("at", [0, 3])
def test_the_note_is_found_wherever_it_stands(at):
    node = helper.make_node("Relu", ["x"], ["y"], name="/other/Relu")
    for index in range(4):
        entry = node.metadata_props.add()
        entry.key, entry.value = (NOTED, "['encoder', 'fc', 'relu']") if index == at else (f"note{index}", "")
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", types[:1], types[1:]))
    (record,) = read_bytes(model.SerializeToString()).graph.nodes
    assert record.scope == "fc"
