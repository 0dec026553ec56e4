"""What liblogitport installs: its files, its symbols, and programs that use it by CMake and by pkg-config."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.core.library.c_session import CORE, ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunningServer

_MAX_BYTES = 1_500_000
_PAGE = (ROOT / "docs" / "engines" / "c.md").read_text()
_CMAKE = [sys.executable, "-m", "cmake"]


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(build_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the library is installed."""
    folder = tmp_path_factory.mktemp("prefix")
    run(*_CMAKE, "--install", build_folder, "--prefix", folder, "--strip")
    return folder


@pytest.fixture(scope="module")
def shared(prefix: Path) -> Path:
    (found,) = prefix.glob("lib*/**/liblogitport.so")
    return found


def test_the_stripped_library_is_small_and_needs_no_other_product(shared: Path) -> None:
    assert shared.resolve().stat().st_size <= _MAX_BYTES
    needed = re.findall(r"NEEDED.*\[(\S+)\]", run("readelf", "--dynamic", shared))
    assert {name.split(".")[0] for name in needed} <= {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64"}


def test_only_the_functions_of_the_header_are_visible_each_with_its_version(shared: Path) -> None:
    header = (CORE / "include" / "logitport.h").read_text()
    declared = set(re.findall(r"LOGITPORT_API[^;(]*?\b(logitport_\w+)\(", header))
    symbols = run("nm", "--dynamic", "--defined-only", "--with-symbol-versions", shared).split("\n")
    functions = {line.split()[2] for line in symbols if " T " in line}
    assert functions == {f"{name}@@LOGITPORT_1" for name in declared}
    assert len(declared) == 14


def test_a_program_in_c_uses_the_static_library(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "version.c"
    source.write_text(
        "#include <logitport.h>\n#include <stdio.h>\nint main(void) { return puts(logitport_version()) < 0; }\n"
    )
    (static,) = prefix.glob("lib*/**/liblogitport.a")
    warnings = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
    run(
        "cc",
        *warnings,
        f"-I{prefix}/include",
        source,
        static,
        "-lstdc++",
        "-lm",
        "-lpthread",
        "-o",
        tmp_path / "version",
    )
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert run(tmp_path / "version") == f"{version[1]}\n"


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_the_program_of_the_page_runs(shared: Path, tmp_path: Path) -> None:
    (program,) = re.findall(r"```cpp\n(.+?)```", _PAGE, re.DOTALL)
    (tmp_path / "first.cpp").write_text(program)
    packages = {"PKG_CONFIG_PATH": str(shared.parent / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "logitport", **packages).split()
    run("c++", "-Wall", "-Werror", "first.cpp", *flags, "-o", "first", cwd=tmp_path)
    assert run(tmp_path / "first", LD_LIBRARY_PATH=str(shared.parent)) == "0 -inf\n"


def test_the_example_decodes_alike_in_its_process_and_with_a_server(
    prefix: Path, tmp_path: Path, server: RunningServer
) -> None:
    run(*_CMAKE, "-S", ROOT / "examples" / "cpp", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run(*_CMAKE, "--build", tmp_path)
    embedded = run(tmp_path / "engine").split("\n")
    with_server = run(tmp_path / "engine", server.target).split("\n")
    assert embedded[:4] == with_server[:4]
    assert embedded[5:] == with_server[5:]
    ids = {name.strip(): [int(one) for one in text.split()] for name, text in (one.split(":") for one in embedded[:4])}
    assert [len(one) for one in ids.values()] == [24] * 4
    assert not any(one % 2 for one in ids["no odd ids"] + ids["both"])
    pairs = list(zip([1, 2, 3, *ids["both"]], [2, 3, *ids["both"]], strict=False))
    assert len(set(pairs)) == len(pairs)
    assert all("no_such_thing" in lines[4] for lines in (embedded, with_server))
    assert re.fullmatch(r"\d+ steps; [1-9]\d* accepted draft tokens", embedded[5])
