"""`logitport payload inspect` and `logitport payload sign` for programs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import numpy as np

from logitport import payload
from logitport_programs.program import Parameter, Program, Value
from logitport_programs.types import Element, Size
from tests.conftest import COMMAND
from tests.programs.runtime.build import Writer

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=200)


def inspect(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run("payload", "inspect", *arguments, stdin=stdin)


def test_a_program(tmp_path: Path) -> None:
    write = Writer()
    weights = write(
        "constant", element=Element.FLOAT32, shape=(Size(constant=9),), data=np.arange(9, dtype="<f4").tobytes()
    )
    total = write("cast", write("sum", weights, axis=1, flag=True), element=Element.LOGITS)
    scaled = write("multiply", write("logits"), write.parameter("scale"))
    write("where", write("greater", scaled, total), scaled, write.full(0.0))
    program = write.verified(Parameter("scale", Element.FLOAT32, None, 0.0, 2.0), name="Weigh").program
    lines = inspect("-", stdin=payload.seal_program(program.to_bytes(), "Weigh")).stdout.splitlines()
    assert lines[:3] == ["program: Weigh", f"digest: {program.digest}", f"size: {len(program.to_bytes())} bytes"]
    assert "    scale: float32, required, in [0, 2]" in lines
    assert "    %0 float32[9] = constant(36 bytes: 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ...)" in lines
    assert "    %9 logits[] = full(number=0.0)" in lines
    assert lines[-3].startswith("    %10 logits[rows, vocab] = where(%8, %7, %9)")
    (tmp_path / "canonical").write_bytes(program.to_bytes())
    assert inspect(str(tmp_path / "canonical")).stdout.splitlines() == lines


def test_a_program_that_breaks_a_rule() -> None:
    program = Program("Broken", (Value("logits"), Value("exp", (5,))))
    done = inspect("-", stdin=payload.seal_program(program.to_bytes(), ""))
    assert done.returncode == 1
    assert done.stderr == "logitport: value 1 of program 'Broken': exp: an input is not an earlier value\n"
