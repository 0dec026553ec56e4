// Measures short times: ticks of the processor's counter, converted to seconds by a clock that is read less often.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace logitport {

// Read before and after each state's edits. std::chrono takes 20 ns, and on some virtual machines ten times as long.
inline std::uint64_t ticks() noexcept {
#ifdef __x86_64__
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Seconds of the monotonic clock, as Python's `time.monotonic` where it has the same clock.
inline double monotonic_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs from its construction.
class Stopwatch {
 public:
  // Convert parts of the time since the construction, by their ticks.
  void to_seconds(const std::vector<std::uint64_t> &parts, std::vector<double> &seconds) const {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began_;
    const std::uint64_t all = ticks() - began_ticks_;
    const double seconds_a_tick = all != 0 ? elapsed.count() / static_cast<double>(all) : 0.0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      seconds[i] = static_cast<double>(parts[i]) * seconds_a_tick;
    }
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::uint64_t began_ticks_ = ticks();
};

}  // namespace logitport
