"""Names that operators, programs and dashboards use: a later version keeps them."""

from __future__ import annotations

import urllib.request
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
from prometheus_client.parser import text_string_to_metric_families

import logitport
from logitport import Client, ProcessorRef
from logitport.admin import ServerStatus, SessionInfo
from logitport.system.variables import OF_THE_SDK
from logitport_proto import common_pb2
from logitport_server.cli.root import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RunningServer


# Classes of the objects that commands print with --json, besides "server".
_JSON: dict[str, Any] = {"processors": ProcessorRef, "sessions": SessionInfo, "status": ServerStatus}


def interface(server: RunningServer) -> dict[str, Any]:
    """Return the present names. The server was started with --metrics-listen."""
    with Client(server.target) as client:
        builtins = sorted(name for ref in client.processors() if ref.builtin for name in ref.names)
    return {
        "names": sorted(logitport.__all__),
        "builtins": builtins,
        "error codes": sorted(common_pb2.ErrorCode.keys()),
        "variables of the SDK": sorted(OF_THE_SDK),
        "metrics": _metrics(server.metrics_url),
        **{f"JSON of {name}": sorted(field.name for field in fields(kind)) for name, kind in _JSON.items()},
        **{f"options of {words}": flags for words, flags in _options()},
    }


def _options(group: click.Group = ROOT, words: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each command, and its flags and arguments."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _options(command, f"{name} ")
        else:
            flags = {
                flag
                for one in command.get_params(click.Context(command, help_option_names=[]))
                for flag in (*one.opts, *one.secondary_opts)
            }
            yield f"{words}{name}", sorted(flags)


def _metrics(url: str) -> list[str]:
    """Return "name kind" of each metric."""
    with urllib.request.urlopen(url, timeout=60) as page:
        families = text_string_to_metric_families(page.read().decode())
    return sorted(f"{one.name} {one.type}" for one in families if one.name.startswith("logitport_"))
