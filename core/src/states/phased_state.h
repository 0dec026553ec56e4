// The state of a processor that holds in one phase of the output.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../state.h"
#include "phase_tracker.h"

namespace logitport {

// Runs another state in the blocks of one phase. For that state, all ids before the present block are the prompt.
// The counterpart of `PhasedRequest` in server/logitport_session/dialects/phased_request.py.
class PhasedState : public State {
 public:
  // The other state exists as long as this one.
  PhasedState(State &state, const History &history, Phase phase, PhaseTags tags);

  [[nodiscard]] bool advances() const noexcept override { return true; }
  void advance(const History &history, std::int32_t token_id) override;
  void rewind(const History &history) override;
  void restart(const History &history) override;
  void prefetch(const History & /*history*/) noexcept override { state_.prefetch_object(); }
  void edit(const History &history, EditsWriter &edits) override;
  [[nodiscard]] EditSize edit_size() const noexcept override { return state_.edit_size(); }
  [[nodiscard]] std::size_t bytes() const noexcept override {
    return state_.bytes() + tracker_.bytes() + view_.bytes();
  }

 private:
  [[nodiscard]] bool holds() const noexcept { return tracker_.phase() == phase_; }
  [[nodiscard]] bool enter_block(const History &history);

  State &state_;
  PhaseTracker tracker_;
  Phase phase_;
  History view_;
  // The view's length before the present block, whose ids the state has followed; negative before the first block.
  std::int64_t begin_ = -1;
};

}  // namespace logitport
