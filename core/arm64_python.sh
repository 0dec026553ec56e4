#!/bin/sh
# Make FOLDER/python: Debian's Python for arm64, which qemu runs. Needs Debian's apt and qemu-user-static, but not root.
#
#   core/arm64_python.sh FOLDER SUITE VERSION    # Debian's release, and the version of its Python
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd) suite=$2
[ ! -e "$folder/python" ] || exit 0
qemu=$(command -v qemu-aarch64-static) || { echo "qemu-aarch64-static is missing (Debian: qemu-user-static)" >&2; exit 1; }
# Another release and architecture: the machine's apt stays as it is.
uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' 'Origin: Debian' | head -1)
[ -n "$uri" ] || { echo "this needs Debian's apt; run: apt-get update" >&2; exit 1; }
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"
: >"$folder/apt/status"
echo "deb $uri $suite main" >"$folder/apt/sources.list"
cat >"$folder/apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State "$folder/apt";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt";
Dir::Etc::SourceList "$folder/apt/sources.list";
Dir::Etc::SourceParts "-";
END
export APT_CONFIG="$folder/apt/apt.conf"
apt-get -qq update
apt-get -qq install -y --download-only --no-install-recommends "python$3" libstdc++6
for package in "$folder"/apt/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
[ -e "$folder/root/lib" ] || ln -s usr/lib "$folder/root/lib"
printf '#!/bin/sh\nexec %s -L %s %s "$@"\n' "$qemu" "$folder/root" "$folder/root/usr/bin/python$3" >"$folder/python"
chmod +x "$folder/python"
