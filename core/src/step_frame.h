// The frames of a client's steps.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "history.h"

namespace logitport {

// Writes the frames of steps with the same requests in the same order, as `step_frame` of
// client/logitport/session/steps/step_frame.py, and adds the new ids to the histories.
class StepFrameWriter {
 public:
  // The requests are the keys of a dict. `held` are the requests of the session, by slot.
  // Throws NotAccepted (plain_values.h) unless each key is one of them, and has a compiled history.
  StepFrameWriter(nanobind::handle new_token_ids, const nanobind::dict &held, std::int64_t vocab_size);

  // Read the arguments of `Session.step`. Each may be wrong or only unusual.
  // Throws NotAccepted for whatever is not plain: other requests, other types, ids outside the vocabulary.
  void read(nanobind::handle new_token_ids, nanobind::handle drafts, nanobind::handle rows,
            nanobind::handle draft_parents);

  // The step that was read, as a `logitport.v1.SessionRequest` after its length, uint32. Lengths and checksums of the
  // histories are those before the new ids.
  nanobind::bytes serialize(std::uint64_t seq);

  // Append the new ids to the histories.
  void extend();

 private:
  struct Request {
    nanobind::object handle;
    nanobind::object kept_history;
    History *history;
  };
  struct Ids {
    std::vector<std::int32_t> counts, ids;

    void clear() {
      counts.clear();
      ids.clear();
    }
  };

  void read_new_ids(nanobind::handle new_token_ids);
  void read_drafts(nanobind::handle drafts);
  void read_parents(nanobind::handle draft_parents);
  void read_ids(nanobind::handle token_ids, Ids &column) const;
  void add_row_of_each_draft();
  void add_rows(nanobind::handle rows);

  std::int64_t vocab_size_;
  std::vector<Request> requests_;
  std::unordered_map<PyObject *, std::int32_t> indices_;  // of a request's handle
  std::vector<std::int32_t> slots_, generations_;
  // Of the step that was read.
  Ids new_, drafts_;
  std::vector<std::int32_t> draft_parents_;  // empty if all drafts are chains
  std::vector<std::int32_t> row_requests_, row_offsets_;
};

}  // namespace logitport
