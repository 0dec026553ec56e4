#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arrays.h"
#include "batch.h"
#include "bindings.h"
#include "errors.h"
#include "frame_socket.h"
#include "sequences.h"
#include "step_message.h"
#include "step_server.h"

namespace nb = nanobind;

namespace logitport {
namespace {

// Key, display name, rows and seconds of each processor that was applied.
using Applied = nb::typed<nb::list, nb::typed<nb::tuple, nb::str, nb::str, int, float>>;
using Buckets = nb::typed<nb::list, int>;
using Steps = nb::typed<nb::tuple, Buckets, float, Buckets, float, int, int>;
using Processors = nb::typed<nb::tuple, nb::str, int, Buckets, float>;
using EventCounts = nb::typed<nb::dict, nb::str, int>;
using Taken = nb::typed<nb::tuple, nb::typed<nb::list, Steps>, nb::typed<nb::list, Processors>, EventCounts>;
// Row, slot, processor, position, name, values and draft offset of each event.
using Events = nb::typed<nb::list, nb::typed<nb::tuple, int, int, nb::str, int, nb::str, nb::bytes, int>>;
using Part = nb::typed<nb::tuple, BytesColumns, nb::bytes, Applied, Events>;

// A StepServer that keeps the Python objects of the histories and states that it uses, and the names of processors.
class PyBatch {
 public:
  PyBatch(std::int64_t vocab_size, std::int32_t max_draft_tokens, std::int64_t max_tokens, std::int64_t max_work,
          std::int64_t max_bytes, std::vector<double> step_bounds, std::vector<double> processor_bounds)
      : server_({vocab_size, max_draft_tokens, max_tokens, max_work, static_cast<std::size_t>(max_bytes)},
                std::move(step_bounds), std::move(processor_bounds)) {}

  void put(std::int32_t slot, std::int32_t generation, const nb::typed<nb::object, History> &history,
           const nb::typed<nb::list, nb::typed<nb::tuple, State, nb::str, nb::str>> &chain) {
    std::vector<nb::object> kept{history};
    std::vector<ChainEntry> entries;
    for (const nb::handle item : items_of(chain)) {
      if (!nb::isinstance<nb::tuple>(item) || nb::len(item) != 3 || !nb::isinstance<State>(item[0]) ||
          !nb::isinstance<nb::str>(item[1]) || !nb::isinstance<nb::str>(item[2])) {
        throw Error(ErrorCode::invalid_argument, "Batch.put: a place of the chain is a state, a key and a name");
      }
      const auto entry = nb::borrow<nb::tuple>(item);
      entries.push_back(
          {&nb::cast<State &>(entry[0]), number(nb::borrow<nb::str>(entry[1]), nb::borrow<nb::str>(entry[2]))});
      kept.emplace_back(entry[0]);
    }
    std::vector<nb::object> &held = kept_[slot];  // before `put`, because it may fail
    static_cast<void>(server_.take_refused());
    server_.batch().put(slot, generation, nb::cast<History &>(history), std::move(entries));
    held.swap(kept);  // the earlier ones go after that
  }

  void remove(std::int32_t slot) {
    server_.batch().remove(slot);
    kept_.erase(slot);
  }

  std::optional<nb::bytes> step(const nb::bytes &data, std::uint64_t seq, std::int32_t ended_admissions,
                                bool should_move, Transport transport) {
    {
      const nb::gil_scoped_release unlocked;
      if (!server_.answer(view(data), seq, {ended_admissions, should_move}, transport)) {
        return std::nullopt;
      }
    }
    nb::bytes reply = last_reply();
    server_.release_large();
    return reply;
  }

  nb::typed<nb::tuple, bool, nb::bytes, std::uint64_t, nb::bytes, int> serve(int descriptor, const nb::bytes &received,
                                                                             std::size_t max_bytes,
                                                                             std::uint64_t last_seq, bool should_move,
                                                                             Transport transport, double seconds,
                                                                             std::uint64_t max_steps) {
    FrameSocket socket(descriptor, view(received), max_bytes);
    Served served{};
    {
      const nb::gil_scoped_release unlocked;
      served = server_.serve(socket, last_seq, {0, should_move}, transport, seconds, max_steps);
    }
    const nb::bytes last = served.last_seq != last_seq ? last_reply() : nb::bytes("", 0);
    server_.release_large();
    return nb::make_tuple(served.goes_on, to_bytes(socket.received()), served.last_seq, last, served.error_number);
  }

  // Steps by transport, then processors, then events.
  Taken take_counts() {
    const Counts counts = server_.tally().take();
    nb::list steps;
    for (const StepCounts &each : counts.steps) {
      steps.append(nb::make_tuple(each.computed.buckets, each.computed.seconds, each.queued.buckets,
                                  each.queued.seconds, each.received_bytes, each.sent_bytes));
    }
    nb::list processors;
    for (std::size_t number = 0; number < counts.processors.size(); ++number) {
      if (const ProcessorCounts &each = counts.processors[number]; each.rows != 0) {
        processors.append(
            nb::make_tuple(processors_[number].py_name, each.rows, each.times.buckets, each.times.seconds));
      }
    }
    nb::dict events;
    for (const auto &[kind, count] : counts.events) {
      events[nb::str(kind->name.data(), kind->name.size())] = count;
    }
    Taken taken(nb::make_tuple(steps, processors, events));
    return taken;
  }

  nb::typed<nb::tuple, int, float> activity() {
    const Activity activity = server_.tally().activity();
    return nb::make_tuple(activity.steps, activity.last_at);
  }

