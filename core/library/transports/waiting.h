// Waiting for descriptors, with a deadline, until another thread cancels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace logitport {

// A moment of the monotonic clock.
class Deadline {
 public:
  // From now on; at most about 30 years.
  explicit Deadline(double seconds);

  // Milliseconds that are left for `poll`, rounded up; 0 when it has passed.
  [[nodiscard]] int milliseconds() const noexcept;
  [[nodiscard]] double seconds() const noexcept;
  [[nodiscard]] bool has_passed() const noexcept { return std::chrono::steady_clock::now() >= at_; }
  [[nodiscard]] Deadline earlier(const Deadline &other) const noexcept { return other.at_ < at_ ? other : *this; }

 private:
  std::chrono::steady_clock::time_point at_;
};

// A file descriptor that this object closes.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  Descriptor(Descriptor &&other) noexcept : number_(other.release()) {}
  Descriptor &operator=(Descriptor &&other) noexcept;
  Descriptor(const Descriptor &) = delete;
  Descriptor &operator=(const Descriptor &) = delete;
  ~Descriptor();

  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] int release() noexcept;

 private:
  int number_;
};

// Ends waits on other threads.
class Wakeup {
 public:
  Wakeup();  // throws an Error if there is no descriptor

  // On any thread. Waits end at once from now on.
  void wake() noexcept;
  [[nodiscard]] bool is_awake() const noexcept { return is_awake_; }
  // Wait for events of a descriptor, as `poll`. Returns those that have occurred; 0 after the deadline.
  // Throws an Error (unavailable) after `wake`.
  [[nodiscard]] short wait(int descriptor, short events, const Deadline &deadline) const;
  // Sleep until the deadline. Throws as `wait`.
  void sleep(const Deadline &deadline) const;

 private:
  Descriptor event_;
  std::atomic<bool> is_awake_{false};
};

// The text of an error number.
std::string system_error_text(int number);

}  // namespace logitport
