#include "ngram_index.h"

#include <algorithm>
#include <array>
#include <utility>

#include "../errors.h"
#include "../populate.h"

namespace logitport {
namespace {

constexpr std::int64_t unstable = 64;  // superseded positions among so many last ids are kept
constexpr int min_bits = 6;

[[noreturn]] void fail() { throw Error(ErrorCode::internal, "the n-gram index did not follow this history"); }

}  // namespace

NGramIndex::NGramIndex(const History &history, NGramRule rule, std::int64_t vocab_size)
    : rule_(std::move(rule)),
      vocab_size_(vocab_size),
      hash_(rule_.size - 1),
      first_(std::max<std::int64_t>(0, history.prompt_length() - rule_.window)) {
  build(history);
}

void NGramIndex::advance(const History &history, std::int32_t token_id) {
  if (history.length() != length_ + 1) {
    fail();
  }
  if (earlier_.size() == earlier_.capacity()) {
    earlier_.reserve(earlier_.size() + earlier_.size() / 4 + 1);  // a vector doubles by itself
  }
  earlier_.push_back(0);
  link_last();
  ++length_;
  context_ = hash_.roll(context_, leaving_id(history.data()), token_id);
  if (earlier_.size() > 2 * heads_.size()) {
    build(history);
  }
  __builtin_prefetch(&head());  // for the look-up, which follows when all requests of the step have their ids
}

void NGramIndex::rewind(const History &history) {
  const std::int64_t length = history.length();
  first_denial_.rewind(length);
  if (length > length_ || length < first_) {
    fail();
  }
  if (length < rewindable_to_ || length_ - length > length - first_) {
    build(history);
    return;
  }
  static_cast<void>(history.cut_ids(length_));  // checks that they are still there
  const std::int32_t *ids = history.data();
  while (length_ > length) {
    context_ = hash_.unroll(context_, leaving_id(ids), ids[length_ - 1]);
    --length_;
    if (head() == link_to(length_)) {
      head() = earlier_.back();
    }
    earlier_.pop_back();
  }
}

void NGramIndex::restart(const History &history) {
  first_denial_ = FirstDenial();
  first_ = std::max<std::int64_t>(0, history.prompt_length() - rule_.window);
  build(history);
}

void NGramIndex::prefetch(const History &history) noexcept {
  __builtin_prefetch(&head(), 1);
  __builtin_prefetch(earlier_.data() + earlier_.size(), 1);
  __builtin_prefetch(history.data() + std::max<std::int64_t>(0, length_ - rule_.size));
}

void NGramIndex::prefetch_edit(const History &history) noexcept {
  if (const Link link = head(); link != 0) {
    const std::int64_t position = position_of(link);
    __builtin_prefetch(history.data() + position);
    __builtin_prefetch(&earlier(position));
  }
}

void NGramIndex::edit(const History &history, EditsWriter &edits) {
  if (history.length() != length_) {
    fail();
  }
  std::vector<std::int32_t> &found = edits.scratch();
  std::size_t same = 0;
  std::int64_t last = length_;
  for (Link link = head(); link != 0; link = earlier(last)) {
    const std::int64_t position = position_of(link);
    if (position >= last) {
      fail();
    }
    last = position;
    if (position < earliest(length_)) {
      break;
    }
    if (have_one_context(history, position, length_)) {
      ++same;
      if (const std::int32_t id = history.at(position); may_be_denied(id)) {
        found.push_back(id);
      }
    }
  }
  if (first_denial_.is_at(history.prompt_length(), length_, !found.empty(),
                          [&](std::int64_t length) { return denies_at(history, length); })) {
    edits.event(ids_denied);
  }
  edits.deny_set(found);
  if (same > 2 * (found.size() + static_cast<std::size_t>(unstable))) {
    remove_superseded(history, found);
  }
}

std::size_t NGramIndex::bytes() const noexcept {
  return (heads_.capacity() + earlier_.capacity()) * sizeof(Link) + rule_.whitelist.capacity() * sizeof(std::int32_t);
}

// Index all of the history. Takes linear time.
void NGramIndex::build(const History &history) {
  const auto count = static_cast<std::size_t>(history.length() - first_);
  int bits = min_bits;
  while (4 * (std::size_t{1} << static_cast<unsigned>(bits)) < 3 * count) {
    ++bits;
  }
  const std::size_t buckets = std::size_t{1} << static_cast<unsigned>(bits);
  heads_.reserve(buckets);
  earlier_.reserve(count + count / 8);
  bits_ = bits;  // from here on nothing fails: `heads_` always has 2**bits_ elements
  populate(heads_.data(), buckets * sizeof(Link));
  heads_.assign(buckets, 0);
  populate(earlier_.data(), count * sizeof(Link));
  earlier_.assign(count, 0);
  context_ = 0;
  rewindable_to_ = 0;
  length_ = first_;
  const std::int32_t *ids = history.data();
  link_lanes(ids, history.length());
  while (length_ < history.length()) {
    link_last();
    ++length_;
    context_ = hash_.roll(context_, leaving_id(ids), ids[length_ - 1]);
  }
}

// Index most positions of an empty index. A hash needs the one before it. So several parts of the history are hashed at
// the same time: a processor then waits less.
void NGramIndex::link_lanes(const std::int32_t *ids, std::int64_t length) {
  struct Lane {
    std::int64_t position;
    std::uint64_t context;
  };
  std::array<Lane, 4> lanes{};
  const std::int64_t before = rule_.size - 1;
  const std::int64_t begin = first_ + before;
  const std::int64_t count = (length - begin) / static_cast<std::int64_t>(lanes.size());  // positions of a lane
  if (count <= before) {
    return;
  }
  std::int64_t end = begin;
  for (Lane &lane : lanes) {
    lane.position = end;
    end += count;
    for (std::int64_t position = lane.position - before; position < lane.position; ++position) {
      lane.context = hash_.roll(lane.context, 0, ids[position]);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    for (Lane &lane : lanes) {
      earlier(lane.position) = static_cast<Link>(hash_.bucket(lane.context, bits_));
      lane.context = hash_.roll(lane.context, ids[lane.position - before], ids[lane.position]);
      ++lane.position;
    }
  }
  for (length_ = begin; length_ < end; ++length_) {
    Link &latest = heads_[static_cast<std::size_t>(earlier(length_))];
    earlier(length_) = latest;
    latest = link_to(length_);
  }
  context_ = lanes.back().context;
}

// Add the position `length_` with the context `context_`, unless fewer ids precede it in every window.
void NGramIndex::link_last() {
  if (length_ - first_ >= rule_.size - 1) {
    Link &latest = head();
    earlier(length_) = latest;
    latest = link_to(length_);
  }
}

// Remove the positions of the last context that have a later one with the same id, or an id that is never denied.
// `denied`: the distinct ids of all positions with this context in the window, ascending.
void NGramIndex::remove_superseded(const History &history, const std::vector<std::int32_t> &denied) {
  const std::int64_t stable = std::max(history.prompt_length(), length_ - unstable);
  std::vector<bool> seen(denied.size());
  Link *link = &head();
  while (*link != 0 && position_of(*link) >= earliest(length_)) {
    const std::int64_t position = position_of(*link);
    if (position < stable && have_one_context(history, position, length_)) {
      const auto found = std::lower_bound(denied.begin(), denied.end(), history.at(position));
      const auto index = static_cast<std::size_t>(found - denied.begin());
      if (found == denied.end() || *found != history.at(position) || seen[index]) {
        *link = earlier(position);
        continue;
      }
      seen[index] = true;
    }
    link = &earlier(position);
  }
  rewindable_to_ = std::max(rewindable_to_, stable);
}

bool NGramIndex::may_be_denied(std::int32_t id) const {
  return id >= 0 && id < vocab_size_ && !std::binary_search(rule_.whitelist.begin(), rule_.whitelist.end(), id);
}

// Whether the row at an earlier length denies ids, if no row of the output before it does.
bool NGramIndex::denies_at(const History &history, std::int64_t length) {
  std::int64_t last = length;
  for (Link link = earlier(length); link != 0; link = earlier(last)) {
    const std::int64_t position = position_of(link);
    if (position >= last) {
      fail();
    }
    last = position;
    if (position < earliest(length)) {
      return false;
    }
    if (have_one_context(history, position, length)) {
      if (may_be_denied(history.at(position))) {
        return true;
      }
      if (position >= history.prompt_length()) {  // its row has denied no id of the positions before it
        return false;
      }
    }
  }
  return false;
}

// Whether the ids before the position equal the last ids of a history of this length.
bool NGramIndex::have_one_context(const History &history, std::int64_t position, std::int64_t length) const noexcept {
  const std::int32_t *there = history.data() + position;
  const std::int32_t *last = history.data() + length;
  const std::int64_t count = rule_.size - 1;
  return count == 0 || (there[-1] == last[-1] && std::equal(there - count, there - 1, last - count));
}

// The first position with its n-gram in the window of a history of this length.
std::int64_t NGramIndex::earliest(std::int64_t length) const noexcept {
  return std::max<std::int64_t>(0, length - rule_.window) + rule_.size - 1;
}

// The id that the context loses when the id before `length_` joins it.
std::int32_t NGramIndex::leaving_id(const std::int32_t *ids) const noexcept {
  return length_ - first_ >= rule_.size ? ids[length_ - rule_.size] : 0;
}

}  // namespace logitport
