"""Builds the image of deploy/Containerfile and runs it: `make image`.

mmdebstrap makes its base, in place of that of a registry. buildah builds, podman runs the container as root and as
another user (rootless), with podman's profile of seccomp, a read-only root and at most MEMORY_MIB of memory. A client
of this machine ships a class, which must run in a worker with all layers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import Client, EditProcessor, Request
from logitport_server.access import new_token
from tests.machine import debian
from tests.machine.archive import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RESULTS = ROOT / "tests/machine/image.json"
MEMORY_MIB = 512
BASE, IMAGE = "localhost/logitport-base", "localhost/logitport"
_PACKAGES = "python3,python3-venv,ca-certificates"
_USER = "logitport-image"  # of the rootless container
# What the pods of deploy/kubernetes have, with and without the component shipped-code.
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")
UNMASKED = (*HARDENED, "--security-opt=unmask=ALL")
# crun refuses machines with both versions of cgroups, so podman does not see the second one there.
_UNIFIED = Path("/sys/fs/cgroup/unified")
_ALONE = ("unshare", "--mount", "sh", "-c", f'umount {_UNIFIED}; exec "$@"', "sh") if _UNIFIED.exists() else ()
_MEMORY = Path("/sys/fs/cgroup/memory/logitport-image")
VOCAB = 1000
_SECONDS = 600.0  # podman may copy the whole image for a container, and removes it at the end


class DenyOne(EditProcessor):
    """Code of a client."""

    def edit(self, request: Any, edits: Any) -> None:
        edits.deny([5])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.machine.image", description=__doc__)
    parser.add_argument("--torch-index", default="", help="build argument TORCH_INDEX")
    parser.add_argument("--pip-volume", action="append", default=[], help="mounted while the image is built, for pip")
    parser.add_argument("--keep", action="store_true", help="run the image of the last build")
    parser.add_argument("--save", action="store_true", help="keep the results in tests/machine/image.json")
    options = parser.parse_args()
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "kernel": os.uname().release.partition("-")[0]}
    found["podman"] = _run("podman", "--version").split()[-1]
    if not options.keep:
        build(options.torch_index, options.pip_volume)
    inspected = json.loads(_run("podman", "image", "inspect", IMAGE))[0]
    found["bytes"] = inspected["Size"]
    found["runs"] = {}
    for name, user, arguments in (
        ("root", "root", HARDENED),
        ("root, unmasked", "root", UNMASKED),
        ("rootless", _USER, HARDENED),
        ("rootless, unmasked", _USER, UNMASKED),
    ):
        found["runs"][name] = run(user, arguments)
        print(f"{name}: {found['runs'][name]}", flush=True)
    if options.save:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    if not all(each["denied"] == [5] for each in found["runs"].values()):
        sys.exit("make image: a shipped class did not run")


def build(torch_index: str, volumes: list[str]) -> None:
    """Build the base and the image."""
    with TemporaryDirectory() as folder:
        base = Path(folder, "base.tar")
        options = ["--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"', f"--include={_PACKAGES}"]
        _run("mmdebstrap", "--quiet", *options, debian.RELEASE, base, debian.mirror())
        _run("podman", "import", base, BASE)
    arguments = [f"--build-arg=BASE={BASE}", *([f"--build-arg=TORCH_INDEX={torch_index}"] if torch_index else [])]
    mounted = [f"--volume={volume}" for volume in volumes]
    isolated = ("--isolation=chroot", "--network=host")
    subprocess.run(
        ["buildah", "bud", *isolated, *arguments, *mounted, "-f", "deploy/Containerfile", "-t", IMAGE, "."],
        cwd=ROOT,
        check=True,
    )


def run(user: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Run a server, ship a class to it, stop it. Returns what was seen."""
    with TemporaryDirectory(prefix="logitport-image-") as name, memory_limit() as limited:
        folder = Path(name)
        token, grant = new_token("engine", ["apply", "register"])
        (folder / "tokens").write_text(grant.line)
        for path in (folder, folder / "tokens"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        podman, variables = podman_of(user)
        # podman has no cgroup: the limit of memory is that of `memory_limit`. The client calls the machine's loopback.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        common = [
            *("run", "--rm", "--network=host", "--cgroups=disabled", f"--ulimit=nofile={hard}:{hard}"),
            *("--ulimit=nproc=4096:4096", *arguments, f"--volume={folder}/tokens:/etc/logitport/tokens:ro"),
        ]
        doctor = _try([*podman, *common, IMAGE, "doctor"], variables, limited)
        layers = dict(re.findall(r"│\s*(bubblewrap|limits|namespaces|landlock|seccomp)\s*│\s*(\w+)", doctor))
        served = [
            *("serve", "--listen=127.0.0.1:0", "--metrics-listen=off", "--tokens=/etc/logitport/tokens"),
            *("--store=/tmp/store", "--enable-custom-logit-processor", "--device=cpu"),
        ]
        log = folder / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*podman, *common, IMAGE, *served],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=variables,
                preexec_fn=limited,
                cwd="/",
            )
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("logitport listening on "), log.read_text()[-3000:]
            with Client(ready.split()[-1], token=token) as client, client.session(vocab_size=VOCAB) as session:
                handle = session.add(Request([1], processors=[(DenyOne, {})]))
                logits = np.zeros((1, VOCAB), np.float32)
                session.step({handle: []}).apply(logits)
            peak = _peak()
        finally:
            process.terminate()
            process.communicate(timeout=_SECONDS)
        return {
            "arguments": [*arguments],
            "layers": layers,
            "denied": np.flatnonzero(np.isneginf(logits)).tolist(),
            "peak_mb": peak,
            "status": process.returncode,
        }


