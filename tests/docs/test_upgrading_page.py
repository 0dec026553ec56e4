"""docs/upgrading.md and CHANGELOG.md have their form, and name tests that exist."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, read

PAGE, CHANGELOG = read("docs/upgrading.md"), read("CHANGELOG.md")
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_every_test_of_stored_data_belongs_to_a_promise() -> None:
    named = set(re.findall(r"`tests/stored/(test_\w+\.py)`", PAGE))
    assert named | {"test_writer.py"} == {path.name for path in (ROOT / "tests" / "stored").glob("test_*.py")}


def test_the_changelog_keeps_its_form() -> None:
    """As https://keepachangelog.com/en/1.1.0/ has it: the unreleased changes first, kinds in order."""
    versions = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    for version in versions[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version), version
    for section in re.split(r"^## .*\n", CHANGELOG, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]
        assert kinds


def test_every_released_version_has_stored_data() -> None:
    released = set(re.findall(r"^## \[(\d.*?)\]", CHANGELOG, re.MULTILINE))
    assert released <= {path.name for path in (ROOT / "tests" / "stored").iterdir()}
