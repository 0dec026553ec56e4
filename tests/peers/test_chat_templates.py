"""The chat templates of real models, as llama.cpp keeps them: each is read right, or refused by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from logitport.core.history import History
from logitport.errors import InvalidArgument
from logitport.phases import PHASES, tracker_of
from logitport.phases.chat_template import _HARMONY, tags_in
from logitport.phases.phase_tags import thinking_tags

utils = pytest.importorskip("transformers.utils.chat_template_utils")
pytestmark = pytest.mark.peers

FOLDER = Path(os.environ.get("LOGITPORT_CHAT_TEMPLATES", "(unset)"))
START, END, OTHER = range(3)
# Their templates mark thoughts in ways that are not known here: texts of ordinary ids, or tags that are computed.
NOT_KNOWN = {"Apriel-1.6-15b-Thinker-fixed", "Kimi-K3", "tencent-Hy3", "unsloth-Apriel-1.5", "upstage-Solar-Open-100B"}


def templates() -> dict[str, str]:
    if not FOLDER.is_dir():
        pytest.fail("LOGITPORT_CHAT_TEMPLATES must name the folder of the templates, as `make test-peers` does")
    return {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}


def known(found: dict[str, str]) -> dict[str, tuple[str, ...]]:
    tags = {}
    for name, template in found.items():
        try:
            tags[name] = tags_in(template)
        except InvalidArgument as error:
            unknown = "no tags of thinking that are known" in error.message
            if not unknown:
                raise
    return tags


def test_templates_with_thinking_are_known_and_the_others_refused() -> None:
    found = templates()
    tags = known(found)
    assert len(tags) >= 30
    marks = re.compile(r"</?[a-z:]*think[a-z]*>|\[/?THINK\]|THINKING\|>|<\|?channel|inner_prefix", re.ASCII)
    assert {name for name, text in found.items() if marks.search(text)} - NOT_KNOWN <= set(tags) | {"MiMo-VL"}
    assert not NOT_KNOWN & set(tags)


def rendered(template: str, **options: bool) -> str:
    """The prompt of one question, as transformers renders it."""
    messages = [{"role": "user", "content": "Hello"}]
    (text,), _ = utils.render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", **options
    )
    return str(text)


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}, {"enable_thinking": False}], ids=str)
def test_the_phase_of_the_first_id_follows_from_the_prompt(options: dict[str, bool]) -> None:
    found = templates()
    phases = {}
    for name, tags in known(found).items():
        if tags == _HARMONY:
            continue
        start, end = tags
        text = rendered(found[name], **options)
        parts = re.split(f"({re.escape(start)}|{re.escape(end)})", text)
        ids: list[int] = []
        for part in parts:
            ids += [START] if part == start else [END] if part == end else [OTHER] * len(part)
        history = History(ids)
        tracker = tracker_of(thinking_tags([START], [END]), history)
        last = text.rstrip()
        opens = text.rfind(start) > text.rfind(end)
        phases[name] = PHASES[tracker.phase], tracker.exempt_id(history) == START
        if opens:
            assert phases[name] == ("thinking", False), name
        elif last.endswith(end):
            assert phases[name] == ("answer", False), name
        else:
            assert phases[name] == ("answer", True), name
    assert len(phases) >= 30
    closed, opened, by_model = ("answer", False), ("thinking", False), ("answer", True)
    expected = {
        "Qwen-Qwen3-0.6B": (by_model, by_model, closed),
        "Qwen-QwQ-32B": (closed, opened, closed),
        "GLM-4.6": (by_model, by_model, closed),
        "MiniMax-M2": (opened, opened, opened),
        "google-gemma-4-31B-it": (closed, by_model, closed),
    }
    index = [{}, {"enable_thinking": True}, {"enable_thinking": False}].index(options)
    assert {name: phases[name] for name in expected} == {name: each[index] for name, each in expected.items()}


def test_the_tags_of_vllms_reasoning_parsers_are_known() -> None:
    """Those that a parser of vLLM names as constants, or as its `start_token` and `end_token`."""
    constants = r'^\s*(?:THINK|CHANNEL)_(?:START|END) = "([^"]+)"|def (?:start|end)_token\(self\)[^"]*?return "([^"]+)"'
    folder = Path(os.environ.get("LOGITPORT_VLLM", "(unset)"), "vllm")
    files = [*folder.glob("parser/*.py"), *folder.glob("reasoning/*.py")]
    named = {
        one or other
        for file in files
        for one, other in re.findall(constants, file.read_text(), re.MULTILINE | re.DOTALL)
    }
    assert {"<think>", "</think>", "<seed:think>", "<|channel>", "</mm:think>"} <= named
    assert {tag for tag in named if tag not in tags_in(tag)} == set()
