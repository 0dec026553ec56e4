#!/bin/sh
# Build liblogitport with sanitizers, and run the programs of its tests: mutated replies with AddressSanitizer and
# UndefinedBehaviorSanitizer, threads with ThreadSanitizer. The first finding ends the script.
#
#   core/library/sanitize.sh PYTHON REPLIES SECONDS    # PYTHON: with cmake, and `logitport` beside it
set -eu
python=$1 replies=$2 seconds=$3
library=$(cd "$(dirname "$0")" && pwd)

build() { # folder, sanitizers, target
    "$python" -m cmake -S "$library" -B "$1" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLOGITPORT_SANITIZE="$2" \
        -DLOGITPORT_TESTS=ON >"$1.log" 2>&1 && "$python" -m cmake --build "$1" --target "$3" >>"$1.log" 2>&1 ||
        { cat "$1.log" >&2; exit 1; }
}

folder=$library/../build
mkdir -p "$folder"
build "$folder/library-asan" address,undefined fuzz_replies
"$folder/library-asan/fuzz_replies" "$replies" "${SEED:-$$}"

build "$folder/library-tsan" thread stress_threads
lines=$(mktemp)
"$(dirname "$python")/logitport" serve --listen 127.0.0.1:0 --log-level error >"$lines" &
server=$!
trap 'kill $server; rm -f "$lines"' EXIT
while ! grep -q "listening on" "$lines"; do
    kill -0 $server
    sleep 0.1
done
"$folder/library-tsan/stress_threads" "$seconds" "$(sed -n 's/.* //p' "$lines" | head -1)"
