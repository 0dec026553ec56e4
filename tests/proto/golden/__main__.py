"""Write the golden files from messages.py: `python -m tests.proto.golden`."""

from __future__ import annotations

from tests.proto.golden.files import FOLDER, to_text
from tests.proto.golden.messages import GOLDEN

if __name__ == "__main__":
    for file, messages in GOLDEN.items():
        (FOLDER / f"{file}.json").write_text(to_text(messages))
