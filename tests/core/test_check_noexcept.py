"""core/check_noexcept.py finds code that may throw in functions that must not, and the core has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "core"
sys.path.insert(0, str(CORE))
try:
    import check_noexcept
finally:
    sys.path.remove(str(CORE))


def test_the_core_has_none() -> None:
    assert check_noexcept.find(CORE / "src") == []


def test_the_command_fails_for_a_finding(tmp_path: Path) -> None:
    command = [sys.executable, CORE / "check_noexcept.py", tmp_path]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    (tmp_path / "bad.cpp").write_text("int add() noexcept { throw 3; }")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, f"{tmp_path}/bad.cpp:1: add must not throw, and `throw` may\n")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("std::string_view message() const noexcept { return framed().substr(4); }", "substr"),
        ("int A::first() const noexcept {\n  return ids_.at(0);\n}", "at"),
        ("void A::add(int id) noexcept { ids_.push_back(id); }", "push_back"),
        ("void add(int id) noexcept override { ids_->resize(id); }", "resize"),
        ("void add(int id) noexcept { map_.try_emplace(id, 3); }", "try_emplace"),
        ("void add(int id) noexcept { ids_.emplace_back(id); }", "emplace_back"),
        ("void add(int id) noexcept { ids_.insert(ids_.end(), id); }", "insert"),
        ("void add(int id) noexcept { text_.append(3, 'a'); }", "append"),
        ("void add(std::size_t size) noexcept { text_.reserve(size); }", "reserve"),
        ("auto add() noexcept -> int { return std::string(3, 'a').size(); }", "std::string"),
        ("int add() noexcept { std::vector<int> ids(3); return ids[0]; }", "std::vector"),
        ("int add() noexcept(true) { return *std::make_unique<int>(3); }", "make_unique"),
        ("int *add() noexcept { return new int[3]; }", "new"),
        ("int add() noexcept { throw 3; }", "throw"),
        ("std::size_t operator()(int id) const noexcept { return std::random_device{}(); }", "std::random_device"),
        ("A::A(int id) noexcept : id_(id), ids_{1, 2} { ids_.push_back(3); }", "push_back"),
        ("A::A(int id) noexcept\n    : ids_(new int[id]) {}", "new"),
        ("A::~A() { ids_.resize(3); }", "resize"),
        ("const auto add = [](int id) noexcept { ids.push_back(id); };", "push_back"),
        ("int A::add() noexcept try { return ids_.at(3); } catch (const Error &) { return 0; }", "at"),
        ("int A::add() noexcept try { return 3; } catch (...) { return ids_.at(3); }", "at"),
        ("int add() noexcept { try { return 3; } catch (...) { ids.resize(3); } return 0; }", "resize"),
        ("int helper(int id) { return id; }\nint A::add() noexcept { return helper(3); }", "helper"),
        ("nb::object add() noexcept { return nb::cast(3); }", "nb::cast"),
    ],
)
def test_it_finds(tmp_path: Path, code: str, what: str) -> None:
    file = tmp_path / "states" / ("bad.h" if "::" in code else "bad.cpp")
    file.parent.mkdir()
    before = "// a comment\n#include <string>\n\n"
    file.write_text(before + code + "\n")
    line = (before + code).count("\n", 0, (before + code).rindex(what)) + 1
    (finding,) = check_noexcept.find(tmp_path)
    assert finding.startswith(f"{file}:{line}: ")
    assert finding.endswith(f" must not throw, and `{what}` may")


@pytest.mark.parametrize(
    "code",
    [
        "void add(int id) { ids_.push_back(id); }",
        "void add(int id) noexcept(false) { ids_.push_back(id); }",
        "void add(int id) noexcept;\nvoid other() { ids_.resize(3); }",
        "virtual int add() noexcept = 0;\nvoid other() { ids_.resize(3); }",
        "int add() noexcept { return 3; }  // not ids.resize(3)\nvoid other() { ids_.resize(3); }",
        'int add() noexcept { return log("ids.resize(3)"); }',
        "int add() noexcept { try { return ids.at(3); } catch (const std::exception &) { return 0; } }",
        "int A::add() noexcept try {\n  return ids_.at(3);\n} catch (...) {\n  return 0;\n}",
        "A::~A() { close(); }\nvoid A::close() noexcept {}",
        "A::A(int id) noexcept : id_(id), ids_{1, 2} {}\nvoid A::add() { ids_.push_back(3); }",
        "std::size_t size(const std::string &text, std::vector<int> *) noexcept { return new_ids; }",
        "int helper() noexcept { return 3; }\nint add() noexcept { return helper(); }",
    ],
)
def test_it_passes(tmp_path: Path, code: str) -> None:
    (tmp_path / "good.cpp").write_text(code)
    assert check_noexcept.find(tmp_path) == []
