"""The metrics that servers export."""

from __future__ import annotations

import re
from pathlib import Path

from logitport_server.metrics import Metrics

ROOT = Path(__file__).parents[2]


def exported() -> set[str]:
    """The names of all series that servers export: those in the code, and those of prometheus_client."""
    source = ROOT / "server" / "logitport_server"
    files = [*source.glob("metrics/*.py"), source / "server.py", source / "http_pages" / "status_pages.py"]
    code = "".join(file.read_text() for file in files)
    found = set(re.findall(r'"(logitport_\w+)"', code))
    found |= {sample.name for family in Metrics().registry.collect() for sample in family.samples}
    return found | {f"{name}{suffix}" for name in found for suffix in ("_total", "_bucket", "_sum", "_count")}
