"""Write the stored and sent formats of this version to a folder: `python -m tests.stored tests/stored/VERSION`.

Names of parts after the folder write these parts alone, to a folder that has others.
"""

from __future__ import annotations

import argparse
import functools
import json
import secrets
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from logitport import Client, RequestsFailed, payload, shipping
from logitport.dialects import InDialect
from logitport.integrations.sglang import RemoteLogitProcessor
from logitport.payload.signing import read_private_key
from tests.conftest import COMMAND, run_server
from tests.engine_stubs import importable_stubs
from tests.stored import calls, local_recorder, processors, programs
from tests.stored.decoding import OPENING, PYTHON, converse, describe, rows_of
from tests.stored.frames import faulty_frames, faulty_regions
from tests.stored.interface import interface
from tests.stored.recorder import exchange, recording
from tests.stored.redis_database import read_hashes, redis_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.stored.decoding import Chain

_CENTURY_SECONDS = 100 * 365 * 24 * 3600
# A quarantine is stored in the background.
_QUARANTINE_STORED_SECONDS = 5
_SHIPPING = "--enable-custom-logit-processor"
# Parameters of the registered classes.
_PARAMS = {
    "AllEdits": {"bias": 1.5},
    "Budget": {"thinking_budget": 1},
    "AddsConstants": {"by": 2.0},
    "FewerRepeats": {"ngram_size": 2},
    "Tilt": {"by": 0.5},
}


def write(folder: Path, parts: Iterable[str] = ()) -> None:
    """Write the fixtures of these parts, by default of all. None of them may exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts or PARTS:
        PARTS[part](folder / part)


@contextmanager
def _client() -> Iterator[Client]:
    with run_server(_SHIPPING, "--no-local-transport") as server, Client(server.target) as client:
        yield client


def _write_payloads(folder: Path) -> None:
    folder.mkdir()
    with _client() as client, importable_stubs():
        for name, processor, params, extra_args, by_name in payloads():
            serialized = processor if isinstance(processor, str) else payload.dumps(processor)
            sampling_params = {"extra_args": extra_args} if extra_args else {}
            case = {
                "python": "" if by_name else PYTHON,
                "params": params,
                "sampling_params": sampling_params,
                "rows": rows_of(client, [(serialized, params)], sampling_params),
                "serialized": serialized,
            }
            _write_json(folder / f"{name}.json", case)


def _write_programs(folder: Path) -> None:
    folder.mkdir()
    with _client() as client:
        for name, serialized, params in programs.programs():
            rows = rows_of(client, [(serialized, params)])
            _write_json(folder / f"{name}.json", {"params": params, "rows": rows, "serialized": serialized})


def payloads() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any], bool]]:
    """Yield (file, processor, params, extra_args, whether the class is pickled by name) of each payload."""
    from transformers import LogitsProcessorList, NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

    from logitport_builtins import (
        DeepseekOCRNoRepeatNGramLogitProcessor,
        DisallowedTokensLogitsProcessor,
        NoRepeatNGram,
    )
    from tests.end_to_end import vllm_processors, vllm_v2_processors

    yield "edits", processors.AllEdits, {"bias": 1.5}, {}, False
    yield "edits-of-builtin", processors.FewerRepeats, {"ngram_size": 2}, {}, False
    yield "edits-of-sglang", processors.Budget, {"thinking_budget": 1}, {}, False
    yield "sglang", processors.Tilt, {"by": 0.5}, {}, False
    yield "sglang-over-edits", processors.DisallowsByCall, {"token_ids": [1, 2]}, {}, False
    yield "transformers-function", processors.halve_seen, {}, {}, False
    yield "transformers-in-dialect", InDialect(processors.halve_any, "transformers"), {}, {}, False
    yield "transformers-class", RepetitionPenaltyLogitsProcessor, {"penalty": 2.0}, {}, True
    yield "transformers-partial", functools.partial(RepetitionPenaltyLogitsProcessor, penalty=2.0), {}, {}, True
    yield "transformers-instance", RepetitionPenaltyLogitsProcessor(2.0), {}, {}, True
    instances = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(2.0), NoBadWordsLogitsProcessor([[2], [7, 3]])])
    yield "transformers-list", instances, {}, {}, True
    yield "vllm-v1", vllm_processors.AddsLength, {"by": 2}, {}, False
    yield "vllm-v1-updates", vllm_processors.Bans, {}, {"ban": [3, 4]}, False
    yield "vllm-request", vllm_processors.RaisesSeen, {"seen": 0.5}, {}, False
    yield "vllm-request-function", vllm_processors.ban_last, {}, {}, False
    yield "vllm-v2", vllm_v2_processors.Biases, {"bias": {"3": 2.0}, "min_tokens": 1, "stop": [4]}, {}, False
    yield "vllm-v2-counts", vllm_v2_processors.Counts, {}, {}, False
    yield "builtin", NoRepeatNGram, {"ngram_size": 2}, {}, True
    yield "sglang-disallowed", DisallowedTokensLogitsProcessor, {"token_ids": [1, 2]}, {}, True
    # SGLang writes only this key.
    callable_alone = json.dumps({"callable": json.loads(DeepseekOCRNoRepeatNGramLogitProcessor.to_str())["callable"]})
    yield "sglang-callable-alone", callable_alone, {"ngram_size": "2", "window_size": 9}, {}, True


def _write_signed(folder: Path) -> None:
    _write_signed_payload(folder, processors.Tilt.to_str(), PYTHON)


def _write_signed_program(folder: Path) -> None:
    _write_signed_payload(folder, programs.adds_constants(), "")


def _write_signed_payload(folder: Path, unsigned: str, python: str) -> None:
    """Write a payload, signed for a name and a century, and the public key. The private key is not kept."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as keys:
        key = Path(keys, "team")
        subprocess.run([COMMAND, "payload", "keygen", str(key)], check=True, capture_output=True)
        shutil.copy(key.with_suffix(".pub"), folder)
        private = read_private_key(key)
    serialized = payload.sign(unsigned, private, name="team/tilt", seconds=_CENTURY_SECONDS)
    with run_server(_SHIPPING, "--trusted-keys", str(folder)) as server, Client(server.target) as client:
        rows = rows_of(client, [(serialized, {"by": 0.5})])
    case = {"python": python, "name": "team/tilt", "params": {"by": 0.5}, "rows": rows, "serialized": serialized}
    _write_json(folder / "payload.json", case)


