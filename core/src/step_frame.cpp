#include "step_frame.h"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "bindings.h"
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
    content_.add_request(integer(slot), integer(attribute(handle, "generation")), *compiled);
    indices_.emplace(handle.ptr(), static_cast<std::int32_t>(requests_.size()));
    requests_.push_back({nb::borrow(handle), std::move(history)});
  }
}

void StepFrameWriter::read(nb::handle new_token_ids, nb::handle drafts, nb::handle rows, nb::handle draft_parents) {
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    content_.history(index).prefetch();
  }
  content_.clear();
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
  } else if (!content_.drafts.ids.empty()) {
    content_.add_row_of_each_draft();
  }
}

void StepFrameWriter::read_new_ids(nb::handle new_token_ids) {
  require(PyDict_CheckExact(new_token_ids.ptr()) &&
          static_cast<std::size_t>(PyDict_Size(new_token_ids.ptr())) == requests_.size());
  Py_ssize_t position = 0;
  PyObject *handle = nullptr, *ids = nullptr;
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    require(PyDict_Next(new_token_ids.ptr(), &position, &handle, &ids) != 0 && handle == requests_[index].handle.ptr());
    read_ids(ids, content_.new_ids);
    content_.history(index).prefetch_end();
  }
}

void StepFrameWriter::read_drafts(nb::handle drafts) {
  std::size_t found = 0;
  for (const Request &request : requests_) {
    PyObject *ids = find(drafts, request.handle);
    if (ids == nullptr) {
      content_.drafts.counts.push_back(0);
      continue;
    }
    ++found;
    read_ids(ids, content_.drafts);
  }
  require(found == static_cast<std::size_t>(PyDict_Size(drafts.ptr())));
}

// The parents of the drafts. A request without an entry has a chain.
void StepFrameWriter::read_parents(nb::handle draft_parents) {
  std::vector<std::int32_t> &column = content_.draft_parents;
  require(!content_.drafts.counts.empty());
  std::size_t found = 0;
  bool has_tree = false;
  for (std::size_t request = 0; request < requests_.size(); ++request) {
    const std::int32_t count = content_.drafts.counts[request];
    PyObject *parents = find(draft_parents, requests_[request].handle);
    std::int32_t index = 0;
    if (parents == nullptr) {
      for (; index < count; ++index) {
        column.push_back(index - 1);
      }
      continue;
    }
    ++found;
    const auto add = [&](std::int64_t parent) {
      require(parent >= -1 && parent < index++);
      column.push_back(static_cast<std::int32_t>(parent));
    };
    require(for_each_item(parents, [&](nb::handle item) { add(integer(item)); }) || for_each_number(parents, add));
    require(index == count);
    has_tree |= count != 0;
  }
  if (!has_tree) {
    column.clear();
  }
  require(found == static_cast<std::size_t>(PyDict_Size(draft_parents.ptr())));
}

void StepFrameWriter::read_ids(nb::handle token_ids, StepIds &column) const {
  const std::size_t before = column.ids.size();
  const auto add = [&](std::int64_t token_id) {
    require(token_id >= 0 && token_id < vocab_size_);
    column.ids.push_back(static_cast<std::int32_t>(token_id));
  };
  require(for_each_item(token_ids, [&](nb::handle item) { add(integer(item)); }) || for_each_number(token_ids, add));
  column.end_list(before);
}

// Rows as pairs of a handle and a draft offset.
void StepFrameWriter::add_rows(nb::handle rows) {
  require(PyList_CheckExact(rows.ptr()));
  for_each_item(rows, [&](nb::handle row) {
    require(PyTuple_CheckExact(row.ptr()) && PyTuple_Size(row.ptr()) == 2);
    const auto found = indices_.find(PyTuple_GetItem(row.ptr(), 0));
    const std::int32_t offset = integer(PyTuple_GetItem(row.ptr(), 1));
    require(found != indices_.end());
    require(offset >= 0 && offset <= content_.draft_count(static_cast<std::size_t>(found->second)));
    content_.row_requests.push_back(found->second);
    content_.row_offsets.push_back(offset);
  });
  require(!content_.row_requests.empty() || requests_.empty());
  content_.finish_rows();
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
      .def(
          "serialize", [](StepFrameWriter &self, std::uint64_t seq) { return to_bytes(self.serialize(seq)); },
          nb::arg("seq"), "Serialize the frame of the step.")
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
