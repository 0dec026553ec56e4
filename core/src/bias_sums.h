// The sums of all BIAS edits of a step, as client/logitport/ops/apply_edits/inputs.py computes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "edits_reader.h"
#include "logits_row.h"

namespace logitport {

// The edits of one row, from `first` to `end`.
struct Span {
  std::int64_t first, end;
};

// A sum of several values is in float64, as that of numpy's bincount.
class BiasSums {
 public:
  explicit BiasSums(const EditsView &edits) : edits_(edits), once_(each_once()) {}

  template <typename Float>
  void add(const Row<Float> &row, Span span) {
    if (once_) {
      for_each(span, [&row](std::int32_t id, float value) { row.set(id, Float::add(row.get(id), value)); });
      return;
    }
    values_.clear();
    for_each(span, [this](std::int32_t id, float value) { values_.emplace_back(id, value); });
    std::stable_sort(values_.begin(), values_.end(),
                     [](const auto &one, const auto &two) { return one.first < two.first; });
    for (auto value = values_.begin(); value != values_.end();) {
      const std::int32_t id = value->first;
      double sum = 0.0;
      for (; value != values_.end() && value->first == id; ++value) {
        sum += double{value->second};
      }
      const double limit = std::numeric_limits<float>::max();
      row.set(id, Float::add(row.get(id), static_cast<float>(std::clamp(sum, -limit, limit))));
    }
  }

  template <typename Float>
  [[nodiscard]] bool meet_nan(const Row<Float> &row, Span span) const {
    bool found = false;
    for_each(span, [&row, &found](std::int32_t id, float /*value*/) { found |= Float::is_nan(row.get(id)); });
    return found;
  }

 private:
  template <typename Visit>
  void for_each(Span span, const Visit &visit) const {
    for (std::int64_t edit = span.first; edit < span.end; ++edit) {
      if (edits_.kind(edit) == EditKind::bias) {
        for (std::int64_t index = edits_.offsets[edit]; index < edits_.offsets[edit + 1]; ++index) {
          visit(edits_.ids[index], edits_.values[index]);
        }
      }
    }
  }

  // Whether the biased ids of the step are in ascending order, row by row. Their values are not summed then: a sum of
  // -0.0 alone is 0.0.
  [[nodiscard]] bool each_once() const {
    std::int64_t previous = -1;
    for (std::int64_t edit = 0; edit < edits_.size(); ++edit) {
      bool ascending = true;
      for_each({edit, edit + 1}, [this, edit, &previous, &ascending](std::int32_t id, float /*value*/) {
        const std::int64_t cell = (std::int64_t{edits_.rows[edit]} << 32) | id;
        ascending &= previous < cell;
        previous = cell;
      });
      if (!ascending) {
        return false;
      }
    }
    return true;
  }

  const EditsView &edits_;
  bool once_;
  std::vector<std::pair<std::int32_t, float>> values_;
};

}  // namespace logitport
