"""deploy/Containerfile copies what exists, sets options that exist, and does not run as root."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib

from logitport_server.config.sources import VARIABLES

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Containerfile"


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, as pairs of keyword and arguments."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    instructions = [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line]
    starts = [number for number, (keyword, _) in enumerate(instructions) if keyword == "FROM"]
    return [instructions[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_every_copied_path_exists_and_is_sent() -> None:
    sent = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        path
        for stage in stages()
        for keyword, arguments in stage
        if keyword == "COPY" and "--from" not in arguments
        for path in arguments.split()[:-1]
    ]
    assert set(copied) == sent
    for path in copied:
        assert (ROOT / path).exists(), path


def test_the_image_has_what_the_wheel_is_built_of() -> None:
    copied = {arguments.split()[0] for keyword, arguments in stages()[0] if keyword == "COPY"}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {package.partition("/")[0] for package in wheel["packages"]} <= copied


def test_the_server_does_not_run_as_root() -> None:
    user = [arguments for keyword, arguments in stages()[-1] if keyword == "USER"][-1]
    assert int(user.partition(":")[0]) > 0


def test_its_options_exist() -> None:
    options = re.findall(r"\b(LOGITPORT_\w+)=", FILE.read_text())
    assert options
    assert {*options} <= {*VARIABLES}


def test_the_server_cannot_serve_other_hosts_without_tokens() -> None:
    """The image listens on all addresses, which the server refuses without authentication."""
    variables = FILE.read_text()
    assert "LOGITPORT_LISTEN=0.0.0.0:" in variables
    assert "LOGITPORT_METRICS_LISTEN=127.0.0.1:" in variables
    assert [arguments for keyword, arguments in stages()[-1] if keyword == "CMD"] == ['["serve"]']


def test_pods_keep_the_entry_point_of_the_image() -> None:
    """`command` of a manifest would replace it, and with it the init that reaps processes."""
    assert [arguments for keyword, arguments in stages()[-1] if keyword == "ENTRYPOINT"] == [
        '["tini", "--", "logitport"]'
    ]
    manifests = "".join(path.read_text() for path in (ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
    assert re.findall(r"^ *(?:- )?command:", manifests, re.MULTILINE) == []
    assert re.findall(r"^ *args:\n *- (.*)", manifests, re.MULTILINE) == ["serve"]
