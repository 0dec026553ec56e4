"""The source lines in a payload."""

from __future__ import annotations

import inspect
import linecache
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from logitport import EditProcessor, PayloadError, payload
from logitport.payload.signing import sign, verify

if TYPE_CHECKING:
    from pathlib import Path

    from logitport import EditRequest, RowEdits

NOT_USED = "a secret of this file"


def helper() -> int:
    return 3  # of the helper


class Uses(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([helper()])


def content() -> dict[str, Any]:
    made: dict[str, Any] = orjson.loads(payload.dumps(Uses))
    return made


def test_lines_of_shipped_functions_are_in_the_payload_and_no_others() -> None:
    expected = "".join(inspect.getsource(function) for function in (helper, Uses.edit))
    parts = content()["source"]

    assert {name for name, _, _ in parts} == {"test_source_lines.py"}
    assert sorted("".join(text for _, _, text in parts).splitlines()) == sorted(expected.splitlines())
    for _, first, text in parts:
        function = helper if "of the helper" in text else Uses.edit
        assert first == function.__code__.co_firstlineno
    assert NOT_USED not in orjson.dumps(parts).decode()


def test_source_is_read_and_changes_neither_digest_nor_equality() -> None:
    made = content()
    shipped = payload.parse(orjson.dumps(made).decode())
    without = payload.parse(orjson.dumps({**made, "source": []}).decode())

    assert [list(part) for part in shipped.source] == made["source"]
    assert without.source == ()
    assert shipped == without
    assert shipped.digest == without.digest


def test_class_without_a_file_is_shipped_without_lines() -> None:
    made: dict[str, Any] = {"__name__": "made", "EditProcessor": EditProcessor}
    exec("class Made(EditProcessor):\n def edit(self, request, edits): pass", made)

    assert "source" not in orjson.loads(payload.dumps(made["Made"]))


def test_lines_that_are_not_unicode_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a file may be bytes that are not UTF-8. A payload with it could not be read."""
    text = "class Made(EditProcessor):\n    def edit(self, request, edits):\n        return\n"
    for name in ("made_\udcff.py", "made.py"):
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
    for name, shipped in (("made_\udcff.py", []), ("made.py", ["made.py"])):
        made: dict[str, Any] = {"__name__": "made", "EditProcessor": EditProcessor}
        exec(compile(text, name, "exec"), made)
        assert [part.file for part in payload.parse(payload.dumps(made["Made"])).source] == shipped


def test_long_functions_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text(
        "class Made(EditProcessor):\n"
        "    def validate_params(self, params):\n        return\n\n"
        f"    def edit(self, request, edits):\n        '''{'x' * 100_000}'''\n        return\n"
    )
    made: dict[str, Any] = {"__name__": "made", "EditProcessor": EditProcessor}
    exec(compile(path.read_text(), str(path), "exec"), made)
    (part,) = orjson.loads(payload.dumps(made["Made"]))["source"]

    assert part[:2] == ["long.py", 2]
    assert "validate_params" in part[2]


@pytest.mark.parametrize("changed", ["text", "added", "removed"])
def test_signature_covers_the_lines(changed: str) -> None:
    key = Ed25519PrivateKey.generate()
    signed = orjson.loads(sign(payload.dumps(Uses), key))
    verify(payload.parse(orjson.dumps(signed).decode()), key.public_key())
    if changed == "text":
        signed["source"][0][2] += "# harmless\n"
    elif changed == "added":
        signed["source"].append(["another.py", 1, "text"])
    else:
        del signed["source"]

    with pytest.raises(PayloadError):
        verify(payload.parse(orjson.dumps(signed).decode()), key.public_key())


@pytest.mark.parametrize(
    "source",
    [
        *("text", {"a.py": "text"}, ["a.py"], [["a.py", 1]], [["a.py", "1", "text"]], [["a.py", 1, b"x".hex(), 2]]),
        *([["a.py", 0, "text"]], [["a.py", 1 << 31, "text"]], [["a.py", True, "text"]], [["a" * 257, 1, "text"]]),
        *([["a.py", 1, "x" * 65537]], [["a.py", 1, "x"]] * 1025),
    ],
)
def test_malformed_lines_are_refused(source: object) -> None:
    with pytest.raises(PayloadError, match="source"):
        payload.parse(orjson.dumps({**content(), "source": source}).decode())
