"""The view of a simulation: what it shows, and that it needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from logitport import EditProcessor
from logitport_testing import StoryModel, ToyModel, simulate
from logitport_testing.view.charts import charts
from logitport_testing.view.effects import best_first, own_frames
from logitport_testing.view.markup import Markup, join, tag
from logitport_testing.view.panes import pane
from logitport_testing.view.texts import level, percent, plain, probability, signed, token

STORY = StoryModel()
PROMPT = STORY.encode("Once upon a time")


class Fails(EditProcessor):
    def edit(self, request: Any, edits: Any) -> None:
        raise ZeroDivisionError("<b>of this test</b>")


class Elements(HTMLParser):
    """The elements of a document, and whether each that was opened was closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for one, attributes in self.found if one == name]


def test_texts_and_attributes_are_escaped() -> None:
    made = tag("a", "<b>", tag("i", "&"), None, title='"><script>', data_step=3, hidden=True, checked=False, id_=None)
    assert made == '<a title="&quot;&gt;&lt;script&gt;" data-step="3" hidden>&lt;b&gt;<i>&amp;</i></a>'
    assert tag("rect", width=1.5) == '<rect width="1.5" />'
    assert join("<", Markup("<")) == "&lt;<"


def test_numbers() -> None:
    assert [probability(value) for value in (0.0, 0.001, 0.05, 0.999)] == ["0", "<.01", ".05", "1"]
    assert [percent(value) for value in (0.0, 0.001, 0.43)] == ["0 %", "0.1 %", "43 %"]
    assert [level(value) for value in (0.0, 1e-5, 0.01, 0.5, 1.0)] == ["lp-m0", "lp-m0", "lp-m1", "lp-m5", "lp-m10"]
    assert [signed(value) for value in (1.5, -0.25)] == ["+1.5", "\N{MINUS SIGN}0.25"]


def test_spaces_are_visible() -> None:
    texts = {1: " a", 2: "\n", 3: "", 4: "x" * 99}
    assert re.sub("<.*?>", "", token(1, texts)) == "·a"
    assert re.sub("<.*?>", "", token(2, texts)) == "↵"
    assert "∅" in token(3, texts)
    assert len(token(4, texts)) == 41
    assert "17" in token(17, texts)
    assert (plain(1, texts), plain(17, texts)) == ("“ a”", "id 17")


def test_the_notebook_has_a_tile_and_a_pane_for_each_step() -> None:
    chain = [("no_repeat_ngram", {"ngram_size": 2}), ("temperature", {"temperature": 0.7})]
    html = simulate(chain, STORY, PROMPT, 5, temperature=1.0, output=[None, 9])._repr_html_()
    elements = Elements(html)
    radios, panes = elements.named("input"), elements.named("section")
    assert len(radios) == len(panes) == 5
    assert ["checked" in radio for radio in radios] == [False] * 0 + [True] + [False] * 4
    assert "forced by hand" in str(radios[1]["aria-label"])
    assert all(str(radio["id"]).replace("-s", "-p") == one["id"] for radio, one in zip(radios, panes, strict=True))
    assert "Once upon a time" in html
    assert len(elements.named("figure")) == 2


def test_the_notebook_needs_no_script_and_no_other_file() -> None:
    result = simulate([("top_k", {"top_k": 3})], STORY, PROMPT, 3, token_text=lambda _: "<script>alert(1)</script>")
    html = result._repr_html_()
    elements, again = Elements(html), Elements(result._repr_html_())
    assert elements.named("input")[0]["name"] != again.named("input")[0]["name"], "two views share no names"
    assert not {name for name, _ in elements.found} & {"script", "link", "img", "iframe", "object", "embed", "a"}
    names = {key for _, attributes in elements.found for key in attributes}
    assert not {key for key in names if key.startswith("on")} | (names & {"src", "href", "style"})
    assert "url(" not in html
    assert "@import" not in html


@pytest.mark.parametrize("steps", [0, 1, pytest.param(210, marks=pytest.mark.slow)])
def test_any_number_of_steps(steps: int) -> None:
    html = simulate([("top_k", {"top_k": 3})], ToyModel(16), [3], steps)._repr_html_()
    assert len(Elements(html).named("section")) == min(steps, 200)
    assert ("The first 200 of 210 steps." in html) == (steps == 210)


