"""Writes the package of a new plugin, which builds and passes the conformance kit as it is."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from .. import ops as own
from ..errors import InputError
from ..plugin.registry import default_registry

KINDS = ("op", "kernel", "device", "converter", "pass")
LANGUAGES = ("python", "c", "cuda")
TEMPLATES = Path(__file__).parent / "templates"

# By kind and language what the plugin is, for its description.
_SUMMARIES = {
    ("op", "python"): "The op {name}, y = x / (1 + exp(-x)), with a reference in NumPy.",
    ("op", "c"): "The op {name}, y = x / (1 + exp(-x)), with a reference in NumPy and a kernel in C for the CPU.",
    ("op", "cuda"): "The op {name}, y = x / (1 + exp(-x)), with a reference in NumPy and a kernel in CUDA.",
    ("kernel", "c"): "A kernel of the op softsign in C for the device cpu.",
    ("kernel", "cuda"): "A kernel of the op softsign in CUDA for the device cuda.",
    ("device", "python"): "The device {name}, in Python.",
    ("device", "c"): "The device {name}, in C.",
    ("converter", "python"): "The ONNX operator ScaledTanh of the domain org.{name}.",
    ("pass", "python"): "The pass {name}: of two negations nothing is left.",
}
_SOURCES = {"c": ("setup_c.py", "native.c"), "cuda": ("setup_cuda.py", "native.cu")}
_DEVICES = {"c": "cpu", "cuda": "cuda"}
_NATIVE = '    if device.name == "{device}" and not device.unavailable:\n        return kernels_of(_library())\n'


def new_plugin(folder: str | Path, name: str, kind: str, language: str = "python") -> list[Path]:
    """Writes the package ``dataflow_NAME`` and what builds and tests it; the files that were written.

    Args:
        folder: where it is made; it must not exist, or be empty.
        name: of the plugin, and of the op, device or pass that it offers: lower case letters, digits and ``_``.
        kind: what it offers, one of ``KINDS``.
        language: of its kernels, one of ``LANGUAGES``.

    Raises:
        InputError: no such name or kind, a kind that there is not in the language, or a folder that isn't empty.
    """
    folder = Path(folder)
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        raise InputError(f"{name!r} is no name for a plugin: expected lower case letters, digits and _, e.g. swish")
    taken = _taken(name, kind, language)
    if taken:
        raise InputError(f"{name!r} is no name for a plugin: it is {taken}; choose another one, e.g. my_{name}")
    if (kind, language) not in _SUMMARIES:
        there_are = ", ".join(f"{kind} in {language}" for kind, language in _SUMMARIES)
        raise InputError(f"there is no new {kind} in {language}; there are: {there_are}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists, and isn't an empty folder; name another one")
    written = []
    for target, text in _files(name, kind, language).items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _taken(name: str, kind: str, language: str) -> str:
    """What a name is already; empty where it is free."""
    if keyword.iskeyword(name):
        return "a keyword of Python"
    if any(plugin.own and plugin.name == name for plugin in default_registry().plugins):
        return "a plugin of dataflow"
    if kind == "op" and any(op.name == name for op in own.ALL):
        return "an op of dataflow"
    return "a name that its own code uses for something else" if name in _identifiers(kind, language) else ""


def _identifiers(kind: str, language: str) -> set[str]:
    """All names that the code of a new op in Python uses, whose variable has the op's name; others have none."""
    if kind != "op" or (kind, language) not in _SUMMARIES:
        return set()
    found: set[str] = set()
    for target, text in _files("_", kind, language).items():
        for node in ast.walk(ast.parse(text)) if target.endswith(".py") else ():
            names = (getattr(node, field, None) for field in ("id", "arg", "name", "asname", "module"))
            found.update(word for name in names if isinstance(name, str) for word in name.split("."))
    return found


def _files(name: str, kind: str, language: str) -> dict[str, str]:
    """The text of each file by its path in the project."""
    native = language in _SOURCES
    setup, source = _SOURCES.get(language, ("", ""))
    values = {
        "name": name,
        "summary": _SUMMARIES[kind, language].format(name=name),
        "requires": '"setuptools>=77"' + (', "dataflow-engine"' if native else ""),
        "op": name if kind == "op" else "softsign",
        "formula": "x / (1 + exp(-x))" if kind == "op" else "x / (1 + |x|)",
        "expression": "x[i] / (1.0f + expf(-x[i]))" if kind == "op" else "x[i] / (1.0f + fabsf(x[i]))",
        "device": _DEVICES.get(language, ""),
        "imports": "from pathlib import Path\n" if native else "",
        "more_names": ", kernels_of" if native else "",
        "beside": ", and the library's kernel" if native else "",
        "native": _NATIVE.format(device=_DEVICES.get(language, "")) if native else "",
    }
    values["library"] = f"{_template('library.py', values)}\n\n" if native else ""
    module = "device_c.py" if kind == "device" and native else f"{kind}.py"
    wanted = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"dataflow_{name}/__init__.py": module,
        "tests/test_kit.py": "test_kit.py",
        ".github/workflows/test.yml": "test.yml",
    }
    if kind == "converter":
        wanted["tests/test_converter.py"] = "test_converter.py"
    if native:
        wanted["setup.py"] = setup
        wanted[f"dataflow_{name}/native.{language.replace('cuda', 'cu')}"] = "device.c" if kind == "device" else source
    found = {target: _template(template, values) for target, template in wanted.items()}
    if native:
        found["pyproject.toml"] += _template("wheel.toml", values)
        found[".gitignore"] = "*.so\nbuild/\n*.egg-info/\n__pycache__/\n"
    return found


def _template(name: str, values: Mapping[str, str]) -> str:
    """The text of a template with ``@key@`` replaced by values."""
    text = (TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)
