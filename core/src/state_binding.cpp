#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "errors.h"
#include "state.h"
#include "states/token_list.h"

namespace nb = nanobind;

namespace logitport {
namespace {

EditsWriter writer_for(std::int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::invalid_argument, "the size of a vocabulary must lie in [1, 2**31)");
  }
  return EditsWriter(vocab_size);
}

EditsArrays edit(State &state, const History &history, std::int64_t vocab_size) {
  EditsWriter edits = writer_for(vocab_size);
  edits.begin_row(0);
  state.edit(history, edits);
  return to_arrays(edits.take());
}

// Row i belongs to the i-th state. The interpreter's lock is kept: the call is short, and the lists may not change.
EditsArrays edit_rows(const nb::typed<nb::list, State> &states, const nb::typed<nb::list, History> &histories,
                      std::int64_t vocab_size) {
  if (states.size() != histories.size()) {
    throw Error(ErrorCode::invalid_argument, "edit_rows: pass one history for each state");
  }
  EditsWriter edits = writer_for(vocab_size);
  for (std::size_t i = 0; i < states.size(); ++i) {
    edits.begin_row(static_cast<std::int32_t>(i));
    nb::cast<State &>(states[i]).edit(nb::cast<const History &>(histories[i]), edits);
  }
  return to_arrays(edits.take());
}

std::vector<std::int32_t> copied(const Ids &ids) { return {ids.data(), ids.data() + ids.size()}; }

BiasList *make_bias_list(const Ids &ids, const std::vector<float> &values) {
  if (ids.size() != values.size()) {
    throw Error(ErrorCode::invalid_argument, "BiasList: pass one value for each id");
  }
  return new BiasList(copied(ids), values);
}

}  // namespace

void bind_states(nb::module_ &module) {
  nb::class_<State>(module, "State", "The state of one processor for one request.")
      .def_prop_ro("advances", &State::advances, "Whether `advance` does anything.")
      .def("advance", &State::advance, nb::arg("history"), nb::arg("token_id"),
           "Follow a history to which an id was just appended.")
      .def("rewind", &State::rewind, nb::arg("history"), "Follow a history that was just cut back.")
      .def("edit", &edit, nb::arg("history"), nb::arg("vocab_size"),
           "The edits of one row: rows, kinds, offsets, ids and values, as in `Edits`.")
      .def_prop_ro("nbytes", &State::bytes, "Bytes of memory.");
  module.def("edit_rows", &edit_rows, nb::arg("states"), nb::arg("histories"), nb::arg("vocab_size"),
             "The edits of the rows of states: rows, kinds, offsets, ids and values, as in `Edits`.");
  nb::class_<TokenList, State>(module, "TokenList", "Denies ids, always or below a length.")
      .def(
          "__init__",
          [](TokenList *self, const Ids &token_ids, std::int64_t below) {
            new (self) TokenList(copied(token_ids), below);
          },
          nb::arg("token_ids"), nb::arg("below") = -1);
  nb::class_<BiasList, State>(module, "BiasList", "Adds a value to the logit of each id.")
      .def(nb::new_(&make_bias_list), nb::arg("token_ids"), nb::arg("values"));
}

}  // namespace logitport
