// The token history of one request.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory_account.h"
#include "prefetch.h"

namespace logitport {

// Prompt and output ids of one request, in an array that grows, and may be cut back, at its end.
// The counterpart of the class of this name in client/logitport/core/history.py.
class History {
 public:
  History(const std::int32_t *prompt, std::size_t prompt_count, const std::int32_t *output, std::size_t output_count);
  // A copy would share the array, and write to it.
  History(const History &) = delete;
  History &operator=(const History &) = delete;
  History(History &&) = delete;
  History &operator=(History &&) = delete;
  ~History() = default;

  [[nodiscard]] std::int64_t length() const noexcept { return length_; }
  [[nodiscard]] std::int64_t prompt_length() const noexcept { return prompt_length_; }
  // Ids of the prompt, then of the output. Valid until the next append or extend.
  [[nodiscard]] const std::int32_t *data() const noexcept { return ids_.get(); }
  // The position must lie in [0, length()).
  [[nodiscard]] std::int32_t at(std::int64_t position) const noexcept { return ids_[position]; }

  void append(std::int32_t token_id) {
    if (length_ == capacity_) {
      reserve(length_ + 1);
    }
    ids_[length_++] = token_id;
  }
  void extend(const std::int32_t *token_ids, std::size_t count);
  // Cut back to `length` ids. Throws an Error if it is longer than the history, or would cut into the prompt.
  void rewind(std::int64_t length);

  // Become a view of another history, with a prompt of this length: it shares the array, and only `follow` may change
  // it. Call it again after each change of the other one. Throws an Error if the prompt would be longer than the
  // history.
  void follow(const History &other, std::int64_t prompt_length);

  // CRC-32 of all ids, as extend_crc. Reads only ids that were added since the last call, and after a rewind at most
  // `checkpoint_every` more.
  [[nodiscard]] std::uint32_t checksum();

  // The ids that `rewind` has cut off a history of this length. They are there until the next append. Throws an Error
  // if no rewind began at this length or a greater one.
  [[nodiscard]] const std::int32_t *cut_ids(std::int64_t from_length) const;

  // The length before the last rewinds, or the present one.
  [[nodiscard]] std::int64_t longest() const noexcept { return std::max(length_, longest_); }

  // The array itself. Its owners keep the memory of views alive when the history grows.
  [[nodiscard]] const std::shared_ptr<std::int32_t[]> &buffer() const noexcept { return ids_; }

  // Load what `checksum` and `append` read into the cache: first the object, then the end of its array.
  void prefetch() const noexcept { prefetch_to_write(this, sizeof *this); }
  void prefetch_end() const noexcept { __builtin_prefetch(ids_.get() + length_, 1); }

  // Bytes of memory, without this object.
  [[nodiscard]] std::size_t bytes() const noexcept;

  // The charge for this history and its states, for its sessions' principal. Nothing is charged before it begins.
  [[nodiscard]] MemoryCharge &charge() noexcept { return charge_; }

  // Number of rows of logits of which an id was sampled, or is sampled next.
  [[nodiscard]] std::int64_t rows_applied() const noexcept { return sampled_rows_ + (open_rows_ > 0 ? 1 : 0); }
  // Count the rows of a step, one and one more for each draft token. `sampled` ids have joined the history since the
  // step before: so many of its rows were sampled from.
  void add_rows(std::int64_t sampled, std::int64_t rows) noexcept {
    sampled_rows_ += std::min(sampled, open_rows_);
    open_rows_ = rows;
  }
  // Leave out the rows of the last step, because the request has failed in it.
  void drop_rows() noexcept { open_rows_ = 0; }

  // Number of draft tokens at the end, which the engine may still reject.
  std::int64_t draft_tokens = 0;

 private:
  static constexpr std::int64_t checkpoint_every = 512;

  void reserve(std::int64_t length);

  std::shared_ptr<std::int32_t[]> ids_;
  std::int64_t length_ = 0;
  std::int64_t prompt_length_ = 0;
  std::int64_t capacity_ = 0;
  std::int64_t longest_ = 0;  // length before the last rewinds: ids below it were written to this array
  std::int64_t sampled_rows_ = 0;
  std::int64_t open_rows_ = 0;  // of the last step
  // The checksum of the first `checked_` ids, and of the first k * checkpoint_every ids for each k that was reached.
  std::int64_t checked_ = 0;
  std::uint32_t checksum_ = 0;
  std::vector<std::uint32_t> checkpoints_;
  MemoryCharge charge_;
};

}  // namespace logitport
