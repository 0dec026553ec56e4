#!/bin/sh
# Build the compiled core with AddressSanitizer and UndefinedBehaviorSanitizer, in core/build/sanitize, and run a command
# with it. The first finding ends the command.
#
#   core/sanitize.sh PYTHON COMMAND...    # PYTHON: of the environment in which the core was built before
set -eu
python=$1
shift
compiler=${CXX:-$(command -v c++ || command -v g++)}
core=$(cd "$(dirname "$0")" && pwd)
folder=$core/build/sanitize
mkdir -p "$folder/site/logitport_core"
cp "$core"/logitport_core/__init__.py "$folder/site/logitport_core"
"$core/build.sh" "$python" "$folder/cmake" "$folder/site" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLOGITPORT_SANITIZE=ON \
    >"$folder/build.log" 2>&1 || { cat "$folder/build.log" >&2; exit 1; }

# Python is built without the sanitizers, so their runtime must be loaded before it, and libstdc++ with it: else it misses
# exceptions. Python's own leaks are not reported. Its allocator would hide reads beyond the end of bytes.
LD_PRELOAD="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-} UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
    PYTHONPATH="$folder/site${PYTHONPATH:+:$PYTHONPATH}" exec "$@"
