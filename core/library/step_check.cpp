#include "step_check.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

namespace logitport {
namespace {

// Edits in the order of their rows, each row's own in theirs.
void sort_by_row(const EditsView &edits, PackedEdits &sorted) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(edits.size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&edits](std::int64_t one, std::int64_t other) { return edits.rows[one] < edits.rows[other]; });
  sorted = {};
  sorted.offsets.push_back(0);
  for (const std::int64_t edit : order) {
    sorted.rows.push_back(edits.rows[edit]);
    sorted.kinds.push_back(edits.kinds[edit]);
    for (std::int64_t index = edits.offsets[edit]; index < edits.offsets[edit + 1]; ++index) {
      sorted.ids.push_back(edits.ids[index]);
      if (edits.values.size() != 0) {
        sorted.values.push_back(edits.values[index]);
      }
    }
    sorted.offsets.push_back(static_cast<std::int32_t>(sorted.ids.size()));
  }
}

// Whether `sort_by_row` reads within the columns.
bool is_sortable(const EditsView &edits) noexcept {
  if (edits.kinds.size() != edits.size() || edits.offsets.size() != edits.size() + 1 || edits.offsets[0] != 0 ||
      edits.offsets[edits.size()] != edits.ids.size() ||
      (edits.values.size() != 0 && edits.values.size() != edits.ids.size())) {
    return false;
  }
  for (std::int64_t edit = 0; edit < edits.size(); ++edit) {
    if (edits.offsets[edit] > edits.offsets[edit + 1]) {
      return false;
    }
  }
  return true;
}

EditsView view_of(const PackedEdits &edits) {
  const auto column = [](const auto &values) {
    return Column<std::decay_t<decltype(values[0])>>(values.data(), static_cast<std::int64_t>(values.size()));
  };
  return {{column(edits.rows), column(edits.kinds), column(edits.offsets), column(edits.ids), column(edits.values)}};
}

}  // namespace

std::string_view find_problem(ReplyMessage &reply, LogitsShape shape, PackedEdits &sorted) {
  if (reply.has_later_edits) {
    return "left programs to the engine, which the library does not run";
  }
  if (!proven(reply.edits, shape)) {
    if (is_sortable(reply.edits)) {
      sort_by_row(reply.edits, sorted);
      reply.edits = view_of(sorted);
    }
    if (!proven(reply.edits, shape)) {
      return "sent edits that do not fit the logits of the step";
    }
  }
  if (!are_rows(reply.denied_rows, shape.rows) || !are_rows(reply.logits_rows, shape.rows)) {
    return "named rows that the step does not have";
  }
  return "";
}

bool are_rows(const Column<std::int32_t> &rows, std::int64_t count) noexcept {
  std::int32_t previous = -1;
  for (std::int64_t index = 0; index < rows.size(); ++index) {
    if (rows[index] <= previous || rows[index] >= count) {
      return false;
    }
    previous = rows[index];
  }
  return true;
}

}  // namespace logitport
