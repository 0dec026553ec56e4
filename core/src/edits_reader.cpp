#include "edits_reader.h"

#include <algorithm>
#include <cmath>

namespace logitport {
namespace {

bool columns_fit(const EditsView &edits) noexcept {
  const std::int64_t count = edits.size();
  if (edits.kinds.size() != count || edits.offsets.size() != count + 1 || edits.offsets[0] != 0 ||
      edits.offsets[count] != edits.ids.size() ||
      (edits.values.size() != 0 && edits.values.size() != edits.ids.size())) {
    return false;
  }
  bool ascending = true;
  for (std::int64_t edit = 0; edit < count; ++edit) {
    ascending &= edits.offsets[edit] <= edits.offsets[edit + 1];
  }
  return ascending;
}

bool all_below(const Column<std::int32_t> &ids, std::int64_t limit) noexcept {
  std::uint32_t highest = 0;
  for (std::int64_t index = 0; index < ids.size(); ++index) {
    highest = std::max(highest, static_cast<std::uint32_t>(ids[index]));  // a negative id becomes a very large number
  }
  return ids.size() == 0 || std::int64_t{highest} < limit;
}

bool all_finite(const Column<float> &values) noexcept {
  bool finite = true;
  for (std::int64_t index = 0; index < values.size(); ++index) {
    finite &= std::isfinite(values[index]);
  }
  return finite;
}

bool edit_fits(const EditsView &edits, std::int64_t edit, std::int64_t vocab_size) noexcept {
  switch (edits.kind(edit)) {
    case EditKind::force:
      return edits.count(edit) == 1 && (edit == 0 || edits.rows[edit] != edits.rows[edit - 1]) &&
             all_below(edits.ids_of(edit), vocab_size);
    case EditKind::bias:
      return edits.values.size() == edits.ids.size() && all_below(edits.ids_of(edit), vocab_size);
    case EditKind::bitmask:
      return edits.count(edit) == bitmask_words(vocab_size);
    case EditKind::deny:
    case EditKind::allow:
      return all_below(edits.ids_of(edit), vocab_size);
  }
  return false;
}

}  // namespace

bool proven(const EditsView &edits, LogitsShape logits) noexcept {
  if (!columns_fit(edits) || !all_finite(edits.values)) {
    return false;
  }
  std::int32_t previous = 0;
  for (std::int64_t edit = 0; edit < edits.size(); ++edit) {
    const std::int32_t row = edits.rows[edit];
    if (row < previous || row >= logits.rows || !edit_fits(edits, edit, logits.width)) {
      return false;
    }
    previous = row;
  }
  return true;
}

}  // namespace logitport
