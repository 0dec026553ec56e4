"""A client without a server: its sessions run in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    Float,
    InvalidArgument,
    NotFound,
    PayloadError,
    Request,
    RowEdits,
    ServerUnavailable,
    SessionClosed,
    TensorProcessor,
)
from logitport.client.embedded_server import is_embedded
from logitport.session.transports.embedded_transport import EmbeddedTransport
from logitport.shipping import serialize
from logitport_builtins import BUILTINS
from tests.programs.runtime.build import min_p
from tests.tokenizer_files import write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

VOCAB = 40
INF = float("inf")
BAN = ("disallowed_tokens", {"token_ids": [3, 5]})


class Halves(TensorProcessor):
    """Divides logits."""

    params = {"by": Float(ge=1, le=4)}  # noqa: RUF012

    def process(self, logits: torch.Tensor, params: Any, history: Any) -> torch.Tensor:
        return logits / params.by[:, None]


class Shipped(EditProcessor):
    """Code, which no embedded session accepts."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([request.history.last_output or 0])


class Installed(CustomLogitProcessor):
    """Adds one to all logits."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits + 1


@pytest.fixture
def client() -> Iterator[Client]:
    with Client.embedded() as client:
        yield client


def logits(rows: int = 1) -> np.ndarray[Any, Any]:
    return np.ones((rows, VOCAB), np.float32)


def test_a_session_applies_builtins(client: Client) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1, 2], processors=[BAN, ("no_repeat_ngram", {"ngram_size": 2})]))
        first = logits()
        session.step({handle: []}).apply(first)
        assert np.flatnonzero(first[0] == -INF).tolist() == [3, 5]
        second = logits()
        result = session.step({handle: [1]}).apply(second)
        assert np.flatnonzero(second[0] == -INF).tolist() == [2, 3, 5]
        assert result.rows_applied == {"disallowed_tokens": 1, "no_repeat_ngram": 1}
        assert session.transport == "embedded"
        session.remove(handle)
        assert not len(session)


def test_processors_are_listed(client: Client) -> None:
    assert {processor.names[0] for processor in client.processors()} >= BUILTINS.keys()
    assert client.processor("grammar").names == ("grammar",)
    with pytest.raises(NotFound, match=r"'team/x'.*there are no programs.*logitport serve"):
        client.processor("team/x")
    assert client.servers() == []


def test_code_is_refused_with_the_way_out(client: Client) -> None:
    with pytest.raises(PayloadError, match=r"needs a server.*logitport serve") as error:
        client.register(Shipped, name="team/x")
    assert error.value.code == PayloadError.NOT_ALLOWED
    with client.session(vocab_size=VOCAB) as session:
        with pytest.raises(PayloadError, match=r"accepts no code.*LOGITPORT_TARGET.*entry point"):
            session.add(Request([1], processors=[(Shipped, {})]))
        handle = session.add(Request([1], processors=[BAN]))
        session.step({handle: []}).apply(logits())


def test_apply_without_a_session(client: Client) -> None:
    result = client.apply(
        logits(2), [Request([1], processors=[BAN]), Request([1], processors=[("temperature", {"temperature": 2.0})])]
    )
    assert result.logits[0, 3] == -INF
    assert result.logits[1].tolist() == [0.5] * VOCAB


@pytest.mark.parametrize("programs", ["all", "off"])
@pytest.mark.slow
def test_programs_of_a_folder(tmp_path: Path, programs: Any) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "halves.json").write_text(serialize(Halves))
    with Client.embedded(tmp_path) as client:
        assert client.processor("team/halves").class_name == "Halves"
        with client.session(vocab_size=VOCAB, programs=programs) as session:
            handle = session.add(Request([1], processors=[("team/halves", {"by": 2.0}), BAN]))
            row = logits()
            session.step({handle: []}).apply(row)
            assert row[0, 0] == 0.5
            assert row[0, 3] == -INF


@pytest.mark.slow
def test_a_request_may_bring_a_program(client: Client) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[(Halves, {"by": 4.0})]))
        row = logits()
        session.step({handle: []}).apply(row)
        assert row[0, 0] == 0.25


def _sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("", lambda file: None, "is no folder"),
        ("team/x.json", lambda file: file.write_text(serialize(Shipped)), r"x\.json is no program.*accepts no code"),
        ("team/x.json", lambda file: file.write_text("{"), r"x\.json is no program"),
        ("team/x.json", _sparse, r"x\.json is no program: it has more than 16777216 bytes"),
        ("team/x.json", os.mkfifo, r"x\.json is no program: it is no regular file"),
        # Requests name a processor without a namespace as a built-in.
        ("halves.json", lambda file: file.write_text(serialize(Halves)), "'halves' is not namespace/name"),
    ],
)
def test_wrong_folders_are_refused(tmp_path: Path, name: str, write: Any, message: str) -> None:
    folder = tmp_path / "programs"
    if name:
        (folder / name).parent.mkdir(parents=True)
    write(folder / name)
    with pytest.raises(InvalidArgument, match=message):
        Client(f"embedded:{folder}")


def test_installed_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = metadata.entry_points
    point = metadata.EntryPoint("adds_one", f"{__name__}:Installed", "logitport.processors")
    monkeypatch.setattr(
        "logitport_session.processor_sources.installed.entry_points",
        lambda group: [point] if group == "logitport.processors" else found(group=group),
    )
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda _: Installed)
    from logitport_session.embedded import EmbeddedSessions

    monkeypatch.setattr("logitport.client.embedded_server._sessions_class", lambda: EmbeddedSessions)
    with Client.embedded() as client, client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[("adds_one", {}), BAN]))
        row = logits()
        session.step({handle: []}).apply(row)
        assert row[0, 0] == 2
        assert row[0, 3] == -INF


def test_a_closed_client(client: Client) -> None:
    session = client.session(vocab_size=VOCAB)
    handle = session.add(Request([1]))
    client.close()
    with pytest.raises(SessionClosed):
        session.step({handle: []})
    with pytest.raises(ServerUnavailable):
        client.processors()


IMPORTS = """
import importlib, pkgutil, sys
import logitport_session

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"grpc", "pydantic", "fickling", "torch", "logitport_server"}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
for module in pkgutil.walk_packages(logitport_session.__path__, "logitport_session."):
    if module.name.startswith("logitport_session.stubs."):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(module.name, error.name)
