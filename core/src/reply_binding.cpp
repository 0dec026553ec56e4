#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "apply_cpu.h"
#include "arrays.h"
#include "bindings.h"
#include "early_receiver.h"
#include "logits_memory.h"
#include "plain_values.h"
#include "reply_message.h"

namespace nb = nanobind;

namespace logitport {
namespace {

// As `apply_edits`. The caller holds the interpreter's lock, which is released for long work.
bool apply_to_memory(const EditsView &edits, const Logits &logits) {
  if (!takes_long(edits, logits.shape)) {
    return apply_edits(edits, logits);
  }
  const nb::gil_scoped_release unlocked;
  return apply_edits(edits, logits);
}

using RowsApplied = nb::typed<nb::dict, nb::str, int>;
using Events = nb::typed<nb::list, nb::typed<nb::tuple, int, nb::str, int, nb::str, nb::bytes, int>>;
using Rows = nb::typed<nb::tuple, int, nb::ellipsis>;

// Throws NotAccepted for text that is not UTF-8.
nb::object text(std::string_view data) {
  nb::object decoded = nb::steal(PyUnicode_DecodeUTF8(data.data(), static_cast<Py_ssize_t>(data.size()), nullptr));
  if (!decoded.is_valid()) {
    PyErr_Clear();
    throw NotAccepted();
  }
  return decoded;
}

// As `rows_applied` of client/logitport/shipping/calls.py. Throws NotAccepted as `text`.
RowsApplied rows_by_name(const std::vector<ReplyMessage::Applied> &applied) {
  RowsApplied rows(nb::dict{});
  for (const ReplyMessage::Applied &each : applied) {
    const nb::object key = text(each.key);
    const nb::object name = each.display_name.empty() ? key : text(each.display_name);
    PyObject *before = find(rows, name);
    rows[name] = each.rows + (before == nullptr ? 0 : nb::cast<std::int64_t>(nb::handle(before)));
  }
  return rows;
}

// Of each event: slot, processor, position, name, values and number of events that were left out. None if there are no
// events. Throws NotAccepted as `text`.
std::optional<Events> events_of(const std::vector<ReplyMessage::Event> &events) {
  if (events.empty()) {
    return std::nullopt;
  }
  Events found(nb::list{});
  for (const ReplyMessage::Event &each : events) {
    found.append(nb::make_tuple(each.slot, text(each.processor), each.position, text(each.name), to_bytes(each.values),
                                each.left_out));
  }
  return found;
}

// A reply whose edits were proven for logits of a shape and datatype. Holds what owns the message, which is not copied.
class PyStepReply {
 public:
  PyStepReply(nb::object owner, ReplyMessage message, LogitsShape shape, Datatype datatype)
      : owner_(std::move(owner)),
        message_(std::move(message)),
        rows_applied_(rows_by_name(message_.applied)),
        events_(events_of(message_.events)),
        shape_(shape),
        datatype_(datatype) {}

  [[nodiscard]] bool apply(nb::handle logits) const {
    const LogitsMemory memory(logits, false);
    const auto &found = memory.logits();
    return found && found->shape == shape_ && found->datatype == datatype_ && apply_to_memory(message_.edits, *found);
  }

  [[nodiscard]] RowsApplied rows_applied() const { return rows_applied_; }
  [[nodiscard]] std::optional<Events> events() const { return events_; }
  [[nodiscard]] std::int32_t ended_admissions() const noexcept { return message_.ended_admissions; }
  [[nodiscard]] bool should_move() const noexcept { return message_.should_move; }

  [[nodiscard]] Rows all_denied_rows() const {
    nb::list rows;
    for (std::int64_t index = 0; index < message_.denied_rows.size(); ++index) {
      rows.append(message_.denied_rows[index]);
    }
    Rows found{nb::tuple(rows)};
    return found;
  }

  [[nodiscard]] BytesColumns columns() const { return to_bytes_columns(message_.edits); }

 private:
  nb::object owner_;
  ReplyMessage message_;
  RowsApplied rows_applied_;
  std::optional<Events> events_;
  LogitsShape shape_;
  Datatype datatype_;
};

// Returns nothing if the Python version has to read it.
std::optional<PyStepReply> reply_of(nb::object owner, ReplyMessage message, LogitsShape shape, Datatype datatype) {
  try {
    return PyStepReply(std::move(owner), std::move(message), shape, datatype);
  } catch (const NotAccepted &) {
    return std::nullopt;
  }
}

// Reads the replies to the steps of a session.
class ReplyReader {
 public:
  ReplyReader(std::int64_t vocab_size, Datatype datatype) : vocab_size_(vocab_size), datatype_(datatype) {}

