"""A request whose processor holds in one phase of the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.core.history import History
from logitport.phases import PHASES, tracker_of
from logitport.processors import EditRequest

if TYPE_CHECKING:
    from logitport.core.edits import RowEdits
    from logitport.phases import PhaseTags
    from logitport.processors import EditProcessor


class PhasedRequest(EditRequest):
    """Calls a processor in the blocks of one phase. For it, all ids before the present block are the prompt.

    `history` is a view of the request's history, which the processor sees. It stays at the end of a block until the
    next one begins: a rewind may lead back there. With states of the compiled core, `PhasedState` does the same.

    Attributes:
        whole: the request's history.
    """

    __slots__ = ("_begin", "_blocks", "_processor", "_wanted", "whole")

    def __init__(self, request: EditRequest, processor: EditProcessor, phase: int, tags: PhaseTags) -> None:
        super().__init__(
            request.params,
            History(),
            request.vocab_size,
            tokenizer_id=request.tokenizer_id,
            eos_token_ids=request.eos_token_ids,
            caller=request.caller,
        )
        self.whole = request.history
        self._processor = processor
        self._wanted = phase
        self._blocks = tracker_of(tags, self.whole)
        self._begin = -1  # of the block that the state has followed
        self.restart()

    @property
    def holds(self) -> bool:
        """Whether the next id belongs to the phase."""
        return self._blocks.phase == self._wanted

    @property
    def phase(self) -> str:
        """Phase of the next id."""
        return PHASES[self._blocks.phase]

    def restart(self) -> None:
        """Build the state from the history.

        Before the first block, it is built for an empty one: the processor then checks its parameters, and compiles
        them, at the admission.
        """
        self._blocks.restart(self.whole)
        self._begin = -1
        if not (self.holds and self._enter_block()):
            self.history.follow(self.whole, len(self.whole))
        self.state = None
        self._processor.start(self)

    def advance(self, token_id: int) -> None:
        """Follow the history after an id was appended."""
        self._blocks.read(self.whole)
        if not self.holds:
            return
        if self._enter_block():
            self._processor.start(self)
        else:
            self._processor.advance(self, token_id)

    def rewind(self) -> None:
        """Follow the history after it was cut back."""
        self._blocks.rewind(self.whole)
        if len(self.whole) < self._begin:
            self._begin = -1  # other ids may follow
        if not self.holds:
            return
        is_shorter = len(self.whole) < len(self.history)
        if self._enter_block():
            self._processor.start(self)
        elif is_shorter:
            self._processor.rewind(self)

    def prepare(self) -> bool:
        """Update the view for a row's edits. Returns whether the row has some."""
        if self.holds:
            self.history.follow(self.whole, self._begin)  # the number of drafts may have changed
        return self.holds

    def exempt(self, edits: RowEdits) -> None:
        """Leave the start tag of the first thinking block out of the edits of the answer's first id."""
        if (token_id := self._blocks.exempt_id(self.whole)) >= 0:
            edits.exempt(token_id)

    def _enter_block(self) -> bool:
        """Update the view. Returns whether the present block is another one than the state has followed."""
        begin = max(self._blocks.begin, self.whole.prompt_length)
        self.history.follow(self.whole, begin)
        earlier, self._begin = self._begin, begin
        return earlier != begin