"""
# Modules that compute with torch: dialects, and regions of logits that are shared with an engine.
WITH_TORCH = ("logitport_session.dialects.", "logitport_session.shared_memory.")


@pytest.mark.slow
def test_a_session_imports_none_of_the_servers_packages() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, check=True, text=True)
    failed = [line.split() for line in found.stdout.splitlines()]
    assert all(missing == "torch" and module.startswith(WITH_TORCH) for module, missing in failed), failed


# Simulates a Mac without the compiled core: removes what only Linux has.
ON_A_MAC = """
import fcntl, mmap, os, select, socket, sys

sys.platform = "darwin"
for module, names in {
    fcntl: ["F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE"],
    os: ["memfd_create", "pidfd_open", "eventfd", "O_PATH", "sched_getaffinity", "MFD_CLOEXEC", "MFD_ALLOW_SEALING"],
    select: ["epoll"],
    socket: ["SO_PEERCRED", "SOCK_CLOEXEC", "AF_VSOCK", "AF_NETLINK"],
    mmap: ["MAP_POPULATE"],
}.items():
    for name in names:
        vars(module).pop(name, None)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"logitport_core", "torch", "pydantic", "fickling", "logitport_server"}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import numpy as np
from logitport import Client, Request
import logitport_session.engine_session.session_frames

with Client.embedded() as client, client.session(vocab_size=8) as session:
    request = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3, 5]})]))
    (other,) = session.begin_add([Request([1], processors=[("no_repeat_ngram", {"ngram_size": 1})])])
    while not other.done:
        session.poll()
    logits = np.ones((2, 8), np.float32)
    session.step({request: [], other.result(): [2]}).apply(logits)
    print(np.argwhere(logits == -np.inf).tolist())
"""


@pytest.mark.slow
def test_a_session_needs_neither_linux_nor_the_compiled_core() -> None:
    found = subprocess.run([sys.executable, "-c", ON_A_MAC], check=False, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [[0, 3], [0, 5], [1, 1], [1, 2]]


@pytest.mark.parametrize("target", ["embedded:", "embeded", "EMBEDDED", "Embedded:/etc", " embedded"])
def test_misspelled_targets_are_refused(target: str) -> None:
    with pytest.raises(InvalidArgument, match="write embedded for sessions in this process"):
        Client(target)


@pytest.mark.parametrize("target", ["embedder:50051", "embeddeds,127.0.0.1:1", "unix:embedded", "dns:embedded"])
def test_similar_addresses_are_addresses(target: str) -> None:
    assert not is_embedded(target)


def test_a_volume_of_kubernetes_and_a_program_with_two_names(tmp_path: Path) -> None:
    """A volume has each file once more in a folder that its links lead to. A program is listed once."""
    folder = tmp_path / "team"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..2026" / "halves.json").write_text(serialize(min_p().program))
    (folder / "..data").symlink_to("..2026")
    for name in ("a", "b"):
        (folder / f"{name}.json").symlink_to("..data/halves.json")
    with Client.embedded(tmp_path) as client:
        listed = [processor.names for processor in client.processors() if not processor.builtin]
    assert listed == [("team/a", "team/b")]


FORKED = """
import os, signal
import numpy as np
from logitport import Client, Request

def admit(session):
    (pending,) = session.begin_add([Request([1], processors=[("banned_strings", {"banned_strings": ["b"]})])])
    while not pending.done:
        session.poll()
    return pending.result()

client = Client.embedded()
options = {"vocab_size": 4, "tokenizer_id": os.environ["TOKENIZER"], "eos_token_ids": [3]}
session = client.session(**options)
admit(session)
# Not computed by the compiled core, so a thread computes it.
request = session.add(Request([0], processors=[("grammar", {"regex": "abc"})]))
session.step({request: []}).apply(np.ones((1, 4), np.float32))
if os.fork() == 0:
    signal.alarm(60)
    logits = np.ones((1, 4), np.float32)
    session.step({request: [0]}).apply(logits)
    assert np.flatnonzero(logits[0] != -np.inf).tolist() == [1], logits
    with client.session(**options) as other:
        admit(other)
    client.close()
    print("forked", flush=True)
    os._exit(0)
assert os.wait()[1] == 0
logits = np.ones((1, 4), np.float32)
session.step({request: [0]}).apply(logits)
print(np.flatnonzero(logits[0] != -np.inf).tolist())
"""


@pytest.mark.slow
def test_a_fork_of_the_engine_has_threads_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    write_vocabulary(tmp_path, ["a", "b", "c"])
    found = subprocess.run(
        [sys.executable, "-c", FORKED],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TOKENIZER": str(tmp_path)},
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n") == ["forked", "[1]", ""]


def test_a_fork_during_a_step_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = EmbeddedTransport(_Slow(), 1 << 20)
    transport.send_bytes(bytes(4) + b"x")
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(SessionClosed, match="was forked during a step"):
        transport.receive()
    transport.close()


class _Slow:
    """A session whose steps are computed on a thread."""

    def handle(self, data: bytes, transport: str, run: Any = None) -> Any:
        return run(lambda: data)

    def record(self) -> None:
        pass

    def close(self) -> None:
        pass
