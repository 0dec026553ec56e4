#include "batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "clock.h"
#include "denied_rows.h"
#include "errors.h"

namespace logitport {
namespace {

// Ids that the edits of a step read or write. So many take 0.3 s, and a reply of 64 MiB. Larger steps are left to
// Python.
constexpr std::int64_t max_edit_ids = std::int64_t{1} << 24;

}  // namespace

void Batch::put(std::int32_t slot, std::int32_t generation, History &history, std::vector<ChainPlace> chain) {
  EditSize size;
  for (const ChainPlace &place : chain) {
    const EditSize each = place.state->edit_size();
    size.fixed += each.fixed;
    size.times_length += each.times_length;
    if (place.processor >= applied_.size()) {
      seconds_.resize(place.processor + 1);
      ticks_.resize(place.processor + 1);
      applied_.resize(place.processor + 1);  // the last one: its size states that all three have grown
    }
  }
  by_slot_[slot] = {generation, &history, std::move(chain), size};
  found_ = false;
}

void Batch::remove(std::int32_t slot) {
  by_slot_.erase(slot);
  found_ = false;
}

bool Batch::step(const StepFrame &frame, bool partly) {
  if (failed_) {
    throw Error(ErrorCode::internal,
                "an earlier step of this session failed while it was computed; open a new session");
  }
  if (frame.bytes() > limits_.max_bytes || !find_requests(frame) || !columns_.read(frame, layout_)) {
    return false;
  }
  prefetch();
  if (!is_usual(partly) || !charge_memory() || !synchronize()) {
    return false;
  }
  failed_ = true;  // until the end: a part of a step must not be followed by others
  append_new_ids();
  write_edits();
  remove_drafts();
  denied_rows_ = all_denied_rows(edits_.columns(), limits_.vocab_size);
  failed_ = false;
  return true;
}

void Batch::release_large_edits() {
  if (has_large_edits()) {
    static_cast<void>(edits_.take());
  }
}

bool Batch::find_requests(const StepFrame &frame) {
  const bool same_layout = layout_.matches(frame);
  if (found_ && same_layout) {
    return true;
  }
  found_ = false;
  if (!same_layout && !layout_.read(frame, limits_.max_draft_tokens)) {
    return false;
  }
  find_members();
  count_work();
  found_ = true;
  return true;
}

void Batch::find_members() {
  members_.assign(layout_.size(), Member());
  chains_.clear();
  advancing_.clear();
  has_all_ = true;
  for (std::size_t place = 0; place < layout_.size(); ++place) {
    const auto found = by_slot_.find(layout_.slots[place]);
    if (found == by_slot_.end() || found->second.generation != layout_.generations[place]) {
      has_all_ = false;
      continue;
    }
    Member &member = members_[place];
    member.history = found->second.history;
    member.size = found->second.size;
    member.chain_begin = chains_.size();
    member.advancing_begin = advancing_.size();
    for (const ChainPlace &each : found->second.chain) {
      chains_.push_back(each);
      if (each.state->advances()) {
        advancing_.push_back(each.state);
      }
    }
    member.chain_end = chains_.size();
    member.advancing_end = advancing_.size();
  }
}

void Batch::count_work() {
  std::vector<std::int64_t> rows_or_drafts(layout_.draft_counts.begin(), layout_.draft_counts.end());
  std::vector<std::int64_t> rows(layout_.size(), 0);
  std::fill(applied_.begin(), applied_.end(), 0);
  for (const StepRow &row : layout_.rows) {
    const auto place = static_cast<std::size_t>(row.place);
    rows_or_drafts[place] = std::max(rows_or_drafts[place], ++rows[place]);
    ++members_[place].rows;
    for (std::size_t link = members_[place].chain_begin; link < members_[place].chain_end; ++link) {
      ++applied_[chains_[link].processor];
    }
  }
  work_ = 0;
  for (std::size_t place = 0; place < layout_.size(); ++place) {
    work_ += rows_or_drafts[place] * members_[place].chain_length();
  }
}

// The misses of one request overlap with those of all others. After a forward pass of the model, nothing is cached.
void Batch::prefetch() const {
  for (const Member &member : members_) {
    if (member.history != nullptr) {
      member.history->prefetch();
      for (std::size_t link = member.chain_begin; link < member.chain_end; ++link) {
        chains_[link].state->prefetch_object();
      }
    }
  }
  for (const Member &member : members_) {
    if (member.history != nullptr) {
      member.history->prefetch_end();
      for (std::size_t link = member.chain_begin; link < member.chain_end; ++link) {
        chains_[link].state->prefetch(*member.history);
      }
    }
  }
}

// Whether Python would refuse nothing of the step, but for differences of histories. Changes nothing.
bool Batch::is_usual(bool partly) const {
  if (!has_all_ && !partly) {
    return false;
  }
  const auto num_rows = static_cast<std::int64_t>(std::max(layout_.rows.size(), layout_.size()));
  if (num_rows > limits_.max_work || work_ > limits_.max_work) {
    return false;
  }
  std::int64_t work = 0, edit_ids = 0;
  const std::int32_t *new_ids = columns_.new_ids.data();
  for (std::size_t place = 0; place < members_.size(); ++place) {
    const std::int32_t new_count = columns_.new_counts[place];
    if (const Member &member = members_[place]; member.history != nullptr) {
      work += new_count * member.chain_length();
      if (work > limits_.max_work || !is_usual(member, place, new_ids)) {
        return false;
      }
      const std::int64_t length = std::int64_t{columns_.base_lengths[place]} + new_count + layout_.draft_counts[place];
      edit_ids += member.rows * (member.size.fixed + member.size.times_length * length);
      if (edit_ids > max_edit_ids) {
        return false;
      }
    }
    new_ids += new_count;
  }
  return true;
}

bool Batch::is_usual(const Member &member, std::size_t place, const std::int32_t *new_ids) const {
  const auto new_count = static_cast<std::size_t>(columns_.new_counts[place]);
  const auto draft_count = static_cast<std::size_t>(layout_.draft_counts[place]);
  const std::int64_t base_length = columns_.base_lengths[place];
  const auto added = static_cast<std::int64_t>(new_count + draft_count);
  return base_length >= member.history->prompt_length() && base_length <= member.history->length() &&
         base_length + added <= limits_.max_tokens && in_vocabulary(new_ids, new_count) &&
         in_vocabulary(columns_.draft_ids.data() + layout_.draft_begins[place], draft_count);
}

// Returns false if the principal would hold too much memory: Python then makes the error of the request.
bool Batch::charge_memory() const {
  for (std::size_t place = 0; place < members_.size(); ++place) {
    const std::int64_t length =
        std::int64_t{columns_.base_lengths[place]} + columns_.new_counts[place] + layout_.draft_counts[place];
    if (History *history = members_[place].history; history != nullptr && !history->charge().grow(length)) {
      return false;
    }
  }
  return true;
}

bool Batch::in_vocabulary(const std::int32_t *ids, std::size_t count) const noexcept {
  const auto limit = static_cast<std::uint32_t>(limits_.vocab_size);  // negative ids become large ones
  return std::all_of(ids, ids + count, [limit](std::int32_t id) { return static_cast<std::uint32_t>(id) < limit; });
}

// Rewind the histories to the engine's. Returns false if one has other ids than the engine's.
bool Batch::synchronize() const {
  for (std::size_t place = 0; place < members_.size(); ++place) {
    const Member &member = members_[place];
    if (member.history == nullptr) {
      continue;
    }
    if (columns_.base_lengths[place] != member.history->length()) {
      rewind(member, columns_.base_lengths[place]);
    }
    if (member.history->checksum() != columns_.history_crcs[place]) {
      return false;
    }
  }
  return true;
}

void Batch::append_new_ids() {
  const std::int32_t *new_ids = columns_.new_ids.data();
  for (std::size_t place = 0; place < members_.size(); ++place) {
    const auto count = static_cast<std::size_t>(columns_.new_counts[place]);
    if (members_[place].history != nullptr) {
      append(members_[place], new_ids, count);
    }
    new_ids += count;
  }
  for (const Member &member : members_) {
    for (std::size_t link = member.advancing_begin; link < member.advancing_end; ++link) {
      advancing_[link]->prefetch_edit(*member.history);
    }
  }
}

void Batch::write_edits() {
  edits_.clear();
  std::fill(ticks_.begin(), ticks_.end(), 0);
  const Stopwatch stopwatch;
  std::uint64_t before = ticks();
  for (std::size_t row = 0; row < layout_.rows.size(); ++row) {
    const auto [place, draft_offset] = layout_.rows[row];
    Member &member = members_[static_cast<std::size_t>(place)];
    if (member.history == nullptr) {
      continue;
    }
    if (member.depth < draft_offset) {
      const std::int32_t *drafts = columns_.draft_ids.data() + layout_.draft_begins[static_cast<std::size_t>(place)];
      const auto count = static_cast<std::size_t>(draft_offset - member.depth);
      member.history->draft_tokens += static_cast<std::int64_t>(count);
      append(member, drafts + member.depth, count);
      member.depth = draft_offset;
      before = ticks();
    }
    edits_.begin_row(static_cast<std::int32_t>(row));
    for (std::size_t link = member.chain_begin; link < member.chain_end; ++link) {
      const ChainPlace &each = chains_[link];
      each.state->edit(*member.history, edits_);
      const std::uint64_t now = ticks();
      ticks_[each.processor] += now > before ? now - before : 0;  // counters of cores may differ a little
      before = now;
    }
  }
  stopwatch.to_seconds(ticks_, seconds_);
}

void Batch::remove_drafts() {
  if (layout_.drafts == 0) {
    return;
  }
  for (Member &member : members_) {
    if (member.depth != 0) {
      rewind(member, member.history->length() - member.depth);
      member.depth = 0;
    }
  }
}

void Batch::append(const Member &member, const std::int32_t *ids, std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i) {
    member.history->append(ids[i]);
    for (std::size_t link = member.advancing_begin; link < member.advancing_end; ++link) {
      advancing_[link]->advance(*member.history, ids[i]);
    }
  }
}

void Batch::rewind(const Member &member, std::int64_t length) const {
  member.history->rewind(length);
  for (std::size_t link = member.chain_begin; link < member.chain_end; ++link) {
    chains_[link].state->rewind(*member.history);
  }
}

}  // namespace logitport
