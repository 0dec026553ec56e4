#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batch.h"
#include "bindings.h"
#include "errors.h"

namespace nb = nanobind;

namespace logitport {
namespace {

std::string_view view(const nb::bytes &column) { return {static_cast<const char *>(column.data()), column.size()}; }

// The columns of the edits; the rows with no id left; and number, rows and seconds of each processor that was applied.
using Columns = nb::typed<nb::tuple, nb::bytes, nb::bytes, nb::bytes, nb::bytes, nb::bytes>;
using Applied = nb::typed<nb::list, nb::typed<nb::tuple, int, int, float>>;
using Result = nb::typed<nb::tuple, Columns, nb::bytes, Applied>;

template <typename T>
nb::bytes to_bytes(const std::vector<T> &elements) {
  return nb::bytes(elements.data(), elements.size() * sizeof(T));
}

// A Batch that keeps the Python objects of the histories and states that it uses.
class PyBatch {
 public:
  PyBatch(std::int64_t vocab_size, std::int32_t max_draft_tokens, std::int64_t max_tokens, std::int64_t max_work,
          std::int64_t max_bytes)
      : batch_({checked(vocab_size), max_draft_tokens, max_tokens, max_work, static_cast<std::size_t>(max_bytes)}) {}

  void put(std::int32_t slot, std::int32_t generation, const nb::typed<nb::object, History> &history,
           const nb::typed<nb::list, nb::typed<nb::tuple, State, int>> &chain) {
    std::vector<nb::object> kept{history};
    std::vector<ChainPlace> places;
    for (const nb::handle item : chain) {
      const auto place = nb::cast<nb::tuple>(item);
      if (place.size() != 2) {
        throw Error(ErrorCode::invalid_argument, "Batch.put: pass a state and a number for each place of the chain");
      }
      places.push_back({&nb::cast<State &>(place[0]), nb::cast<std::uint16_t>(place[1])});
      kept.emplace_back(place[0]);
    }
    batch_.put(slot, generation, nb::cast<History &>(history), std::move(places));
    kept_[slot].swap(kept);  // the earlier ones go after that
  }

  void remove(std::int32_t slot) {
    batch_.remove(slot);
    kept_.erase(slot);
  }

  std::optional<Result> step(const nb::bytes &slots, const nb::bytes &generations, const nb::bytes &base_lengths,
                             const nb::bytes &history_crcs, const nb::bytes &new_token_counts,
                             const nb::bytes &new_token_ids, const nb::bytes &row_requests,
                             const nb::bytes &row_draft_offsets, const nb::bytes &draft_counts,
                             const nb::bytes &draft_token_ids, bool partly) {
    StepFrame frame;
    frame.slots = view(slots);
    frame.generations = view(generations);
    frame.base_lengths = view(base_lengths);
    frame.history_crcs = view(history_crcs);
    frame.new_token_counts = view(new_token_counts);
    frame.new_token_ids = view(new_token_ids);
    frame.row_requests = view(row_requests);
    frame.row_draft_offsets = view(row_draft_offsets);
    frame.draft_counts = view(draft_counts);
    frame.draft_token_ids = view(draft_token_ids);
    bool done = false;
    {
      const nb::gil_scoped_release unlocked;
      done = batch_.step(frame, partly);
    }
    if (!done) {
      return std::nullopt;
    }
    const EditsColumns &edits = batch_.edits();
    const auto columns = nb::make_tuple(to_bytes(edits.rows), to_bytes(edits.kinds), to_bytes(edits.offsets),
                                        to_bytes(edits.ids), to_bytes(edits.values));
    Result result(nb::make_tuple(columns, to_bytes(batch_.denied_rows()), applied()));
    batch_.release_large_edits();
    return result;
  }

 private:
  static std::int64_t checked(std::int64_t vocab_size) {
    if (vocab_size < 1 || vocab_size > std::numeric_limits<std::int32_t>::max()) {
      throw Error(ErrorCode::invalid_argument, "the size of a vocabulary must lie in [1, 2**31)");
    }
    return vocab_size;
  }

  [[nodiscard]] nb::list applied() const {
    nb::list found;
    for (std::size_t number = 0; number < batch_.applied().size(); ++number) {
      if (const std::int64_t rows = batch_.applied()[number]; rows != 0) {
        found.append(nb::make_tuple(number, rows, batch_.seconds()[number]));
      }
    }
    return found;
  }

  Batch batch_;
  std::unordered_map<std::int32_t, std::vector<nb::object>> kept_;
};

}  // namespace

void bind_batch(nb::module_ &module) {
  nb::class_<PyBatch>(module, "Batch", "The requests of one session whose chains the core runs, and their steps.")
      .def(nb::init<std::int64_t, std::int32_t, std::int64_t, std::int64_t, std::int64_t>(), nb::arg("vocab_size"),
           nb::arg("max_draft_tokens"), nb::arg("max_tokens"), nb::arg("max_work"), nb::arg("max_bytes"))
      .def("put", &PyBatch::put, nb::arg("slot"), nb::arg("generation"), nb::arg("history"), nb::arg("chain"),
           "Add a request: a state, and the number of its processor, for each place of its chain.")
      .def("remove", &PyBatch::remove, nb::arg("slot"), "Remove the request of a slot, if there is one.")
      .def("step", &PyBatch::step, nb::arg("slots"), nb::arg("generations"), nb::arg("base_lengths"),
           nb::arg("history_crcs"), nb::arg("new_token_counts"), nb::arg("new_token_ids"), nb::arg("row_requests"),
           nb::arg("row_draft_offsets"), nb::arg("draft_counts"), nb::arg("draft_token_ids"), nb::arg("partly") = false,
           "Compute a step from the columns of its frame. Returns None if it is refused; else the edits (rows, kinds, "
           "offsets, ids, values), the rows with no id left, and number, rows and seconds of each processor.");
}

}  // namespace logitport
