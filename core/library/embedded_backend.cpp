#include "embedded_backend.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "builtins/builtin_states.h"
#include "frame_socket.h"

namespace logitport {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t max_processors = 64;

BatchLimits limits(const SessionOptions &options) {
  return {options.vocab_size, options.max_draft_tokens, unlimited, std::numeric_limits<std::int64_t>::max() / 4,
          std::numeric_limits<std::size_t>::max() / 4};
}

}  // namespace

EmbeddedBackend::ActiveRequest::ActiveRequest(const History &engine_history)
    : history(engine_history.data(), static_cast<std::size_t>(engine_history.prompt_length()),
              engine_history.data() + engine_history.prompt_length(),
              static_cast<std::size_t>(engine_history.length() - engine_history.prompt_length())) {}

EmbeddedBackend::EmbeddedBackend(SessionOptions options)
    : options_(std::move(options)), server_(limits(options_), {}, {}) {}

std::size_t EmbeddedBackend::max_requests() const {
  return static_cast<std::size_t>(options_.max_requests == 0 ? unlimited : options_.max_requests);
}

std::vector<std::optional<Error>> EmbeddedBackend::admit(const std::vector<HeldRequest *> &requests) {
  check_open();
  std::vector<std::optional<Error>> errors(requests.size());
  for (std::size_t index = 0; index < requests.size(); ++index) {
    try {
      admit(*requests[index]);
    } catch (const Error &error) {
      errors[index] = error;
    }
  }
  return errors;
}

void EmbeddedBackend::admit(const HeldRequest &request) {
  if (request.processors.size() > max_processors) {
    throw Error(ErrorCode::limit_exceeded, std::to_string(request.processors.size()) +
                                               " processors in one request; a session accepts " +
                                               std::to_string(max_processors) + ": chain fewer");
  }
  static_cast<void>(json_object(request.sampling_params, "sampling_params"));
  auto active = std::make_unique<ActiveRequest>(request.history);
  std::vector<ChainEntry> chain;
  for (std::size_t place = 0; place < request.processors.size(); ++place) {
    const ProcessorCall &call = request.processors[place];
    if (call.naming != 1) {
      throw Error(ErrorCode::not_found,
                  "processor " + std::to_string(place) +
                      " is no built-in, and an embedded session of the library runs no other: " + "use a server");
    }
    const Json params =
        json_object(call.params, "params of processor " + std::to_string(place) + " (" + call.name + ")");
    active->states.push_back(
        make_builtin_state(call.name, params, active->history, {options_.vocab_size, options_.eos_token_ids}));
    chain.push_back({active->states.back().get(), number_of(call.name)});
  }
  static_cast<void>(server_.take_refused());
  server_.batch().put(request.slot, request.generation, active->history, std::move(chain));
  requests_[request.slot] = std::move(active);
}

std::size_t EmbeddedBackend::number_of(const std::string &builtin) {
  const auto found = std::find(builtins_.begin(), builtins_.end(), builtin);
  const auto number = static_cast<std::size_t>(found - builtins_.begin());
  if (found == builtins_.end()) {
    builtins_.push_back(builtin);
    server_.add_processor(builtin, "");
  }
  return number;
}

void EmbeddedBackend::remove(const HeldRequest &request) {
  server_.batch().remove(request.slot);
  requests_.erase(request.slot);
}

void EmbeddedBackend::begin_step(StepContent &content, LogitsShape shape) {
  check_open();
  error_.reset();
  reply_ = {};
  static_cast<void>(read_step_edits({}, reply_));  // no edits
  server_.release_large();
  const std::string_view frame = content.serialize(++seq_).substr(length_bytes);
  ResponseMessage response;
  if (!server_.answer(frame, seq_, {}, Transport::local, true)) {
    if (find_out_of_sync(content)) {
      return;
    }
    error_ = Error(ErrorCode::limit_exceeded,
                   "the step has more edits than an embedded session computes at once (16 million ids): split it into "
                   "steps with fewer rows");
    return;
  }
  reply_ = {};
  if (!read_response(server_.reply().message(), response) || !read_step_edits(response.body, reply_) ||
      !proven(reply_.edits, shape)) {
    error_ = Error(ErrorCode::internal, "the edits of the step do not fit its logits; report this defect");
  }
}

// After a step that was refused, the engine's histories have its ids. Returns whether there are such requests.
bool EmbeddedBackend::find_out_of_sync(const StepContent &content) {
  for (std::size_t index = 0; index < content.size(); ++index) {
    const auto found = requests_.find(content.slot(index));
    if (found != requests_.end() && content.history(index).length() > found->second->history.length()) {
      ReplyMessage::Failure &failure = reply_.failures.emplace_back();
      failure.slot = content.slot(index);
      failure.error.code = static_cast<std::int32_t>(ErrorCode::need_sync);
    }
  }
  static_cast<void>(server_.take_refused());
  return !reply_.failures.empty();
}

ReplyMessage &EmbeddedBackend::step_reply() {
  check_open();
  if (error_) {
    throw Error(*error_);
  }
  return reply_;
}

char *EmbeddedBackend::logits_buffer(std::size_t rows, std::size_t &size_bytes) {
  const std::size_t element = options_.datatype == "FP32" ? 4 : 2;
  buffer_.resize(std::max(buffer_.size(), rows * static_cast<std::size_t>(options_.vocab_size) * element));
  size_bytes = buffer_.size();
  return buffer_.data();
}

void EmbeddedBackend::reopen(double /*seconds*/, std::size_t /*expected_requests*/) { check_open(); }

void EmbeddedBackend::check_open() const {
  if (is_cancelled_) {
    throw Error(ErrorCode::unavailable, "the session was cancelled; close it, and open another one");
  }
}

}  // namespace logitport
