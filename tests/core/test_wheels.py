"""core/wheels.py compares two builds of a wheel, and writes its table. `make wheels` tests the wheels themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

CORE = Path(__file__).parents[2] / "core"


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels_of_core", CORE / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("minor", "abi"), [(10, "cp310-cp310"), (11, "cp311-cp311"), (12, "cp312-abi3"), (14, "cp312-abi3")]
)
def test_each_python_takes_one_wheel(wheels: ModuleType, minor: int, abi: str) -> None:
    assert wheels.name_of(minor, "musllinux_1_2_aarch64") == f"{abi}-musllinux_1_2_aarch64"


@pytest.mark.parametrize(
    ("only", "minors"),
    [("", [10, 11, 12]), ("cp311", [11, 12]), ("cp312-abi3-manylinux_2_17_x86_64", [12]), ("py3-none-any", [12])],
)
def test_no_wheel_is_left_out_where_a_python_is_missing(
    wheels: ModuleType, monkeypatch: pytest.MonkeyPatch, only: str, minors: list[int]
) -> None:
    assert wheels.needed(only) == minors
    monkeypatch.setattr(wheels, "pythons", lambda: [wheels.Python(13, "python3.13", "3.13")])
    monkeypatch.setattr("sys.argv", ["wheels.py", "--only", "cp311", "dist"])
    with pytest.raises(SystemExit, match=r"no Python 3\.11 with its headers was found"):
        wheels.main()


@pytest.mark.parametrize("second", [b"same", b"other"])
def test_two_builds_must_be_equal(
    wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: bytes
) -> None:
    def build(_python: object, _zig: str, tree: Path) -> Path:
        wheel = tree / "logitport-py3-none-any.whl"
        wheel.write_bytes(b"same" if tree.name == "one" else second)
        return wheel

    monkeypatch.setattr(wheels, "build", build)
    trees = [tmp_path / "one", tmp_path / "two"]
    out = tmp_path / "out"
    for folder in (*trees, out):
        folder.mkdir()
    if second == b"same":
        assert wheels.make(None, "", trees, out).read_bytes() == b"same"
    else:
        with pytest.raises(SystemExit, match="two builds differ"):
            wheels.make(None, "", trees, out)
        assert not [*out.iterdir()]


def test_the_table_is_replaced(wheels: ModuleType, tmp_path: Path) -> None:
    page, wheel = tmp_path / "page.md", tmp_path / "one.whl"
    page.write_text((CORE.parent / "docs" / "wheels.md").read_text())
    wheel.write_bytes(bytes(3 << 20))
    for where in ("3.11", "not run"):
        wheels.write_table(page, {"cp311-any": wheel}, {"cp311-any": where})
    text = page.read_text()
    assert "| `cp311-any` | 3,072 | not run |" in text
    assert text.count("| 3,072 |") == 1
    assert text.rstrip().endswith("has not been run.**")
