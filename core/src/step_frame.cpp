#include "step_frame.h"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "message_fields.h"
#include "message_writer.h"
#include "plain_values.h"

namespace nb = nanobind;

namespace logitport {

StepFrameWriter::StepFrameWriter(nb::handle new_token_ids, const nb::dict &held, std::int64_t vocab_size)
    : vocab_size_(vocab_size) {
  require(PyDict_CheckExact(new_token_ids.ptr()));
  for (const nb::handle handle : nb::borrow<nb::dict>(new_token_ids).keys()) {  // a copy: attributes may run code
    nb::object slot = attribute(handle, "slot"), history = attribute(handle, "history");
    require(find(held, slot) == handle.ptr());
    History *compiled = nullptr;
    require(nb::try_cast(history, compiled) && compiled != nullptr);
    slots_.push_back(integer(slot));
    generations_.push_back(integer(attribute(handle, "generation")));
    indices_.emplace(handle.ptr(), static_cast<std::int32_t>(requests_.size()));
    requests_.push_back({nb::borrow(handle), std::move(history), compiled});
  }
}

void StepFrameWriter::read(nb::handle new_token_ids, nb::handle drafts, nb::handle rows, nb::handle draft_parents) {
  for (const Request &request : requests_) {
    request.history->prefetch();
  }
  new_.clear();
  drafts_.clear();
  draft_parents_.clear();
  row_requests_.clear();
  row_offsets_.clear();
  read_new_ids(new_token_ids);
  if (!drafts.is_none()) {
    require(PyDict_CheckExact(drafts.ptr()));
    if (PyDict_Size(drafts.ptr()) != 0) {
      read_drafts(drafts);
    }
  }
  if (!draft_parents.is_none()) {
    require(PyDict_CheckExact(draft_parents.ptr()));
    if (PyDict_Size(draft_parents.ptr()) != 0) {
      read_parents(draft_parents);
    }
  }
  if (!rows.is_none()) {
    add_rows(rows);
  } else if (!drafts_.ids.empty()) {
    add_row_of_each_draft();
  }
}

nb::bytes StepFrameWriter::serialize(std::uint64_t seq) {
  std::vector<std::int32_t> lengths;
  std::vector<std::uint32_t> checksums;
  lengths.reserve(requests_.size());
  checksums.reserve(requests_.size());
  for (const Request &request : requests_) {
    lengths.push_back(static_cast<std::int32_t>(request.history->length()));
    checksums.push_back(request.history->checksum());
  }
  MessageWriter step;
  step.column(fields::Step::slots, slots_);
  step.column(fields::Step::generations, generations_);
  step.column(fields::Step::base_lengths, lengths);
  step.column(fields::Step::history_crcs, checksums);
  step.column(fields::Step::new_token_counts, new_.counts);
  step.column(fields::Step::new_token_ids, new_.ids);
  step.column(fields::Step::row_requests, row_requests_);
  step.column(fields::Step::row_draft_offsets, row_offsets_);
  step.column(fields::Step::draft_counts, drafts_.counts);
  step.column(fields::Step::draft_token_ids, drafts_.ids);
  step.column(fields::Step::draft_parents, draft_parents_);
  MessageWriter frame;
  frame.varint(fields::SessionRequest::seq, seq);
  frame.bytes(fields::SessionRequest::step, step.data());
  const auto length = static_cast<std::uint32_t>(frame.data().size());
  std::string with_length(reinterpret_cast<const char *>(&length), sizeof length);
  with_length += frame.data();
  return nb::bytes(with_length.data(), with_length.size());
}

void StepFrameWriter::extend() {
  std::vector<std::int32_t> rows(row_requests_.empty() ? 0 : requests_.size());
  for (const std::int32_t request : row_requests_) {
    ++rows[static_cast<std::size_t>(request)];
  }
  std::size_t first = 0;
  for (std::size_t index = 0; index < new_.counts.size(); ++index) {
    const auto count = static_cast<std::size_t>(new_.counts[index]);
    History &history = *requests_[index].history;
    history.extend(new_.ids.data() + first, count);
    history.add_rows(new_.counts[index], rows.empty() ? 1 : rows[index]);
    first += count;
  }
  new_.clear();
}

void StepFrameWriter::read_new_ids(nb::handle new_token_ids) {
  require(PyDict_CheckExact(new_token_ids.ptr()) &&
          static_cast<std::size_t>(PyDict_Size(new_token_ids.ptr())) == requests_.size());
  Py_ssize_t position = 0;
  PyObject *handle = nullptr, *ids = nullptr;
  for (const Request &request : requests_) {
    require(PyDict_Next(new_token_ids.ptr(), &position, &handle, &ids) != 0 && handle == request.handle.ptr());
    read_ids(ids, new_);
    request.history->prefetch_end();
  }
}

void StepFrameWriter::read_drafts(nb::handle drafts) {
  std::size_t found = 0;
  for (const Request &request : requests_) {
    PyObject *ids = find(drafts, request.handle);
    if (ids == nullptr) {
      drafts_.counts.push_back(0);
      continue;
    }
    ++found;
    read_ids(ids, drafts_);
  }
  require(found == static_cast<std::size_t>(PyDict_Size(drafts.ptr())));
}

// The parents of the drafts. A request without an entry has a chain.
void StepFrameWriter::read_parents(nb::handle draft_parents) {
  require(!drafts_.counts.empty());
  std::size_t found = 0;
  bool has_tree = false;
  for (std::size_t request = 0; request < requests_.size(); ++request) {
    const std::int32_t count = drafts_.counts[request];
    PyObject *parents = find(draft_parents, requests_[request].handle);
    std::int32_t index = 0;
    if (parents == nullptr) {
      for (; index < count; ++index) {
        draft_parents_.push_back(index - 1);
      }
      continue;
    }
    ++found;
    const auto add = [&](std::int64_t parent) {
      require(parent >= -1 && parent < index++);
      draft_parents_.push_back(static_cast<std::int32_t>(parent));
    };
    require(for_each_item(parents, [&](nb::handle item) { add(integer(item)); }) || for_each_number(parents, add));
    require(index == count);
    has_tree |= count != 0;
  }
  if (!has_tree) {
    draft_parents_.clear();
  }
  require(found == static_cast<std::size_t>(PyDict_Size(draft_parents.ptr())));
}

void StepFrameWriter::read_ids(nb::handle token_ids, Ids &column) const {
  const std::size_t before = column.ids.size();
  const auto add = [&](std::int64_t token_id) {
    require(token_id >= 0 && token_id < vocab_size_);
    column.ids.push_back(static_cast<std::int32_t>(token_id));
  };
  require(for_each_item(token_ids, [&](nb::handle item) { add(integer(item)); }) || for_each_number(token_ids, add));
  column.counts.push_back(static_cast<std::int32_t>(column.ids.size() - before));
}

// A row of each request, and one more for each of its draft tokens.
void StepFrameWriter::add_row_of_each_draft() {
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    for (std::int32_t offset = 0; offset <= drafts_.counts[index]; ++offset) {
      row_requests_.push_back(static_cast<std::int32_t>(index));
      row_offsets_.push_back(offset);
    }
  }
}

