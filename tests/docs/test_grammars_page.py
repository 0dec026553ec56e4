"""docs/grammars.md: its chains are valid, and its tables name what the code has."""

from __future__ import annotations

import json
import re

import pytest

from logitport.integrations.common.chains import chain_of
from logitport_builtins.grammar.grammar_spec import read_grammar
from logitport_builtins.grammar.structures.tool_calls import FORMATS
from tests.docs.pages import read
from tests.docs.transcripts import blocks, sections

SECTIONS = sections(read("docs/grammars.md"))
CHAINS = [block.content for section in SECTIONS.values() for block in blocks(section, "json")]


@pytest.mark.parametrize("chain", CHAINS)
def test_chains_are_valid(chain: str) -> None:
    ((name, params),) = chain_of({"logitport": json.loads(chain)})
    assert name == "grammar"
    read_grammar(params)


def test_all_new_forms_are_shown() -> None:
    shown = {key for chain in CHAINS for _, params in json.loads(chain) for key in params}
    assert shown >= {"lark", "structural_tag", "tools", "tool_choice", "tool_format"}


def test_the_table_of_formats_is_complete() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| .*\{…\}", SECTIONS["Tool calls"], re.MULTILINE)
    assert re.findall(r"\w+", " ".join(rows)) == list(FORMATS)
