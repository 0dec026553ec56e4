"""Each worker of a root server has a user of its own, without rights, and with limits that no other worker uses up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logitport_sandbox import LAYER_NAMES, SandboxError, users
from logitport_sandbox.interpreter import readable_paths
from logitport_sandbox.verification.probe import probe
from logitport_server.lifecycle.pidfd import process_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IN_A_CONTAINER = ("bubblewrap", "namespaces")
# Of no process, and of no other test.
FREE = range(59990, 59993)

of_root = pytest.mark.skipif(users.lacking() is not None, reason=f"workers have no users: {users.lacking()}")
layers = pytest.mark.parametrize("without", [(), IN_A_CONTAINER, LAYER_NAMES], ids=["all", "in a container", "none"])

TWO = """
def inside():
    server.recv(1)
    return ""

for worker in (fork(inside), fork(inside)):
    send(worker.pid, worker.pidfd)
"""


@of_root
@layers
def test_each_worker_has_a_user_and_no_rights(run: Any, without: tuple[str, ...]) -> None:
    with run(TWO, without=without) as program:
        found = []
        for _ in range(2):
            _, (pidfd,) = program.receive_with_descriptors()
            lines = Path(f"/proc/{process_id_of(pidfd)}/status").read_text().splitlines()
            found.append({name: value.split() for name, _, value in (line.partition(":") for line in lines)})
            os.close(pidfd)
    for status in found:
        (user,) = set(status["Uid"])
        assert int(user) in users.WORKERS
        assert set(status["Gid"]) == {user}
        assert status["Groups"] == []
        assert status["NoNewPrivs"] == ["1"]
        assert {int(status[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert found[0]["Uid"] != found[1]["Uid"]


BACK = """
from logitport_sandbox import users

def inside():
    done = []
    for change in (
        lambda: os.setuid(0),
        lambda: os.setresuid(-1, 0, -1),
        lambda: os.setuid(users.ZYGOTE),
        lambda: os.setgid(0),
        lambda: os.setgroups([0]),
        lambda: os.setgroups([]),
        lambda: os.kill(os.getppid(), 0),
        lambda: os.open("/etc/shadow", os.O_RDONLY),
    ):
        try:
            change()
        except PermissionError:
            continue
        done.append("done")
    return done

fork(inside)
"""


@of_root
def test_there_is_no_way_back(run: Any) -> None:
    with run(BACK, without=LAYER_NAMES) as program:
        assert program.receive() == []


THREADS = """
import threading

def inside():
    threading.stack_size(1 << 16)
    started = 0
    done = threading.Event()
    try:
        for started in range(32):
            threading.Thread(target=done.wait, daemon=True).start()
    except RuntimeError:
        pass
    send(started)
    signal.pause()

for _ in range(3):
    fork(inside, WorkerLimits(threads=8))
"""


@of_root
def test_the_threads_of_one_worker_do_not_count_for_another(run: Any) -> None:
    with run(THREADS, without=(*IN_A_CONTAINER, "seccomp")) as program:
        assert [program.receive() for _ in range(3)] == [7, 7, 7]


def sleeping(user: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "600"], user=user, group=user, extra_groups=[])


TAKEN = """
from logitport_sandbox import SandboxError, users

users.WORKERS = range(*json.loads(sys.argv[2]))
reading, writing = os.pipe()

def inside():
    send(os.getuid())
    os.write(writing, b"1")
    server.recv(1)

fork(inside, keep=[writing])
os.read(reading, 1)  # its message comes first
try:
    fork(inside)
except SandboxError as error:
    send(str(error))
"""


@of_root
def test_a_user_with_a_process_of_another_server_is_passed_over(run: Any) -> None:
    """The kernel counts the processes of a user in all containers without a user namespace."""
    code = TAKEN.replace("sys.argv[2]", repr(json.dumps([FREE[0], FREE[2]])))
    other = sleeping(FREE[0])
    try:
        with run(code, without=IN_A_CONTAINER) as program:
            assert program.receive() == FREE[1]
            assert "none was free" in program.receive()
    finally:
        other.kill()
        other.wait()


AGAIN = """
from logitport_sandbox import users

