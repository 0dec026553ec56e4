"""What engines do in the recorded conversations, and the faults that they meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

# The seconds of a reply are the client's limit; those of a reconnect let it wait for a server that restarts.
_OPEN = "open 24 4 7,9 30 20"
_END = ("stats", "close")


_NO_DEADLINES = {"step_deadline_seconds": 0, "add_deadline_seconds": 0}


class Fault(NamedTuple):
    """A command that meets a fault: see `Recording.faults`, by kind of frame."""

    command: str
    faults: Mapping[str, str]


class Scenario(NamedTuple):
    """A conversation to record.

    Attributes:
        commands: for a driver.
        opened: fields of the first reply that differ from the session's.
        embedded: whether a session without a server has the same results: without faults, and with built-ins of the
            core.
    """

    commands: list[str | Fault]
    opened: Mapping[str, Any] = _NO_DEADLINES
    embedded: bool = False


_REPEATS = 'no_repeat_ngram={"ngram_size":2}'
_BANS = 'disallowed_tokens={"token_ids":[1,2,3]}'
_BIAS = 'logit_bias={"logit_bias":{"4":1.5,"5":-100,"6":0.1}}'
_BIASES = 'presence_penalty={"presence_penalty":0.7} frequency_penalty={"frequency_penalty":-0.3}'
_BUDGET = 'thinking_budget={"thinking_budget":2,"thinking_start_ids":[1],"thinking_end_ids":[2]}'
_WORDS = 'bad_words={"bad_words_ids":[[5],[6,1],[1,1]]}'
_LOOPS = 'loop_guard={"action":"deny_next","repeats":2,"min_length":2,"plain_repeats":0,"max_period":4}'
_READS = 'min_p={"min_p":0.2}'

SCENARIOS = {
    "steps": Scenario(
        [
            _OPEN,
            "add plain 0 1,2,3 ",
            f"add banned 0 1,2,3  {_BANS} {_REPEATS}",
            f"add biased 0   {_BIAS} {_BIASES}",
            "step plain::: banned::: biased:::",
            "step biased:4:: plain:5:: banned:1::",
            "step banned:2,1::",
            f"add thinking 0 8 1,4 {_BUDGET}",
            "step thinking::: biased:4,4:: plain:6::",
            "step thinking:5:: banned:2::",
            "remove plain biased",
            f"add words 1 6,5  {_WORDS}",
            "step words::: thinking:2:: banned:1::",
            "length banned",
            "step words:1:: thinking:11::",
            "step",
            *_END,
        ],
        embedded=True,
    ),
    "draft_chains": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_REPEATS}",
            f"add b 0 1  {_BIASES}",
            "step a::1,2,1: b:::",
            "step a:1,2:2,1: b:4:4,4:",
            "step b:4::",
            "step a:1,5:6,1,2,1: b:4::",
            "step a::1,2,3,4: b::5: rows a+4 b+0 a+0 b+1 a+2",
            "length a",
            *_END,
        ],
        embedded=True,
    ),
    "draft_trees": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_REPEATS}",
            f"add b 0 1  {_WORDS}",
            "step a::1,2,1,2:-1,0,-1,2 b::6,1:",
            "step a:1:2,2,2:-1,-1,0 b:6:1,1,1:-1,-1,1",
            "step a:2:1,1,1:-1,0,0 b::: rows a+3 b+0 a+1",
            "step a:1:: b:1::",
            *_END,
        ],
        embedded=True,
    ),
    "rewinds": Scenario(
        [
            _OPEN,
            f"add a 0 1,2 3,4,1 {_REPEATS}",
            f"add b 0 2  {_LOOPS}",
            "step a::: b:::",
            "step a:2:: b:5,6,5,6::",
            "rewind a 4",
            "length a",
            "step a:2:: b:5::",
            "rewind a 2",
            "rewind b 1",
            "step a::: b:::",
            "rewind a 1",
            "rewind a 9",
            "step a:1:: b:6::",
            *_END,
        ],
        embedded=True,
    ),
    "refused_admissions": Scenario(
        [
            _OPEN,
            f"add a 0 1  {_BANS}",
            f"add unknown 0 1  {'0' * 64}={{}}",
            'add wrong 0 1  disallowed_tokens={"token_ids":"x"}',
            f"add second 0 1  {_BANS} nobody/nothing={{}}",
            "add unnamed 0 1  nobody/nothing={}",
            f"add b 0 1  {_REPEATS}",
            "step a::: b:::",
            "step a:1:: b:1::",
            *_END,
        ]
    ),
    "events_and_rows_without_ids": Scenario(
        [
            _OPEN,
            'add a 0 1  loop_guard={"action":"report","repeats":2,"min_length":2,"plain_repeats":0}',
            f'add b 0 1  disallowed_tokens={{"token_ids":[{",".join(map(str, range(24)))}]}}',
            "step a::: b:::",
            "step a:5,6:: b:1::",
            "step a:5,6:: b:1::",
            "step b::4: a:5:6:",
            *_END,
        ],
        embedded=True,
    ),
    "histories_that_differ": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_REPEATS}",
            f"add b 0 1,2  {_REPEATS}",
            f"add c 0   {_BIASES}",
            "step a::: b::: c:::",
            Fault("step a:1:: b:1:: c:1::", {"step": "differ b"}),
            "step a:2:: b:2:: c:1::",
            Fault("step a:1:2,1: b:1:2,2,2:-1,-1,0 c:::", {"step": "differ a b"}),
            "rewind c 1",
            Fault("step a:2:: c::: b:5::", {"step": "differ c"}),
            "step a:1:: b:1:: c:1::",
            *_END,
        ]
    ),
    "logits_are_read": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_READS} {_BANS}",
            f"add b 0 1,2  {_REPEATS}",
            f"add c 0 1  {_REPEATS} {_READS} {_BIAS}",
            "step a::: b::: c:::",
            "step b:1:: a:4::",
            Fault("step c:1:: b:2:: a:5::", {"step": "differ b c"}),
            "step a:1:4,5: b:1::",
            "step b:2:1: c:4:: rows b+1 c+0 b+0",
            "remove a",
            "step c:4:: b:::",
            *_END,
        ]
    ),
    "logits_that_are_lost": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_READS} {_BANS}",
            f"add b 0 1,2  {_REPEATS}",
            "step a::: b:::",
            Fault("step a:4:: b:1::", {"logits": "drop"}),
            "remove a",
            "step b:::",
            *_END,
        ]
    ),
    "connections_that_end": Scenario(
        [
            _OPEN,
            f"add a 0 1,2 3 {_REPEATS}",
            Fault(f"add b 0 1  {_BIASES}", {"add": "drop"}),
            "step a::: b:::",
            Fault("step a:1:: b:4::", {"step": "drop"}),
            "step a:2:1,1:-1,-1 b:4::",
            Fault("step a:1:2,1: b:4::", {"step": "drop"}),
            "remove a",
            f"add c 0 1  {_BANS}",
            "step b:4:: c:::",
            *_END,
        ]
    ),
    "a_server_that_restarts": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_REPEATS}",
            f"add b 0 1,2  {_READS}",
            "step a::: b:::",
            Fault("step b:4:: a:1::", {"step": "restart"}),
            "step a:2:: b:1::",
            Fault("step a:1:2,1: b:4::", {"step": "restart"}),
            "step a:2:: b:1::",
            *_END,
        ]
    ),
    "a_server_that_is_full": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_REPEATS}",
            "step a:::",
            Fault("step a:1::", {"step": "drop", "open": "full"}),
            "step a:2::",
            *_END,
        ]
    ),
    "a_server_that_stops": Scenario(
        [
            _OPEN,
            f"add a 0 1,2  {_REPEATS}",
            "step a:::",
            Fault("step a:1::", {"step": "stall"}),
            "step a:2::",
            *_END,
        ],
        opened={"step_deadline_seconds": 0.1, "add_deadline_seconds": 0.1},
    ),
    "a_timeout_of_the_client": Scenario(
        [
            "open 24 0  1 -1",
            f"add a 0 1,2  {_REPEATS}",
            "step a:::",
            Fault("step a:1::", {"step": "stall"}),
            "close",
        ]
    ),
}
