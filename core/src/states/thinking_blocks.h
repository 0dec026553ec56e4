// The state of `thinking_budget`: the thinking blocks of one history, and the edits that limit their length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "../state.h"
#include "phase_tracker.h"

namespace logitport {

// At most `budget` ids between the tags of a block. The ids of a tag are one or more.
struct ThinkingLimit {
  std::int64_t budget;
  std::vector<std::int32_t> start;
  std::vector<std::int32_t> end;
  std::optional<std::int32_t> newline;  // the id before `end_text` when a block is cut short
  std::vector<std::int32_t> end_text;   // the ids before `end` when a block is cut short
  std::int64_t soft_from;               // from so many ids on the next id of `end` has a growing bias; negative: never
  std::int64_t min_thinking;            // before so many ids the first id of `end` is denied
};

// Keeps the blocks up to date, and forces the ids that close a block which has used up its budget.
class ThinkingBlocks : public State {
 public:
  ThinkingBlocks(const History &history, ThinkingLimit limit);

  [[nodiscard]] bool advances() const noexcept override { return true; }
  void advance(const History &history, std::int32_t token_id) override;
  void rewind(const History &history) override;
  void restart(const History &history) override;
  void edit(const History &history, EditsWriter &edits) override;
  [[nodiscard]] EditSize edit_size() const noexcept override { return {2, 0}; }
  [[nodiscard]] std::size_t bytes() const noexcept override;

  // The length at which the block was opened that is open at this length of the history; 0 if none is.
  [[nodiscard]] std::int64_t opened_at(std::int64_t length) const noexcept;
  // The next id that closes the open block: the newline, or an id of the text or the end tag.
  [[nodiscard]] std::int32_t closing_id(const History &history) const;

 private:
  void update() noexcept;

  ThinkingLimit limit_;
  std::vector<std::int32_t> closing_;  // the text, then the end tag
  PhaseTracker tracker_;
  std::int64_t due_ = 0;  // length from which on a row has edits
};

}  // namespace logitport