def _write_folder_registry(folder: Path) -> None:
    """Write the folder of `--store`, with `--store-key`."""
    _write_key(folder)
    _write_registry(folder, str(folder / "store"), "--store-key", str(folder / "store.key"))
    (folder / "store" / "lock").unlink()
    assert [path.name for path in (folder / "store").iterdir()] == ["registry.db"]


def _write_redis_registry(folder: Path) -> None:
    """Write the content of a Redis database, as JSON."""
    _write_key(folder)
    with redis_database() as (url, database):
        _write_registry(folder, url, "--store-key", str(folder / "store.key"))
        _write_json(folder / "redis.json", read_hashes(database))


def _write_key(folder: Path) -> None:
    folder.mkdir()
    (folder / "store.key").write_text(secrets.token_hex(32) + "\n")


def _write_registry(folder: Path, store: str, *options: str) -> None:
    """Fill a store by two principals. Write the file of their tokens, and each principal's view of the store."""
    tokens = folder / "tokens"
    shown = {name: _add_token(name, tokens) for name in ("alice", "bob")}
    options = (_SHIPPING, "--tokens", str(tokens), "--store", store, "--quarantine-after", "1", *options)
    with run_server(*options) as server:
        with Client(server.target, token=shown["alice"]) as alice, Client(server.target, token=shown["bob"]) as bob:
            deleted = _fill(alice, bob)
        time.sleep(_QUARANTINE_STORED_SECONDS)
        server.stop()
    with run_server(*options) as server:
        for name, token in shown.items():
            with Client(server.target, token=token) as client:
                seen = {"python": PYTHON, "token": token, "deleted": deleted, "processors": _described(client)}
            _write_json(folder / f"{name}.json", seen)
        server.stop()


def _add_token(name: str, tokens: Path) -> str:
    """Create a token, append its line to the file, and return the token."""
    command = [COMMAND, "token", name, "--scope", "apply", "--scope", "register"]
    token, line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    with tokens.open("a") as file:
        file.write(line + "\n")
    return token


def _fill(alice: Client, bob: Client) -> list[str]:
    """Register processors and names, delete some, and return the deleted names and digests."""
    alice.register(processors.AllEdits, name="team/edits:v1", shared=True)
    alice.register(processors.Tilt, name="team/tilt")
    alice.register(processors.FewerRepeats, name="team/edits:v2")
    alice.register(processors.Budget, name="team/edits:v2", replace=True)
    bob.register(processors.Tilt, name="bob/tilt")
    bob.register(processors.Tilt, name="bob/tilt:again")
    bob.register(processors.halve_seen)
    digest = bob.register(processors.FailsAt, name="bob/deleted-digest").digest
    bob.delete(digest)
    bob.register(processors.halve_seen, name="bob/deleted-name")
    bob.delete("bob/deleted-name")
    bob.register(programs.adds_constants(), name="bob/program", shared=True)
    bob.register(processors.Exits, name="bob/exits")
    with suppress(RequestsFailed):
        rows_of(bob, [("bob/exits", {})])
    return [digest, "bob/deleted-digest", "bob/deleted-name"]


def _described(client: Client) -> list[dict[str, Any]]:
    """Return each registered processor as a principal sees it, with the rows that it returns."""
    described = []
    for ref in client.processors():
        if not ref.builtin:
            params = _PARAMS.get(ref.class_name, {})
            rows = [] if ref.quarantined else rows_of(client, [(ref.digest, params)])
            described.append(
                {"described": describe(ref), "quarantined": bool(ref.quarantined), "params": params, "rows": rows}
            )
    return described


