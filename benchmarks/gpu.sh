#!/usr/bin/env bash
# The check on a card: builds the CUDA library for it; runs a sample of each op without CUDA graphs, then with them, and
# the tests that need a card; times kernels, training steps and forward passes against PyTorch, and steps beside what a
# model of the card predicts; and runs the samples under each tool of compute-sanitizer. It ends with an error where
# something failed, or a step fell back to a slower path. Results go to benchmarks/results/gpu_*.json (and, with
# DATAFLOW_RESULTS set, there too); benchmarks/table.py makes tables of them. Arguments: stages of samples, tests,
# kernels, training, inference, steps and sanitizers, all by default; what begins with a dash goes to gpu_training.py,
# e.g. --compile. Needs Python with this package's and its tests' dependencies and torch; nvcc; a driver.
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

failed=0 stages=() options=()
for argument in "$@"; do
  case "$argument" in
    -*) options+=("$argument") ;;
    *) stages+=("$argument") ;;
  esac
done
[ "${#stages[@]}" -gt 0 ] || stages=(samples tests kernels training inference steps sanitizers)

results() { # what there is so far
  [ -z "${DATAFLOW_RESULTS:-}" ] || { mkdir -p "$DATAFLOW_RESULTS"; cp benchmarks/results/gpu_*.json "$DATAFLOW_RESULTS"; }
}

run_stage() {
  case "$1" in
    samples) "$python" benchmarks/gpu_samples.py ;; # without graphs, then with them
    tests)
      local parallel=()
      if "$python" -c "import xdist" 2> /dev/null; then parallel=(-n 8); fi
      # What fails is said at once: a card may be gone before the last test has ended.
      DATAFLOW_SAY_FAILURES=1 \
        "$python" -m pytest -q -p no:cacheprovider -p no:benchmark -m card tests/cuda "${parallel[@]}"
      ;;
    kernels) "$python" benchmarks/gpu_kernels.py ;;
    training) "$python" benchmarks/gpu_training.py "${options[@]}" ;;
    inference) "$python" benchmarks/gpu_inference.py ;;
    steps) "$python" benchmarks/gpu_steps.py ;;
    sanitizers) sanitize ;;
    *)
      echo "there is no stage $1"
      return 1
      ;;
  esac
}

sanitize() { # the tools beside each other: each is slow on the host
  local tools=(memcheck racecheck synccheck initcheck) log wrong=0 tool
  if ! command -v compute-sanitizer > /dev/null; then
    echo "compute-sanitizer was not found"
    return
  fi
  log="$(mktemp -d)"
  for tool in "${tools[@]}"; do
    (
      code=0
      compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 \
        "$python" benchmarks/gpu_samples.py --capture no > "$log/$tool" 2>&1 || code=$?
      echo "$code" > "$log/$tool.code"
    ) &
  done
  wait
  for tool in "${tools[@]}"; do
    printf -- '-- %s --\n' "$tool"
    tail -n 40 "$log/$tool"
    [ "$(cat "$log/$tool.code")" = 0 ] || wrong=1
  done
  return "$wrong"
}

for stage in "${stages[@]}"; do
  step "$stage"
  run_stage "$stage" || failed=1
  results
done
exit "$failed"
