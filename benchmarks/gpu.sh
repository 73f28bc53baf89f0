#!/usr/bin/env bash
# The check on a card: builds the CUDA library for it; runs a sample of each op without CUDA graphs, then with them, and
# the tests that need a card; times kernels, training steps against PyTorch, and steps beside what a model of the card
# predicts; and runs the samples under each tool of compute-sanitizer. It ends with an error where something failed, or
# a step fell back to a slower path. Results go to benchmarks/results/gpu_*.json (and, with DATAFLOW_RESULTS set, there
# too); benchmarks/table.py makes tables of them. Arguments go to gpu_training.py, e.g. --compile. Needs Python with this package's and its tests' dependencies and torch; nvcc; a driver.
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
results() { # what there is so far
  [ -z "${DATAFLOW_RESULTS:-}" ] || { mkdir -p "$DATAFLOW_RESULTS"; cp benchmarks/results/gpu_*.json "$DATAFLOW_RESULTS"; }
}

step "samples, without graphs and with them"
"$python" benchmarks/gpu_samples.py || failed=1

step "tests on the card"
parallel=(); "$python" -c "import xdist" 2> /dev/null && parallel=(-n 8)
"$python" -m pytest -q -p no:cacheprovider -p no:benchmark -m card tests/cuda "${parallel[@]}" || failed=1

step benchmarks
"$python" benchmarks/gpu_kernels.py || failed=1
results
"$python" benchmarks/gpu_training.py "$@" || failed=1
results
"$python" benchmarks/gpu_steps.py || failed=1
results

step "compute-sanitizer on the samples"
if command -v compute-sanitizer > /dev/null; then
  log="$(mktemp -d)"
  tools=(memcheck racecheck synccheck initcheck)
  for tool in "${tools[@]}"; do # beside each other: each is slow on the host
    (compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
      "$python" benchmarks/gpu_samples.py --capture no > "$log/$tool" 2>&1; echo $? > "$log/$tool.rc") &
  done
  wait
  for tool in "${tools[@]}"; do
    printf -- '-- %s --\n' "$tool"
    tail -n 40 "$log/$tool"
    [ "$(cat "$log/$tool.rc")" = 0 ] || failed=1
  done
else
  echo "compute-sanitizer was not found"
fi
exit "$failed"
