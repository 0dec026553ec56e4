// Finds the rows where edits leave no id allowed.
#pragma once

#include <cstdint>
#include <vector>

#include "edits_writer.h"

namespace logitport {

// The rows where the edits leave no id of the vocabulary allowed, ascending. The edits have been checked, and those
// of a row are adjacent. The counterpart of `StepOutcome.all_denied`.
std::vector<std::int32_t> all_denied_rows(const PackedEdits &edits, std::int64_t vocab_size);

}  // namespace logitport
