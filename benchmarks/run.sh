#!/usr/bin/env bash
# Runs every benchmark and writes benchmarks/results/*.json. TORCH_PYTHON names an interpreter with torch (training),
# MINIMALLOC a folder with the instances of github.com/google/minimalloc.
set -euo pipefail
cd "$(dirname "$0")"
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
python="${PYTHON:-python3}"
"$python" startup.py
"$python" chain.py
"$python" planner.py ${MINIMALLOC:+--minimalloc "$MINIMALLOC"}
"$python" light.py
"$python" training.py ${TORCH_PYTHON:+--torch-python "$TORCH_PYTHON"}
"$python" table.py
