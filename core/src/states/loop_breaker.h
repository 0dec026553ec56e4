// The state of `loop_guard`: finds that the output cycles, and breaks the cycle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "../state.h"
#include "cycle_finder.h"
#include "thinking_blocks.h"

namespace logitport {

// What is done about a cycle; the indices of `ACTIONS` in builtin_processors/logitport_builtins/loop_guard/rule.py.
enum class LoopAction : std::uint8_t { report, deny_next, end, end_thinking };

// Edits the rows after a complete cycle of output ids.
class LoopBreaker : public State {
 public:
  // `ends`: ids of the vocabulary that end a sequence, for `end`.
  LoopBreaker(const History &history, const CycleRule &rule, LoopAction action, std::vector<std::int32_t> ends);
  // With `LoopAction::end_thinking`: closes the open block, once a cycle was complete in it. The budget has no effect.
  LoopBreaker(const History &history, const CycleRule &rule, ThinkingLimit limit);

  // The cycle at the history's end.
  [[nodiscard]] std::optional<Cycle> cycle() const noexcept { return finder_.found(); }

  [[nodiscard]] bool advances() const noexcept override { return true; }
  void advance(const History &history, std::int32_t token_id) override;
  void rewind(const History &history) override;
  void restart(const History &history) override;
  void prefetch(const History &history) noexcept override;
  void edit(const History &history, EditsWriter &edits) override;
  [[nodiscard]] EditSize edit_size() const noexcept override {
    return {static_cast<std::int64_t>(ends_.size()) + 1, 0};
  }
  [[nodiscard]] std::size_t bytes() const noexcept override;

 private:
  void report(const History &history, EditsWriter &edits) const;
  void record_loops(const History &history, const ThinkingBlocks &blocks);
  void record_loop(const ThinkingBlocks &blocks);

  CycleRule rule_;
  CycleFinder finder_;
  LoopAction action_;
  std::vector<std::int32_t> ends_;
  std::optional<ThinkingBlocks> blocks_;
  std::vector<std::int64_t> loops_;  // lengths at which the first cycle of a block was complete
};

}  // namespace logitport
