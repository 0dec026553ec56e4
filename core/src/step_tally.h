// Counts the steps of one session, until Python takes the counts for the server's metrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "row_events.h"

namespace logitport {

enum class Transport : std::uint8_t { grpc = 0, local = 1 };

// A histogram of seconds: buckets[i] counts times of at most bounds[i], the last one those above all bounds.
struct TimeCounts {
  std::vector<std::int64_t> buckets;
  double seconds = 0.0;
};

struct StepCounts {
  TimeCounts computed, queued;
  std::uint64_t received_bytes = 0, sent_bytes = 0;
};

struct ProcessorCounts {
  std::int64_t rows = 0;
  TimeCounts times;
};

struct Counts {
  std::array<StepCounts, 2> steps;  // by transport
  std::vector<ProcessorCounts> processors;
  std::map<const EventKind *, std::int64_t> events;
};

// Of all steps: their number, and when the last one ended, in seconds of the monotonic clock.
struct Activity {
  std::int64_t steps = 0;
  double last_at = 0.0;
};

struct StepTimes {
  double ended_at;  // as in Activity
  double computed;
  double queued;
};

// Thread-safe: other threads take the counts while steps are computed.
class StepTally {
 public:
  // Ascending bounds of the buckets: of steps, and of processors.
  StepTally(std::vector<double> step_bounds, std::vector<double> processor_bounds);

  // Count a step: its rows and seconds by processor.
  void add(Transport transport, const StepTimes &times, const std::vector<std::int64_t> &rows,
           const std::vector<double> &seconds);
  void add_events(const std::vector<RequestEvent> &events);
  void add_bytes(Transport transport, std::size_t received, std::size_t sent);

  // The counts since the last call.
  [[nodiscard]] Counts take();
  [[nodiscard]] Activity activity() const;

 private:
  [[nodiscard]] Counts empty() const;

  std::vector<double> step_bounds_, processor_bounds_;
  mutable std::mutex mutex_;
  Counts counts_;
  Activity activity_;
};

}  // namespace logitport
