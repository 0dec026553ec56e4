"""`logitport replay` on recordings of sessions with a real server."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, CustomLogitProcessor, EditProcessor, Request
from logitport_proto.recording_pb2 import RecordedProcessor
from logitport_recording import RecordOptions
from tests.play.recordings import STORY, write_hostile_recording, write_recording
from tests.recording.reading.build import began, member, opened, stepped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VOCAB = 50
COMMAND = str(Path(sys.executable).with_name("logitport"))
EDITS = """
from logitport import EditProcessor

class Ban(EditProcessor):
    def edit(self, request, edits):
        {body}
"""
AS_RECORDED = "edits.deny(request.history.output_token_ids)"


class Ban(EditProcessor):
    """Denies all output ids."""

    def edit(self, request: Any, edits: Any) -> None:
        edits.deny(request.history.output_token_ids)


class Halves(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits / 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.lprec"


def record(
    client: Client,
    path: Path,
    chains: Mapping[str, Sequence[tuple[Any, Mapping[str, Any]]]],
    *,
    sampling_params: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Record three steps, a rewind and a step with drafts of each request."""
    random = np.random.default_rng(1)
    with client.session(vocab_size=VOCAB, max_draft_tokens=2, record=RecordOptions(path, **options)) as session:
        handles = [
            session.add(Request([1, 2], [3], chain, name, sampling_params or {})) for name, chain in chains.items()
        ]
        for new in ([], [10], [11]):
            logits = random.normal(size=(len(handles), VOCAB)).astype(np.float32)
            session.step(dict.fromkeys(handles, new)).apply(logits)
        for handle in handles:
            session.rewind(handle, 4)
        session.step({handle: [12] for handle in handles}, drafts={handle: [13, 14] for handle in handles}).apply(
            random.normal(size=(3 * len(handles), VOCAB)).astype(np.float32)
        )
        session.step({handle: [13, 20] for handle in handles}).apply(
            random.normal(size=(len(handles), VOCAB)).astype(np.float32)
        )


@pytest.fixture
def replay(logitport: Any, path: Path, tmp_path: Path) -> Any:
    """Runs the command with a version of Ban that has this body."""
    versions = count()

    def call(body: str | None, *options: str, name: str = "") -> Any:
        arguments = ["replay", path, *options]
        if body is not None:
            # A name of its own, because a file is imported as a module.
            file = tmp_path / f"{tmp_path.name}_{next(versions)}.py"
            file.write_text(EDITS.format(body=body.replace("\n", "\n        ")))
            arguments += ["--with", f"{name}{file}:Ban"]
        return logitport(*arguments)

    return call


def test_the_recorded_version_does_not_differ(client: Client, path: Path, replay: Any) -> None:
    """With drafts, a rewind, and another processor in the chain."""
    record(client, path, {"one": [(Ban, {}), ("logit_bias", {"logit_bias": {"7": 2.0}})], "two": [(Ban, {})]})
    result = replay(AS_RECORDED)
    assert (result.status, result.out) == (0, "no difference in 14 rows of 2 requests\n")


def test_differences_step_by_step(client: Client, path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {})]}, sample_every=2, top_k=4)
    body = "edits.deny([20, *request.history.output_token_ids[1:]])\nedits.bias([30], [1.5])"
    result = replay(body, "--json")
    assert result.status == 1
    assert (result.json["differs"], result.json["compared"], result.json["rows_that_differ"]) == (True, 7, 7)
    ((request),) = result.json["requests"]
    assert (request["request_id"], request["chain"]) == ("one", ["Ban"])
    rows = request["rows"]
    assert [(row["step"], row["offset"], row["length"]) for row in rows] == [
        (0, 0, 3),
        (1, 0, 4),
        (2, 0, 5),
        (3, 0, 5),
        (3, 1, 6),
        (3, 2, 7),
        (4, 0, 7),
    ]
    for row in rows:
        assert row["difference"]["denied"] == ([20] if row["step"] < 4 else [])
        assert row["difference"]["allowed"] == [3]
        assert (row["difference"]["biased"], row["difference"]["bias"]) == ([30], [1.5])
        assert (row["recorded"] is not None) == (row["step"] % 2 == 0)
    # The engine accepted one draft and chose 20, which the new version denies.
    assert [row["chosen"] for row in rows] == [10, 11, None, 13, 20, None, None]
    assert [row["chosen_denied"] for row in rows] == [False] * 4 + [True] + [False] * 2
    text = replay(body)
    assert (text.status, text.out.splitlines()) == (
        1,
        ["request one: differs in 7 of 7 rows, 1 chosen ids denied", "1 of 1 requests differ, in 7 of 7 rows"],
    )


def test_forced_ids(client: Client, path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {})]})
    (request,) = replay("edits.force(9)", "--json").json["requests"]
    difference = request["rows"][0]["difference"]
    assert (difference["forced"], difference["was_forced"], difference["denied"][:3]) == (9, None, [0, 1, 2])


