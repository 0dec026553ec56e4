"""Stores and token files of earlier versions still work, and registered processors return the same rows."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client, NotFound, ProcessorFailed
from tests.stored.decoding import describe, rows_of
from tests.stored.reading import VERSIONS, skip_other_python
from tests.stored.redis_database import redis_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

PRINCIPALS = ("alice", "bob")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(folder, id=f"{version.name}-{folder.name}")
        for version in VERSIONS
        for folder in sorted(version.glob("registry-*"))
    ],
)
def registry(request: pytest.FixtureRequest) -> Path:
    """The folder of one store of one version."""
    folder: Path = request.param
    return folder


@pytest.fixture(scope="module")
def opened(
    registry: Path, serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server on a copy of the store."""
    folder: Path = tmp_path_factory.mktemp("registry")
    shutil.copytree(registry, folder, dirs_exist_ok=True)
    store = folder / "store"
    # A checkout has the umask's permissions. A server refuses a store to which other users have access.
    for path in (store, *store.rglob("*")) if store.exists() else ():
        path.chmod(0o700 if path.is_dir() else 0o600)
    options = ["--enable-custom-logit-processor", "--tokens", str(folder / "tokens")]
    options += ["--store-key", str(folder / "store.key")]
    with ExitStack() as stack:
        if (folder / "redis.json").exists():
            database = redis_database(json.loads((folder / "redis.json").read_text()))
            options += ["--store", stack.enter_context(database)[0]]
        else:
            options += ["--store", str(store)]
        yield stack.enter_context(serving(*options))


@pytest.fixture(params=PRINCIPALS)
def seen(registry: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A principal's view of the store, as recorded."""
    content: dict[str, Any] = json.loads((registry / f"{request.param}.json").read_text())
    return content


@pytest.fixture
def principal(opened: RunningServer, seen: dict[str, Any]) -> Iterator[Client]:
    """A client with that principal's token."""
    with Client(opened.target, token=seen["token"]) as client:
        yield client


def test_every_processor_is_described_as_before(principal: Client, seen: dict[str, Any]) -> None:
    described = [describe(ref) for ref in principal.processors() if not ref.builtin]
    assert sorted(described, key=_by_key) == sorted(
        (recorded["described"] for recorded in seen["processors"]), key=_by_key
    )


def test_every_digest_and_name_resolves_and_returns_the_same_rows(principal: Client, seen: dict[str, Any]) -> None:
    skip_other_python(seen)
    for recorded in seen["processors"]:
        digest, names = recorded["described"]["digest"], recorded["described"]["names"]
        for name in (digest, *names):
            assert principal.processor(name).digest == digest
            if recorded.get("quarantined"):
                with pytest.raises(ProcessorFailed):
                    rows_of(principal, [(name, recorded["params"])])
                continue
            assert rows_of(principal, [(name, recorded["params"])]) == recorded["rows"]


def test_deletions_persist(principal: Client, seen: dict[str, Any]) -> None:
    for name in seen["deleted"]:
        with pytest.raises(NotFound):
            principal.processor(name)


def test_quarantines_persist(principal: Client, seen: dict[str, Any]) -> None:
    quarantined = {ref.digest for ref in principal.processors() if ref.quarantined}
    assert quarantined == {
        recorded["described"]["digest"] for recorded in seen["processors"] if recorded.get("quarantined")
    }


def test_the_store_has_no_damaged_file(opened: RunningServer) -> None:
    log = opened.log.read_text()
    assert " ERROR " not in log


def _by_key(described: dict[str, Any]) -> tuple[str, str]:
    return described["digest"], described["owner"]
