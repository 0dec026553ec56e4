"""docs/operating.md matches the code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from logitport_server.command_line import parse
from logitport_server.config import ServerConfig
from logitport_server.config.sources import VARIABLES
from logitport_session.trust.principals import SCOPES
from tests.docs.pages import ROOT, codes, read, rows
from tests.server.cli.help_files import FOLDER

if TYPE_CHECKING:
    from pathlib import Path

PAGE = read("docs/operating.md")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
SECONDS = re.compile(r"(\d+)s")


def field_of(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def limits() -> list[tuple[str, str]]:
    """Options of the table of limits, with their defaults."""
    return [
        pair
        for options, defaults, _ in rows(PAGE, "| option | default |")
        for pair in zip(re.findall(r"--[a-z-]+", options), defaults.split(", "), strict=True)
    ]


@pytest.mark.parametrize("option", sorted(set(re.findall(r"--[a-z][a-z-]+\b(?!…)", PAGE)) - {"--index-url"}))  # of pip
def test_every_option_is_one(option: str) -> None:
    assert option in {flag for stored in FOLDER.glob("*.txt") for flag in re.findall(r"--[a-z-]+", stored.read_text())}


def test_every_limit_is_listed() -> None:
    shown = {field_of(option) for option, _ in limits()}
    assert shown >= {name for name in ServerConfig.model_fields if name.startswith("max_")}


@pytest.mark.parametrize(("option", "shown"), limits())
def test_its_default_is_the_default(option: str, shown: str) -> None:
    default = ServerConfig.model_fields[field_of(option)].default
    if shown == "off":
        assert default is None
        return
    if duration := SECONDS.fullmatch(shown):
        assert default == int(duration[1])
        return
    number, _, unit = shown.replace(",", "").partition(" ")
    assert default == shown or default == float(number) * UNITS.get(unit, 1)


def test_the_configuration_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "logitport.toml"
    path.write_text(text)
    config = parse(ServerConfig, "logitport serve", ["--config", str(path)])
    assert (config.required_layers, config.processor_timeout_seconds) == (["seccomp", "landlock"], 0.5)


def test_every_scope_is_listed() -> None:
    assert [row[0] for row in codes(PAGE, "| scope | allows |")] == list(SCOPES)


def metrics() -> set[str]:
    """The names of all metrics, without the suffix of counters."""
    source = ROOT / "server" / "logitport_server"
    files = [*source.glob("metrics/*.py"), source / "http_pages" / "status_pages.py"]
    code = "".join(file.read_text() for file in [*files, source / "server.py"])
    return set(re.findall(r'"(logitport_\w+)"', code))


def test_every_metric_is_one() -> None:
    named = re.findall(r"`(logitport_\w+)", PAGE.replace("`logitport_server.", ""))
    assert {name.removesuffix("_total") for name in named} <= metrics()


def test_every_metric_is_listed() -> None:
    table = PAGE[PAGE.index("| metric |") :].partition("\n\n")[0]
    assert {name.removesuffix("_total") for name in re.findall(r"`(logitport_\w+)", table)} == metrics()
