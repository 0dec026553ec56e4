// The state of `thinking_budget`: where thinking blocks were opened and closed in one history.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "../state.h"

namespace logitport {

// At most `budget` ids between the tags of a block. The ids of a tag are one or more.
struct ThinkingLimit {
  std::int64_t budget;
  std::vector<std::int32_t> start;
  std::vector<std::int32_t> end;
  std::optional<std::int32_t> newline;  // the id before `end` when a block is cut short
};

// Keeps the blocks up to date, and forces the ids that close a block which has used up its budget.
class ThinkingBlocks : public State {
 public:
  ThinkingBlocks(const History &history, ThinkingLimit limit);

  [[nodiscard]] bool advances() const noexcept override { return true; }
  void advance(const History &history, std::int32_t token_id) override;
  void rewind(const History &history) override;
  void edit(const History &history, EditsWriter &edits) override;
  [[nodiscard]] EditSize edit_size() const noexcept override { return {1, 0}; }
  [[nodiscard]] std::size_t bytes() const noexcept override;

 private:
  static constexpr std::int64_t block = 64;  // ids that are compared at once

  void find_tags(const History &history);
  [[nodiscard]] bool ends_tag(const std::int32_t *ids) const noexcept;
  bool record_tag(const History &history, std::int64_t length);
  void update() noexcept;
  [[nodiscard]] std::int32_t closing_id(const History &history) const;

  ThinkingLimit limit_;
  std::int32_t last_of_start_, last_of_end_;  // the last ids of the tags: most steps read nothing else of them
  // The history's lengths when a tag was complete: positive for a start tag, negative for an end tag. The
  // leading 0 is never removed.
  std::vector<std::int64_t> events_{0};
  std::int64_t due_ = 0;  // length when the open block has used up its budget
  bool start_first_;      // the longer tag, which counts if both end at the same id; the start tag if they are equal
};

}  // namespace logitport
