"""Builds the libraries of both devices; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

import dataflow

SHARED = sorted(str(path) for path in Path("source").glob("*.c"))

setup(
    ext_modules=[
        Extension(
            f"dataflow_{name}._native",
            [*SHARED, *sorted(map(str, Path(f"dataflow_{name}").glob("*.c")))],
            include_dirs=[dataflow.get_include(), "source"],
            depends=["source/source.h", "dataflow_opencl/api.h", "dataflow_opencl/opencl.h"],
            extra_compile_args=["-std=gnu11", "-O2", "-pthread", "-Wall", "-Wextra"],
            py_limited_api=True,
        )
        for name in ("compiling", "opencl")
    ]
)
