#!/usr/bin/env bash
# Exports the zoo into a folder, measures every model there, and writes the table of docs/models.md:
#
#   benchmarks/zoo/run.sh FOLDER [--only 'bert*' ...]
#
# Other .onnx files may lie in FOLDER. PYTHON has dataflow with its extra `test` (onnxruntime). TEXT_PYTHON has torch,
# transformers, onnx and onnxscript; VISION_PYTHON torch, torchvision, onnx and onnxscript; they are made where they
# aren't given. What was exported or measured before is kept.
set -euo pipefail
folder="$(realpath -m "$1")"
shift
cd "$(dirname "$0")"
python="${PYTHON:-python3}"
environment() { # folder, packages
  [ -x "$1/bin/python" ] || { "$python" -m venv "$1" && "$1/bin/python" -m pip install --quiet "${@:2}"; }
}
if [ -z "${TEXT_PYTHON:-}" ]; then
  environment "$PWD/.text" torch==2.13.0 transformers onnx onnxscript
  TEXT_PYTHON="$PWD/.text/bin/python"
fi
if [ -z "${VISION_PYTHON:-}" ]; then
  environment "$PWD/.vision" torch==2.14.1 torchvision==0.29.1 onnx onnxscript
  VISION_PYTHON="$PWD/.vision/bin/python"
fi
"$TEXT_PYTHON" export.py --folder "$folder"
"$VISION_PYTHON" export.py --folder "$folder"
"$python" zoo.py "$folder" --page "$@"