def _chains() -> Iterator[tuple[str, str, dict[str, Chain]]]:
    """Yield (file, Python version, chains) of each recorded session."""
    deny = ("disallowed_tokens", {"token_ids": [1, 2]})
    budget = {"thinking_budget": 1, "thinking_start_ids": [5], "thinking_end_ids": [6]}
    temperature = ("temperature", {"temperature": 0.5})
    yield (
        "builtins",
        "",
        {"a": [deny], "b": [("no_repeat_ngram", {"ngram_size": 1})], "c": [("thinking_budget", budget), deny]},
    )
    yield (
        "shipped",
        PYTHON,
        {
            "a": [(processors.Tilt, {"by": 0.5}), deny],
            "b?": [(processors.FailsAt, {"at": 1})],
            "c": [(processors.FailsAt, {"at": 3}), (processors.halve_seen, {})],
        },
    )
    yield (
        "programs",
        "",
        {"a": [temperature, deny], "b": [deny, (programs.adds_constants(), {})], "c": [temperature]},
    )


def _write_sessions(folder: Path) -> None:
    folder.mkdir()
    with run_server(_SHIPPING, "--no-local-transport") as server:
        for name, python, chains in _chains():
            frames: list[tuple[bytes, bytes]] = []
            with recording(server.target, frames) as address:
                seen = _recorded(address, chains, "grpc")
            _write_session(folder / f"{name}.json", python, chains, seen, _hex(frames))
        requests = [frame.SerializeToString(deterministic=True) for frame in faulty_frames()]
        faults = list(zip(requests, exchange(server.target, requests), strict=True))
        _write_json(folder / "faults.json", {"python": "", "frames": _hex(faults)})


def _write_local_sessions(folder: Path) -> None:
    folder.mkdir()
    with run_server(_SHIPPING) as server:
        for name, python, chains in _chains():
            exchanges: list[local_recorder.Exchange] = []
            with local_recorder.recording(server.target, exchanges) as address:
                seen = _recorded(address, chains, "local")
            _write_session(folder / f"{name}.json", python, chains, seen, _hex(exchanges))
        requests = [frame.SerializeToString(deterministic=True) for frame in [*faulty_frames(), *faulty_regions()]]
        faults = local_recorder.exchange(server.target, ((request, b"") for request in requests))
        _write_json(folder / "faults.json", {"python": "", "frames": _hex(faults)})


def _recorded(address: str, chains: dict[str, Chain], transport: str) -> list[dict[str, Any]]:
    options = OPENING | {"transport": transport}
    with Client(address) as client, client.session(**options) as session:
        return converse(session, chains)


def _write_session(
    path: Path, python: str, chains: dict[str, Chain], seen: list[dict[str, Any]], frames: list[list[str]]
) -> None:
    plain = {
        request_id: [
            (processor if isinstance(processor, str) else payload.dumps(processor), params)
            for processor, params in chain
        ]
        for request_id, chain in chains.items()
    }
    _write_json(path, {"python": python, "chains": plain, "seen": seen, "frames": frames})


def _write_calls(folder: Path) -> None:
    folder.mkdir()
    made = []
    with run_server(_SHIPPING) as server, grpc.insecure_channel(server.target) as channel:
        for method, message in calls.requests(processors.Tilt.to_str(), programs.adds_constants()):
            request = message.SerializeToString(deterministic=True)
            made.append({"method": method, "request": request.hex(), **calls.ask(channel, method, request)})
    _write_json(folder / "calls.json", {"python": PYTHON, "calls": made})


def _hex(frames: Iterable[Iterable[bytes]]) -> list[list[str]]:
    return [[part.hex() for part in frame] for frame in frames]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one line for each key, and for each element of a list."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _write_sglang(path: Path) -> None:
    path.write_text(RemoteLogitProcessor.to_str() + "\n")


def _write_interface(path: Path) -> None:
    with run_server(_SHIPPING, "--metrics-listen", "127.0.0.1:0") as server:
        _write_json(path, interface(server))


# By the name of the folder or file.
PARTS: dict[str, Callable[[Path], None]] = {
    "payloads": _write_payloads,
    "programs": _write_programs,
    "sessions": _write_sessions,
    "sessions-local": _write_local_sessions,
    "calls": _write_calls,
    "signed": _write_signed,
    "signed-program": _write_signed_program,
    "registry-folder": _write_folder_registry,
    "registry-redis": _write_redis_registry,
    "interface.json": _write_interface,
    "sglang-engine.json": _write_sglang,
}

if __name__ == "__main__":
    shipping.LIFTS = False  # classes are stored as code
    parser = argparse.ArgumentParser(prog="python -m tests.stored", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write, such as tests/stored/0.1.0")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all: {', '.join(PARTS)}")
    chosen = parser.parse_args()
    if unknown := {*chosen.parts} - {*PARTS}:
        parser.error(f"no part is named {', '.join(sorted(unknown))}; the parts are: {', '.join(PARTS)}")
    write(chosen.folder, chosen.parts)
