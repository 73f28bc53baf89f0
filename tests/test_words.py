"""Names and comments use the terms of the field: words that stood for them once don't come back.

``WORDS`` maps a word to the term in its place. ``ALLOWED`` has the other meanings that a word may have, and where.
"""

import functools
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Words in names: of functions, variables, types, fields, macros and files.
WORDS = {
    "way": "algorithm", "ways": "algorithms", "turn": "transpose or transform", "turned": "transposed",
    "spread": "padded or phase-split copy, broadcast", "pack": "prepack", "packs": "prepacked weights",
    "packed": "prepacked", "piece": "task or tile", "pieces": "tasks or tiles", "part": "partition, block or term",
    "parts": "partitions, blocks or terms", "cut": "split", "cuts": "splits", "place": "offset, position or index",
    "places": "offsets, positions or indices", "placed": "assigned", "room": "workspace", "trip": "iteration",
    "trips": "iterations", "flip": "double-buffer stride", "root": "base or buffer", "roots": "bases or buffers",
    "whole": "base tensor; complete", "bring": "transfer in", "home": "owning memory", "homes": "owning memories",
    "wide": "upcast", "tally": "running mean", "tallies": "running means", "settle": "resolve", "told": "reported",
    "ceiling": "roofline", "ceilings": "rooflines", "store": "variables", "machine": "devices",
}  # fmt: skip
# Words of which only the files that had their name are gone, since they are terms of the field in another meaning.
FILES = {
    "head": "of attention; head_replacement.py", "items": "of a mapping or plan; cdevice/sequence.py",
    "feeds": "ONNX's and onnxruntime's arrays of a run by input name; execute/arguments.py",
    "ties": "of weights; train/tied_weights.py", "measure": "time; the op is read_shape", "unit": "of work or time",
    "tells": "found in phrases",
}  # fmt: skip
# (word, pattern of the name, pattern of the file): why the word has another meaning there.
ALLOWED: tuple[tuple[str, str, str, str], ...] = (
    ("root", "ROOT", "", "the folder of the repository"),
    ("machine", "machine", "native/build.py", "the function of platform"),
    ("flip", "flip", "plugins/dataflow_numpy/", "the function of numpy"),
    (
        "flip",
        "flip|flip_vertical|FLIP_.*",
        "dataflow/train/data/augment.py|tests/train/test_images.py",
        "a mirror image, as Pillow and torchvision call it",
    ),
    ("pack", "pack", "dataflow/cdevice/abi.py", "the function of struct"),
    ("packed", "packed", "importers/dataflow_onnx/file/", "elements of less than a byte, as ONNX calls them"),
    ("packed", "packed_nbytes", "", "of elements of less than a byte, as ONNX calls them"),
    ("packed", "is_packed_batching", "importers/dataflow_onnx/operators/microsoft/", "an attribute of onnxruntime's"),
    ("parts", "parts", "importers/dataflow_onnx/file/external.py", "the member of pathlib's Path"),
    ("roots", "tree_roots", "importers/dataflow_onnx/operators/ml/", "an attribute of ONNX"),
    ("store", r"\w+", "native/", "a write of registers or of an atomic: intrinsics, vec_store, atomic_store"),
    (
        "pack",
        r"\w+",
        "native/cpu/(gemm|conv|quantized|attention|recurrent)/",
        "BLIS's packing of the panels of a product",
    ),
    (
        "packed",
        r"\w+",
        "native/cpu/(gemm|conv|quantized|attention|recurrent)/",
        "BLIS's packing of the panels of a product",
    ),
    ("parts", "parts", "tests/test_|tests/native/test_includes.py", "the member of pathlib's Path"),
    (
        "pack",
        "pack",
        "tests/fuzz/(campaign|corpus|referee).py|dataflow/train/watch/event_file.py",
        "the method of struct",
    ),
    ("store", "atomic_store|__atomic_store_n", "tests/native/", "the functions of C"),
    ("place", ".*in_place", "dataflow/(planning|testing)/|tests/plugin/", "in place is the field's own term"),
    ("machine", "machine", "dataflow/(planning/algorithms|train/changing).py", "the function of platform"),
)
# Phrases in comments and docstrings.
PHRASES = {
    r"\bgo(es)? by\b": "use an algorithm", r"\bthe unit\b": "AMX tiles", r"\btell(s)? (that|whether|who)": "report",
    r"\btrips?\b": "iterations", r"\btall(y|ies)\b": "running means", r"\bceilings?\b": "roofline",
    r"\bhomes?\b": "owning memory", r"\bpacks\b": "prepacked weights", r"\bpieces?\b": "tasks, tiles or partitions",
    r"\bways?\b": "algorithms", r"\bbrings?\b": "transfer in; offer", r"\btold\b": "reported",
    r"\broots?\b": "base tensors or buffers; causes", r"\bsettles?\b": "resolve",
}  # fmt: skip
"""Comments and docstrings may use these in no sense."""
ALLOWED_PHRASES: tuple[tuple[str, str], ...] = (
    (r"square roots?|sqrt", "the function"),
    (r"repository root|root of the (repository|project)|in the root", "a folder"),
)


