"""The module that a node comes from, as exporters note it."""

import ast

import pytest
from onnx import helper

from dataflow_onnx.file.reader import scope_of

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
    node = helper.make_node("Relu", ["x"], ["y"])
    entry = node.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", text
    try:
        wanted = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        wanted = []
    known = isinstance(wanted, list) and len(wanted) > 1
    assert scope_of(node) == (wanted[-2] if known else "")
