#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "errors.h"
#include "sequences.h"
#include "state.h"
#include "states/banned_sequences.h"
#include "states/loop_breaker.h"
#include "states/ngram_index.h"
#include "states/penalty.h"
#include "states/phase_tracker.h"
#include "states/phased_state.h"
#include "states/thinking_blocks.h"
#include "states/token_list.h"

namespace nb = nanobind;

namespace logitport {
namespace {

// Calls that read or write more ids release the interpreter's lock: they take about a millisecond. To release it for
// fewer takes longer than they do.
constexpr std::int64_t max_locked_ids = std::int64_t{1} << 16;

// Releases the interpreter's lock during a call for so many ids. Only the session of a state uses it and its history.
class Unlocked {
 public:
  explicit Unlocked(std::int64_t ids) {
    if (ids > max_locked_ids) {
      released_.emplace();
    }
  }

 private:
  std::optional<nb::gil_scoped_release> released_;
};

// For callers that read the edits, which are as the Python version's `RowEdits`: with lists as they are.
EditsArrays edit(State &state, const History &history, std::int64_t vocab_size) {
  EditsWriter edits(vocab_size, false);
  edits.begin_row(0);
  {
    const Unlocked unlocked(history.length());
    state.edit(history, edits);
  }
  return to_arrays(edits.take());
}

void rewind(State &state, const History &history) {
  const Unlocked unlocked(history.longest());
  state.rewind(history);
}

// Of each event: row, name and values.
using RowEvents = nb::typed<nb::list, nb::typed<nb::tuple, int, nb::str, nb::bytes>>;

// Row i belongs to the i-th state.
std::pair<EditsArrays, RowEvents> edit_rows(const nb::typed<nb::sequence, State> &states,
                                            const nb::typed<nb::sequence, History> &histories, std::int64_t vocab_size,
                                            bool uses_bitmasks) {
  const std::size_t count = nb::len(states);
  if (count != nb::len(histories)) {
    throw Error(ErrorCode::invalid_argument, "edit_rows: pass one history for each state");
  }
  std::vector<nb::object> kept;
  std::vector<std::pair<State *, History *>> rows;
  std::int64_t ids = 0;
  for (std::size_t i = 0; i < count; ++i) {
    nb::object item = states[i], history_item = histories[i];
    State *state = nullptr;
    History *history = nullptr;
    if (!nb::try_cast(item, state) || !nb::try_cast(history_item, history) || state == nullptr || history == nullptr) {
      throw Error(ErrorCode::invalid_argument, "edit_rows: an item is no compiled state, or no compiled history");
    }
    const EditSize size = state->edit_size();
    ids += size.fixed + size.times_length * history->length();
    rows.emplace_back(state, history);
    kept.push_back(std::move(item));
    kept.push_back(std::move(history_item));
  }
  EditsWriter edits(vocab_size, uses_bitmasks);
  {
    const Unlocked unlocked(ids);
    for (std::size_t i = 0; i < count; ++i) {
      edits.begin_row(static_cast<std::int32_t>(i));
      rows[i].first->edit(*rows[i].second, edits);
    }
  }
  RowEvents events(nb::list{});
  for (const RowEvent &each : edits.events()) {
    events.append(
        nb::make_tuple(each.row, nb::str(each.kind->name.data(), each.kind->name.size()), to_bytes(each.json())));
  }
  return {to_arrays(edits.take()), events};
}

// Frees large counts without the interpreter's lock: a million of them take 50 ms, and all threads would wait.
class PyPenalty final : public Penalty {
 public:
  using Penalty::Penalty;
  PyPenalty(const PyPenalty &) = delete;
  PyPenalty &operator=(const PyPenalty &) = delete;
  PyPenalty(PyPenalty &&) = delete;
  PyPenalty &operator=(PyPenalty &&) = delete;
  ~PyPenalty() override {
    constexpr std::size_t max_locked_bytes = std::size_t{1} << 20U;
    if (bytes() > max_locked_bytes) {
      const nb::gil_scoped_release unlocked;
      free();
    }
  }
};

std::vector<std::int32_t> copied(const Ids &ids) { return {ids.data(), ids.data() + ids.size()}; }

using Token = std::int32_t;
using Tokens = std::vector<Token>;
using PyTokens = nb::typed<nb::sequence, int>;

// The built-ins check their parameters, and say what is wrong with them. Here it matters only that memory is safe.
void check(bool fits) {
  if (!fits) {
    throw Error(ErrorCode::invalid_argument, "the arguments of a state do not fit");
  }
}

void make_bias_list(BiasList *self, const Ids &ids, const nb::typed<nb::sequence, float> &values) {
  auto biases = numbers_of<float>(values);
  check(ids.size() == biases.size());
  new (self) BiasList(copied(ids), std::move(biases));
}

void make_ngram_index(NGramIndex *self, const History &history, std::int64_t size, std::int64_t window,
                      const PyTokens &whitelist, std::int64_t vocab_size) {
  constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();
  check(size >= 1 && window >= 0);
  Tokens sorted = numbers_of<Token>(whitelist);
  std::sort(sorted.begin(), sorted.end());
  const Unlocked unlocked(history.length());
  new (self) NGramIndex(history, {std::min(size, longest), std::min(window, longest), std::move(sorted)}, vocab_size);
}

void make_thinking_blocks(ThinkingBlocks *self, const History &history, std::int64_t budget, const PyTokens &start,
                          const PyTokens &end, std::optional<Token> newline, const PyTokens &end_text,
                          std::int64_t soft_from, std::int64_t min_thinking) {
  ThinkingLimit limit{budget,      numbers_of<Token>(start),    numbers_of<Token>(end),
                      newline,     numbers_of<Token>(end_text), soft_from,
                      min_thinking};
  check(budget >= 0 && !limit.start.empty() && !limit.end.empty());
  const Unlocked unlocked(history.length());
  new (self) ThinkingBlocks(history, std::move(limit));
}

// `action` is an index of `ACTIONS` in builtin_processors/logitport_builtins/loop_guard/rule.py.
void make_loop_breaker(LoopBreaker *self, const History &history, std::int64_t repeats, std::int32_t max_period,
                       std::int64_t min_length, std::int64_t plain_repeats, std::uint8_t action, const PyTokens &ends,
                       const PyTokens &start, const PyTokens &end, std::optional<Token> newline) {
  constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();
  const CycleRule rule{repeats, max_period, min_length, plain_repeats};
  const auto chosen = static_cast<LoopAction>(action);
  check(repeats >= 2 && repeats <= longest && max_period >= 1 && min_length >= 0 && min_length <= longest &&
        plain_repeats >= 0 && plain_repeats <= longest && chosen <= LoopAction::end_thinking);
  Tokens ids = numbers_of<Token>(ends);
  ThinkingLimit limit{0, numbers_of<Token>(start), numbers_of<Token>(end), newline, {}, -1, 0};
  check(chosen != LoopAction::end_thinking || (!limit.start.empty() && !limit.end.empty()));
  const Unlocked unlocked(history.length());
  if (chosen == LoopAction::end_thinking) {
    new (self) LoopBreaker(history, rule, std::move(limit));
  } else {
    new (self) LoopBreaker(history, rule, chosen, std::move(ids));
  }
}

std::optional<std::pair<std::int32_t, std::int64_t>> cycle_of(const LoopBreaker &breaker) {
  const std::optional<Cycle> cycle = breaker.cycle();
  return cycle ? std::optional(std::pair(cycle->period, cycle->begin)) : std::nullopt;
}

void make_banned_sequences(BannedSequences *self, const nb::typed<nb::sequence, PyTokens> &sequences,
                           bool generated_only) {
  std::vector<Tokens> words;
  for (const nb::handle sequence : items_of(sequences)) {
    words.push_back(numbers_of<Token>(sequence));
  }
  check(std::none_of(words.begin(), words.end(), [](const Tokens &one) { return one.empty(); }));
  new (self) BannedSequences(words, generated_only);
}

using PyTags = nb::typed<nb::sequence, nb::typed<nb::tuple, PyTokens, int, int, bool>>;

Phase phase_of(int number) {
  check(number >= 0 && number < phases);
  return static_cast<Phase>(number);
}

PhaseTags phase_tags(const PyTags &tags, int starts_in, Token opening_id, Token newline) {
  PhaseTags found{{}, phase_of(starts_in), opening_id, newline};
  for (const nb::handle item : items_of(tags)) {
    const auto fields = nb::cast<nb::tuple>(item);
    check(fields.size() == 4);
    found.tags.push_back({numbers_of<Token>(nb::borrow<PyTokens>(fields[0])), phase_of(nb::cast<int>(fields[1])),
                          nb::cast<int>(fields[2]), nb::cast<bool>(fields[3])});
    check(!found.tags.back().ids.empty());
  }
  return found;
}

void make_phase_tracker(PhaseTracker *self, const History &history, const PyTags &tags, int starts_in, Token opening_id,
                        Token newline) {
  PhaseTags found = phase_tags(tags, starts_in, opening_id, newline);
  const Unlocked unlocked(history.length());
  new (self) PhaseTracker(history, std::move(found));
}

void make_phased_state(PhasedState *self, State &state, const History &history, int phase, const PyTags &tags,
                       int starts_in, Token opening_id, Token newline) {
  PhaseTags found = phase_tags(tags, starts_in, opening_id, newline);
  const Phase wanted = phase_of(phase);
  const Unlocked unlocked(history.length());
  new (self) PhasedState(state, history, wanted, std::move(found));
}

}  // namespace

void bind_states(nb::module_ &module) {
  nb::class_<State>(module, "State", "The state of one processor for one request.")
      .def_prop_ro("advances", &State::advances, "Whether `advance` does anything.")
      .def("advance", &State::advance, nb::arg("history"), nb::arg("token_id"),
           "Follow a history to which an id was just appended.")
      .def("rewind", &rewind, nb::arg("history"), "Follow a history that was just cut back.")
      .def("restart", &State::restart, nb::arg("history"), "Follow a history from its beginning.")
      .def("edit", &edit, nb::arg("history"), nb::arg("vocab_size"),
           "The edits of one row: rows, kinds, offsets, ids and values, as in `Edits`.")
      .def_prop_ro("nbytes", &State::bytes, "Bytes of memory.");
  module.def(
      "edit_rows", &edit_rows, nb::arg("states"), nb::arg("histories"), nb::arg("vocab_size"),
      nb::arg("uses_bitmasks") = false,
      "The edits of the rows of states: rows, kinds, offsets, ids and values, as in `Edits`. With `uses_bitmasks`, "
      "lists that are longer than a bitmask become one.\n\nThen row, name and values of each of their events.");
  nb::class_<TokenList, State>(module, "TokenList", "Denies ids, always or below a length.")
      .def(
          "__init__",
          [](TokenList *self, const Ids &ids, std::int64_t below) { new (self) TokenList(copied(ids), below); },
          nb::arg("token_ids").noconvert(), nb::arg("below") = -1);
  nb::class_<BiasList, State>(module, "BiasList", "Adds a value to the logit of each id.")
      .def("__init__", &make_bias_list, nb::arg("token_ids").noconvert(), nb::arg("values"));
  nb::class_<NGramIndex, State>(module, "NGramIndex", "Denies ids that would repeat an n-gram.")
      .def("__init__", &make_ngram_index, nb::arg("history"), nb::arg("size"), nb::arg("window"), nb::arg("whitelist"),
           nb::arg("vocab_size"));
  nb::class_<ThinkingBlocks, State>(module, "ThinkingBlocks", "Closes thinking blocks that have used up their budget.")
      .def("__init__", &make_thinking_blocks, nb::arg("history"), nb::arg("budget"), nb::arg("start"), nb::arg("end"),
           nb::arg("newline").none(), nb::arg("end_text") = nb::tuple(), nb::arg("soft_from") = -1,
           nb::arg("min_thinking") = 0);
  nb::class_<BannedSequences, State>(module, "BannedSequences", "Denies ids that would complete a sequence.")
      .def("__init__", &make_banned_sequences, nb::arg("sequences"), nb::arg("generated_only"));
  nb::class_<LoopBreaker, State>(module, "LoopBreaker", "Breaks cycles of the output.")
      .def("__init__", &make_loop_breaker, nb::arg("history"), nb::arg("repeats"), nb::arg("max_period"),
           nb::arg("min_length"), nb::arg("plain_repeats"), nb::arg("action"), nb::arg("ends"), nb::arg("start"),
           nb::arg("end"), nb::arg("newline").none())
      .def_prop_ro(
          "cycle", &cycle_of,
          "The period, and the position of the first id, of the cycle at the history's end; None without one.");
  nb::class_<PhasedState, State>(module, "PhasedState", "Runs another state in the blocks of one phase.")
      .def("__init__", &make_phased_state, nb::keep_alive<1, 2>(), nb::arg("state"), nb::arg("history"),
           nb::arg("phase"), nb::arg("tags"), nb::arg("starts_in"), nb::arg("opening_id") = -1,
           nb::arg("newline") = -1);
  nb::class_<PhaseTracker>(module, "PhaseTracker", "The blocks of one history, and their phases.")
      .def("__init__", &make_phase_tracker, nb::arg("history"), nb::arg("tags"), nb::arg("starts_in"),
           nb::arg("opening_id") = -1, nb::arg("newline") = -1)
      .def_prop_ro(
          "phase", [](const PhaseTracker &self) { return static_cast<int>(self.phase()); },
          "Number of the phase of the history's next id.")
      .def_prop_ro("begin", &PhaseTracker::begin, "The history's length before its block.")
      .def("restart", &PhaseTracker::restart, nb::arg("history"), "Read a history from its beginning.")
      .def("read", &PhaseTracker::read, nb::arg("history"), "Follow a history after ids were appended.")
      .def("rewind", &PhaseTracker::rewind, nb::arg("history"), "Follow a history that was just cut back.")
      .def("exempt_id", &PhaseTracker::exempt_id, nb::arg("history"),
           "The id that no edit may change now; -1 if there is none.");
  nb::class_<PyPenalty, State>(module, "Penalty", "Lowers the logits of generated ids.")
      .def(nb::init<const History &, float, bool>(), nb::arg("history"), nb::arg("penalty"), nb::arg("per_occurrence"));
}

}  // namespace logitport
