"""Functions that the page calls: runs, and input that cannot be used."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from logitport_play.web.serving import PlayServer
from logitport_testing import StoryModel, simulate
from tests.play.conftest import SPEC, Client, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NGRAM = {"processor": "no_repeat_ngram", "params": {"ngram_size": 2}}
STORY = StoryModel()
PROMPT = STORY.encode("Once upon a time")


def test_the_state(client: Client) -> None:
    state = client.get("state")
    forms = {form["name"]: form for form in state["processors"]}
    assert [name for name in forms if ":" in name] == ["my.py:Boost", "my.py:Fails", "my.py:flatter"]
    assert {"temperature", "grammar", "no_repeat_ngram"} < set(forms)
    assert state["chain"] == [{"processor": "my.py:Boost", "params": {"bias": 1.5}}]
    assert (state["model"], state["seed"], state["prompt"]) == ("story", 7, "Once upon a time")
    (file,) = state["files"]
    assert (file["name"], file["error"]) == ("my.py", "")


def test_a_run_equals_a_simulation(client: Client) -> None:
    chain: Any = [NGRAM, {"processor": "temperature", "params": {"temperature": 0.7}}]
    answer = client.run(chain=chain, steps=6, forced={"2": 9})
    expected = simulate(
        [(one["processor"], one["params"]) for one in chain],
        STORY,
        PROMPT,
        6,
        temperature=1.0,
        seed=7,
        output=[None, None, 9],
    )
    assert tuple(answer["tokens"]) == expected.output_token_ids
    assert len(answer["panes"]) == 6
    assert "forced by hand" in answer["tiles"]
    assert answer["summary"]["moved"] == pytest.approx(sum(step.moved for step in expected.steps) / 6)


def test_a_run_goes_on_where_its_lane_was_until_its_chain_ids_or_seed_change(client: Client) -> None:
    first = client.run(chain=[NGRAM], steps=3)
    client.run(lane="b", chain=[], steps=3)
    more = client.run(chain=[NGRAM], steps=5, since=3)
    assert (more["since"], more["steps"], more["new_steps"], len(more["panes"])) == (3, 5, 2, 2)
    assert more["tokens"][:3] == first["tokens"]
    again = client.run(chain=[NGRAM], steps=5, since=0)
    assert (again["new_steps"], len(again["panes"])) == (0, 5)
    forced = client.run(chain=[NGRAM], steps=4, since=4, forced={"1": 5})
    assert (forced["since"], forced["tokens"][0], forced["tokens"][1]) == (0, first["tokens"][0], 5)
    assert client.run(chain=[NGRAM], steps=3)["tokens"] == first["tokens"]
    assert client.run(chain=[NGRAM], steps=0)["tokens"] == []
    assert client.run(chain=[NGRAM], steps=4, seed=8)["since"] == 0


def test_a_processor_that_raises_is_left_out(client: Client) -> None:
    answer = client.run(chain=[{"processor": "my.py:Fails"}, NGRAM], steps=3)
    assert answer["tiles"].count("lp-failed") == 1
    assert "at the third step" in answer["errors"]["0"]
    assert "my.py" in answer["panes"][2]
    assert "at the third step" in answer["panes"][2]
    later = client.run(chain=[{"processor": "my.py:Fails"}, NGRAM], steps=4)
    assert later["errors"]["0"].startswith("failed in 1 of 4 steps, the last time in step 3: ")


def test_the_examples_show_an_effect_on_the_small_model() -> None:
    """Each processor lowers the number of the ids that its card counts."""
    with running(PlayServer()) as server:
        examples = Client(server.url).get("examples")["examples"]
        assert len(examples) == 3
        for example in examples:
            before, after = re.findall(r"<b>(\d+) \N{RIGHTWARDS ARROW} (\d+)</b>", example["html"])[0]
            assert int(before) >= int(after) + 4
            without, with_it = example["html"].split("</figure>")[:2]
            assert (without.count("counted"), with_it.count("counted")) == (int(before), int(after))
            answer = Client(server.url).run(**{key: example[key] for key in ("prompt", "seed", "steps", "chain")})
            assert (answer["steps"], answer["errors"]) == (24, {})


def test_a_page_with_files_has_no_examples(client: Client) -> None:
    assert client.get("examples") == {"examples": []}


@pytest.mark.parametrize("params", [{"ngram_size": -1}, {}, {"x": {"y": [None]}}])
def test_parameters_that_a_processor_refuses(client: Client, params: Any) -> None:
    answer = client.run(chain=[{"processor": "no_repeat_ngram", "params": params}], steps=2)
    assert "ngram_size" in answer["errors"]["0"] or "unknown parameter" in answer["errors"]["0"]
    assert answer["steps"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chain": [{"processor": "no_such"}]}, "no processor 'no_such'"),
        ({"chain": [{"processor": "other.py:Boost"}]}, "no processor 'other.py:Boost'"),
        ({"chain": [{"processor": "../../etc/passwd:x"}]}, "no processor"),
        ({"chain": [{"processor": "my.py:helper"}]}, "my.py has no processor 'helper'; it has: Boost, Fails, flatter"),
        ({"chain": [{"processor": "my.py:__builtins__"}]}, "my.py has no processor"),
        ({"chain": [{"processor": "top_k", "params": []}]}, "Expected `object`, got `array` - at `$.chain[0].params`"),
        ({"chain": [NGRAM] * 17}, "length <= 16"),
        ({"model": "/etc"}, "no model '/etc'"),
        ({"prompt": "a" * 40_001}, "length <= 40000"),
        ({"prompt": "ü" * 5000}, "at most 4096"),
        ({"steps": 513}, "$.steps"),
        ({"seed": -1}, "$.seed"),
        ({"temperature": -0.1}, "$.temperature"),
        ({"forced": {"-1": 3}}, "$.forced"),
        ({"forced": {"0": 99_999}}, "ids must lie in [0, 202)"),
        ({"lane": "c"}, "$.lane"),
        ({"other": 1}, "unknown field `other`"),
    ],
)
def test_what_cannot_be_run(client: Client, change: Any, message: str) -> None:
    status, answer = client.post("run", {**SPEC, **change})
    assert status == 400
    assert message in answer["error"]
    assert client.run(steps=1)["steps"] == 1  # the next call is served


LOOPS = """
import time
from logitport import EditProcessor

