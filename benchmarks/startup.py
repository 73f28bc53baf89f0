"""Import time beside NumPy's, onnx's and onnxruntime's, and what an install adds to the disk."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
from pathlib import Path

from report import interleaved, write

PACKAGES = ("dataflow", "dataflow_cpu", "dataflow_numpy", "dataflow_onnx")
BESIDE = (
    "pluggy",
    "cffi",
    "pycparser",
    "ml_dtypes",
    "rich",
    "markdown_it",
    "mdurl",
    "pygments",
    "click",
    "safetensors",
)


def seconds(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def size(package: str) -> int:
    """Bytes of a package's files, without caches."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    if path.name != "__init__.py":
        return path.stat().st_size
    return sum(f.stat().st_size for f in path.parent.rglob("*") if f.is_file() and "__pycache__" not in f.parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    modules = ("dataflow", "numpy", "onnx", "onnxruntime")
    times = interleaved(rounds, {m: lambda m=m: seconds(m) for m in modules})
    results: list[dict[str, object]] = [
        {"what": f"import {m}", "seconds": statistics.median(t)} for m, t in times.items()
    ]
    results[0] |= {"ratio": results[0]["seconds"], "goal": 0.15}
    own = sum(map(size, PACKAGES)) / 1e6
    beside = sum(size(p) for p in BESIDE if importlib.util.find_spec(p)) / 1e6
    results.append({"what": "installed, MB", "own": own, "with_dependencies_but_numpy_and_onnx": own + beside,
                    "ratio": own + beside, "goal": 20})  # fmt: skip
    write("startup", results)


if __name__ == "__main__":
    main()
