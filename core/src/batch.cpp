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

void Batch::put(std::int32_t slot, std::int32_t generation, History &history, std::vector<ChainEntry> chain) {
  EditSize size;
  for (const ChainEntry &entry : chain) {
    const EditSize each = entry.state->edit_size();
    size.fixed += each.fixed;
    size.times_length += each.times_length;
    if (entry.processor >= applied_.size()) {
      seconds_.resize(entry.processor + 1);
      ticks_.resize(entry.processor + 1);
      applied_.resize(entry.processor + 1);  // the last one: its size states that all three have grown
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
  collect_events();
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
  find_layout_requests();
  count_work();
  found_ = true;
  return true;
}

void Batch::find_layout_requests() {
  requests_.assign(layout_.size(), LayoutRequest());
  chains_.clear();
  advancing_.clear();
  has_all_ = true;
  for (std::size_t index = 0; index < layout_.size(); ++index) {
    const auto found = by_slot_.find(layout_.slots[index]);
    if (found == by_slot_.end() || found->second.generation != layout_.generations[index]) {
      has_all_ = false;
      continue;
    }
    LayoutRequest &request = requests_[index];
    request.history = found->second.history;
    request.size = found->second.size;
    request.chain_begin = chains_.size();
    request.advancing_begin = advancing_.size();
    for (const ChainEntry &each : found->second.chain) {
      chains_.push_back(each);
      if (each.state->advances()) {
        advancing_.push_back(each.state);
      }
    }
    request.chain_end = chains_.size();
    request.advancing_end = advancing_.size();
  }
}

void Batch::count_work() {
  std::vector<std::int64_t> rows_or_drafts(layout_.draft_counts.begin(), layout_.draft_counts.end());
  std::vector<std::int64_t> rows(layout_.size(), 0);
  std::fill(applied_.begin(), applied_.end(), 0);
  for (const StepRow &row : layout_.rows) {
    const auto index = static_cast<std::size_t>(row.request);
    rows_or_drafts[index] = std::max(rows_or_drafts[index], ++rows[index]);
    ++requests_[index].rows;
    for (std::size_t entry = requests_[index].chain_begin; entry < requests_[index].chain_end; ++entry) {
      ++applied_[chains_[entry].processor];
    }
  }
  work_ = 0;
  for (std::size_t index = 0; index < layout_.size(); ++index) {
    work_ += rows_or_drafts[index] * requests_[index].chain_length();
  }
}

// The misses of one request overlap with those of all others. After a forward pass of the model, nothing is cached.
void Batch::prefetch() const {
  for (const LayoutRequest &request : requests_) {
    if (request.history != nullptr) {
      request.history->prefetch();
      for (std::size_t entry = request.chain_begin; entry < request.chain_end; ++entry) {
        chains_[entry].state->prefetch_object();
      }
    }
  }
  for (const LayoutRequest &request : requests_) {
    if (request.history != nullptr) {
      request.history->prefetch_end();
      for (std::size_t entry = request.chain_begin; entry < request.chain_end; ++entry) {
        chains_[entry].state->prefetch(*request.history);
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
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    const std::int32_t new_count = columns_.new_counts[index];
    if (const LayoutRequest &request = requests_[index]; request.history != nullptr) {
      work += new_count * request.chain_length();
      if (work > limits_.max_work || !is_usual(request, index, new_ids)) {
        return false;
      }
      const std::int64_t length = std::int64_t{columns_.base_lengths[index]} + new_count + layout_.draft_depths[index];
      edit_ids += request.rows * (request.size.fixed + request.size.times_length * length);
      if (edit_ids > max_edit_ids) {
        return false;
      }
    }
    new_ids += new_count;
  }
  return true;
}

bool Batch::is_usual(const LayoutRequest &request, std::size_t index, const std::int32_t *new_ids) const {
  const auto new_count = static_cast<std::size_t>(columns_.new_counts[index]);
  const auto draft_count = static_cast<std::size_t>(layout_.draft_counts[index]);
  const std::int64_t base_length = columns_.base_lengths[index];
  const auto added = static_cast<std::int64_t>(new_count) + layout_.draft_depths[index];
  return base_length >= request.history->prompt_length() && base_length <= request.history->length() &&
         base_length + added <= limits_.max_tokens && in_vocabulary(new_ids, new_count) &&
         in_vocabulary(columns_.draft_ids.data() + layout_.draft_begins[index], draft_count);
}

// Returns false if the principal would hold too much memory: Python then makes the error of the request.
bool Batch::charge_memory() const {
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    const std::int64_t length =
        std::int64_t{columns_.base_lengths[index]} + columns_.new_counts[index] + layout_.draft_depths[index];
    if (History *history = requests_[index].history; history != nullptr && !history->charge().grow(length)) {
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
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    const LayoutRequest &request = requests_[index];
    if (request.history == nullptr) {
      continue;
    }
    if (columns_.base_lengths[index] != request.history->length()) {
      rewind(request, columns_.base_lengths[index]);
    }
    if (request.history->checksum() != columns_.history_crcs[index]) {
      return false;
    }
  }
  return true;
}

void Batch::append_new_ids() {
  const std::int32_t *new_ids = columns_.new_ids.data();
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    const auto count = static_cast<std::size_t>(columns_.new_counts[index]);
    if (requests_[index].history != nullptr) {
      append(requests_[index], new_ids, count);
    }
    new_ids += count;
  }
  for (const LayoutRequest &request : requests_) {
    for (std::size_t entry = request.advancing_begin; entry < request.advancing_end; ++entry) {
      advancing_[entry]->prefetch_edit(*request.history);
    }
  }
}

void Batch::write_edits() {
  edits_.clear();
  std::fill(ticks_.begin(), ticks_.end(), 0);
  const Stopwatch stopwatch;
  std::uint64_t before = ticks();
  for (std::size_t visit = 0; visit < layout_.rows.size(); ++visit) {
    const std::size_t row = layout_.visits.empty() ? visit : layout_.visits[visit];
    const auto [index, draft_offset] = layout_.rows[row];
    const LayoutRequest &request = requests_[static_cast<std::size_t>(index)];
    if (request.history == nullptr) {
      continue;
    }
    if (move_to(static_cast<std::size_t>(index), draft_offset)) {
      before = ticks();
    }
    edits_.begin_row(static_cast<std::int32_t>(row));
    for (std::size_t entry = request.chain_begin; entry < request.chain_end; ++entry) {
      const ChainEntry &each = chains_[entry];
      edits_.set_processor(each.processor);
      each.state->edit(*request.history, edits_);
      const std::uint64_t now = ticks();
      ticks_[each.processor] += now > before ? now - before : 0;  // counters of cores may differ a little
      before = now;
    }
  }
  stopwatch.to_seconds(ticks_, seconds_);
  if (!layout_.visits.empty()) {
    edits_.sort_rows();
  }
}

// Let the history of a request end with the draft of this offset. Returns false if it did already.
bool Batch::move_to(std::size_t index, std::int32_t draft_offset) {
  LayoutRequest &request = requests_[index];
  if (request.offset == draft_offset) {
    return false;
  }
  const std::int32_t *drafts = columns_.draft_ids.data() + layout_.draft_begins[index];
  path_.clear();
  std::int64_t cut = 0;
  for (std::int32_t wanted = draft_offset; wanted != request.offset;) {  // a parent has a smaller offset
    if (wanted > request.offset) {
      path_.push_back(drafts[wanted - 1]);
      wanted = layout_.parent(index, wanted);
    } else {
      ++cut;
      request.offset = layout_.parent(index, request.offset);
    }
  }
  if (cut != 0) {
    rewind(request, request.history->length() - cut);
  }
  std::reverse(path_.begin(), path_.end());
  request.history->draft_tokens += static_cast<std::int64_t>(path_.size());
  append(request, path_.data(), path_.size());
  request.depth += static_cast<std::int64_t>(path_.size()) - cut;
  request.offset = draft_offset;
  return true;
}

void Batch::remove_drafts() {
  if (layout_.drafts == 0) {
    return;
  }
  for (LayoutRequest &request : requests_) {
    if (request.depth != 0) {
      rewind(request, request.history->length() - request.depth);
      request.depth = 0;
      request.offset = 0;
    }
  }
}

// The histories have no drafts any more.
void Batch::collect_events() {
  events_.clear();
  for (const RowEvent &event : edits_.events()) {
    const auto [request, draft_offset] = layout_.rows[static_cast<std::size_t>(event.row)];
    const auto index = static_cast<std::size_t>(request);
    const History &history = *requests_[index].history;
    const std::int32_t depth = layout_.depth(index, draft_offset);
    const std::int64_t position = history.length() - history.prompt_length() + depth;
    events_.push_back(
        {layout_.slots[index], static_cast<std::int32_t>(position), depth == draft_offset ? 0 : draft_offset, event});
  }
}

void Batch::append(const LayoutRequest &request, const std::int32_t *ids, std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i) {
    request.history->append(ids[i]);
    for (std::size_t entry = request.advancing_begin; entry < request.advancing_end; ++entry) {
      advancing_[entry]->advance(*request.history, ids[i]);
    }
  }
}

void Batch::rewind(const LayoutRequest &request, std::int64_t length) const {
  request.history->rewind(length);
  for (std::size_t entry = request.chain_begin; entry < request.chain_end; ++entry) {
    chains_[entry].state->rewind(*request.history);
  }
}

}  // namespace logitport
