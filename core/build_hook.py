"""Builds the compiled core into the wheel of logitport. Where it cannot be built, the wheel is that of pure Python."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from scikit_build_core.errors import FailedLiveProcessError, FailedProcessError, ScikitBuildError
from scikit_build_core.hatch import plugin


class CompiledCoreHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds with CMake, if it can. Else the reason goes into the wheel, where `logitport.core.compiled` reads it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._cmake = plugin.ScikitBuildHook(
            self.root, {}, self.build_config, self.metadata, self.directory, self.target_name, self.app
        )
        self._folder = ""

    def dependencies(self) -> list[str]:
        """CMake and Ninja, where the machine has none."""
        return [] if _left_out() else self._cmake.dependencies()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build. An editable install finds what `make core` builds into the clone."""
        if version == "editable":
            return
        reason = _left_out()
        if not reason:
            before = dict(build_data)
            try:
                self._cmake.initialize(version, build_data)
            except (FailedLiveProcessError, FailedProcessError, ScikitBuildError):
                build_data.clear()
                build_data.update(before)
                reason = _cause()
        if reason:
            self.app.display_warning(f"logitport is built without its compiled core: {reason}")
            self._folder = tempfile.mkdtemp()
            path = Path(self._folder, "not_built.txt")
            path.write_text(reason)
            build_data["force_include"][str(path)] = f"logitport_core/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove temporary files."""
        self._cmake.finalize(version, build_data, artifact_path)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _left_out() -> str:
    """Why no build is tried; "" if one is."""
    if os.environ.get("LOGITPORT_PURE_PYTHON") == "1":
        return "this is the wheel of pure Python, built with LOGITPORT_PURE_PYTHON=1"
    return "" if sys.platform == "linux" else f"it is for Linux, and this is {sys.platform}"


def _cause() -> str:
    """Why a build failed, as far as it can be seen."""
    compiler = (os.environ.get("CXX") or "").partition(" ")[0]
    if compiler and not shutil.which(compiler):
        return f"at its installation, CXX was {compiler!r}, which is no command"
    if not compiler and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "at its installation there was no C++ compiler (Debian: g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "at its installation the headers of Python were missing (Debian: python3-dev)"
    return "the build failed: `pip install -v` shows why"
