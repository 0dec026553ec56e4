#include "step_tally.h"

#include <algorithm>
#include <utility>

namespace logitport {
namespace {

void add_to(TimeCounts &counts, const std::vector<double> &bounds, double seconds) {
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), seconds) - bounds.begin();
  ++counts.buckets[static_cast<std::size_t>(bucket)];
  counts.seconds += seconds;
}

TimeCounts none(const std::vector<double> &bounds) { return {std::vector<std::int64_t>(bounds.size() + 1), 0.0}; }

}  // namespace

StepTally::StepTally(std::vector<double> step_bounds, std::vector<double> processor_bounds)
    : step_bounds_(std::move(step_bounds)), processor_bounds_(std::move(processor_bounds)), counts_(empty()) {}

void StepTally::add(Transport transport, const StepTimes &times, const std::vector<std::int64_t> &rows,
                    const std::vector<double> &seconds) {
  const std::scoped_lock locked(mutex_);
  StepCounts &steps = counts_.steps[static_cast<std::size_t>(transport)];
  add_to(steps.computed, step_bounds_, times.computed);
  add_to(steps.queued, step_bounds_, times.queued);
  while (counts_.processors.size() < rows.size()) {
    counts_.processors.push_back({0, none(processor_bounds_)});
  }
  for (std::size_t number = 0; number < rows.size(); ++number) {
    if (rows[number] != 0) {
      counts_.processors[number].rows += rows[number];
      add_to(counts_.processors[number].times, processor_bounds_, seconds[number]);
    }
  }
  ++activity_.steps;
  activity_.last_at = times.ended_at;
}

void StepTally::add_events(const std::vector<RequestEvent> &events) {
  if (events.empty()) {
    return;
  }
  const std::scoped_lock locked(mutex_);
  for (const RequestEvent &each : events) {
    ++counts_.events[each.event.kind];
  }
}

void StepTally::add_bytes(Transport transport, std::size_t received, std::size_t sent) {
  const std::scoped_lock locked(mutex_);
  StepCounts &steps = counts_.steps[static_cast<std::size_t>(transport)];
  steps.received_bytes += received;
  steps.sent_bytes += sent;
}

Counts StepTally::take() {
  Counts taken = empty();
  const std::scoped_lock locked(mutex_);
  std::swap(taken, counts_);
  return taken;
}

Activity StepTally::activity() const {
  const std::scoped_lock locked(mutex_);
  return activity_;
}

Counts StepTally::empty() const {
  const StepCounts steps = {none(step_bounds_), none(step_bounds_)};
  return {{steps, steps}, {}, {}};
}

}  // namespace logitport
