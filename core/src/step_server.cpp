#include "step_server.h"

#include <exception>
#include <utility>

namespace logitport {

void StepServer::add_processor(std::string key, std::string display_name) {
  keys_.push_back(std::move(key));
  display_names_.push_back(std::move(display_name));
}

bool StepServer::answer(std::string_view data, std::uint64_t seq, const ReplyTerms &terms, Transport transport,
                        double queued_seconds, PrincipalLock *lock, bool must_be_short) {
  if (seq == 0 || seq == refused_seq_) {  // 0 follows the last number
    return false;
  }
  const double arrived = monotonic_seconds();
  const auto locked = lock != nullptr ? std::unique_lock<PrincipalLock>(*lock) : std::unique_lock<PrincipalLock>();
  const double started = lock != nullptr ? monotonic_seconds() : arrived;
  writer_.prefetch();
  batch_.prefetch_edits();
  refused_seq_ = 0;
  StepMessage message;
  if (!read_step_message(data, message) || message.seq != seq) {
    return false;
  }
  if (!batch_.step(message.frame, false, must_be_short)) {
    refused_seq_ = must_be_short ? 0 : seq;  // a long step is computed at the next call
    return false;
  }
  writer_.write({seq, &batch_.edits(), &batch_.denied_rows(), &applied(), terms.ended_admissions, terms.should_move});
  const double ended = monotonic_seconds();
  tally_.add(transport, {ended, ended - started, queued_seconds + started - arrived}, batch_.applied(),
             batch_.seconds());
  return true;
}

Served StepServer::serve(FrameSocket &socket, std::uint64_t last_seq, const ReplyTerms &terms, double seconds,
                         std::uint64_t max_steps, PrincipalLock *lock) {
  const std::uint64_t first_seq = last_seq;
  const double deadline = monotonic_seconds() + seconds;
  // A frame that is there is answered, however short the time.
  for (bool is_first = socket.has_frame(); socket.receive(); is_first = false) {
    if ((!is_first && monotonic_seconds() > deadline) || last_seq - first_seq >= max_steps) {
      return {true, last_seq, 0};
    }
    try {
      if (!answer(socket.frame(), last_seq + 1, terms, Transport::local, 0.0, lock)) {
        return {false, last_seq, 0};
      }
    } catch (const std::exception &) {
      return {false, last_seq, 0};  // Python computes it again, and reports the error
    }
    ++last_seq;
    const int error_number = socket.send(writer_.framed());
    tally_.add_bytes(Transport::local, socket.frame().size(), writer_.message().size());
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

}  // namespace logitport
