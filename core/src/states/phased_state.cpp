#include "phased_state.h"

#include <algorithm>
#include <utility>

namespace logitport {

PhasedState::PhasedState(State &state, const History &history, Phase phase, PhaseTags tags)
    : state_(state), tracker_(history, std::move(tags)), phase_(phase), view_(nullptr, 0, nullptr, 0) {
  if (holds() && enter_block(history)) {
    state_.restart(view_);
  }
}

void PhasedState::advance(const History &history, std::int32_t token_id) {
  tracker_.read(history);
  if (!holds()) {
    return;
  }
  if (enter_block(history)) {
    state_.restart(view_);
  } else if (state_.advances()) {
    state_.advance(view_, token_id);
  }
}

// Outside the phase, the state stays as it was at the end of the last block: a rewind may lead back there.
void PhasedState::rewind(const History &history) {
  tracker_.rewind(history);
  if (history.length() < begin_) {
    begin_ = -1;  // other ids may follow
  }
  if (!holds()) {
    return;
  }
  const bool is_shorter = history.length() < view_.length();
  if (enter_block(history)) {
    state_.restart(view_);
  } else if (is_shorter) {
    state_.rewind(view_);
  }
}

void PhasedState::restart(const History &history) {
  begin_ = -1;
  tracker_.restart(history);
  if (holds() && enter_block(history)) {
    state_.restart(view_);
  }
}

void PhasedState::edit(const History &history, EditsWriter &edits) {
  if (!holds()) {
    return;
  }
  view_.follow(history, begin_);  // the number of drafts may have changed
  edits.exempt(tracker_.exempt_id(history));
  state_.edit(view_, edits);
  edits.exempt(-1);
}

// Update the view. Returns whether the present block is another one than the state has followed.
bool PhasedState::enter_block(const History &history) {
  const std::int64_t begin = std::max(tracker_.begin(), history.prompt_length());
  view_.follow(history, begin);
  return std::exchange(begin_, begin) != begin;
}

}  // namespace logitport
