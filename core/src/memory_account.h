// The memory that the histories and states of one principal hold, and its limit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace logitport {

// Bytes held in all sessions of a principal. Thread-safe.
class MemoryAccount {
 public:
  explicit MemoryAccount(std::int64_t limit) noexcept : limit_(limit) {}

  [[nodiscard]] std::int64_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::int64_t held() const noexcept { return held_.load(std::memory_order_relaxed); }

  // Add bytes. Returns false, and adds none, if more than the limit would be held.
  [[nodiscard]] bool add(std::int64_t bytes) noexcept {
    std::int64_t held = held_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ - held) {
        return false;
      }
    } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }
  void remove(std::int64_t bytes) noexcept { held_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::int64_t limit_;
  std::atomic<std::int64_t> held_{0};
};

// Upper bounds of the bytes of one request.
struct MemoryRates {
  std::int64_t fixed = 0;
  std::int64_t per_id = 0;
  std::int64_t per_output_id = 0;  // of the ids after the prompt
};

// The charge of one request: its history, and the states that follow it. Removed from the account at its end.
// The counterpart of `PythonMemoryCharge` in client/logitport/core/memory_account.py.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(const MemoryCharge &) = delete;
  MemoryCharge &operator=(const MemoryCharge &) = delete;
  MemoryCharge(MemoryCharge &&) = delete;
  MemoryCharge &operator=(MemoryCharge &&) = delete;
  ~MemoryCharge() { end(); }

  // Returns false, and charges nothing, if the account has no room.
  [[nodiscard]] bool begin(std::shared_ptr<MemoryAccount> account, const MemoryRates &rates, std::int64_t prompt_length,
                           std::int64_t length) {
    end();
    account_ = std::move(account);
    rates_ = rates;
    prompt_length_ = prompt_length;
    if (!grow(length)) {
      account_ = nullptr;
      return false;
    }
    return true;
  }

  // Charge the memory of this length, which is never less later: arrays keep their capacity. Returns false, and charges
  // nothing more, if the account has no room.
  [[nodiscard]] bool grow(std::int64_t length) noexcept {
    if (account_ == nullptr || length <= length_) {
      return true;
    }
    // A quarter more ids after the prompt, so that most steps charge nothing. Not a quarter of the prompt: few ids may
    // follow a long one, and a generated id can take many times the bytes of one in the prompt.
    const std::int64_t charged = length + std::max<std::int64_t>(64, (length - prompt_length_) / 4);
    const std::int64_t capacity = std::max(charged, length + length / 4);  // of arrays, which grow by a quarter
    const std::int64_t output = charged - prompt_length_;
    const std::int64_t bytes = rates_.fixed + rates_.per_id * capacity + rates_.per_output_id * output;
    if (!account_->add(bytes - bytes_)) {
      return false;
    }
    length_ = charged;
    bytes_ = bytes;
    return true;
  }

  // 0 without an account.
  [[nodiscard]] std::int64_t limit() const noexcept { return account_ == nullptr ? 0 : account_->limit(); }

 private:
  void end() noexcept {
    if (account_ != nullptr) {
      account_->remove(bytes_);
      account_ = nullptr;
    }
    length_ = -1;
    bytes_ = 0;
  }

  std::shared_ptr<MemoryAccount> account_;
  MemoryRates rates_;
  std::int64_t prompt_length_ = 0;
  std::int64_t length_ = -1;  // that is charged
  std::int64_t bytes_ = 0;
};

}  // namespace logitport