@functools.cache
def sources():
    listed = ["git", "ls-files", "dataflow", "plugins", "importers", "native", "tests", "examples"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in found if name.endswith((".py", ".c", ".h", ".cu")) and name != "tests/test_words.py"]


@functools.cache
def read(name):
    """Names and comments of a file, each with its line."""
    text = (ROOT / name).read_text()
    if not name.endswith(".py"):
        comments = [(text.count("\n", 0, m.start()) + 1, m[0]) for m in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.S)]
        code = re.sub(r'/\*.*?\*/|//[^\n]*|"[^"\n]*"', lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
        names = [(code.count("\n", 0, m.start()) + 1, m[0]) for m in re.finditer(r"[A-Za-z_]\w*", code)]
        return names, comments
    names, comments = [], []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            names.append((token.start[0], token.string))
        elif token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""')):
            comments.append((token.start[0], token.string))
    return names, comments


@functools.cache
def words_of(name):
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@functools.cache
def replaced(file):
    """``(word, name)`` for every word of ``WORDS`` in a name of a file."""
    return {(word, name) for name in {name for _, name in read(file)[0]} for word in words_of(name) & WORDS.keys()}


def area(name):
    """The folder of a file: of the core and of native sources the one below, since many people work there."""
    parts = name.split("/")
    return "/".join(parts[: 2 if parts[0] in ("dataflow", "native", "importers", "plugins") and len(parts) > 2 else 1])


AREAS = sorted({area(name) for name in sources()})
PENDING = ()


@pytest.mark.parametrize("folder", [a for a in AREAS if a not in PENDING])
def test_names_use_the_terms_of_the_field(folder):
    found = {
        f"{file}:{line}: {name}: {word} → {WORDS[word]}"
        for file in sources()
        if area(file) == folder
        for line, name in [*read(file)[0], (1, Path(file).stem)]
        for word in words_of(name) & WORDS.keys()
        if not any(word == w and re.fullmatch(n, name) and re.match(f, file) for w, n, f, _ in ALLOWED)
    }
    assert sorted(found) == [], "\n".join(sorted(found))


@pytest.mark.parametrize("folder", [a for a in AREAS if a not in PENDING])
def test_comments_use_the_terms_of_the_field(folder):
    found = []
    for file in sources():
        for line, comment in read(file)[1] if area(file) == folder else ():
            text = re.sub("|".join(pattern for pattern, _ in ALLOWED_PHRASES), "", comment)
            found += [f"{file}:{line}: {m[0]} → {t}" for p, t in PHRASES.items() for m in re.finditer(p, text, re.I)]
    assert found == []


def test_every_exception_is_needed():
    """One test: each of two processes would read all files for its half."""
    needless = [
        (word, pattern, where)
        for word, pattern, where, _ in ALLOWED
        if not any(
            word == found and re.fullmatch(pattern, name)
            for file in sources()
            if re.match(where, file)
            for found, name in replaced(file)
        )
    ]
    assert needless == []


def test_no_file_has_a_name_that_was_replaced():
    assert [name for name in sources() if Path(name).stem in FILES] == []
