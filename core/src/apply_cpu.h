// Applying edits to logits in the memory of the CPU.
#pragma once

#include "edits_reader.h"
#include "logits_row.h"

namespace logitport {

// Apply edits that are `proven` for these logits, with the same bits as client/logitport/ops/apply_edits/cpu.py.
//
// Returns false, and has changed nothing, if a biased value is a NaN of bf16: torch has several results for it.
bool apply_edits(const EditsView &edits, const Logits &logits);

// Whether the edits read or write so many elements that the interpreter's lock is to be released: about 20 us. It can
// take 5 ms to get the lock back. The columns are not checked.
bool takes_long(const EditsView &edits, LogitsShape logits) noexcept;

}  // namespace logitport
