"""Write the stored and sent formats of this version to a folder: `python -m tests.stored tests/stored/VERSION`."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitport import Client, InDialect, payload
from logitport.integrations.sglang import RemoteLogitProcessor
from logitport.payload.signing import read_private_key
from tests.conftest import COMMAND, run_server
from tests.engine_stubs import importable_stubs
from tests.stored import processors
from tests.stored.decoding import OPENING, PYTHON, converse, describe, rows_of
from tests.stored.frames import faulty_frames
from tests.stored.recorder import exchange, recording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stored.decoding import Chain

_CENTURY_SECONDS = 100 * 365 * 24 * 3600
_SHIPPING = "--enable-custom-logit-processor"
# Parameters of the registered classes.
_PARAMS = {
    "AllEdits": {"bias": 1.5},
    "Budget": {"thinking_budget": 1},
    "FewerRepeats": {"ngram_size": 2},
    "Tilt": {"by": 0.5},
}


def write(folder: Path) -> None:
    """Write every fixture. The folder must not exist."""
    folder.mkdir(parents=True)
    with run_server(_SHIPPING, "--no-local-transport") as server:
        with Client(server.target) as client:
            _write_payloads(folder / "payloads", client)
        _write_sessions(folder / "sessions", server.target)
    _write_signed(folder / "signed")
    _write_registry(folder / "registry")
    (folder / "sglang-engine.json").write_text(RemoteLogitProcessor.to_str() + "\n")


def _write_payloads(folder: Path, client: Client) -> None:
    folder.mkdir()
    with importable_stubs():
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
    """Write a payload, signed for a name and a century, and the public key. The private key is not kept."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as keys:
        key = Path(keys, "team")
        subprocess.run([COMMAND, "keygen", str(key)], check=True, capture_output=True)
        shutil.copy(key.with_suffix(".pub"), folder)
        private = read_private_key(key)
    tilt = processors.Tilt.to_str()
    serialized = payload.sign(tilt, private, name="team/tilt", seconds=_CENTURY_SECONDS)
    with run_server(_SHIPPING, "--trusted-keys", str(folder)) as server, Client(server.target) as client:
        rows = rows_of(client, [(serialized, {"by": 0.5})])
    case = {"python": PYTHON, "name": "team/tilt", "params": {"by": 0.5}, "rows": rows, "serialized": serialized}
    _write_json(folder / "payload.json", case)


def _write_registry(folder: Path) -> None:
    """Write a store that two principals used, the file of their tokens, and each principal's view of the store."""
    folder.mkdir()
    store, tokens = folder / "store", folder / "tokens"
    shown = {name: _add_token(name, tokens) for name in ("alice", "bob")}
    options = (_SHIPPING, "--tokens", str(tokens), "--store")
    with run_server(*options, str(store)) as server:
        with Client(server.target, token=shown["alice"]) as alice, Client(server.target, token=shown["bob"]) as bob:
            deleted = _fill(alice, bob)
        server.stop()
    (store / "lock").unlink()
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(store, Path(scratch, "store"))
        with run_server(*options, str(copy)) as server:
            for name, token in shown.items():
                with Client(server.target, token=token) as client:
                    seen = {"python": PYTHON, "token": token, "deleted": deleted, "processors": _described(client)}
                _write_json(folder / f"{name}.json", seen)


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
    return [digest, "bob/deleted-digest", "bob/deleted-name"]


def _described(client: Client) -> list[dict[str, Any]]:
    """Return each registered processor as a principal sees it, with the rows that it returns."""
    described = []
    for ref in client.processors():
        if not ref.builtin:
            params = _PARAMS.get(ref.class_name, {})
            rows = rows_of(client, [(ref.digest, params)])
            described.append({"described": describe(ref), "params": params, "rows": rows})
    return described


def _write_sessions(folder: Path, target: str) -> None:
    folder.mkdir()
    deny = ("disallowed_tokens", {"token_ids": [1, 2]})
    budget = {"thinking_budget": 1, "thinking_start_ids": [5], "thinking_end_ids": [6]}
    builtins: dict[str, Chain] = {
        "a": [deny],
        "b": [("no_repeat_ngram", {"ngram_size": 1})],
        "c": [("thinking_budget", budget), deny],
    }
    shipped: dict[str, Chain] = {
        "a": [(processors.Tilt, {"by": 0.5}), deny],
        "b?": [(processors.FailsAt, {"at": 1})],
        "c": [(processors.FailsAt, {"at": 3}), (processors.halve_seen, {})],
    }
    for name, python, chains in (("builtins", "", builtins), ("shipped", PYTHON, shipped)):
        frames: list[tuple[bytes, bytes]] = []
        with recording(target, frames) as address, Client(address) as client, client.session(**OPENING) as session:
            seen = converse(session, chains)
        plain = {
            request_id: [
                (processor if isinstance(processor, str) else payload.dumps(processor), params)
                for processor, params in chain
            ]
            for request_id, chain in chains.items()
        }
        _write_json(folder / f"{name}.json", {"python": python, "chains": plain, "seen": seen, "frames": _hex(frames)})
    requests = [frame.SerializeToString(deterministic=True) for frame in faulty_frames()]
    faults = list(zip(requests, exchange(target, requests), strict=True))
    _write_json(folder / "faults.json", {"python": "", "frames": _hex(faults)})


def _hex(frames: list[tuple[bytes, bytes]]) -> list[list[str]]:
    return [[request.hex(), reply.hex()] for request, reply in frames]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one line for each key, and for each element of a list."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
