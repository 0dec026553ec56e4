"""The programs of the built-ins that read logits, as files.

Capturing a program takes seconds and needs torch, so it is done once, by `make builtin-programs`. The programs are
canonical bytes, and a test captures them again.
"""

from logitport_builtins.programs.builtin_programs import BUILTIN_PROGRAMS, FOLDER, SUFFIX

__all__ = ["BUILTIN_PROGRAMS", "FOLDER", "SUFFIX"]