def test_a_pane_says_what_each_processor_did() -> None:
    chain: list[Any] = [
        ("disallowed_tokens", {"token_ids": [1, 2]}),
        ("logit_bias", {"logit_bias": {"3": 1.5, "4": -2}}),
        (Fails, {}),
        ("temperature", {"temperature": 0.5}),
        ("logit_bias", {"logit_bias": {}}),
    ]
    (step,) = simulate(chain, STORY, PROMPT, 1, on_error="isolate").steps
    html = pane(step, {}, buttons=True)
    words = " ".join(re.sub("<.*?>", " ", html).split())
    assert "disallowed_tokens denied 2 ids: 1 , 2" in words
    assert "logit_bias biased 2 ids by \N{MINUS SIGN}2 to +1.5: 3 , 4" in words
    assert "Fails was left out: processor Fails raised ZeroDivisionError: &lt;b&gt;of this test" in words
    assert "Traceback" in words
    assert "temperature changed all 200 logits" in words
    assert words.endswith("logit_bias changed nothing moved 0 %")
    assert len(Elements(html).named("button")) == len(step.candidates.ids)


def test_a_pane_of_a_forced_id() -> None:
    (step,) = simulate([("grammar", {"regex": "["})], STORY, PROMPT, 1, on_error="isolate").steps
    assert "was left out" in pane(step, {})
    (step,) = simulate([("grammar", {"regex": "x"})], STORY, PROMPT, 1, on_error="isolate").steps
    assert "forced" in pane(step, {})

    class Forces(EditProcessor):
        def edit(self, request: Any, edits: Any) -> None:
            edits.force(5)

    (step,) = simulate([(Forces, {})], STORY, PROMPT, 1).steps
    assert "forced" in pane(step, {})
    assert "1 of 202 ids allowed" in pane(step, {})


def test_lists_begin_with_the_most_probable_ids() -> None:
    ids = np.array([1, 2, 3, 4, 5, 6, 7], np.int32)
    assert best_first(ids, [6, 9, 2]) == [6, 2, 1, 3, 4]
    assert best_first(ids[:0], [6]) == []


def test_a_traceback_begins_in_the_own_code() -> None:
    frames = [
        '  File "/x/logitport/processors.py", line 1, in edits\n',
        '  File "/y/my.py", line 2, in edit\n    1 / 0\n',
    ]
    trace = f"Traceback (most recent call last):\n{''.join(frames)}ZeroDivisionError: division by zero\n"
    assert own_frames(trace) == trace.replace(frames[0], "")
    ours = trace.replace(frames[1], "")
    assert own_frames(ours) == ours
    assert own_frames("no traceback") == "no traceback"


def test_the_charts_have_a_bar_for_each_processor_that_moved_mass() -> None:
    chain = [("top_k", {"top_k": 1}), ("temperature", {"temperature": 0.5}), ("top_k", {"top_k": 5})]
    steps = simulate(chain, STORY, PROMPT, 4).steps
    elements = Elements(charts(steps, ["top_k", "temperature", "top_k"]))
    bars = [one for one in elements.named("rect") if "lp-column" not in str(one["class"])]
    assert [one["class"] for one in bars] == ["lp-c1"] * 4
    assert all(float(str(one["y"])) >= 0 for one in bars)
    assert all(one["aria-label"] for one in elements.named("svg"))


def test_a_bar_of_the_moved_mass_ends_at_the_mass_that_the_chain_moved() -> None:
    """Three processors that move the mass to an id, back, and there again move 300 % in all."""
    chain = [("logit_bias", {"logit_bias": {"0": bias}}) for bias in (50.0, -50.0, 50.0)]
    steps = simulate(chain, STORY, PROMPT, 4).steps
    assert all(sum(record.moved for record in step.processors) > 1 for step in steps)
    html = charts(steps, ["forth", "back", "forth"])
    axis = re.findall(r"<span>([0-9.]+) %</span>", html)
    assert [float(share) <= 100 for share in axis] == [True]
    bars = [one for one in Elements(html).named("rect") if "lp-column" not in str(one["class"])]
    assert all(0 <= float(str(one["y"])) <= 40 for one in bars)
