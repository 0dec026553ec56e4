"""Which processors exist, and where they run."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from logitport.programs.cost import DEFAULT_LIMIT_MS
from logitport_server.config.option import OptionGroup
from logitport_server.config.units import Milliseconds
from logitport_server.config.values import Device, NamedTokenizer, ProcessorPath, check_unique_names


class Processors(OptionGroup):
    """Installed and shipped processors, and programs."""

    heading: ClassVar[str] = "Processors"

    device: Device = Field("auto", description="where processors that read logits run: auto, cpu, cuda or cuda:INDEX")
    logits_processors: list[ProcessorPath] = Field(
        default=[],
        description="module.path:Class of an installed processor; requests name it by the same text; it is "
        "trusted and runs in the server's own process",
    )
    entry_points: bool = Field(
        True, description="load the processors of installed packages (entry-point group logitport.processors)"
    )
    enable_custom_logit_processor: bool = Field(
        False, description="accept shipped processors; this runs code that clients send"
    )
    programs: bool = Field(
        True,
        description="accept programs: processors that read logits, as data that is verified, which runs no code of "
        "clients; with tokens, registering them needs the scope register",
    )
    program_milliseconds: Milliseconds = Field(
        DEFAULT_LIMIT_MS,
        gt=0,
        le=1e6,
        description="longest time of one core that a program may take for one row, in the worst case",
    )
    tokenizer: list[NamedTokenizer] = Field(
        default=[],
        description="NAME=PATH of a tokenizer.json for grammars and request.tokenizer, or of its folder; sessions "
        "select it by tokenizer_id, requests by a parameter; if there is only one, it is the default",
    )

    @model_validator(mode="after")
    def _check_tokenizers(self) -> Processors:
        check_unique_names("--tokenizer", self.tokenizer)
        return self
