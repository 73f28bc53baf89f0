#!/bin/sh
# Builds dataflow_swish/swish.so against the headers of the installed dataflow.
set -eu
cd "$(dirname "$0")"
include="$(python -c 'import dataflow; print(dataflow.get_include())')"
"${NVCC:-nvcc}" -std=c++20 -O3 -arch="${ARCH:-sm_90}" -Xcompiler=-fPIC -shared -cudart=static -I"$include" \
  swish.cu -o dataflow_swish/swish.so
