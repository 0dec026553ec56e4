"""The completion of bash, by a real bash; those of zsh and fish, where these are installed."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from logitport_server.cli.root import COMMANDS, run

if TYPE_CHECKING:
    from pathlib import Path

# Calls the function that bash would call, with the words before the cursor.
COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="$*"
COMP_POINT=${#COMP_LINE}
function=$(complete -p logitport | sed -E 's/.* -F ([^ ]+) .*/\\1/')
"$function" logitport "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a completion script for each shell, a file and a folder."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "team.key").touch()
    (folder / "trusted").mkdir()
    return folder


@pytest.fixture
def script(folder: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Path:
    """The script for the shell of the parameter."""
    path = folder / request.param
    if not path.exists():
        run(["completion", request.param])
        path.write_text(capsys.readouterr().out)
    return path


def complete(script: Path, *words: str) -> list[str]:
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(script), "logitport", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=script.parent)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash(script: Path) -> None:
    assert {*COMMANDS} <= {*complete(script, "")}
    assert complete(script, "ser") == ["serve"]
    assert complete(script, "serve", "--metrics") == ["--metrics-listen"]
    assert complete(script, "serve", "--log-level", "w") == ["warning"]
    assert complete(script, "serve", "--no-prog") == ["--no-programs"]
    assert complete(script, "ray", "") == ["up", "status", "down"]
    assert complete(script, "ray", "up", "--unh") == ["--unhealthy-seconds"]
    assert complete(script, "completion", "z") == ["zsh"]
    assert complete(script, "sign", "--key", "te") == ["team.key"]
    assert complete(script, "serve", "--trusted-keys", "t") == ["trusted"]
    assert complete(script, "inspect", "te") == ["team.key"]


@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("logitport ser", "serve"),
        ("logitport serve --metrics", "--metrics-listen"),
        ("logitport serve --log-level w", "warning"),
        ("logitport ray up --unh", "--unhealthy-seconds"),
        ("logitport completion z", "zsh"),
    ],
)
def test_fish(script: Path, line: str, word: str) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")
    code = f"source {script}; complete -C '{line}'"
    done = subprocess.run([fish, "--no-config", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert [each.partition("\t")[0] for each in done.stdout.splitlines()] == [word]


@pytest.mark.parametrize("script", ["bash", "zsh", "fish"], indirect=True)
def test_the_syntax(script: Path) -> None:
    shell = shutil.which(script.name)
    if shell is None:
        pytest.skip(f"{script.name} is not installed")
    subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


@pytest.mark.parametrize("script", ["zsh", "fish"], indirect=True)
def test_other_shells_complete_the_same_options(script: Path) -> None:
    text = script.read_text()
    for word in ("metrics-listen", "unhealthy-seconds", "no-programs", *COMMANDS):
        assert word in text


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "'bash', 'zsh' or 'fish'" in capsys.readouterr().err
