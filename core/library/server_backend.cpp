#include "server_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "frame_socket.h"
#include "message_fields.h"
#include "step_check.h"

namespace logitport {
namespace {

constexpr std::string_view session_path = "/logitport.v1.LogitProcessing/Session";
constexpr std::size_t max_reply_bytes = std::size_t{256} << 20U;
// After so many bytes, the next requests go into another frame.
constexpr std::size_t add_frame_bytes = std::size_t{4} << 20U;
// A server that is alive replies within its own deadlines and this time.
constexpr double margin_seconds = 10.0;
// A forward pass takes longer. An engine that applies its steps at once does not.
constexpr std::chrono::milliseconds overlap(1);

}  // namespace

ServerBackend::ServerBackend(ServerTarget target, SessionOptions options)
    : target_(std::move(target)), options_(std::move(options)) {
  reopen(target_.timeout_seconds, 0);
}

void ServerBackend::reopen(double seconds, std::size_t expected_requests) {
  const Deadline deadline(std::min(seconds, target_.timeout_seconds));
  lose();
  transport_ = nullptr;
  stream_ = nullptr;
  sent_.clear();
  removed_slots_.clear();
  removed_generations_.clear();
  is_awaited_ = is_left_ = false;
  error_ = Error(ErrorCode::unavailable, "the connection to " + target_.address + " was lost");  // of the step
  buffer_.id = staging_.id = 0;
  auto stream = std::make_unique<Http2Stream>(target_.address, session_path, target_.token, wakeup_, deadline);
  stream->send(open_message(options_, expected_requests), deadline);
  const std::string data = stream->receive(deadline);
  const ResponseMessage response = checked(data, {1, fields::SessionResponse::opened.tag(), 0});
  SessionTerms terms;
  if (!read_opened(response.body, terms) || terms.max_requests < 1) {
    throw Error(ErrorCode::internal, target_.address + " sent a first reply that cannot be read");
  }
  if (!terms.has_local_transport) {
    throw Error(ErrorCode::unavailable,
                target_.address + " offers no local transport: start it without --no-local-transport, on this host");
  }
  transport_ = std::make_unique<LocalTransport>(std::string(terms.socket_path), terms.access_token, max_reply_bytes,
                                                wakeup_, deadline);
  stream->keep();
  stream_ = std::move(stream);
  seq_ = 1;
  max_requests_ = static_cast<std::size_t>(terms.max_requests);
  constexpr std::int64_t most = std::int64_t{1} << 31U;
  max_frame_bytes_ =
      static_cast<std::size_t>(std::clamp<std::int64_t>(terms.max_message_bytes, 0, most)) + length_bytes;
  step_seconds_ = limit(terms.step_deadline_seconds);
  add_deadline_seconds_ = terms.add_deadline_seconds;
}

void ServerBackend::lose() noexcept {
  if (transport_ != nullptr) {
    transport_->end();
  }
}

double ServerBackend::limit(double deadline_seconds) const noexcept {
  return deadline_seconds > 0 ? std::min(deadline_seconds + margin_seconds, target_.timeout_seconds)
                              : target_.timeout_seconds;
}

std::size_t ServerBackend::row_bytes() const noexcept {
  return static_cast<std::size_t>(options_.vocab_size) * (options_.datatype == "FP32" ? 4 : 2);
}

LocalTransport &ServerBackend::transport() {
  if (wakeup_.is_awake()) {
    throw Error(ErrorCode::unavailable, "the session was cancelled; close it, and open another one");
  }
  if (transport_ == nullptr) {
    throw Error(ErrorCode::unavailable, "the connection to " + target_.address + " was lost");
  }
  return *transport_;
}

void ServerBackend::wrong(const std::string &what) {
  lose();
  throw Error(ErrorCode::internal, target_.address + " " + what + "; the connection was closed");
}

ResponseMessage ServerBackend::checked(std::string_view data, const SentFrame &sent) {
  ResponseMessage response;
  const bool is_read = read_response(data, response);
  if (is_read && response.seq == sent.seq && response.tag == fields::SessionResponse::error.tag()) {
    ErrorMessage error;
    if (read_error(response.body, error) && error.code > 0) {
      throw Error(static_cast<ErrorCode>(error.code), std::string(error.message));
    }
  }
  if (!is_read || response.seq != sent.seq || response.tag != sent.reply_tag) {
    wrong("sent a reply to frame " + std::to_string(sent.seq) + " that is not one to it, or cannot be read");
  }
  return response;
}

ResponseMessage ServerBackend::receive(Descriptor *descriptor) {
  const SentFrame sent = sent_.front();
  const Deadline deadline(sent.seconds);
  const std::string_view data =
      descriptor == nullptr ? transport().receive(deadline) : transport().receive(deadline, *descriptor);
  sent_.pop_front();
  return checked(data, sent);
}

// Receive the replies to removals. The server may hold requests of one that it refuses, so the connection is useless.
void ServerBackend::receive_earlier() {
  while (!sent_.empty() && sent_.front().reply_tag == fields::SessionResponse::removed.tag()) {
    try {
      static_cast<void>(receive());
    } catch (const Error &error) {
      lose();
      throw Error(ErrorCode::unavailable, std::string("the server did not remove requests: ") + error.what());
    }
  }
}

void ServerBackend::send(std::string_view frame, std::uint64_t seq, std::uint32_t reply_tag, double seconds) {
  if (frame.size() > max_frame_bytes_) {
    throw Error(ErrorCode::limit_exceeded, "a frame has " + std::to_string(frame.size()) +
                                               " bytes; the server accepts " + std::to_string(max_frame_bytes_) +
                                               " (--max-message-bytes): send less at once");
  }
  frames_.clear();
  double all_seconds = seconds;
  if (!removed_slots_.empty()) {
    frames_ = remove_frame(seq - 1, removed_slots_, removed_generations_);
    sent_.push_back({seq - 1, fields::SessionResponse::removed.tag(), step_seconds_});
    all_seconds += step_seconds_;
    removed_slots_.clear();
    removed_generations_.clear();
    frames_.append(frame);
    frame = frames_;
  }
  sent_.push_back({seq, reply_tag, seconds});
  seq_ = seq;
  is_left_ = overlaps_ && sent_.size() == 1 && reply_tag == fields::SessionResponse::edits.tag();
  if (!is_left_) {
    static_cast<void>(transport().claim());
  }
  transport().send(frame, Deadline(all_seconds));
}

ResponseMessage ServerBackend::exchange(std::string_view frame, std::uint32_t reply_tag, double seconds,
                                        Descriptor *descriptor) {
  send(frame, seq_ + (removed_slots_.empty() ? 1 : 2), reply_tag, seconds);
  receive_earlier();
  return receive(descriptor);
}

std::vector<std::optional<Error>> ServerBackend::admit(const std::vector<HeldRequest *> &requests) {
  collect_step();
  std::vector<std::optional<Error>> errors(requests.size());
  AddFrame frame;
  bool retires = false;
  for (std::size_t first = 0, end = 0; first < requests.size(); first = end) {
    for (; end < requests.size() && (end == first || frame.size() < add_frame_bytes); ++end) {
      frame.add(*requests[end]);
    }
    retires |= admit(requests, first, end, frame, errors);
  }
  if (retires) {
    for (Region *region : {&buffer_, &staging_}) {
      if (region->memory != nullptr) {
        retired_.push_back(std::move(region->memory));
      }
      *region = {};
    }
  }
  return errors;
}

// Send a frame with the requests from `first` to `end`. Returns whether the server has retired the regions.
bool ServerBackend::admit(const std::vector<HeldRequest *> &requests, std::size_t first, std::size_t end,
                          AddFrame &frame, std::vector<std::optional<Error>> &errors) {
  const std::size_t count = end - first;
  const double seconds = limit(add_deadline_seconds_ * static_cast<double>(count));
  const std::uint64_t seq = seq_ + (removed_slots_.empty() ? 1 : 2);
  const ResponseMessage response = exchange(frame.take(seq), fields::SessionResponse::added.tag(), seconds);
  AddedMessage added;
  if (!read_added(response.body, added) || added.reads_logits.size() != count || added.chains.size() != count) {
    wrong("sent a reply to an admission with other numbers of requests");
  }
  for (const ReplyMessage::Failure &failure : added.failures) {
    for (std::size_t index = first; index < end; ++index) {
      if (requests[index]->slot == failure.slot) {
        errors[index] =
            Error(static_cast<ErrorCode>(std::max(1, failure.error.code)), std::string(failure.error.message));
      }
    }
  }
  for (std::size_t index = first; index < end; ++index) {
    if (errors[index]) {
      continue;
    }
    HeldRequest &request = *requests[index];
    const AddedMessage::Chain &chain = added.chains[index - first];
    if (chain.processors.size() != request.processors.size()) {
      wrong("admitted a request with another number of processors");
    }
    request.reads_logits = added.reads_logits[index - first] != 0;
    request.follows_from_history = chain.follows_from_history;
    for (std::size_t place = 0; place < chain.processors.size(); ++place) {
      ProcessorCall &call = request.processors[place];
      if (call.naming == 2) {  // a name may be bound to another digest later
        call.naming = 3;
        call.name = chain.processors[place];
      }
    }
  }
  return added.regions_retired;
}

void ServerBackend::remove(const HeldRequest &request) {
  removed_slots_.push_back(request.slot);
  removed_generations_.push_back(request.generation);
}

void ServerBackend::begin_step(StepContent &content, LogitsShape shape) {
  collect_step();
  shape_ = shape;
  error_.reset();
  const std::uint64_t seq = seq_ + (removed_slots_.empty() ? 1 : 2);
  send(content.serialize(seq), seq, fields::SessionResponse::edits.tag(), step_seconds_);
  is_awaited_ = true;
  if (is_left_) {
    transport_->leave({seq, shape});
  }
  begun_at_ = std::chrono::steady_clock::now();
}

ReplyMessage &ServerBackend::step_reply() {
  if (is_awaited_) {
    overlaps_ = std::chrono::steady_clock::now() - begun_at_ > overlap;
    collect_step();
  }
  if (error_) {
    throw Error(*error_);
  }
  return reply_;
}

void ServerBackend::collect_step() {
  if (!is_awaited_) {
    return;
  }
  try {
    const bool is_proven = receive_step();
    is_awaited_ = false;
    if (is_proven && are_rows(reply_.denied_rows, shape_.rows)) {
      return;
    }
    if (const std::string_view problem = find_problem(reply_, shape_, sorted_); !problem.empty()) {
      wrong(std::string(problem));
    }
  } catch (const Error &error) {
    if (error.code() == ErrorCode::unavailable) {
      throw;
    }
    is_awaited_ = false;
    error_ = error;
  }
}

// Returns whether the edits are proven.
bool ServerBackend::receive_step() {
  if (std::exchange(is_left_, false)) {
    if (auto early = transport().claim()) {
      early_ = std::move(*early);
      reply_ = std::move(early_.message);
      sent_.pop_front();
      return true;
    }
  }
  receive_earlier();
  if (sent_.empty() || sent_.front().reply_tag != fields::SessionResponse::edits.tag()) {
    throw Error(ErrorCode::unavailable, "the connection to " + target_.address + " was lost");
  }
  data_.assign(receive().body);  // a copy: the transport's own memory is written to by the next frame
  reply_ = {};
  if (!read_step_edits(data_, reply_)) {
    wrong("sent a reply to a step that cannot be read");
  }
  return false;
}

void ServerBackend::open_region(Region &region, std::size_t size) {
  Descriptor descriptor;
  const std::uint64_t seq = seq_ + (removed_slots_.empty() ? 1 : 2);
  const ResponseMessage response = exchange(open_region_frame(seq, size, region.id),
                                            fields::SessionResponse::region_opened.tag(), step_seconds_, &descriptor);
  std::uint64_t id = 0;
  if (!read_region_id(response.body, id) || id == 0) {
    wrong("opened a region without a number");
  }
  if (descriptor.get() < 0) {
    throw Error(ErrorCode::limit_exceeded,
                "the server opened a region, but no descriptor arrived; check this process's limit of open files "
                "(ulimit -n)");
  }
  if (region.memory != nullptr) {
    replaced_.push_back(std::move(region.memory));
  }
  region = {};
  try {
    region.memory = std::make_shared<SharedMemory>(descriptor, size);
  } catch (const Error &) {
    lose();
    throw;
  }
  region.id = id;
}

char *ServerBackend::logits_buffer(std::size_t rows, std::size_t &size_bytes) {
  collect_step();
  const std::size_t size = std::max<std::size_t>(1, rows) * row_bytes();
  if (buffer_.id == 0 || buffer_.memory->size() < size) {
    open_region(buffer_, size);
  }
  size_bytes = buffer_.memory->size();
  return buffer_.memory->data();
}

bool ServerBackend::is_retired(const void *logits) const {
  return std::any_of(retired_.begin(), retired_.end(),
                     [logits](const std::shared_ptr<SharedMemory> &memory) { return memory->contains(logits); });
}

void ServerBackend::requests_added() { retired_.splice(retired_.end(), replaced_); }

void ServerBackend::send_logits(const Logits &logits, const Column<std::int32_t> &rows) {
  const std::size_t size = row_bytes();
  in_buffer_ =
      buffer_.id != 0 && buffer_.memory->contains(logits.data) && logits.row_stride == static_cast<std::int64_t>(size);
  LogitsPlace place;
  if (in_buffer_) {
    place = {buffer_.id, static_cast<std::uint64_t>(logits.data - buffer_.memory->data()),
             static_cast<std::size_t>(logits.shape.rows)};
  } else {
    const auto count = static_cast<std::size_t>(rows.size());
    if (staging_.id == 0 || staging_.memory->size() < count * size) {
      open_region(staging_, std::max(count * size, staging_.id == 0 ? 0 : 2 * staging_.memory->size()));
    }
    for (std::size_t index = 0; index < count; ++index) {
      std::memcpy(staging_.memory->data() + index * size,
                  logits.data + rows[static_cast<std::int64_t>(index)] * logits.row_stride, size);
    }
    place = {staging_.id, 0, count};
  }
  const std::uint64_t seq = seq_ + (removed_slots_.empty() ? 1 : 2);
  send(logits_frame(seq, options_, place), seq, fields::SessionResponse::logits.tag(), step_seconds_);
}

void ServerBackend::end_logits(const Logits &logits, const Column<std::int32_t> &rows, ReplyMessage &reply) {
  receive_earlier();
  logits_data_.assign(receive().body);
  const std::int64_t all_rows = logits.shape.rows;
  Column<std::int32_t> denied = std::exchange(reply.denied_rows, {});
  if (!read_logits_edited(logits_data_, reply) || !are_rows(reply.denied_rows, all_rows)) {
    wrong("sent a reply to logits that cannot be read");
  }
  if (reply.denied_rows.size() == 0) {
    reply.denied_rows = denied;
  } else if (denied.size() != 0) {
    std::vector<std::int32_t> &both = sorted_rows_;
    both.clear();
    for (const Column<std::int32_t> &each : {denied, reply.denied_rows}) {
      for (std::int64_t index = 0; index < each.size(); ++index) {
        both.push_back(each[index]);
      }
    }
    std::sort(both.begin(), both.end());
    both.erase(std::unique(both.begin(), both.end()), both.end());
    reply.denied_rows = {both.data(), static_cast<std::int64_t>(both.size())};
  }
  if (!in_buffer_) {
    const std::size_t size = row_bytes();
    for (std::int64_t index = 0; index < rows.size(); ++index) {
      std::memcpy(logits.data + rows[index] * logits.row_stride,
                  staging_.memory->data() + static_cast<std::size_t>(index) * size, size);
    }
  }
}

}  // namespace logitport
