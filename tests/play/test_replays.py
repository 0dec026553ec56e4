"""The page of a recording: where new versions of its processors differ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from logitport import InvalidArgument, PayloadError
from logitport_play.replays import Replays, ReplaySpec, RequestReplay
from logitport_play.watched_files import Files
from logitport_play.web.serving import PlayServer
from logitport_recording.reading.reader import Recording, read_recording
from logitport_testing.replaying.replacement import Replacement
from logitport_testing.replaying.replay import replay
from tests.play.conftest import running
from tests.play.recordings import (
    AS_RECORDED,
    NEW,
    REFUSING,
    STEPS,
    STORY,
    write_hostile_recording,
    write_recording,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.play.conftest import Client

EDITS, READS, UNKNOWN = range(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replays")
    (folder / "my.py").write_text(NEW)
    write_recording(folder / "engine.lprec")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[PlayServer]:
    recording, tokenizer = folder / "engine.lprec", STORY.tokenizer_path
    with running(PlayServer([folder / "my.py"], recording=recording, tokenizer=tokenizer)) as server:
        yield server


@pytest.fixture
def page(client: Client, folder: Path) -> Client:
    (folder / "my.py").write_text(NEW)
    return client


def whole(page: Client, request: int, versions: list[str] | None = None) -> Any:
    """Replays to the end, as the page does."""
    panes: list[str] = []
    while True:
        spec = {"request": request, "versions": versions, "since": len(panes)}
        status, answer = page.post("replay", spec)
        assert status == 200, answer
        panes[answer["since"] :] = answer["panes"]
        if answer["ended"]:
            return {**answer, "panes": [" ".join(re.sub("<.*?>", " ", pane).split()) for pane in panes]}


def test_the_state(page: Client) -> None:
    state = page.get("state")
    assert (state["recording"], state["versions"]) == ("engine.lprec", ["my.py:NoRepeat", "my.py:Cooler"])
    assert [(one["name"], one["steps"], one["chain"]) for one in state["requests"]] == [
        ("chat-edits", STEPS, "NoRepeat"),
        ("chat-reads", STEPS, "top_k, Cooler"),
        ("chat-unknown", STEPS, "Lost"),
    ]
    assert [place["as_recorded"] for place in whole(page, READS)["chain"]] == [
        "as recorded",
        "not recorded: choose a version",
    ]


def test_edits_show_where_no_logits_were_recorded_and_candidates_elsewhere(page: Client) -> None:
    result = whole(page, EDITS)
    (place,) = result["chain"]
    assert (place["name"], place["version"], place["params"]) == ("NoRepeat", "my.py:NoRepeat", '{"strength":1}')
    assert result["steps"] == STEPS
    assert result["differ"] == [*range(1, STEPS)]
    assert result["summary"] == f"differs in {STEPS - 1} of {STEPS} rows"
    assert result["panes"][1].startswith("Step 1, after ")
    assert "differs \N{MIDDLE DOT} no logits were recorded in this step" in result["panes"][1]
    assert "The new version allows 1 id:" in result["panes"][1]
    assert "1 recorded version denied 1 id:" in result["panes"][1]
    assert "2 new version changed nothing" in result["panes"][1]
    assert "candidate" not in result["panes"][1]
    assert result["tiles"].count("lp-differs") == STEPS - 1
    assert "Both versions do the same." in result["panes"][0]
    for step in (0, 3, 6):
        assert "candidate model" in result["panes"][step]
    assert "moved" in result["panes"][3]
    assert "\N{MULTIPLICATION X}" in result["panes"][3]


def test_the_same_rows_as_in_the_terminal(page: Client, folder: Path) -> None:
    files = Files([folder / "my.py"])
    for request, name in ((EDITS, "NoRepeat"), (READS, "Cooler")):
        recording = read_recording(folder / "engine.lprec")
        replacement = Replacement(files.find(f"my.py:{name}"), name)
        (expected,) = replay(recording, [replacement], request_id=("chat-edits", "chat-reads")[request]).requests
        result = whole(page, request)
        assert result["differ"] == [row["step"] for row in expected.rows]
        assert ("without recorded edits or logits" in result["summary"]) == bool(expected.not_compared)


def test_chains_that_read_logits(page: Client) -> None:
    result = whole(page, READS)
    assert [one["version"] for one in result["chain"]] == ["", "my.py:Cooler"]
    assert result["differ"] == [0, 2, 4, 6]
    assert result["summary"] == "differs in 4 of 4 rows, 4 without recorded edits or logits not compared"
    assert "Not compared: no logits were recorded in this step." in result["panes"][1]
    assert re.search(r"The new version shifts 2\d ids: .* by \N{MINUS SIGN}.* to ", result["panes"][2])
    assert result["tiles"].count("lp-unknown") == 4


def test_a_saved_file_runs_again(page: Client, folder: Path) -> None:
    version = page.get("files")["version"]
    assert whole(page, EDITS)["differ"]
    (folder / "my.py").write_text(AS_RECORDED)
    result = whole(page, EDITS)
    assert (result["differ"], result["summary"]) == ([], f"no difference in {STEPS} rows")
    assert whole(page, READS)["differ"] == []
    assert page.get("files")["version"] > version


def test_errors_of_the_new_version(page: Client, folder: Path) -> None:
    (folder / "my.py").write_text(
        NEW.replace("edits.deny(", "edits.deny([1 // (3 - request.history.length % 4)]) or (")
    )
    result = whole(page, EDITS)
    assert result["error"].startswith("processor NoRepeat raised ZeroDivisionError")
    assert (result["steps"], result["ended"]) == (len(result["panes"]), True)
    assert "The new version fails: processor NoRepeat raised ZeroDivisionError" in result["panes"][-1]
    assert "edits.deny([1 //" in result["panes"][-1]
    (folder / "my.py").write_text(REFUSING)
    refused = whole(page, EDITS)
    assert "no strength" in refused["error"]
    assert (refused["steps"], refused["ended"]) == (0, True)
    assert refused["summary"] == "request chat-edits: not compared: processor NoRepeat: no strength"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"request": 3}, "there is no request 3"),
        ({"request": -1}, "$.request"),
        ({"request": EDITS, "versions": []}, "the chain has 1 processors, and 0 versions are chosen"),
        ({"request": EDITS, "other": 1}, "unknown field `other`"),
    ],
)
def test_what_cannot_be_replayed(page: Client, spec: Any, message: str) -> None:
    status, answer = page.post("replay", spec)
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("request_index", "version", "message"),
    [
        (UNKNOWN, "", "Lost is not in the recording: choose a version of it"),
        (EDITS, "my.py:None", "my.py has no processor 'None'"),
        (EDITS, "/etc/passwd:x", "there is no processor"),
    ],
)
def test_a_version_is_missing(page: Client, request_index: int, version: str, message: str) -> None:
    result = whole(page, request_index, [version])
    assert message in result["error"]
    assert (result["steps"], result["ended"], result["chain"][0]["version"]) == (0, True, version)
    name = ("chat-edits", "chat-reads", "chat-unknown")[request_index]
    assert result["summary"] == f"request {name}: not compared: {result['error']}"


def test_versions_are_chosen_by_class(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(AS_RECORDED.replace("class NoRepeat", "class Other"))
    replays = Replays(read_recording(folder / "engine.lprec"), Files([tmp_path / "other.py", folder / "my.py"]))
    assert replays.replay(ReplaySpec(EDITS)).versions == ["my.py:NoRepeat"]
    assert replays.replay(ReplaySpec(UNKNOWN)).versions == ["other.py:Other"]
    assert replays.texts == {}
    replays.close()


def test_processors_have_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text(
        AS_RECORDED.replace("request.history.output_token_ids", "request.tokenizer.ids_containing('king')")
    )
    for tokenizer, error in ((STORY.tokenizer_path, ""), (None, "no tokenizer is named")):
        replays = Replays(read_recording(folder / "engine.lprec"), Files([tmp_path / "text.py"]), tokenizer)
        result = replays.replay(ReplaySpec(EDITS))
        assert error in result.outcome.error
        assert bool(result.outcome.error) == bool(error)
        replays.close()


@pytest.mark.parametrize("place", ["builtin", "payload"])
def test_a_hostile_recording_runs_no_code(tmp_path: Path, place: str) -> None:
    write_hostile_recording(tmp_path / "hostile.lprec", tmp_path / "marker", place)
    (tmp_path / "ban.py").write_text(AS_RECORDED.replace("class NoRepeat", "class Ban"))
    replays = Replays(read_recording(tmp_path / "hostile.lprec"), Files([tmp_path / "ban.py"]))
    result = _ended(replays)
    replays.close()
    assert not (tmp_path / "marker").exists()
    assert result.versions == ["ban.py:Ban", ""]
    assert result.outcome.error
    if place == "payload":
        assert "Halves is code of the recording, which does not run by default" in result.outcome.error
        assert result.outcome.summary == f"not compared: {result.outcome.error}"
        assert len(result.rows) == STEPS
        assert (result.outcome.compared, result.outcome.not_compared) == (0, STEPS)
        assert "--run-payloads" in result.rows[3].pane
        assert "denied" in result.rows[3].pane


def test_code_of_the_recording_runs_on_request(tmp_path: Path) -> None:
    write_hostile_recording(tmp_path / "hostile.lprec", tmp_path / "marker")
    (tmp_path / "ban.py").write_text(AS_RECORDED.replace("class NoRepeat", "class Ban"))
    replays = Replays(read_recording(tmp_path / "hostile.lprec"), Files([tmp_path / "ban.py"]), run_payloads=True)
    _ended(replays)
    replays.close()
    assert (tmp_path / "marker").exists()


def _ended(replays: Replays) -> RequestReplay:
    while not (result := replays.replay(ReplaySpec(0))).ended:
        pass
    return result


def test_what_cannot_be_opened(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="no request"):
        Replays(Recording([]), Files([]))
    with pytest.raises(PayloadError, match=r"engine\.lprec"):
        Replays(read_recording(folder / "engine.lprec"), Files([]), folder / "engine.lprec")
