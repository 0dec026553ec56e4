"""The choice of the folder for temporary files without a trial file."""

from __future__ import annotations

import os
import tempfile

# The order of `tempfile.gettempdir`.
_VARIABLES = "TMPDIR", "TEMP", "TMP"
_DEFAULT = "/tmp"  # noqa: S108 - the name of the folder, not of a file in it


def choose_temporary_folder() -> None:
    """Choose the folder that `tempfile.gettempdir` returns, by its permissions.

    `gettempdir` writes a file to each folder that it tries, and dill calls it at its import. A process that is killed
    between the creation and the removal of that file leaves it behind. Does nothing if no folder can be written to:
    `gettempdir` then tries more folders, and raises an error that lists them.
    """
    for folder in (*map(os.environ.get, _VARIABLES), _DEFAULT):
        if folder and os.access(folder, os.W_OK | os.X_OK):
            tempfile.tempdir = folder
            return
