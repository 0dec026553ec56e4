#include "batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "clock.h"
#include "denied_rows.h"
#include "errors.h"

namespace logitport {
namespace {

constexpr std::size_t max_kept_ids = std::size_t{1} << 18;  // 1 MiB

}  // namespace

void Batch::put(std::int32_t slot, std::int32_t generation, History &history, std::vector<ChainPlace> chain) {
  auto request = std::make_unique<Request>();
  request->generation = generation;
  request->history = &history;
  for (const ChainPlace &place : chain) {
    if (place.state->advances()) {
      request->advancing.push_back(place.state);
    }
    if (place.processor >= applied_.size()) {
      applied_.resize(place.processor + 1);
      seconds_.resize(place.processor + 1);
      ticks_.resize(place.processor + 1);
    }
  }
  request->chain = std::move(chain);
  by_slot_[slot] = std::move(request);
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
  if (frame.bytes() > limits_.max_bytes || !find_requests(frame) || !columns_.read(frame, layout_) ||
      !is_usual(partly)) {
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
  if (edits_.columns().ids.capacity() > max_kept_ids) {
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
  requests_.assign(layout_.size(), nullptr);
  for (std::size_t place = 0; place < layout_.size(); ++place) {
    const auto found = by_slot_.find(layout_.slots[place]);
    if (found != by_slot_.end() && found->second->generation == layout_.generations[place]) {
      requests_[place] = found->second.get();
    }
  }
  has_all_ = std::find(requests_.begin(), requests_.end(), nullptr) == requests_.end();
  std::vector<std::int64_t> rows_or_drafts(layout_.draft_counts.begin(), layout_.draft_counts.end());
  std::vector<std::int64_t> rows(layout_.size(), 0);
  std::fill(applied_.begin(), applied_.end(), 0);
  for (const StepRow &row : layout_.rows) {
    const auto place = static_cast<std::size_t>(row.place);
    rows_or_drafts[place] = std::max(rows_or_drafts[place], ++rows[place]);
    if (requests_[place] != nullptr) {
      for (const ChainPlace &each : requests_[place]->chain) {
        ++applied_[each.processor];
      }
    }
  }
  work_ = 0;
  for (std::size_t place = 0; place < layout_.size(); ++place) {
    if (requests_[place] != nullptr) {
      work_ += rows_or_drafts[place] * static_cast<std::int64_t>(requests_[place]->chain.size());
    }
  }
  found_ = true;
  return true;
}

bool Batch::is_usual(bool partly) {
  if (!has_all_ && !partly) {
    return false;
  }
  const auto num_rows = static_cast<std::int64_t>(std::max(layout_.rows.size(), layout_.size()));
  if (num_rows > limits_.max_work || work_ > limits_.max_work) {
    return false;
  }
  std::int64_t work = 0;
  const std::int32_t *new_ids = columns_.new_ids.data();
  for (std::size_t place = 0; place < requests_.size(); ++place) {
    const std::int32_t new_count = columns_.new_counts[place];
    if (Request *request = requests_[place]; request != nullptr) {
      work += new_count * static_cast<std::int64_t>(request->chain.size());
      if (work > limits_.max_work || !is_usual(*request, place, new_ids)) {
        return false;
      }
    }
    new_ids += new_count;
  }
  return true;
}

bool Batch::is_usual(Request &request, std::size_t place, const std::int32_t *new_ids) const {
  const auto new_count = static_cast<std::size_t>(columns_.new_counts[place]);
  const auto draft_count = static_cast<std::size_t>(layout_.draft_counts[place]);
  const std::int64_t base_length = columns_.base_lengths[place];
  const auto added = static_cast<std::int64_t>(new_count + draft_count);
  if (base_length + added > limits_.max_tokens || !in_vocabulary(new_ids, new_count) ||
      !in_vocabulary(columns_.draft_ids.data() + layout_.draft_begins[place], draft_count)) {
    return false;
  }
  if (base_length != request.history->length()) {
    if (base_length < request.history->prompt_length() || base_length > request.history->length()) {
      return false;
    }
    rewind(request, base_length);
  }
  return request.history->checksum() == columns_.history_crcs[place];
}

bool Batch::in_vocabulary(const std::int32_t *ids, std::size_t count) const noexcept {
  const auto limit = static_cast<std::uint32_t>(limits_.vocab_size);  // negative ids become large ones
  return std::all_of(ids, ids + count, [limit](std::int32_t id) { return static_cast<std::uint32_t>(id) < limit; });
}

void Batch::append_new_ids() {
  const std::int32_t *new_ids = columns_.new_ids.data();
  for (std::size_t place = 0; place < requests_.size(); ++place) {
    const auto count = static_cast<std::size_t>(columns_.new_counts[place]);
    if (requests_[place] != nullptr) {
      append(*requests_[place], new_ids, count);
    }
    new_ids += count;
  }
}

void Batch::write_edits() {
  edits_.clear();
  std::fill(ticks_.begin(), ticks_.end(), 0);
  const Stopwatch stopwatch;
  std::uint64_t before = ticks();
  for (std::size_t row = 0; row < layout_.rows.size(); ++row) {
    const auto [place, draft_offset] = layout_.rows[row];
    Request *request = requests_[static_cast<std::size_t>(place)];
    if (request == nullptr) {
      continue;
    }
    if (request->depth < draft_offset) {
      const std::int32_t *drafts = columns_.draft_ids.data() + layout_.draft_begins[static_cast<std::size_t>(place)];
      const auto count = static_cast<std::size_t>(draft_offset - request->depth);
      request->history->draft_tokens += static_cast<std::int64_t>(count);
      append(*request, drafts + request->depth, count);
      request->depth = draft_offset;
      before = ticks();
    }
    edits_.begin_row(static_cast<std::int32_t>(row));
    for (const ChainPlace &each : request->chain) {
      each.state->edit(*request->history, edits_);
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
  for (Request *request : requests_) {
    if (request != nullptr && request->depth != 0) {
      rewind(*request, request->history->length() - request->depth);
      request->depth = 0;
    }
  }
}

void Batch::append(Request &request, const std::int32_t *ids, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    request.history->append(ids[i]);
    for (State *state : request.advancing) {
      state->advance(*request.history, ids[i]);
    }
  }
}

void Batch::rewind(Request &request, std::int64_t length) {
  request.history->rewind(length);
  for (const ChainPlace &each : request.chain) {
    each.state->rewind(*request.history);
  }
}

}  // namespace logitport
