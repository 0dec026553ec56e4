// The requests of one session whose chains the core runs, and their steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "edits_writer.h"
#include "history.h"
#include "state.h"
#include "step_columns.h"

namespace logitport {

// The limits of a step; see `ServerConfig`.
struct BatchLimits {
  std::int64_t vocab_size;
  std::int32_t max_draft_tokens;  // of a request
  std::int64_t max_tokens;        // of a request, with its drafts
  std::int64_t max_work;          // rows, or new ids, times the length of their chains
  std::size_t max_bytes;          // of the columns
};

// One entry of a chain. Several may be the same processor, which has a number in its session.
struct ChainEntry {
  State *state;
  std::size_t processor;
};

// Runs the steps of requests with chains of states. Not thread-safe; it needs no interpreter.
// A step that is in any way unusual is refused: Python computes it, with the same histories and states, and reports
// what is wrong with it. So a refused step has changed nothing but histories that it rewinds, as Python would then do.
class Batch {
 public:
  explicit Batch(const BatchLimits &limits) : limits_(limits), edits_(limits.vocab_size) {}
  Batch(const Batch &) = delete;
  Batch &operator=(const Batch &) = delete;
  Batch(Batch &&) = delete;
  Batch &operator=(Batch &&) = delete;
  ~Batch() = default;

  // Add a request. It replaces the request of its slot. The history and the states stay where they are, and exist,
  // until the slot gets another request or is removed.
  void put(std::int32_t slot, std::int32_t generation, History &history, std::vector<ChainEntry> chain);
  void remove(std::int32_t slot);

  // Compute a step: bring the histories up to date, and write the edits of all rows. Returns false if it is refused.
  // `partly`: leave out requests that were not put here. Otherwise, a step with one of them is refused.
  // Throws an Error if a step failed after it had begun, in this step and in all later ones.
  bool step(const StepFrame &frame, bool partly);

  // Of the last step: the edits; the rows with no id left; and by processor the number of rows, and the seconds.
  [[nodiscard]] const PackedEdits &edits() const noexcept { return edits_.columns(); }
  // Load the memory for the edits of a step, while its message is read.
  void prefetch_edits() const noexcept { edits_.prefetch(); }
  [[nodiscard]] bool has_large_edits() const noexcept { return edits_.capacity() > max_kept_ids; }
  // Free the memory of the edits if it is large: a server has many sessions, and few such steps.
  void release_large_edits();
  // The events of the last step, row by row.
  [[nodiscard]] const std::vector<RequestEvent> &events() const noexcept { return events_; }
  [[nodiscard]] const std::vector<std::int32_t> &denied_rows() const noexcept { return denied_rows_; }
  [[nodiscard]] const std::vector<std::int64_t> &applied() const noexcept { return applied_; }
  [[nodiscard]] const std::vector<double> &seconds() const noexcept { return seconds_; }

 private:
  static constexpr std::size_t max_kept_ids = std::size_t{1} << 18U;  // 1 MiB

  struct Request {
    std::int32_t generation = 0;
    History *history = nullptr;
    std::vector<ChainEntry> chain;
    EditSize size;  // of the edits of a row
  };

  // A request of the layout. Its chain is a part of `chains_`, and the states of it that follow each id one of
  // `advancing_`: in the order of the steps, so that the processor reads them ahead.
  struct LayoutRequest {
    History *history = nullptr;  // null if the request was not put here
    std::size_t chain_begin = 0, chain_end = 0;
    std::size_t advancing_begin = 0, advancing_end = 0;
    EditSize size;            // of the edits of a row
    std::int64_t rows = 0;    // in the layout
    std::int64_t depth = 0;   // drafts that are appended at the moment
    std::int32_t offset = 0;  // of the last one of them

    [[nodiscard]] auto chain_length() const noexcept { return static_cast<std::int64_t>(chain_end - chain_begin); }
  };

  bool find_requests(const StepFrame &frame);
  void find_layout_requests();
  void count_work();
  void prefetch() const;
  [[nodiscard]] bool is_usual(bool partly) const;
  [[nodiscard]] bool is_usual(const LayoutRequest &request, std::size_t index, const std::int32_t *new_ids) const;
  [[nodiscard]] bool charge_memory() const;
  [[nodiscard]] bool in_vocabulary(const std::int32_t *ids, std::size_t count) const noexcept;
  [[nodiscard]] bool synchronize() const;
  void append_new_ids();
  void write_edits();
  bool move_to(std::size_t index, std::int32_t draft_offset);
  void remove_drafts();
  void collect_events();

  void append(const LayoutRequest &request, const std::int32_t *ids, std::size_t count) const;
  void rewind(const LayoutRequest &request, std::int64_t length) const;

  BatchLimits limits_;
  std::unordered_map<std::int32_t, Request> by_slot_;
  StepLayout layout_;
  StepColumns columns_;
  bool found_ = false;                   // whether `requests_` belongs to the layout
  std::vector<LayoutRequest> requests_;  // in the order of the layout
  std::vector<ChainEntry> chains_;
  std::vector<State *> advancing_;
  bool has_all_ = false;
  std::int64_t work_ = 0;
  EditsWriter edits_;
  std::vector<RequestEvent> events_;
  std::vector<std::int32_t> denied_rows_;
  std::vector<std::int64_t> applied_;
  std::vector<double> seconds_;
  std::vector<std::uint64_t> ticks_;
  std::vector<std::int32_t> path_;  // drafts to append, the last one first
  bool failed_ = false;
};

}  // namespace logitport