// Rows as pairs of a handle and a draft offset.
void StepFrameWriter::add_rows(nb::handle rows) {
  bool is_default = true;
  require(PyList_CheckExact(rows.ptr()));
  for_each_item(rows, [&](nb::handle row) {
    require(PyTuple_CheckExact(row.ptr()) && PyTuple_Size(row.ptr()) == 2);
    const auto found = indices_.find(PyTuple_GetItem(row.ptr(), 0));
    const std::int32_t offset = integer(PyTuple_GetItem(row.ptr(), 1));
    require(found != indices_.end());
    const std::int32_t index = found->second;
    require(offset >= 0 && offset <= (drafts_.counts.empty() ? 0 : drafts_.counts[static_cast<std::size_t>(index)]));
    is_default &= offset == 0 && index == static_cast<std::int32_t>(row_requests_.size());
    row_requests_.push_back(index);
    row_offsets_.push_back(offset);
  });
  require(!row_requests_.empty() || requests_.empty());
  if (is_default && row_requests_.size() == requests_.size()) {
    row_requests_.clear();
  }
  if (row_requests_.empty() || drafts_.counts.empty()) {
    row_offsets_.clear();
  }
}

void bind_step_frame(nb::module_ &module) {
  nb::class_<StepFrameWriter>(module, "StepFrameWriter",
                              "Writes the frames of steps with the same requests in the same order.")
      .def(
          "read",
          [](StepFrameWriter &self, nb::handle new_token_ids, nb::handle drafts, nb::handle rows,
             nb::handle draft_parents) {
            try {
              self.read(new_token_ids, drafts, rows, draft_parents);
            } catch (const NotAccepted &) {
              return false;
            }
            return true;
          },
          nb::arg("new_token_ids"), nb::arg("drafts").none(), nb::arg("rows").none(), nb::arg("draft_parents").none(),
          "Read the arguments of a step.\n\nReturns False if the Python version has to read them.")
      .def("serialize", &StepFrameWriter::serialize, nb::arg("seq"), "Serialize the frame of the step.")
      .def("extend", &StepFrameWriter::extend, "Append the new ids of the step to the histories.");
  module.def(
      "step_frame_writer",
      [](nb::handle new_token_ids, const nb::dict &held, std::int64_t vocab_size) -> std::optional<StepFrameWriter> {
        try {
          return StepFrameWriter(new_token_ids, held, vocab_size);
        } catch (const NotAccepted &) {
          return std::nullopt;
        }
      },
      nb::arg("new_token_ids"), nb::arg("held"), nb::arg("vocab_size"),
      nb::sig("def step_frame_writer(new_token_ids: object, held: object, vocab_size: int) -> StepFrameWriter | None"),
      "Make the writer for steps with these requests.\n\n"
      "Returns None if the Python version has to read the arguments.");
}

}  // namespace logitport
