"""The tags of an operator's tokenizer, by the chat template beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from logitport import EditRequest, History
from logitport.errors import InvalidArgument
from logitport.phases.chat_template import tags_in, tags_of_tokenizer
from logitport.phases.phase_tags import ANSWER, HEADER, THINKING, TOOL_CALL, PhaseTag, PhaseTags
from logitport.tokenizers import TokenizerFile, named_tokenizers, read_tokenizer
from logitport_builtins.thinking_budget.thinking_limit import ThinkingTags, read_limit
from tests.tokenizer_files import EOS, write_trained, write_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from logitport.tokenizers import Tokenizer

HARMONY = ["<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"]


def tokenizer(folder: Path, template: object, special: list[str], pieces: list[str] | None = None) -> Tokenizer:
    write_vocabulary(folder, pieces or ["a", "\n"], [EOS, *special])
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps({"chat_template": template}))
    return read_tokenizer("own", folder)


def test_a_pair_of_tags(tmp_path: Path) -> None:
    found = tags_of_tokenizer(tokenizer(tmp_path, "{{ text.split('</think>')[-1] }}", ["<think>", "</think>"]))
    assert found == PhaseTags((PhaseTag((3,), THINKING), PhaseTag((4,), ANSWER, THINKING)), "either")


def test_the_newline_of_the_tokenizer(tmp_path: Path) -> None:
    library = write_trained(tmp_path, tokenizer_config={"chat_template": "<think>"})
    library.add_special_tokens(["<think>", "</think>"])
    library.save(str(tmp_path / "tokenizer.json"))
    read = read_tokenizer("own", tmp_path)
    assert tags_of_tokenizer(read).newline == read.encode("\n", add_special_tokens=False)[0]


def test_a_tool_call(tmp_path: Path) -> None:
    template = "<think> <tool_call> </tool_call>"
    special = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    found = tags_of_tokenizer(tokenizer(tmp_path, template, special))
    assert found.tags[2:] == (PhaseTag((5,), TOOL_CALL), PhaseTag((6,), ANSWER, TOOL_CALL))


def test_the_channels_of_harmony(tmp_path: Path) -> None:
    letters = sorted(set("analysiscommentaryfinal"))
    template = " ".join([*HARMONY, "analysis", "commentary", "final"])
    found = tags_of_tokenizer(tokenizer(tmp_path, template, HARMONY, letters))
    ids = {one: letters.index(one) for one in letters}
    channel, message = len(letters) + 1, len(letters) + 2
    assert found.starts_in == "header"
    assert found.tags[1] == PhaseTag((channel, *(ids[one] for one in "final"), message), ANSWER)
    assert [tag.begins for tag in found.tags] == [THINKING, ANSWER, TOOL_CALL, HEADER, HEADER, HEADER]


def test_a_thinking_budget_without_tags_reads_them_from_the_template(tmp_path: Path) -> None:
    limit = read_limit({"thinking_budget": 4})
    found = limit.with_ids_of(lambda: tokenizer(tmp_path / "pair", "<think>", ["<think>", "</think>"]))
    assert found.tags == ThinkingTags((3,), (4,), None)
    for template, special, problem in (
        ("no tags", [], "no tags of thinking that are known.* or give a preset"),
        (" ".join([*HARMONY, "analysis", "commentary", "final"]), HARMONY, "channels instead of one end tag"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            limit.with_ids_of(lambda: tokenizer(tmp_path / "none", template, special, list("analysiscommentryf")))  # noqa: B023


@pytest.mark.parametrize(
    ("template", "special", "problem"),
    [
        ("", [], "tokenizer 'own': it has no chat template beside it"),
        ("{{ messages }}", [], "tokenizer 'own': its chat template has no tags of thinking that are known: <think>"),
        ("<think> [THINK]", [], "has the tags of several models: <think> and "),
        ("<think>", [], "has the tag <think>, for which it has no single id"),
        ("<think>", ["<think>"], "has the tag </think>, for which it has no single id"),
        ([{"name": "tools", "template": "<think>"}], [], "it has no chat template beside it"),
    ],
)
def test_an_unknown_template_is_refused(tmp_path: Path, template: object, special: list[str], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem.replace("[", r"\[")):
        tags_of_tokenizer(tokenizer(tmp_path, template, special))


def test_where_the_template_is_read(tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    assert tokenizer(tmp_path, named, []).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("own file")
    file = TokenizerFile.read("own", tmp_path)
    assert file.chat_template == "own file"
    assert TokenizerFile.unpack(file.pack()) == file


def test_the_tags_of_the_sessions_tokenizer(tmp_path: Path) -> None:
    known = tokenizer(tmp_path, "<think>", ["<think>", "</think>"])
    named_tokenizers.configure({"own": known})
    try:
        phases: list[Any] = [
            EditRequest({}, History([0], [3, 0]), 10, tokenizer_id=name).phase for name in ("own", "", "other")
        ]
    finally:
        named_tokenizers.configure({})
    assert phases == ["thinking", "thinking", None]


def test_a_template_may_only_remove_earlier_thoughts() -> None:
    assert tags_in("</seed:think>") == ("<seed:think>", "</seed:think>")