  std::optional<Part> step_partly(const nb::bytes &data) {
    if (server_.take_refused()) {
      return std::nullopt;
    }
    Batch &batch = server_.batch();
    bool done = false;
    {
      const nb::gil_scoped_release unlocked;
      StepMessage message;
      done = read_step_message(view(data), message) && batch.step(message.frame, true);
    }
    if (!done) {
      return std::nullopt;
    }
    Part part(nb::make_tuple(to_bytes_columns(batch.edits()), to_bytes(batch.denied_rows()), applied(), events()));
    batch.release_large_edits();
    return part;
  }

 private:
  struct Processor {
    nb::str py_key, py_name;
  };

  [[nodiscard]] nb::bytes last_reply() const { return to_bytes(server_.reply().message()); }

  std::size_t number(const nb::str &key, const nb::str &name) {
    if (key.c_str() == nullptr || name.c_str() == nullptr) {  // a half of a surrogate pair
      nb::raise_python_error();
    }
    const auto [found, is_new] = numbers_.try_emplace({key.c_str(), name.c_str()}, processors_.size());
    if (is_new) {
      const auto &[key_text, name_text] = found->first;
      processors_.push_back({key, name});
      server_.add_processor(key_text, name_text == key_text ? "" : name_text);
    }
    return found->second;
  }

  [[nodiscard]] nb::list applied() {
    const Batch &batch = server_.batch();
    nb::list found;
    for (std::size_t number = 0; number < batch.applied().size(); ++number) {
      if (const std::int64_t rows = batch.applied()[number]; rows != 0) {
        const Processor &each = processors_[number];
        found.append(nb::make_tuple(each.py_key, each.py_name, rows, batch.seconds()[number]));
      }
    }
    return found;
  }

  [[nodiscard]] nb::list events() {
    nb::list found;
    for (const auto &[slot, position, draft_offset, event] : server_.batch().events()) {
      found.append(nb::make_tuple(event.row, slot, processors_[event.processor].py_key, position,
                                  nb::str(event.kind->name.data(), event.kind->name.size()), to_bytes(event.json()),
                                  draft_offset));
    }
    return found;
  }

  StepServer server_;
  std::unordered_map<std::int32_t, std::vector<nb::object>> kept_;
  std::vector<Processor> processors_;
  std::map<std::pair<std::string, std::string>, std::size_t> numbers_;
};

}  // namespace

void bind_batch(nb::module_ &module) {
  nb::enum_<Transport>(module, "Transport", "How a frame arrived.")
      .value("GRPC", Transport::grpc)
      .value("LOCAL", Transport::local);
  nb::class_<PyBatch>(module, "Batch", "The requests of one session whose chains the core runs, and their steps.")
      .def(nb::init<std::int64_t, std::int32_t, std::int64_t, std::int64_t, std::int64_t, std::vector<double>,
                    std::vector<double>>(),
           nb::arg("vocab_size"), nb::arg("max_draft_tokens"), nb::arg("max_tokens"), nb::arg("max_work"),
           nb::arg("max_bytes"), nb::arg("step_bounds"), nb::arg("processor_bounds"))
      .def("put", &PyBatch::put, nb::arg("slot"), nb::arg("generation"), nb::arg("history"), nb::arg("chain"),
           "Add a request: for each place of its chain a state, and the key and the display name of the processor.")
      .def("remove", &PyBatch::remove, nb::arg("slot"), "Remove the request of a slot, if there is one.")
      .def("step", &PyBatch::step, nb::arg("data"), nb::arg("seq"), nb::arg("ended_admissions"), nb::arg("should_move"),
           nb::arg("transport"),
           "Compute a step whose requests were all put here: from a serialized `SessionRequest` with this number.\n\n"
           "Returns the serialized `SessionResponse`. None if the step is refused: `step_partly` then refuses it, too.")
      .def("serve", &PyBatch::serve, nb::arg("descriptor"), nb::arg("received"), nb::arg("max_bytes"),
           nb::arg("last_seq"), nb::arg("should_move"), nb::arg("transport"), nb::arg("seconds"),
           nb::arg("max_steps") = UINT64_MAX,
           "Answer the frames of a connected socket, as `step`, while they are usual steps of at most `max_bytes`.\n\n"
           "Returns when the next one is not, or arrives after `seconds` or `max_steps`, and after a reply of over 1 "
           "MiB: whether to call again; what was received and not answered; the number of the last frame that was "
           "answered; the reply "
           "to it, or b\"\"; and the error number if it could not be sent, or 0.")
      .def("step_partly", &PyBatch::step_partly, nb::arg("data"),
           "Compute the part of a step whose requests were put here: from a serialized `SessionRequest`.\n\n"
           "Returns the edits as `EditColumns`; the rows with no id left; key, display name, rows and seconds of each "
           "processor; and row, slot, processor, position, name, values and draft offset of each event. None if the "
           "step is refused.")
      .def("take_counts", &PyBatch::take_counts,
           "The counts of `step` and `serve` since the last call. On any thread.\n\n"
           "For gRPC and for the local transport: buckets and sum of the seconds to compute a step, the same of the "
           "seconds that it has waited, which are 0, and of `serve` on the local transport the bytes received and "
           "sent. Then for each processor: display name, rows, buckets and sum of its seconds. Then the "
           "number of events by name.")
      .def("activity", &PyBatch::activity,
           "The number of steps of `step` and `serve`, and when the last one ended, in monotonic seconds.");
}

}  // namespace logitport
