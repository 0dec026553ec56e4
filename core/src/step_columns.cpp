#include "step_columns.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

namespace logitport {
namespace {

constexpr std::size_t element_bytes = 4;

// Copy a column of whole elements. The bytes need not be aligned.
template <typename T>
bool copy_column(std::string_view column, std::vector<T> &elements) {
  static_assert(sizeof(T) == element_bytes);
  if (column.size() % element_bytes != 0) {
    return false;
  }
  elements.resize(column.size() / element_bytes);
  if (!column.empty()) {
    std::memcpy(elements.data(), column.data(), column.size());
  }
  return true;
}

template <typename T>
bool copy_column(std::string_view column, std::vector<T> &elements, std::size_t length) {
  return column.size() == length * element_bytes && copy_column(column, elements);
}

// The number of ids of each request; 0 for all if the column is empty.
bool copy_counts(std::string_view column, std::vector<std::int32_t> &counts, std::size_t length) {
  if (column.empty()) {
    counts.assign(length, 0);
    return true;
  }
  return copy_column(column, counts, length) &&
         std::all_of(counts.begin(), counts.end(), [](std::int32_t count) { return count >= 0; });
}

// Each count is below 2**31, and there are fewer than 2**31 of them: no overflow.
std::size_t sum(const std::vector<std::int32_t> &counts) {
  std::size_t total = 0;
  for (const std::int32_t count : counts) {
    total += static_cast<std::size_t>(count);
  }
  return total;
}

}  // namespace

std::size_t StepFrame::bytes() const noexcept {
  constexpr std::size_t around_the_columns = 72;  // at most 6 bytes for each, and a field of 2 bytes
  return slots.size() + generations.size() + draft_counts.size() + draft_parents.size() + row_requests.size() +
         row_draft_offsets.size() + base_lengths.size() + history_crcs.size() + new_token_counts.size() +
         new_token_ids.size() + draft_token_ids.size() + around_the_columns;
}

bool StepLayout::matches(const StepFrame &frame) const noexcept {
  return valid_ && frame.slots == slots_column_ && frame.generations == generations_column_ &&
         frame.draft_counts == draft_counts_column_ && frame.draft_parents == draft_parents_column_ &&
         frame.row_requests == row_requests_column_ && frame.row_draft_offsets == row_offsets_column_;
}

bool StepLayout::read(const StepFrame &frame, std::int32_t max_draft_tokens) {
  valid_ = false;
  if (!read_columns(frame, max_draft_tokens) || !read_parents(frame) || !read_rows(frame)) {
    return false;
  }
  order_visits();
  slots_column_ = frame.slots;
  generations_column_ = frame.generations;
  draft_counts_column_ = frame.draft_counts;
  draft_parents_column_ = frame.draft_parents;
  row_requests_column_ = frame.row_requests;
  row_offsets_column_ = frame.row_draft_offsets;
  valid_ = true;
  return true;
}

bool StepLayout::read_columns(const StepFrame &frame, std::int32_t max_draft_tokens) {
  if (!copy_column(frame.slots, slots) || !has_distinct_slots() ||
      !copy_column(frame.generations, generations, size()) || !copy_counts(frame.draft_counts, draft_counts, size())) {
    return false;
  }
  draft_begins.resize(size());
  drafts = 0;
  for (std::size_t index = 0; index < size(); ++index) {
    if (draft_counts[index] > max_draft_tokens) {
      return false;
    }
    draft_begins[index] = drafts;
    drafts += static_cast<std::size_t>(draft_counts[index]);
  }
  return true;
}

bool StepLayout::read_parents(const StepFrame &frame) {
  if (frame.draft_parents.empty()) {
    parents.clear();
    draft_depths = draft_counts;
    return true;
  }
  if (!copy_column(frame.draft_parents, parents, drafts)) {
    return false;
  }
  draft_depths.assign(size(), 0);
  std::vector<std::int32_t> depths;  // by offset
  std::size_t draft = 0;
  for (std::size_t request = 0; request < size(); ++request) {
    depths.assign(1, 0);
    for (std::int32_t index = 0; index < draft_counts[request]; ++index, ++draft) {
      if (parents[draft] < -1 || parents[draft] >= index) {
        return false;
      }
      ++parents[draft];  // an offset is one more than the draft's index
      depths.push_back(depths[static_cast<std::size_t>(parents[draft])] + 1);
      draft_depths[request] = std::max(draft_depths[request], depths.back());
    }
  }
  return true;
}

bool StepLayout::read_rows(const StepFrame &frame) {
  if (frame.row_requests.empty()) {
    rows.resize(size());
    for (std::size_t index = 0; index < size(); ++index) {
      rows[index] = {static_cast<std::int32_t>(index), 0};
    }
    return frame.row_draft_offsets.empty();
  }
  std::vector<std::int32_t> requests;
  std::vector<std::int32_t> offsets;
  if (!copy_column(frame.row_requests, requests)) {
    return false;
  }
  if (frame.row_draft_offsets.empty()) {
    offsets.assign(requests.size(), 0);
  } else if (!copy_column(frame.row_draft_offsets, offsets, requests.size())) {
    return false;
  }
  rows.resize(requests.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto index = static_cast<std::size_t>(requests[row]);  // a negative one becomes a large one
    if (index >= size() || offsets[row] < 0 || offsets[row] > draft_counts[index]) {
      return false;
    }
    rows[row] = {requests[row], offsets[row]};
  }
  return true;
}

std::int32_t StepLayout::depth(std::size_t request, std::int32_t offset) const noexcept {
  std::int32_t depth = 0;
  for (; offset > 0; offset = parent(request, offset)) {
    ++depth;
  }
  return depth;
}

void StepLayout::order_visits() {
  visits.clear();
  std::vector<std::int32_t> last_offsets(size(), 0);
  bool ascends = parents.empty();
  for (std::size_t row = 0; row < rows.size() && ascends; ++row) {
    std::int32_t &last = last_offsets[static_cast<std::size_t>(rows[row].request)];
    ascends = rows[row].draft_offset >= last;
    last = rows[row].draft_offset;
  }
  if (ascends) {
    return;
  }
  std::vector<std::int32_t> ranks(drafts);
  for (std::size_t request = 0; request < size(); ++request) {
    rank_drafts(request, ranks.data() + draft_begins[request]);
  }
  const auto rank = [this, &ranks](const StepRow &row) {
    const std::size_t begin = draft_begins[static_cast<std::size_t>(row.request)];
    return row.draft_offset == 0 ? 0 : ranks[begin + static_cast<std::size_t>(row.draft_offset) - 1];
  };
  visits.resize(rows.size());
  std::iota(visits.begin(), visits.end(), std::size_t{0});
  std::sort(visits.begin(), visits.end(), [this, &rank](std::size_t left, std::size_t right) {
    const StepRow &one = rows[left], &other = rows[right];
    return std::make_tuple(one.request, rank(one), left) < std::make_tuple(other.request, rank(other), right);
  });
}

// Write the rank of each draft of a request in a walk that goes depth first, from 1 on.
void StepLayout::rank_drafts(std::size_t request, std::int32_t *ranks) const {
  const std::int32_t count = draft_counts[request];
  // By offset: the number of drafts in the subtree, then the rank of the next child.
  std::vector<std::int32_t> sizes(static_cast<std::size_t>(count) + 1, 1), next(sizes.size());
  const auto at = [](std::vector<std::int32_t> &values, std::int32_t offset) -> std::int32_t & {
    return values[static_cast<std::size_t>(offset)];
  };
  for (std::int32_t offset = count; offset > 0; --offset) {
    at(sizes, parent(request, offset)) += at(sizes, offset);
  }
  at(next, 0) = 1;
  for (std::int32_t offset = 1; offset <= count; ++offset) {
    std::int32_t &rank = at(next, parent(request, offset));
    ranks[offset - 1] = rank;
    at(next, offset) = rank + 1;
    rank += at(sizes, offset);
  }
}

bool StepLayout::has_distinct_slots() const {
  std::vector<std::int32_t> sorted = slots;
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

bool StepColumns::read(const StepFrame &frame, const StepLayout &layout) {
  return copy_column(frame.base_lengths, base_lengths, layout.size()) &&
         copy_column(frame.history_crcs, history_crcs, layout.size()) &&
         copy_counts(frame.new_token_counts, new_counts, layout.size()) &&
         copy_column(frame.new_token_ids, new_ids, sum(new_counts)) &&
         copy_column(frame.draft_token_ids, draft_ids, layout.drafts);
}

}  // namespace logitport
