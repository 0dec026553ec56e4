#include "step_server.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace logitport {

namespace {

bool is_same_row(const RequestEvent &one, const RequestEvent &other) noexcept {
  return one.slot == other.slot && one.position == other.position && one.draft_offset == other.draft_offset;
}

// Number of rows that have events; those of a row are next to each other.
std::size_t row_count(const std::vector<RequestEvent> &events) noexcept {
  std::size_t rows = events.empty() ? 0 : 1;
  for (std::size_t number = 1; number < events.size(); ++number) {
    rows += is_same_row(events[number - 1], events[number]) ? 0 : 1;
  }
  return rows;
}

}  // namespace

void StepServer::add_processor(std::string key, std::string display_name) {
  keys_.push_back(std::move(key));
  display_names_.push_back(std::move(display_name));
}

bool StepServer::answer(std::string_view data, std::uint64_t seq, const ReplyTerms &terms, Transport transport,
                        bool partly) {
  if (seq == 0 || seq == refused_seq_) {  // 0 follows the last number
    return false;
  }
  const double started = monotonic_seconds();
  writer_.prefetch();
  batch_.prefetch_edits();
  refused_seq_ = 0;
  StepMessage message;
  if (!read_step_message(data, message) || message.seq != seq) {
    return false;
  }
  if (!batch_.step(message.frame, partly)) {
    refused_seq_ = seq;
    return false;
  }
  writer_.write(
      {seq, &batch_.edits(), &batch_.denied_rows(), &applied(), terms.ended_admissions, terms.should_move, &events()});
  const double ended = monotonic_seconds();
  tally_.add(transport, {ended, ended - started, 0.0}, batch_.applied(), batch_.seconds());
  tally_.add_events(batch_.events());
  return true;
}

Served StepServer::serve(FrameSocket &socket, std::uint64_t last_seq, const ReplyTerms &terms, Transport transport,
                         double seconds, std::uint64_t max_steps) {
  const std::uint64_t first_seq = last_seq;
  const double deadline = monotonic_seconds() + seconds;
  // A frame that is there is answered, however short the time.
  for (bool is_first = socket.has_frame(); socket.receive(); is_first = false) {
    if ((!is_first && monotonic_seconds() > deadline) || last_seq - first_seq >= max_steps) {
      return {true, last_seq, 0};
    }
    try {
      if (!answer(socket.frame(), last_seq + 1, terms, transport)) {
        return {false, last_seq, 0};
      }
    } catch (const std::exception &) {
      return {false, last_seq, 0};  // Python computes it again, and reports the error
    }
    ++last_seq;
    const int error_number = socket.send(writer_.framed());
    if (transport == Transport::local) {  // the relay of gRPC frames counts their bytes
      tally_.add_bytes(transport, socket.frame().size(), writer_.message().size());
    }
    socket.remove_frame();
    if (error_number != 0) {
      return {false, last_seq, error_number};
    }
    if (is_large()) {
      return {true, last_seq, 0};
    }
  }
  return {false, last_seq, 0};
}

bool StepServer::take_refused() noexcept { return std::exchange(refused_seq_, 0) != 0; }

void StepServer::release_large() {
  batch_.release_large_edits();
  writer_.release_large();
}

const std::vector<AppliedRows> &StepServer::applied() {
  applied_.clear();
  for (std::size_t number = 0; number < batch_.applied().size(); ++number) {
    if (const std::int64_t rows = batch_.applied()[number]; rows != 0) {
      applied_.push_back({keys_[number], display_names_[number], rows});
    }
  }
  return applied_;
}

// As `bounded` of client/logitport/core/row_events.py.
const std::vector<EventMessage> &StepServer::events() {
  events_.clear();
  const std::vector<RequestEvent> &found = batch_.events();
  const std::size_t rows = std::max<std::size_t>(1, row_count(found));
  const std::size_t share =
      found.size() <= max_step_events ? max_step_events : std::max<std::size_t>(1, max_step_events / rows);
  std::size_t kept = 0;
  std::size_t kept_of_row = 0;
  for (std::size_t number = 0; number < found.size(); ++number) {
    const RequestEvent &each = found[number];
    if (number == 0 || !is_same_row(found[number - 1], each)) {
      kept_of_row = 0;
    }
    if (kept < max_step_events && kept_of_row < share) {
      ++kept;
      ++kept_of_row;
      events_.push_back({each.slot, keys_[each.event.processor], each.event.kind->name, each.position,
                         each.event.json(), 0, each.draft_offset});
    } else if (!events_.empty() && events_.back().name.empty() && events_.back().slot == each.slot &&
               events_.back().position == each.position && events_.back().draft_offset == each.draft_offset) {
      ++events_.back().left_out;
    } else {
      events_.push_back({each.slot, "", "", each.position, "", 1, each.draft_offset});
    }
  }
  return events_;
}

}  // namespace logitport
