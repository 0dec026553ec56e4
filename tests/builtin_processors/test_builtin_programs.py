"""The files of the built-ins' programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from logitport_builtins import BUILTIN_EDITS, BUILTIN_PROGRAMS
from logitport_builtins.programs.__main__ import write
from logitport_builtins.programs.files import FOLDER, SUFFIX
from logitport_programs.program import Program
from logitport_programs.verifier import verify

NAMES = [
    *("epsilon", "eta", "min_p", "repetition_penalty"),
    *("temperature", "top_k", "top_p", "typical_p"),
]


def test_each_program_is_read_from_its_file():
    assert list(BUILTIN_PROGRAMS) == NAMES
    assert not BUILTIN_PROGRAMS.keys() & BUILTIN_EDITS.keys()
    for name, program in BUILTIN_PROGRAMS.items():
        assert isinstance(program, Program)
        assert program is BUILTIN_PROGRAMS.get(name)  # read once
        assert program.to_bytes() == FOLDER.joinpath(name + SUFFIX).read_bytes()
        verify(program)
    assert "grammar" not in BUILTIN_PROGRAMS
    with pytest.raises(KeyError):
        BUILTIN_PROGRAMS["grammar"]


def test_there_is_no_other_file():
    assert sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(SUFFIX)) == [
        name + SUFFIX for name in NAMES
    ]


def test_programs_are_read_without_torch():
    code = "import sys, logitport_builtins as ours; dict(ours.BUILTIN_PROGRAMS); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.slow
def test_the_classes_are_captured_as_the_files(tmp_path):
    """After a change to a class, run `make builtin-programs`."""
    for file in write(tmp_path):
        assert file.read_bytes() == FOLDER.joinpath(file.name).read_bytes(), file.name
