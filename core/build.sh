#!/bin/sh
# Build the compiled core with CMake, and install it below a folder.
#
#   core/build.sh PYTHON BUILD PREFIX [ARGUMENT OF CMAKE...]    # PYTHON has nanobind, cmake and ninja
set -eu
python=$1 build=$2 prefix=$3
shift 3
cmake() { "$python" -m cmake "$@"; }
cmake -S "$(dirname "$0")" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" \
    -DCMAKE_MAKE_PROGRAM="$("$python" -c 'import ninja; print(ninja.BIN_DIR)')/ninja" \
    -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" "$@"
cmake --build "$build"
cmake --install "$build" --prefix "$prefix"
