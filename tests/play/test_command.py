"""`logitport play`: it prints the address, opens the browser, and ends at Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logitport.errors import NotInstalled, ServerUnavailable
from logitport_play.command import Play
from logitport_play.web import serving
from tests.play.conftest import FILE, Client
from tests.play.recordings import NEW, write_recording

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = str(Path(sys.executable).with_name("logitport"))
FOR_VLLM = """
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

class Ban(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self.banned = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        process_dict_updates(self.banned, batch_update, lambda params, prompt, output: params.extra_args["ban"])

    def apply(self, logits):
        for row, token_id in self.banned.items():
            logits[row, token_id] = -float("inf")
        return logits
"""


@contextmanager
def started(folder: Path, text: str, *options: str, stderr: int | None = subprocess.PIPE) -> Iterator[Client]:
    """Run the command with a file, and interrupt it: it prints no error."""
    (folder / "my.py").write_text(text)
    command = [COMMAND, "play", "my.py", "--no-browser", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        assert process.stdout is not None
        yield Client(process.stdout.readline().split()[-1])
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors or "") == (-signal.SIGINT, "", "")


def test_the_command(tmp_path: Path) -> None:
    with started(tmp_path, FILE, "--seed", "11", "--prompt", "The king") as client:
        state = client.get("state")
        assert (state["seed"], state["prompt"], state["files"][0]["name"]) == (11, "The king", "my.py")
        assert client.run(steps=1)["steps"] == 1


@pytest.mark.slow
def test_processors_for_vllm_have_stubs_of_it(tmp_path: Path) -> None:
    with started(tmp_path, FOR_VLLM, stderr=None) as client:
        result = client.run(steps=1, chain=[{"processor": "my.py:Ban", "params": {"ban": 5}}])
        assert (result["steps"], result["errors"], "lp-failed" in result["tiles"]) == (1, {}, False)


@pytest.mark.slow
def test_the_command_with_a_recording(tmp_path: Path) -> None:
    write_recording(tmp_path / "engine.lprec")
    with started(tmp_path, NEW, "--recording", "engine.lprec") as client:
        assert client.get("state")["recording"] == "engine.lprec"
        status, answer = client.post("replay", {"request": 0})
        assert (status, answer["error"]) == (200, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.py"], "there is no such file"),
        (["--model", "none"], "there is no such folder"),
        (["--port", "70000"], "--port"),
        (["--recording", "none"], "the recording cannot be read"),
        (["--recording", "engine.lprec", "--prompt", "x"], "leave out --model and --prompt"),
        (["--recording", "engine.lprec", "--tokenizer", "none"], "none"),
        (["--tokenizer", "none"], "give --recording FILE, too"),
        (["--run-payloads"], "give --recording FILE, too"),
    ],
)
def test_wrong_options(arguments: list[str], message: str, tmp_path: Path) -> None:
    write_recording(tmp_path / "engine.lprec")
    command = [COMMAND, "play", "--no-browser", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


class NotServing:
    """A server that does not serve."""

    url = "http://127.0.0.1:1/token/"

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def run(self, started: Any) -> None:
        started()


@pytest.mark.parametrize(("browser", "opens"), [(True, True), (True, False), (False, False)])
def test_the_browser(
    browser: bool, opens: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    pages: list[str] = []

    def open_in_browser(url: str) -> bool:
        opened.append(url)
        page = Path(url.removeprefix("file://"))
        assert page.stat().st_mode & 0o777 == 0o600
        pages.append(page.read_text())
        return opens

    monkeypatch.setattr(serving, "PlayServer", NotServing)
    monkeypatch.setattr("webbrowser.open", open_in_browser)
    Play(files=[], browser=browser).run()
    output, errors = capsys.readouterr()
    assert output == f"logitport play: {NotServing.url}\n"
    assert [f'url={NotServing.url}"' in page for page in pages] == ([True] if browser else [])
    assert not [url for url in opened if NotServing.url in url or Path(url.removeprefix("file://")).exists()]
    assert ("no browser could be opened" in errors) == (browser and not opens)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "logitport_play.web.serving")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(NotInstalled, match=r"pip install '\.\[server,play\]'"):
        Play(files=[]).run()


def test_a_port_that_is_taken(server: serving.PlayServer) -> None:
    with pytest.raises(ServerUnavailable, match="choose another --port"):
        serving.PlayServer(port=Client(server.url).port)
