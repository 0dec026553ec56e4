// The state of one processor for one request, kept up to date with the request's history.
#pragma once

#include <cstddef>
#include <cstdint>

#include "edits_writer.h"
#include "history.h"
#include "prefetch.h"

namespace logitport {

// At most so many ids of memory are read, or written to the edits, by `State::edit`: a number, and a multiple of the
// history's length. Those that `FirstDenial` reads once for a history do not count.
struct EditSize {
  std::int64_t fixed = 0;
  std::int64_t times_length = 0;
};

// A state follows from its history alone. One session uses it, so it has no lock; the calls need no interpreter.
// The calls throw an Error, and leave the memory of others alone, if the history is another one than they followed.
class State {
 public:
  State() = default;
  State(const State &) = delete;
  State &operator=(const State &) = delete;
  virtual ~State() = default;

  // Whether `advance` does anything; if not, it need not be called.
  [[nodiscard]] virtual bool advances() const noexcept { return false; }
  // Follow a history after `token_id` was appended.
  virtual void advance(const History & /*history*/, std::int32_t /*token_id*/) {}
  // Follow a history that was just cut back to its present length.
  virtual void rewind(const History & /*history*/) {}
  // Follow a history from its beginning, as a new state would.
  virtual void restart(const History & /*history*/) {}
  // Begin to load this object, or as much of it as the states have in common.
  void prefetch_object() const noexcept { prefetch_to_write(this, 3 * cache_line); }
  // Begin to load the memory that `advance`, and `edit` without it, will read. It helps if a few calls of the states of
  // other requests come before them.
  virtual void prefetch(const History & /*history*/) noexcept {}
  // After `advance`: begin to load the memory that `edit` will read.
  virtual void prefetch_edit(const History & /*history*/) noexcept {}
  // Add the edits of the row that samples the history's next id. Not const: a state may put its index in order.
  virtual void edit(const History &history, EditsWriter &edits) = 0;
  // Does not change.
  [[nodiscard]] virtual EditSize edit_size() const noexcept = 0;
  // Bytes of memory, without this object.
  [[nodiscard]] virtual std::size_t bytes() const noexcept { return 0; }
};

}  // namespace logitport