  [[nodiscard]] std::optional<PyStepReply> read(const nb::bytes &data, std::uint64_t seq, std::int64_t num_rows) const {
    const LogitsShape shape{num_rows, vocab_size_};
    ReplyMessage message;
    if (!read_reply_message(view(data), message) || message.seq != seq || !proven(message.edits, shape)) {
      return std::nullopt;
    }
    return reply_of(data, std::move(message), shape, datatype_);
  }

  [[nodiscard]] std::int64_t vocab_size() const noexcept { return vocab_size_; }
  [[nodiscard]] Datatype datatype() const noexcept { return datatype_; }

 private:
  std::int64_t vocab_size_;
  Datatype datatype_;
};

#ifdef __linux__

class PyEarlyReceiver {
 public:
  PyEarlyReceiver(int descriptor, std::size_t max_bytes) try : receiver_(descriptor, max_bytes) {
  } catch (const std::system_error &error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }

  void leave(const ReplyReader *reader, std::uint64_t seq, std::int64_t num_rows) {
    if (reader == nullptr) {
      receiver_.leave({});
      return;
    }
    datatype_ = reader->datatype();
    receiver_.leave({seq, {num_rows, reader->vocab_size()}});
  }

  std::variant<PyStepReply, nb::bytes> claim() {
    EarlyReply early = receiver_.claim();
    const std::string_view received(early.data.get(), early.size);
    if (!early.is_read) {
      return to_bytes(received);
    }
    const nb::capsule owner(early.data.release(), [](void *data) noexcept { delete[] static_cast<char *>(data); });
    if (auto reply = reply_of(owner, std::move(early.message), early.shape, datatype_)) {
      return *std::move(reply);
    }
    return to_bytes(received);
  }

  void join() {
    const nb::gil_scoped_release unlocked;
    receiver_.join();
  }

 private:
  EarlyReceiver receiver_;
  Datatype datatype_ = Datatype::fp32;
};

#endif

}  // namespace

void bind_reply(nb::module_ &module) {
  nb::enum_<Datatype>(module, "Datatype")
      .value("FP32", Datatype::fp32)
      .value("FP16", Datatype::fp16)
      .value("BF16", Datatype::bf16);
  nb::class_<PyStepReply>(module, "StepReply",
                          "A reply with edits, counts and events only. The edits were proven for logits of a shape and "
                          "datatype.")
      .def("apply", &PyStepReply::apply, nb::arg("logits"),
           "Apply the edits to logits of torch or numpy.\n\nReturns False, and has changed nothing, if it cannot.")
      .def_prop_ro("rows_applied", &PyStepReply::rows_applied, "Number of rows by processor. A dict of its own.")
      .def_prop_ro("events", &PyStepReply::events,
                   "Of each event: slot, processor, position, name, values and number of events that were left out. "
                   "None without events.")
      .def_prop_ro("all_denied_rows", &PyStepReply::all_denied_rows, "Rows in which edits left no id allowed.")
      .def_prop_ro("ended_admissions", &PyStepReply::ended_admissions, "As StepEdits.ended_admissions.")
      .def_prop_ro("should_move", &PyStepReply::should_move, "As StepEdits.should_move.")
      .def_prop_ro("columns", &PyStepReply::columns, "The edits as `EditColumns`.");
  nb::class_<ReplyReader>(module, "ReplyReader", "Reads the replies to the steps of a session.")
      .def(nb::init<std::int64_t, Datatype>(), nb::arg("vocab_size"), nb::arg("datatype"))
      .def("read", &ReplyReader::read, nb::arg("data"), nb::arg("seq"), nb::arg("num_rows"),
           "Read and check a serialized `SessionResponse` to the step with this number.\n\n"
           "Returns None if the Python version has to read it: it has another field, or is not proven to be valid.");
#ifdef __linux__
  nb::class_<PyEarlyReceiver>(module, "EarlyReceiver",
                              "Receives and reads the replies that are left to it, on a thread that needs no GIL.\n\n"
                              "The end of this object shuts the connection down.")
      .def(
          nb::init<int, std::size_t>(), nb::arg("descriptor"), nb::arg("max_bytes"),
          "`descriptor`: of a connected socket, which stays the caller's. `max_bytes`: of a frame; larger ones are the "
          "caller's.")
      .def("leave", &PyEarlyReceiver::leave, nb::arg("reader").none(), nb::arg("seq"), nb::arg("num_rows"),
           "Leave the reply to the step with this number to the thread. Without `reader`, it is received only.")
      .def("claim", &PyEarlyReceiver::claim,
           "Return what the thread has received: the reply that was expected, or the bytes of a frame after its "
           "length.\n\nWhere these are no whole frame, the rest is the caller's.")
      .def("join", &PyEarlyReceiver::join, "Wait for the thread, after the connection was shut down.");
#endif
}

}  // namespace logitport
