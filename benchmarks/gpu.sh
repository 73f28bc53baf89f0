#!/usr/bin/env bash
# The check on a card: builds the CUDA library for it; runs a sample of each op without CUDA graphs, then with them, the
# tests that need a card, and the samples under each tool of compute-sanitizer, all of it beside each other; then times
# kernels, training steps and forward passes against PyTorch, and steps beside what a model of the card predicts, one
# after the other. It ends with an error where something failed, or a step fell back to a slower path. Results go to
# benchmarks/results/gpu_*.json (and, with DATAFLOW_RESULTS set, there too, beside logs of what checks);
# benchmarks/table.py makes tables of them. Arguments: stages of samples, tests, sanitizers, kernels, training, inference
# and steps, all by default; what begins with a dash goes to gpu_training.py, e.g. --compile. Needs Python with this
# package's and its tests' dependencies and torch; nvcc; a driver.
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

failed=0 stages=() options=() pids=()
for argument in "$@"; do
  case "$argument" in
    -*) options+=("$argument") ;;
    *) stages+=("$argument") ;;
  esac
done
[ "${#stages[@]}" -gt 0 ] || stages=(samples tests sanitizers kernels training inference steps)

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
    memcheck | racecheck | synccheck | initcheck)
      if ! command -v compute-sanitizer > /dev/null; then
        echo "compute-sanitizer was not found"
        return
      fi
      compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 \
        "$python" benchmarks/gpu_samples.py --capture no
      ;;
    *)
      echo "there is no stage $1"
      return 1
      ;;
  esac
}

# What checks runs beside each other, since most of it is work of the host; what is timed runs alone, afterwards.
checks=() timed=() folder="${DATAFLOW_RESULTS:-$(mktemp -d)}"
mkdir -p "$folder"
for stage in "${stages[@]}"; do
  case "$stage" in
    sanitizers) checks+=(memcheck racecheck synccheck initcheck) ;;
    kernels | training | inference | steps) timed+=("$stage") ;;
    *) checks+=("$stage") ;;
  esac
done
for stage in "${checks[@]}"; do
  (
    code=0
    run_stage "$stage" > "$folder/$stage.log" 2>&1 || code=$?
    echo "$stage ended after $SECONDS s: $code" >> "$folder/$stage.log"
    exit "$code"
  ) &
  pids[$!]="$stage"
done
for pid in "${!pids[@]}"; do
  wait "$pid" || failed=1
  step "${pids[$pid]}"
  tail -n 60 "$folder/${pids[$pid]}.log"
done
for stage in "${timed[@]}"; do
  step "$stage"
  run_stage "$stage" || failed=1
  results
  echo "$stage ended after $SECONDS s"
done
exit "$failed"