def test_a_version_that_fails(client: Client, path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {})]})
    result = replay("if len(request.history) == 4:\n    raise RuntimeError('at four')")
    assert result.status == 1
    (line, total) = result.out.splitlines()
    assert line.startswith("request one: differs in 2 of 2 rows; the new version fails: processor Ban raised ")
    assert "at four" in line
    assert total == "1 of 1 requests differ, in 2 of 2 rows"


REFUSES = """
from logitport import EditProcessor

class Ban(EditProcessor):
    @classmethod
    def validate_params(cls, params):
        raise ValueError("a is not known")

    def edit(self, request, edits):
        pass
"""


def test_a_version_that_refuses_the_parameters(client: Client, path: Path, tmp_path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {"a": 1})]})
    (tmp_path / "refusing_ban.py").write_text(REFUSES)
    result = replay(None, "--with", f"{tmp_path / 'refusing_ban.py'}:Ban")
    assert result.status == 1
    assert result.out.splitlines() == [
        "request one: not compared: processor Ban: a is not known",
        "1 of 1 requests were not compared",
    ]


def write_without_steps(path: Path) -> None:
    """Add a request that has begun and of which no step is recorded."""
    ban = RecordedProcessor(name="Ban", digest="0" * 64, class_name="Ban")
    with path.open("ab") as file:
        file.write(member(opened(VOCAB), began(7, "without steps", chain=[ban])))


@pytest.mark.parametrize(
    ("body", "compared"),
    [
        (AS_RECORDED, "no difference in 7 rows of 1 requests"),
        ("edits.deny([1, 2])", "1 of 1 requests differ, in 7 of 7 rows"),
    ],
)
def test_only_requests_with_compared_rows_are_counted(
    client: Client, path: Path, replay: Any, body: str, compared: str
) -> None:
    record(client, path, {"one": [(Ban, {})]})
    write_without_steps(path)
    assert replay(body).out.splitlines()[-1] == f"{compared}; 1 of 2 requests were not compared"


def test_chains_that_read_logits_are_compared_where_they_were_sampled(client: Client, path: Path, replay: Any) -> None:
    chain = [(Ban, {}), (Halves, {})]
    record(client, path, {"one": chain}, sample_every=2, payloads=True)
    same = replay(AS_RECORDED, "--run-payloads")
    assert (same.status, same.out) == (
        0,
        "no difference in 3 rows of 1 requests; 4 rows without recorded edits or logits were not compared\n",
    )
    other = replay("edits.bias(list(range(50)), [1.0] * 50)", "--json", "--run-payloads")
    assert other.status == 1
    assert {round(bias, 3) for row in other.json["requests"][0]["rows"] for bias in row["difference"]["bias"]} == {0.5}


@pytest.mark.parametrize(
    ("chain", "recorded", "options", "name", "message"),
    [
        ([(Ban, {}), ("temperature", {"temperature": 0.5})], {"sample_every": 0}, (), "", "no step can be compared"),
        ([(Ban, {}), (Halves, {})], {}, (), "", "Halves is not in the recording"),
        ([(Ban, {}), (Halves, {})], {"payloads": True}, (), "", "--run-payloads"),
        ([(Ban, {})], {}, (), "min_p=", "The chains are: Ban"),
        ([(Ban, {})], {}, ("--request", "three"), "", "the recording has no request 'three'"),
    ],
)
def test_what_cannot_be_compared(
    client: Client, path: Path, replay: Any, chain: Any, recorded: Any, options: Any, name: str, message: str
) -> None:
    record(client, path, {"one": chain}, **recorded)
    result = replay(AS_RECORDED, *options, name=name)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


def test_code_of_the_recording_runs_only_on_request(client: Client, path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {}), (Halves, {})]}, payloads=True)
    assert replay(AS_RECORDED).status == 2
    assert replay(AS_RECORDED, "--run-payloads").status == 0
    alone = replay(None, "--run-payloads")
    assert alone.status == 2
    assert "give --with" in alone.err


@pytest.mark.parametrize("place", ["builtin", "payload"])
def test_a_hostile_recording_runs_no_code(path: Path, tmp_path: Path, replay: Any, place: str) -> None:
    marker = tmp_path / "marker"
    write_hostile_recording(path, marker, place)
    result = replay(AS_RECORDED, name="Ban=")
    assert result.status in (1, 2)
    assert not marker.exists()


def test_the_replaced_processor_may_be_named(client: Client, path: Path, replay: Any) -> None:
    chain = [("disallowed_tokens", {"token_ids": [5]})]
    record(client, path, {"one": chain, "two": [(Ban, {})]})
    result = replay("edits.deny([5, 6])", name="disallowed_tokens=")
    assert result.status == 1
    assert result.out.endswith(
        "1 of 1 requests differ, in 7 of 7 rows; 1 requests without the processor were left out\n"
    )


def test_one_request(client: Client, path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {})], "two": [(Ban, {})]})
    result = replay("pass", "--request", "two", "--json")
    assert [request["request_id"] for request in result.json["requests"]] == ["two"]


