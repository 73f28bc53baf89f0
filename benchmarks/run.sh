#!/usr/bin/env bash
# Runs every benchmark of the CPU, writes benchmarks/results/*.json and makes docs/benchmarks.md of them.
#
# PYTHON has dataflow, with its extra `test` (onnxruntime). PEERS is an environment for the competitors in training; it
# is made, from requirements.txt, where it isn't there. TORCH_PYTHON and JAX_PYTHON name interpreters instead.
# MINIMALLOC is a folder with the instances of github.com/google/minimalloc.
set -euo pipefail
cd "$(dirname "$0")"
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OMP_NUM_THREADS DATAFLOW_NUM_THREADS
python="${PYTHON:-python3}"
peers="${PEERS:-$PWD/.peers}"
if [ -z "${TORCH_PYTHON:-}" ] || [ -z "${JAX_PYTHON:-}" ]; then
  [ -x "$peers/bin/python" ] || "$python" -m venv "$peers"
  "$peers/bin/python" -m pip install --quiet --requirement requirements.txt
fi
torch="${TORCH_PYTHON:-$peers/bin/python}"
jax="${JAX_PYTHON:-$peers/bin/python}"
# Two spinning threads that share a core make a step twenty times as long; where it is allowed, nothing else runs.
alone=()
if chrt -r 1 true 2>/dev/null; then alone=(chrt -r 1); fi
run() { "${alone[@]}" "$python" "$@"; }

run startup.py
run chain.py
run planner.py ${MINIMALLOC:+--minimalloc "$MINIMALLOC"}
run training.py --torch-python "$torch" --jax-python "$jax"
run training_memory.py --torch-python "$torch" --jax-python "$jax"
run light.py
run tokens.py
run quantized.py
run precision.py --torch-python "$torch"
run loading.py
run binding.py
"$python" table.py
