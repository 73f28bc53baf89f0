#!/usr/bin/env bash
# The check on a card: builds the CUDA library for it, runs the tests that need one, the benchmarks against PyTorch, and
# compute-sanitizer on a sample of each op. Results go to benchmarks/results/gpu_*.json (and, with DATAFLOW_RESULTS set,
# there too); benchmarks/table.py makes tables of them. Needs Python with this package's and its tests' dependencies and torch; nvcc; a driver.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
export DATAFLOW_CUDA=on DATAFLOW_CUDA_ARCHS="${DATAFLOW_CUDA_ARCHS:-90}"
step() { printf '\n== %s ==\n' "$*"; }

if [ -z "${DATAFLOW_BUILT:-}" ]; then # set where the libraries came along with the tree
  step build
  "$python" -m pip install --quiet --no-deps --no-build-isolation --editable .
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$python" -m dataflow devices

failed=0
results() { # what there is so far, before the sanitizer, which takes long
  [ -z "${DATAFLOW_RESULTS:-}" ] || { mkdir -p "$DATAFLOW_RESULTS"; cp benchmarks/results/gpu_*.json "$DATAFLOW_RESULTS"; }
}

step "tests on the card"
parallel=(); "$python" -c "import xdist" 2> /dev/null && parallel=(-n 8)
"$python" -m pytest -q -p no:cacheprovider -p no:benchmark -m card tests/cuda "${parallel[@]}" || failed=1

step benchmarks
"$python" benchmarks/gpu_kernels.py || failed=1
results
"$python" benchmarks/gpu_training.py "$@" || failed=1
results

step "compute-sanitizer: memory and races of one sample per op"
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
      "$python" benchmarks/gpu_samples.py || failed=1
  done
else
  echo "compute-sanitizer was not found"
fi
exit "$failed"
