"""`logitport check`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, Json

from logitport.errors import LogitportError, ProcessorWarning, escaped
from logitport_server.cli.processor_file import read_processor, read_processors
from logitport_server.config.option import Argument, Metavar
from logitport_server.lifecycle.start_errors import StartupError, UsageError
from logitport_session import stubs

if TYPE_CHECKING:
    from collections.abc import Mapping


class Check(BaseModel):
    """Search for defects of processors: for histories and parameters that break a law of `logitport_testing.check`.

    The file runs in this process, without a sandbox. Without CLASS, all processors of the file are checked. Exits with
    status 1 where a law is broken or a line has no effect, and 2 where a processor cannot be checked.
    """

    source: Argument[Annotated[str, Metavar("FILE[:CLASS]")]] = Field(
        description="Python file, and a class or function in it"
    )
    params: list[Annotated[Json[dict[str, Any]], Metavar("JSON")]] = Field(
        [], description="parameters that the processor accepts, such as '{\"bias\": 2}'; more of them find more"
    )
    law: list[Annotated[str, Metavar("NAME")]] = Field(
        [], description="only this law, such as start; without it, all laws"
    )
    max_examples: int = Field(50, ge=1, description="number of examples of each law")
    seed: int = Field(0, ge=0, description="seed of the examples")
    vocab_size: int | None = Field(
        None, ge=1, description="width of the logits; more than all ids in the parameters and of the tokenizer"
    )
    tokenizer: Annotated[Path | None, Metavar("PATH")] = Field(
        None, description="tokenizer.json, or its folder: the tokenizer of processors"
    )

    def run(self) -> None:
        stubs.offer()
        try:
            broken = [not self._keeps_the_laws(name, one) for name, one in self._processors().items()]
        except (LogitportError, StartupError) as error:
            raise UsageError(str(error)) from error
        sys.exit(1 if any(broken) else 0)

    def _processors(self) -> Mapping[str, Any]:
        if Path(self.source).suffix == ".py" or Path(self.source).is_file():
            return read_processors(self.source)
        return {self.source.rpartition(":")[2]: read_processor(self.source)}

    def _keeps_the_laws(self, name: str, processor: Any) -> bool:
        from logitport_testing import LAWS, LawBroken, check

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            problem = ""
            laws = self.law or LAWS
            try:
                check(
                    processor,
                    self.params or [{}],
                    laws=laws,
                    max_examples=self.max_examples,
                    seed=self.seed,
                    vocab_size=self.vocab_size,
                    tokenizer=self.tokenizer,
                )
            except LawBroken as error:
                problem = str(error)
        for one in warned:
            print(escaped(f"warning: {one.message}"), file=sys.stderr)  # noqa: T201
        print(problem or f"{name} keeps the laws {', '.join(laws)}")  # noqa: T201
        return not problem and not any(issubclass(one.category, ProcessorWarning) for one in warned)
