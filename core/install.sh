#!/bin/sh
# Build the compiled core for a Python into core/logitport_core, where each environment of that Python with an editable
# install of this clone finds it. Without a compiler, or where the build fails, print one line: logitport then runs in
# pure Python. Exits with 0 in either case.
#
#   core/install.sh PYTHON STAMP    # STAMP: file that is made after a build, for make
set -eu
python=$1 stamp=$2
cd "$(dirname "$0")/.."
log=core/build/install.log
headers='import os, sysconfig; raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'

fall_back() {
    rm -f core/logitport_core/_core.*.so # one of earlier sources would run
    echo "logitport runs in pure Python: $1" >&2
    exit 0
}

build() { # joined by &&: a shell ignores -e in a function that is called in a condition
    "$python" -m pip install -q -c constraints.txt nanobind cmake ninja &&
        core/build.sh "$python" core/build/"$("$python" -I -c 'import sys; print(sys.implementation.cache_tag)')" core &&
        "$python" -I -c "import logitport_core._core" # a compiler may use a later C++ library than this Python
}

[ "${LOGITPORT_PURE_PYTHON:-0}" != 1 ] || exit 0 # chosen by whoever runs this: nothing to report, nothing to change
compiler=${CXX:-$(command -v c++ || command -v g++ || command -v clang++ || true)}
[ -n "$compiler" ] || fall_back "no C++ compiler was found; install g++ or clang, and run make again"
command -v "${compiler%% *}" >/dev/null ||
    fall_back "CXX is '$compiler', which is no command; correct or unset it, and run make again"
"$python" -I -c "$headers" >/dev/null 2>&1 ||
    fall_back "the headers of its Python were not found; install them (Debian: python3-dev), and run make again"
mkdir -p core/build
build >$log 2>&1 || fall_back "the compiled core could not be built or loaded; see $log, and run make again"
rm -f "$stamp" && touch "$stamp" # a new file: a copy of the environment may share the old one
echo "logitport runs the compiled core"