users.WORKERS = range(*json.loads(sys.argv[2]))
for _ in range(2):
    worker = fork(os.getuid)
    os.waitpid(worker.pid, 0)
"""


@of_root
def test_the_user_of_a_worker_that_has_ended_is_free(run: Any) -> None:
    code = AGAIN.replace("sys.argv[2]", repr(json.dumps([FREE[2], FREE[2] + 1])))
    with run(code, without=IN_A_CONTAINER) as program:
        assert [program.receive() for _ in range(2)] == [FREE[2]] * 2


@of_root
def test_the_server_signals_workers_of_other_users(run: Any) -> None:
    with run(TWO, without=IN_A_CONTAINER) as program:
        _, (pidfd,) = program.receive_with_descriptors()
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL):
            signal.pidfd_send_signal(pidfd, number)
        os.close(pidfd)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that only its owner can search, with a folder that all can read."""
    with tempfile.TemporaryDirectory() as temporary:  # pytest closes the folders above `tmp_path` to others
        folder = Path(temporary, "closed")
        (folder / "python").mkdir(parents=True)
        (folder / "python" / "installed.txt").write_text("here")
        (folder / "secret.txt").write_text("a secret")
        for each in (Path(temporary), folder / "python"):
            each.chmod(0o755)
        folder.chmod(0o700)
        yield folder


@pytest.mark.parametrize("by_link", [False, True])
def test_the_closed_part_of_a_path(closed: Path, by_link: bool) -> None:
    path = closed / "python"
    if by_link:
        path = closed.parent / "link"
        path.symlink_to(closed / "python")
    assert users.closed_part(str(path)) == str(closed)
    closed.chmod(0o711)
    assert users.closed_part(str(path)) is None
    (closed / "python").chmod(0o711)
    assert users.closed_part(str(path)) == str(closed / "python")


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Has workers need this path, too."""
    return lambda path: monkeypatch.setattr(
        "logitport_sandbox.parent_launch.readable_paths", lambda python: (*readable_paths(python), str(path))
    )


OPENED = """
path = PATH

def read(name):
    try:
        return open(f"{path}/{name}").read()
    except OSError as error:
        return type(error).__name__

fork(lambda: [read("installed.txt"), read("../secret.txt"), os.listdir(f"{path}/..")])
"""


@of_root
def test_a_python_that_only_root_can_reach_is_readable_and_nothing_beside_it(
    run: Any, closed: Path, needed: Callable[[Path], None]
) -> None:
    needed(closed / "python")
    with run(OPENED.replace("PATH", repr(str(closed / "python"))), without=(*IN_A_CONTAINER, "landlock")) as program:
        assert program.receive() == ["here", "FileNotFoundError", ["python"]]
    assert (closed / "secret.txt").read_text() == "a secret"


@of_root
def test_a_python_with_a_closed_mode_is_an_error_with_its_remedy(closed: Path, needed: Callable[[Path], None]) -> None:
    (closed / "python").chmod(0o700)
    closed.chmod(0o711)
    needed(closed / "python")
    with pytest.raises(SandboxError, match=f"chmod -R o\\+rX {closed / 'python'}`"):
        probe(sys.executable, without=["bubblewrap"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("_status", lambda name: "0"), "root lacks CAP_KILL, CAP_SETGID, CAP_SETUID; "),
        (("_lines", lambda name: ["CapEff: ffffffff", "0 0 1"][name != "status" :][:1]), "from 60706 to 61183"),
    ],
    ids=["capabilities", "ids"],
)
def test_a_root_without_rights(monkeypatch: pytest.MonkeyPatch, change: tuple[str, Any], reason: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(users, *change)
    assert reason in (users.lacking() or "")


def test_an_ordinary_user_has_no_users_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "does not run as root" in (users.lacking() or "")