def podman_of(user: str) -> tuple[list[str], Mapping[str, str]]:
    """The command of podman for a user, and its environment. Another user than root gets a copy of the image."""
    if user == "root":
        return [*_ALONE, "podman"], dict(os.environ)
    if subprocess.run(["id", user], capture_output=True, check=False).returncode:
        _run("useradd", "--system", "--add-subids-for-system", "--create-home", user)
    home = Path(f"~{user}").expanduser()
    (home / "run").mkdir(mode=0o700, exist_ok=True)
    shutil.chown(home / "run", user, user)
    command = [*_ALONE, "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "podman"]
    variables = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "PATH": os.environ["PATH"]}
    if subprocess.run([*command, "image", "exists", IMAGE], env=variables, check=False, cwd="/").returncode:
        file = home / "image.tar"
        file.unlink(missing_ok=True)
        _run("podman", "save", "-o", file, IMAGE)
        file.chmod(0o644)
        subprocess.run([*command, "load", "-q", "-i", str(file)], env=variables, check=True, cwd="/")
        file.unlink()
    return command, variables


@contextmanager
def memory_limit() -> Iterator[Any]:
    """A cgroup of memory with the limit; yields a function that moves the calling process to it."""
    _MEMORY.mkdir(exist_ok=True)
    try:
        (_MEMORY / "memory.limit_in_bytes").write_text(str(MEMORY_MIB << 20))
        (_MEMORY / "memory.max_usage_in_bytes").write_text("0")
        yield lambda: (_MEMORY / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        for _ in range(100):
            with suppress(OSError):
                _MEMORY.rmdir()
                break
            time.sleep(0.1)


def _peak() -> int:
    """The most memory of the container so far, without the page cache that the kernel could drop, in MB."""
    values = dict(line.split() for line in (_MEMORY / "memory.stat").read_text().splitlines())
    return round((int(values["total_rss"]) + int(values["total_shmem"])) / 1e6)


def _try(command: list[str], variables: Mapping[str, str], limited: Any) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=variables,
        preexec_fn=limited,
        check=False,
        timeout=_SECONDS,
        cwd="/",
    )
    return done.stdout + done.stderr


def _run(*command: object) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, cwd="/").stdout


if __name__ == "__main__":
    main()
