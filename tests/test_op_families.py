"""A family of ops has one word in every folder: its declarations, reference, samples, kernels and converters."""

import importlib
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

import dataflow as df
from dataflow.testing import samples
from dataflow_numpy import kernels

ROOT = Path(__file__).parents[1]
OPS = ROOT / "dataflow/ops"
OPERATORS = ROOT / "importers/dataflow_onnx/operators"


def family_of_ops():
    """Per op the name of the file that declares it."""
    found = {}
    for path in OPS.glob("*.py"):
        module = importlib.import_module(f"dataflow.ops.{path.stem}")
        found |= {op.name: path.stem for op in getattr(module, "OPS", ())}
    assert found.keys() == {op.name for op in df.ops.ALL}
    return found


FAMILY = family_of_ops()
FAMILIES = {*FAMILY.values()}


def test_the_reference_has_a_file_per_family():
    found = {op: family for family, table in kernels.TABLES.items() for op in table}
    assert found == FAMILY
    assert len(found) == sum(map(len, kernels.TABLES.values()))


def test_samples_have_a_file_per_family():
    found = {(family, s.op.name) for family, rows in samples.TABLES.items() for s in rows}
    without = {("dynamic_shape", "deferred")}  # it stands for nodes, and gives nothing
    assert found == {(family, op) for op, family in FAMILY.items()} - without


# ---- native files -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Per native file the ops of its kernel records, after the preprocessor; no header of the system is read."""
    empty = tmp_path_factory.mktemp("include")
    native = ROOT / "native"
    for path in [*native.rglob("*.[ch]"), *native.rglob("*.cu")]:
        for name in re.findall(r"#\s*include\s*<([^>]+)>", path.read_text()):
            (empty / name).parent.mkdir(parents=True, exist_ok=True)
            (empty / name).touch()
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    found = {}
    for device, ending, language in (("cpu", "c", "c"), ("cuda", "cu", "c++")):
        flags = ["-E", "-P", "-nostdinc", "-x", language, "-DDF_ISA=portable"]
        flags += [f"-I{folder}" for folder in (empty, native / "include", native / device, native)]
        for path in sorted((native / device).rglob(f"*.{ending}")):
            done = subprocess.run([*compiler, *flags, str(path)], capture_output=True, text=True, check=True)
            literals = re.findall(r'\.op = ((?:"\w*"\s*)+)', done.stdout)
            ops = {text.replace('"', "").replace(" ", "") for text in literals}
            if ops:
                found[path.relative_to(native)] = ops
    return found


# On CUDA loops over one operand stand in activation, over more in arithmetic: each file has its own loop and tables.
ELEMENTWISE = ("arithmetic", "logic", "activation")
NOT_BY_FAMILY = {
    "cpu/map/arithmetic.c": ({"softplus", "softsign"}, "float64 by the C library, as the functions listed with them"),
    "cpu/shape/shape.c": ({"copy"}, "it moves elements, as the others there"),
    "cuda/shape/shape.cu": ({"copy"}, "it moves elements, as the others there"),
    "cuda/conv/conv.cu": ({"conv_relu", "conv_add_relu"}, "templates of the convolution with another end"),
    "cuda/gemm/linalg.cu": ({"matmul_bias", "matmul_bias_relu"}, "templates of the product with another end"),
    "cuda/map/arithmetic.cu": ({"add_relu"}, "an elementwise loop as any other"),
}


def words(path):
    """The families that a native file may hold: its stem, the beginnings of the stem, and its folders."""
    beginnings = [path.stem[: match.start()] for match in re.finditer("_", path.stem)]
    found = {path.stem, *beginnings, *path.parent.parts}
    return found.union(ELEMENTWISE) if "cuda" in found and found.intersection(ELEMENTWISE) else found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_kernels_stand_in_files_of_their_family(device, records):
    wrong = {}
    for path, ops in records.items():
        strangers = {op for op in ops if FAMILY[op] not in words(path)}
        if path.parts[0] == device and strangers:
            wrong[str(path)] = strangers
    assert wrong == {path: ops for path, (ops, _) in NOT_BY_FAMILY.items() if path.startswith(f"{device}/")}


# ---- ONNX ---------------------------------------------------------------------------------------------

NO_FAMILY = {
    "einsum": "one operator that is a language of its own, planned as products, transposes and sums",
    "sequence": "lists of tensors that only the importer knows: no op takes or gives one",
    "constant": "tensors made of stored numbers, sizes or ranges: the importer mostly needs no op for them",
}


def converters():
    """The operators of each file of converters."""
    for path in sorted(OPERATORS.glob("[a-z]*.py")):
        module = importlib.import_module(f"dataflow_onnx.operators.{path.stem}")
        if hasattr(module, "operator"):  # others are what families share
            yield path.stem, {converter.operator for converter in module.operator.converters}


def test_converters_stand_in_files_of_families():
    assert {stem for stem, _ in converters() if stem not in FAMILIES} == NO_FAMILY.keys()


def test_an_operator_with_the_name_of_an_op_is_converted_in_the_file_of_its_family():
    wrong = []
    for stem, operators in converters():
        named = {name: FAMILY.get(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) for name in operators}
        wrong += [(stem, name) for name, family in named.items() if family not in (None, stem)]
    assert wrong == []