def test_a_recording_that_takes_too_much_memory(path: Path, replay: Any) -> None:
    events = [opened(VOCAB)]
    for key in range(2):
        events.append(began(key, f"request {key}"))
        events += [stepped(key, index) for index in range(6000)]
    path.write_bytes(member(*events))
    refused = replay(None, "--max-memory", "1MiB")
    assert (refused.status, refused.out) == (2, "")
    assert "more than 1 MiB of memory" in refused.err
    assert replay(None, "--max-memory", "1MiB", "--request", "request 1").status == 0
    assert replay(None).status == 0


def test_the_list_of_requests(client: Client, path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {})], "two": [("top_k", {"top_k": 3})]})
    listed = replay(None)
    assert listed.status == 0
    assert [line.split() for line in listed.out.splitlines()[1:]] == [
        ["REQUEST", "PROMPT", "STEPS", "STATE", "CHAIN"],
        ["one", "2", "5", "open", "Ban"],
        ["two", "2", "5", "open", "top_k"],
    ]
    (session,) = replay(None, "--json").json["sessions"]
    assert session["ended"] == "closed"
    assert session["requests"][1]["chain"] == [{"processor": "top_k", "digest": "", "params": {"top_k": 3}}]


def test_files_that_are_cut_or_damaged(client: Client, path: Path, replay: Any) -> None:
    record(client, path, {"one": [(Ban, {})]})
    record(client, path, {"two": [(Ban, {})]})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])  # the process was killed in a write
    cut = replay(None)
    assert cut.status == 0
    assert "bytes are incomplete: a process ended while it wrote them" in cut.out
    end = int.from_bytes(whole[16:20], "little") - 8  # of the first member's data; its checksum follows
    path.write_bytes(whole[:end] + bytes([whole[end] ^ 1]) + whole[end + 1 :])
    damaged = replay(None)
    assert damaged.status == 2
    assert damaged.err == (
        f"logitport: {path}: it is damaged: the member at byte 0 cannot be decompressed: Error -3 while "
        "decompressing data: incorrect data check\n"
    )
    path.write_bytes(b"notes")
    assert "this is no recording of logitport" in replay(None).err
    path.unlink()
    assert "cannot be read" in replay(None).err


@pytest.mark.slow  # a process, which then has the stubs of vLLM
def test_a_version_may_import_vllm(client: Client, path: Path, tmp_path: Path) -> None:
    record(client, path, {"one": [(Ban, {})]})
    (tmp_path / "vllm_ban.py").write_text("import vllm.v1.sample.logits_processor\n" + EDITS.format(body=AS_RECORDED))
    command = [COMMAND, "replay", path, "--with", "vllm_ban.py:Ban"]
    assert subprocess.run(command, check=False, capture_output=True, cwd=tmp_path, timeout=200).returncode == 0


def record_by_name(client: Client, path: Path) -> None:
    """Record two requests that name registered processors, by a client that has not registered them: an engine's."""
    client.register(Ban, name="team/ban:v1")
    client.register(Halves, name="team/halves:v1")
    with Client(client.target) as engine:
        record(engine, path, {"one": [("team/ban:v1", {})], "two": [("team/halves:v1", {})]})


def test_registered_names_are_recorded(client: Client, path: Path, replay: Any) -> None:
    record_by_name(client, path)
    assert [line.split()[-1] for line in replay(None).out.splitlines()[2:]] == ["team/ban:v1", "team/halves:v1"]
    same = replay(AS_RECORDED, name="team/ban:v1=")
    assert same.out == "no difference in 7 rows of 1 requests; 1 requests without the processor were left out\n"


def test_a_version_that_would_replace_several_processors_needs_a_name(client: Client, path: Path, replay: Any) -> None:
    """Without the names of classes, it fits the only shipped processor of each chain."""
    record_by_name(client, path)
    result = replay(AS_RECORDED)
    assert (result.status, result.out) == (2, "")
    assert "team/ban:v1, team/halves:v1" in result.err
    assert "--with NAME=FILE.py:CLASS" in result.err


WITH_TEXT = """
from logitport import EditProcessor

class NoRepeat(EditProcessor):
    def edit(self, request, edits):
        edits.deny([*request.tokenizer.ids_containing("king"), *request.history.output_token_ids])
"""


def test_processors_have_the_tokenizer(path: Path, tmp_path: Path, replay: Any) -> None:
    write_recording(path)
    (tmp_path / "with_text.py").write_text(WITH_TEXT)
    options = ["--request", "chat-edits", "--with", f"{tmp_path / 'with_text.py'}:NoRepeat"]
    found = replay(None, *options, "--tokenizer", str(STORY.tokenizer_path))
    assert found.status == 1
    assert found.out.startswith("request chat-edits: differs in ")
    del sys.modules["with_text"]
    without = replay(None, *options)
    assert "no tokenizer is named" in without.out
    assert "the option --tokenizer PATH that of `logitport replay`" in without.out
    del sys.modules["with_text"]


def test_a_tokenizer_that_cannot_be_used(path: Path, replay: Any) -> None:
    write_recording(path)
    missing = replay(AS_RECORDED, "--tokenizer", str(path.parent / "missing"))
    assert missing.status == 2
    assert "missing" in missing.err
    alone = replay(None, "--tokenizer", str(STORY.tokenizer_path))
    assert alone.status == 2
    assert "--tokenizer is that of the versions" in alone.err
