// The frames of a client's steps, from the arguments of Python's `Session.step`.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "step_content.h"

namespace logitport {

// Reads steps with the same requests in the same order, into a `StepContent`.
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
  std::string_view serialize(std::uint64_t seq) { return content_.serialize(seq); }

  // Append the new ids to the histories.
  void extend() { content_.extend(); }

 private:
  struct Request {
    nanobind::object handle;
    nanobind::object kept_history;
  };
  void read_new_ids(nanobind::handle new_token_ids);
  void read_drafts(nanobind::handle drafts);
  void read_parents(nanobind::handle draft_parents);
  void read_ids(nanobind::handle token_ids, StepIds &column) const;
  void add_rows(nanobind::handle rows);

  std::int64_t vocab_size_;
  std::vector<Request> requests_;
  std::unordered_map<PyObject *, std::int32_t> indices_;  // of a request's handle
  StepContent content_;
};

}  // namespace logitport