class Loops(EditProcessor):
    def edit(self, request, edits):
        if len(request.history.output_token_ids) == 1:
            while True:
                pass  # the loop

class Sleeps(EditProcessor):
    def edit(self, request, edits):
        time.sleep(1000)
"""


@pytest.fixture
def looping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a page with processors that do not return."""
    monkeypatch.setattr("logitport_play.watch.LIMIT_SECONDS", 0.3)
    (tmp_path / "my.py").write_text(LOOPS)
    with running(PlayServer([tmp_path / "my.py"], seed=7)) as server:
        yield Client(server.url)


@pytest.mark.slow
def test_a_processor_that_does_not_return_is_stopped_and_its_step_given_up(looping: Client) -> None:
    loops = [NGRAM, {"processor": "my.py:Loops"}]
    answer = looping.run(chain=loops, steps=4)
    assert (answer["steps"], answer["tiles"].count("lp-failed")) == (2, 1)
    assert answer["ended_because"] == "step 2 was given up, because a processor did not return"
    assert list(answer["errors"]) == ["1"]
    assert "was stopped; the step was given up: look for a loop" in answer["errors"]["1"]
    again = looping.run(chain=loops, steps=4, since=2)
    assert (again["steps"], again["new_steps"], bool(again["ended"])) == (2, 0, True)
    assert looping.run(chain=[NGRAM], steps=4)["steps"] == 4


@pytest.mark.slow
def test_a_processor_that_cannot_be_stopped_is_an_error_with_its_line(
    looping: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logitport_play.watch.GRACE_SECONDS", 0.3)
    status, answer = looping.post("run", {**SPEC, "chain": [{"processor": "my.py:Sleeps"}]})
    assert status == 400
    assert "edit did not return within 0.3 s, and cannot be stopped" in answer["error"]
    assert f"line 13 of {tmp_path / 'my.py'}" in answer["error"]
    assert looping.run(chain=[NGRAM], steps=4)["steps"] == 4


WRONG = [b"", b"{", b"null", b"[]", b'{"lane": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"chain": 1}']


@pytest.mark.parametrize("body", WRONG)
@pytest.mark.parametrize("name", ["run", "export"])
def test_bodies_that_are_no_request(client: Client, name: str, body: bytes) -> None:
    status, answer = client.post(name, body)
    assert status == 400
    assert "cannot be read" in answer["error"]


@pytest.mark.parametrize("name", ["run", "export"])
@pytest.mark.parametrize("depth", [300, 900, 5000, 400_000])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"x":', b"}")], ids=["lists", "objects"])
def test_bodies_that_are_nested_too_deeply(client: Client, name: str, depth: int, begin: bytes, end: bytes) -> None:
    depth = min(depth, 1_000_000 // len(begin + end))
    params = b'{"ngram_size": ' + begin * depth + b"1" + end * depth + b"}"
    spec = json.dumps({**SPEC, "chain": [{"processor": "no_repeat_ngram", "params": "PARAMS"}]}).encode()
    status, answer = client.post(name, spec.replace(b'"PARAMS"', params))
    assert status == 400
    assert "nested" in answer["error"]


@pytest.mark.parametrize("default", ["10**30", "'\\udc80'"])
def test_a_failure_of_a_call_is_shown(tmp_path: Path, default: str) -> None:
    """JSON has neither integers of over 64 bits nor parts of characters."""
    file = tmp_path / "wide.py"
    file.write_text(f"def wide(input_ids, scores, much={default}):\n    return scores\n")
    with running(PlayServer([file])) as server:
        client = Client(server.url)
        status, body, _ = client.call("GET", f"{client.path}api/state")
    assert status == 500
    assert json.loads(body)["error"]


def test_a_body_that_is_too_large(client: Client) -> None:
    status, answer = client.post("run", b'{"lane": "' + b"a" * (1 << 20) + b'"}')
    assert status == 413
    assert "1048576" in answer["error"]


def test_forms_of_other_pages_are_refused(client: Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, _, _ = client.call("POST", f"{client.path}api/run", b"{}", {"Content-Type": kind})
        assert status == 415


def test_a_prompt_cannot_be_markup(client: Client) -> None:
    answer = client.run(prompt="<script>alert(1)</script>", steps=2)
    assert "<script" not in answer["tiles"] + "".join(answer["panes"])
    assert "&lt;script&gt;" in answer["tiles"]
