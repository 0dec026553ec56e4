"""The package of JavaScript is packed, and installed in an empty folder."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from tests.conformance.clients import NODE, ROOT, install_node_package, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunningServer

PROGRAM = """
import { EngineSession, builtin, connect } from "logitport";
const client = connect(process.argv[2]);
const session = await EngineSession.open(client, { vocab_size: 4 });
const handle = await session.add({ processors: [builtin("disallowed_tokens", { token_ids: [2] })] });
const logits = new Float32Array(4);
await session.step(new Map([[handle, []]])).apply(logits);
console.log(JSON.stringify(Array.from(logits)));
await session.end();
client.close();
"""


def test_the_packed_package_works_where_it_is_installed(server: RunningServer, tmp_path: Path) -> None:
    node, npm = install_node_package()
    (packed,) = json.loads(run([npm, "pack", "--json", "--pack-destination", str(tmp_path)], NODE))
    files = {each["path"] for each in packed["files"]}
    modules = {path.name for path in NODE.glob("*.mjs")} - {"copy_proto.mjs"}
    proto = {f"proto/{path.relative_to(ROOT / 'proto')}" for path in (ROOT / "proto").rglob("*.proto")}
    assert files == modules | proto | {"package.json", "README.md"}
    assert not (NODE / "proto").exists()

    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    shutil.copy(NODE / ".npmrc", tmp_path)
    run([npm, "install", "--prefer-offline", str(tmp_path / packed["filename"])], tmp_path)
    (tmp_path / "program.mjs").write_text(PROGRAM)
    assert json.loads(run([node, "program.mjs", server.target], tmp_path)) == [0, 0, None, 0]


def test_the_lock_and_the_version_are_those_of_the_package() -> None:
    package, lock = (json.loads((NODE / name).read_text()) for name in ("package.json", "package-lock.json"))
    assert lock["packages"][""]["name"] == lock["name"] == package["name"]
    assert lock["packages"][""]["dependencies"] == package["dependencies"]
    assert f'\nversion = "{package["version"]}"\n' in (ROOT / "pyproject.toml").read_text()
