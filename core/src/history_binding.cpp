#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <optional>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "checksum.h"
#include "history.h"
#include "memory_account.h"
#include "sequences.h"

namespace nb = nanobind;

namespace logitport {
namespace {

// The ids in [begin, end) without a copy. The view keeps the array that the history has now: it stays valid memory when
// the history grows, but is then a view of the past. Writable, because torch warns of arrays that are not.
NumpyArray<std::int32_t> ids_view(const History &history, std::int64_t begin, std::int64_t end) {
  return to_numpy(history.buffer().get() + begin, static_cast<std::size_t>(end - begin), history.buffer());
}

std::int32_t at(const History &history, std::int64_t position) {
  if (position < 0 || position >= history.length()) {
    throw nb::index_error("no id is at this position of the history");
  }
  return history.at(position);
}

std::optional<std::int32_t> last_output(const History &history) {
  if (history.length() == history.prompt_length()) {
    return std::nullopt;
  }
  return history.at(history.length() - 1);
}

}  // namespace

void bind_checksum(nb::module_ &module) {
  // For tests alone: few processors need it.
  module.def(
      "extend_crc_by_table",
      [](std::uint32_t crc, const Ids &token_ids) {
        return extend_crc_by_table(crc, token_ids.data(), token_ids.size());
      },
      nb::arg("crc"), nb::arg("token_ids").noconvert(),
      "Extend a checksum by ids, int32[n], as on a processor without carry-less multiplication.");
}

void bind_history(nb::module_ &module) {
  nb::class_<MemoryAccount>(module, "MemoryAccount", nb::is_weak_referenceable(),
                            "The memory that the histories and states of one principal hold.")
      .def(nb::init<std::int64_t>(), nb::arg("limit"))
      .def_prop_ro("limit", &MemoryAccount::limit, "Bytes that may be held.")
      .def_prop_ro("held", &MemoryAccount::held, "Bytes that are held.")
      .def("add", &MemoryAccount::add, nb::arg("num_bytes"),
           "Add bytes. Returns False, and adds none, if more than the limit would be held.")
      .def("remove", &MemoryAccount::remove, nb::arg("num_bytes"), "Remove bytes that were added.");
  nb::class_<History>(module, "History", "The token history of one request.")
      .def(
          "__init__",
          [](History *self, const Ids &prompt, const Ids &output) {
            new (self) History(prompt.data(), prompt.size(), output.data(), output.size());
          },
          nb::arg("prompt_token_ids").noconvert(), nb::arg("output_token_ids").noconvert())
      .def("__len__", &History::length)
      .def_prop_ro("length", &History::length)
      .def_prop_ro("prompt_length", &History::prompt_length)
      .def_rw("draft_tokens", &History::draft_tokens)
      .def_prop_ro("rows_applied", &History::rows_applied)
      .def("add_rows", &History::add_rows, nb::arg("sampled"), nb::arg("rows"))
      .def("drop_rows", &History::drop_rows)
      .def_prop_ro(
          "token_ids", [](const History &self) { return ids_view(self, 0, self.length()); }, nb::rv_policy::reference)
      .def_prop_ro(
          "prompt_token_ids", [](const History &self) { return ids_view(self, 0, self.prompt_length()); },
          nb::rv_policy::reference)
      .def_prop_ro(
          "output_token_ids", [](const History &self) { return ids_view(self, self.prompt_length(), self.length()); },
          nb::rv_policy::reference)
      .def_prop_ro("last_output", &last_output)
      .def("at", &at, nb::arg("position"))
      .def("append", &History::append, nb::arg("token_id"))
      .def(
          "extend",
          [](History &self, const nb::typed<nb::sequence, int> &token_ids) {
            const auto ids = numbers_of<std::int32_t>(token_ids);
            self.extend(ids.data(), ids.size());
          },
          nb::arg("token_ids"))
      .def("rewind", &History::rewind, nb::arg("length"))
      .def("follow", &History::follow, nb::arg("other"), nb::arg("prompt_length"),
           "Become a view of another history, with a prompt of this length.")
      .def(
          "cut_token_ids",
          [](const History &self, std::int64_t length) {
            static_cast<void>(self.cut_ids(length));  // checks the length
            return ids_view(self, self.length(), length);
          },
          nb::arg("length"))
      .def("crc", &History::checksum)
      .def(
          "begin_charge",
          [](History &self, std::shared_ptr<MemoryAccount> account, std::int64_t fixed, std::int64_t per_id,
             std::int64_t per_output_id) {
            const MemoryRates rates{fixed, per_id, per_output_id};
            return self.charge().begin(std::move(account), rates, self.prompt_length(), self.length());
          },
          nb::arg("account"), nb::arg("fixed"), nb::arg("per_id"), nb::arg("per_output_id"),
          "Charge the memory of the history and its states to an account. Returns False if it has no room.")
      .def(
          "charge", [](History &self, std::int64_t length) { return self.charge().grow(length); }, nb::arg("length"),
          "Charge the memory of this length. Returns False if the account has no room.")
      .def_prop_ro(
          "memory_limit", [](History &self) { return self.charge().limit(); }, "Limit of the account; 0 without one.")
      .def_prop_ro("nbytes", &History::bytes, "Bytes of memory.");
}

}  // namespace logitport
