#include "session.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>
#include <utility>

#include "apply_cpu.h"
#include "transports/waiting.h"

namespace logitport {
namespace {

constexpr double first_pause_seconds = 0.05, max_pause_seconds = 1.0;

std::string string_of(const logitport_text &text) {
  return text.size == 0 ? std::string() : std::string(text.data, text.size);
}

[[noreturn]] void refuse(const std::string &message) { throw Error(ErrorCode::invalid_argument, message); }

// The position of an id outside of the vocabulary; `count` if there is none.
std::size_t find_wrong(const std::int32_t *ids, std::size_t count, std::int32_t vocab_size) {
  std::uint32_t highest = 0;
  for (std::size_t index = 0; index < count; ++index) {
    highest = std::max(highest, static_cast<std::uint32_t>(ids[index]));  // a negative id becomes a very large number
  }
  const auto limit = static_cast<std::uint32_t>(vocab_size);
  if (highest < limit) {
    return count;
  }
  const auto *found =
      std::find_if(ids, ids + count, [limit](std::int32_t id) { return static_cast<std::uint32_t>(id) >= limit; });
  return static_cast<std::size_t>(found - ids);
}

void check_text(const logitport_text &text, const char *name) {
  if (text.size != 0 && text.data == nullptr) {
    refuse(std::string(name) + " has " + std::to_string(text.size) + " bytes, and its pointer is null");
  }
}

void check_ids(const std::int32_t *ids, std::size_t count, const char *name) {
  if (count != 0 && ids == nullptr) {
    refuse(std::string(name) + " has " + std::to_string(count) + " ids, and its pointer is null");
  }
}

std::unique_ptr<HeldRequest> held_request(const logitport_request &request) {
  check_ids(request.prompt_ids, request.prompt_id_count, "prompt_ids");
  check_ids(request.output_ids, request.output_id_count, "output_ids");
  if (request.processor_count != 0 && request.processors == nullptr) {
    refuse("processor_count is " + std::to_string(request.processor_count) + ", and processors is null");
  }
  auto held = std::make_unique<HeldRequest>(request.prompt_ids, request.prompt_id_count, request.output_ids,
                                            request.output_id_count);
  for (std::size_t place = 0; place < request.processor_count; ++place) {
    const logitport_processor &processor = request.processors[place];
    check_text(processor.name, "the name of a processor");
    check_text(processor.params, "the parameters of a processor");
    if (processor.naming < LOGITPORT_BUILTIN || processor.naming > LOGITPORT_PAYLOAD || processor.name.size == 0) {
      refuse("processor " + std::to_string(place) + " has naming " + std::to_string(processor.naming) +
             " and a name of " + std::to_string(processor.name.size) + " bytes: set a logitport_naming, and a name");
    }
    held->processors.push_back({processor.naming, string_of(processor.name), string_of(processor.params)});
  }
  for (const auto &[text, name] :
       {std::pair(&request.request_id, "request_id"), std::pair(&request.sampling_params, "sampling_params"),
        std::pair(&request.tenant, "tenant")}) {
    check_text(*text, name);
  }
  held->request_id = string_of(request.request_id);
  held->sampling_params = string_of(request.sampling_params);
  held->tenant = string_of(request.tenant);
  held->skips = request.skips_on_error != 0;
  return held;
}

logitport_text text_of(const std::string &text) { return {text.data(), text.size()}; }

}  // namespace

std::int32_t Session::add(const logitport_request *requests, std::size_t count, logitport_admission *admissions) {
  messages_.clear();
  messages_.resize(count);
  std::fill(admissions, admissions + count, logitport_admission{});
  std::int32_t first_code = 0;
  const auto set_error = [&](std::size_t index, const Error &error) {
    messages_[index] = error.what();
    admissions[index].code = static_cast<std::int32_t>(error.code());
    admissions[index].message = text_of(messages_[index]);
    first_code = first_code == 0 ? admissions[index].code : first_code;
  };
  std::vector<HeldRequest *> held;
  std::vector<std::size_t> indices;
  const auto drop_all = [&] {
    for (const HeldRequest *request : held) {
      backend_->remove(*request);
      table_.remove(*request);
    }
  };
  for (std::size_t index = 0; index < count; ++index) {
    try {
      auto request = held_request(requests[index]);
      const History &history = request->history;
      const auto length = static_cast<std::size_t>(history.length());
      if (const std::size_t wrong = find_wrong(history.data(), length, limits_.vocab_size); wrong != length) {
        const bool is_prompt = static_cast<std::int64_t>(wrong) < history.prompt_length();
        const std::size_t position = wrong - (is_prompt ? 0 : static_cast<std::size_t>(history.prompt_length()));
        refuse((is_prompt ? "prompt_token_ids[" : "output_token_ids[") + std::to_string(position) + "] is " +
               std::to_string(history.at(static_cast<std::int64_t>(wrong))) + ": token ids must lie in [0, " +
               std::to_string(limits_.vocab_size) + ")");
      }
      held.push_back(&table_.add(std::move(request), backend_->max_requests()));
      indices.push_back(index);
    } catch (const Error &error) {
      set_error(index, error);
    }
  }
  if (held.empty()) {
    return first_code;
  }
  std::vector<std::optional<Error>> errors;
  try {
    errors = with_reconnect([&] { return backend_->admit(held); });
  } catch (const Error &) {
    drop_all();
    throw;
  }
  for (std::size_t index = 0; index < held.size(); ++index) {
    if (const std::optional<Error> &error = errors[index]) {
      set_error(indices[index], *error);
      table_.remove(*held[index]);
    } else {
      held[index]->is_admitted = true;
      admissions[indices[index]].handle = held[index]->handle();
      admissions[indices[index]].reads_logits = held[index]->reads_logits ? 1 : 0;
    }
  }
  backend_->requests_added();
  return first_code;
}

void Session::remove(const logitport_handle *handles, std::size_t count) {
  std::vector<HeldRequest *> found;
  found.reserve(count);
  for (std::size_t index = 0; index < count; ++index) {
    found.push_back(&table_.at(handles[index]));
  }
  std::vector<HeldRequest *> sorted = found;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw Error(ErrorCode::not_found, "a handle occurs twice: a request can be removed once");
  }
  for (HeldRequest *request : found) {
    if (!request->lost) {
      backend_->remove(*request);
    }
    table_.remove(*request);
  }
}

template <typename Call>
auto Session::with_reconnect(const Call &call) -> decltype(call()) {
  try {
    return call();
  } catch (const Error &error) {
    if (error.code() != ErrorCode::unavailable || limits_.reconnect_seconds < 0) {
      throw;
    }
  }
  const Deadline deadline(limits_.reconnect_seconds);
  std::minstd_rand random{std::random_device()()};
  double bound = first_pause_seconds;
  for (;;) {
    try {
      recover(deadline.seconds());
      return call();
    } catch (const Error &error) {
      // A server that is full may still hold the session that was lost.
      const bool may_pass = error.code() == ErrorCode::unavailable || error.code() == ErrorCode::limit_exceeded;
      if (!may_pass || deadline.has_passed()) {
        throw;
      }
    }
    // Engines that lost one server return at different moments.
    backend_->pause(std::min(deadline.seconds(), bound * std::uniform_real_distribution<>(0, 1)(random)));
    bound = std::min(2 * bound, max_pause_seconds);
  }
}

// Connect again, and send all requests. Those with a state that does not follow from their history are lost.
void Session::recover(double seconds) {
  constexpr double least_seconds = 0.1;
  backend_->reopen(std::max(seconds, least_seconds), table_.size());
  ++reconnects_;
  is_sent_ = false;
  for (HeldRequest *request : table_.kept()) {
    if (request->has_sent_logits) {
      lose(*request, Error(ErrorCode::state_lost,
                           "request '" + request->request_id +
                               "': the connection to the server that processed its logits was lost, and with it the "
                               "state of its processors; remove the request and add it again"));
    }
  }
  try {
    resend(table_.kept());
  } catch (const Error &) {
    backend_->lose();  // a session that lacks requests must not be used
    throw;
  }
}

void Session::resend(const std::vector<HeldRequest *> &requests) {
  if (requests.empty()) {
    return;
  }
  const std::vector<std::optional<Error>> errors = backend_->admit(requests);
  for (std::size_t index = 0; index < requests.size(); ++index) {
    if (const std::optional<Error> &error = errors[index]) {
      lose(*requests[index], *error);
    }
  }
}

// The request fails in all steps. The server drops it.
void Session::fail(HeldRequest &request, const Error &error) {
  if (!request.lost) {
    backend_->remove(request);
    lose(request, error);
  }
}

void Session::lose(HeldRequest &request, const Error &error) {
  request.lost = error;
  has_lost_ = true;
}

std::size_t Session::begin(const logitport_step_request *requests, std::size_t count, const logitport_row *rows,
                           std::size_t row_count) {
  find_requests(requests, count);
  content_.clear();
  is_begun_ = false;
  check_lengths(requests);
  read_ids(requests);
  read_rows(rows, row_count);
  is_begun_ = true;
  is_sent_ = false;
  const LogitsShape shape{static_cast<std::int64_t>(content_.row_count()), limits_.vocab_size};
  try {
    backend_->begin_step(content_, shape);
    is_sent_ = true;
  } catch (const Error &error) {
    if (error.code() != ErrorCode::unavailable) {
      is_begun_ = false;
      throw;
    }
  }
  content_.extend();
  return content_.row_count();
}

void Session::find_requests(const logitport_step_request *requests, std::size_t count) {
  bool is_same = changes_ == table_.changes() && requests_.size() == count;
  for (std::size_t index = 0; index < count && is_same; ++index) {
    is_same = handles_[index] == requests[index].handle;
  }
  if (is_same) {
    for (HeldRequest *request : requests_) {
      request->history.prefetch();
    }
    return;
  }
  requests_.clear();
  handles_.clear();
  content_.clear_requests();
  is_begun_ = false;
  changes_ = std::numeric_limits<std::uint64_t>::max();
  std::vector<const HeldRequest *> sorted;
  for (std::size_t index = 0; index < count; ++index) {
    HeldRequest &request = table_.at(requests[index].handle);
    requests_.push_back(&request);
    handles_.push_back(request.handle());
    sorted.push_back(&request);
    content_.add_request(request.slot, request.generation, request.history);
  }
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    refuse("a request occurs twice in the step: give it all of its new ids, drafts and rows in one entry");
  }
  changes_ = table_.changes();
}

void Session::check_lengths(const logitport_step_request *requests) const {
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    const logitport_step_request &request = requests[index];
    check_ids(request.new_ids, request.new_id_count, "new_ids");
    check_ids(request.draft_ids, request.draft_id_count, "draft_ids");
    if (request.draft_id_count > static_cast<std::size_t>(limits_.max_draft_tokens)) {
      refuse("request " + std::to_string(index) + " of the step has " + std::to_string(request.draft_id_count) +
             " draft tokens; the session was opened with max_draft_tokens " + std::to_string(limits_.max_draft_tokens));
    }
    const auto most =
        static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() - requests_[index]->history.length());
    if (request.new_id_count > most) {
      refuse("request " + std::to_string(index) + " of the step would have 2147483648 ids or more");
    }
    for (std::size_t draft = 0; request.draft_parents != nullptr && draft < request.draft_id_count; ++draft) {
      const std::int32_t parent = request.draft_parents[draft];
      if (parent < -1 || parent >= static_cast<std::int32_t>(draft)) {
        refuse("draft_parents[" + std::to_string(draft) + "] of request " + std::to_string(index) + " is " +
               std::to_string(parent) + ": a parent is -1, or the index of an earlier draft");
      }
    }
  }
}

std::optional<Error> Session::wrong_ids(const logitport_step_request &request) const {
  for (const auto &[ids, count, name] : {std::tuple(request.new_ids, request.new_id_count, "new_ids"),
                                         std::tuple(request.draft_ids, request.draft_id_count, "draft_ids")}) {
    if (const std::size_t wrong = find_wrong(ids, count, limits_.vocab_size); wrong != count) {
      return Error(ErrorCode::invalid_argument, std::string(name) + "[" + std::to_string(wrong) + "] is " +
                                                    std::to_string(ids[wrong]) + ": token ids must lie in [0, " +
                                                    std::to_string(limits_.vocab_size) + ")");
    }
  }
  return std::nullopt;
}

void Session::read_ids(const logitport_step_request *requests) {
  bool has_drafts = false, has_trees = false;
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    const logitport_step_request &request = requests[index];
    std::vector<std::int32_t> &ids = content_.new_ids.ids;
    const std::size_t begin = ids.size();
    if (auto error = wrong_ids(request)) {
      fail(*requests_[index], *error);
    } else {
      ids.insert(ids.end(), request.new_ids, request.new_ids + request.new_id_count);
    }
    content_.new_ids.end_list(begin);
    has_drafts |= request.draft_id_count != 0;
    has_trees |= request.draft_id_count != 0 && request.draft_parents != nullptr;
    requests_[index]->history.prefetch_end();
  }
  for (std::size_t index = 0; has_drafts && index < requests_.size(); ++index) {
    const logitport_step_request &request = requests[index];
    std::vector<std::int32_t> &ids = content_.drafts.ids;
    const std::size_t begin = ids.size();
    ids.insert(ids.end(), request.draft_ids, request.draft_ids + request.draft_id_count);
    if (requests_[index]->lost) {
      std::fill(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), 0);  // they may be wrong
    }
    content_.drafts.end_list(begin);
  }
  if (has_trees) {
    read_parents(requests);
  }
}

void Session::read_parents(const logitport_step_request *requests) {
  for (std::size_t index = 0; index < requests_.size(); ++index) {
    const std::int32_t *parents = requests[index].draft_parents;
    for (std::int32_t draft = 0; draft < content_.draft_count(index); ++draft) {
      content_.draft_parents.push_back(parents == nullptr ? draft - 1 : parents[draft]);
    }
  }
}

void Session::read_rows(const logitport_row *rows, std::size_t row_count) {
  if (rows == nullptr) {
    if (!content_.drafts.ids.empty()) {
      content_.add_row_of_each_draft();
    }
    return;
  }
  if (row_count == 0 && !requests_.empty()) {
    refuse("the step has requests, and no rows: pass the rows, or null for the default");
  }
  for (std::size_t row = 0; row < row_count; ++row) {
    const logitport_row &each = rows[row];
    if (each.request >= requests_.size() || each.draft_offset < 0 ||
        each.draft_offset > content_.draft_count(each.request)) {
      refuse("rows[" + std::to_string(row) + "] has request " + std::to_string(each.request) + " and draft offset " +
             std::to_string(each.draft_offset) + ": the step has " + std::to_string(requests_.size()) +
             " requests, and an offset is at most the number of drafts of its request");
    }
    content_.row_requests.push_back(static_cast<std::int32_t>(each.request));
    content_.row_offsets.push_back(each.draft_offset);
  }
  content_.finish_rows();
}

Logits Session::checked(void *logits, std::size_t rows, std::size_t row_stride) const {
  if (!is_begun_) {
    refuse("no step was begun since the last one was applied: call logitport_begin");
  }
  const auto element = static_cast<std::size_t>(size_of(limits_.datatype));
  const std::size_t row_bytes = static_cast<std::size_t>(limits_.vocab_size) * element;
  if (rows != content_.row_count()) {
    refuse("the logits have " + std::to_string(rows) + " rows; the step has " + std::to_string(content_.row_count()));
  }
  if (rows != 0 && (logits == nullptr || reinterpret_cast<std::uintptr_t>(logits) % element != 0 ||
                    row_stride < row_bytes || row_stride % element != 0 ||
                    row_stride > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) / rows)) {
    refuse("logits are at an address that is null or not aligned, or row_stride is " + std::to_string(row_stride) +
           ": a row has " + std::to_string(row_bytes) + " bytes, of elements of " + std::to_string(element));
  }
  if (rows != 0 && backend_->is_retired(logits)) {
    refuse(
        "these logits are in a retired buffer: requests were added, and a processor that had exclusive use of the "
        "buffer can still write to it; call logitport_logits_buffer again, and write the logits there");
  }
  return {static_cast<char *>(logits),
          {static_cast<std::int64_t>(rows), limits_.vocab_size},
          static_cast<std::int64_t>(row_stride),
          static_cast<std::int64_t>(element),
          limits_.datatype};
}

void Session::apply(void *logits, std::size_t rows, std::size_t row_stride, logitport_result *result) {
  const Logits checked_logits = checked(logits, rows, row_stride);
  bool is_applied = false;
  const auto apply_once = [&](const ReplyMessage &reply) {
    if (!is_applied && !apply_edits(reply.edits, checked_logits)) {
      refuse("a logit that has a bias is NaN, for which a sum in bfloat16 is not defined");
    }
    is_applied = true;
  };
  ReplyMessage *reply = with_reconnect([&] {
    ReplyMessage &found = synchronized_reply();
    if (found.logits_rows.size() != 0) {
      apply_once(found);  // first: it may refuse the logits, and then nothing has changed
      backend_->send_logits(checked_logits, found.logits_rows);
    }
    return &found;
  });
  apply_once(*reply);
  is_begun_ = false;
  std::optional<Error> lost;
  const Column<std::int32_t> logits_rows = reply->logits_rows;
  if (logits_rows.size() != 0) {
    for (std::int64_t index = 0; index < logits_rows.size(); ++index) {
      HeldRequest &request = *requests_[content_.request_of(static_cast<std::size_t>(logits_rows[index]))];
      request.has_sent_logits = !request.follows_from_history;
    }
    try {
      backend_->end_logits(checked_logits, logits_rows, *reply);
    } catch (const Error &error) {
      if (error.code() != ErrorCode::unavailable) {
        throw;
      }
      lost = Error(
          ErrorCode::state_lost,
          std::string("the connection was lost while logits of this request were being processed: ") + error.what());
    }
  }
  if (lost) {
    for (std::int64_t index = 0; index < logits_rows.size(); ++index) {
      lose(*requests_[content_.request_of(static_cast<std::size_t>(logits_rows[index]))], *lost);
    }
  }
  write_result(*reply);
  if (result != nullptr) {
    logitport_result found{};
    found.size = std::min(result->size, sizeof found);
    found.failures = failures_.data();
    found.failure_count = failures_.size();
    found.all_denied_rows = denied_rows_.data();
    found.all_denied_row_count = denied_rows_.size();
    found.applied = applied_.data();
    found.applied_count = applied_.size();
    found.events = events_.data();
    found.event_count = events_.size();
    std::copy_n(reinterpret_cast<const char *>(&found), found.size, reinterpret_cast<char *>(result));
  }
}

// The reply to the step, once the other end has the histories of all its requests.
ReplyMessage &Session::synchronized_reply() {
  if (!is_sent_) {
    repeat();
  }
  ReplyMessage *reply = &backend_->step_reply();
  std::vector<HeldRequest *> out_of_sync;
  for (const ReplyMessage::Failure &failure : reply->failures) {
    HeldRequest *request = table_.in_slot(failure.slot);
    if (failure.error.code == static_cast<std::int32_t>(ErrorCode::need_sync) && request != nullptr && !request->lost) {
      out_of_sync.push_back(request);
    }
  }
  if (!out_of_sync.empty()) {
    resyncs_ += out_of_sync.size();
    resend(out_of_sync);
    repeat();
    reply = &backend_->step_reply();
  }
  return *reply;
}

// Send the step again, without new ids: the histories include them.
void Session::repeat() {
  is_sent_ = false;
  backend_->begin_step(content_, {static_cast<std::int64_t>(content_.row_count()), limits_.vocab_size});
  is_sent_ = true;
}

void Session::add_failure(const HeldRequest &request, std::int32_t code, std::string_view message, bool skipped) {
  const std::string &copy = texts_.emplace_back(message);
  failures_.push_back({request.handle(), code, skipped ? 1 : 0, text_of(copy)});
}

void Session::write_result(const ReplyMessage &reply) {
  failures_.clear();
  applied_.clear();
  events_.clear();
  denied_rows_.clear();
  texts_.clear();
  // No text moves: the vector gets all of its memory here.
  texts_.reserve(requests_.size() + 2 * reply.failures.size() + reply.applied.size() + 3 * reply.events.size());
  const auto copy = [this](std::string_view text) { return text_of(texts_.emplace_back(text)); };
  if (has_lost_) {
    for (const HeldRequest *request : requests_) {
      if (request->lost) {
        add_failure(*request, static_cast<std::int32_t>(request->lost->code()), request->lost->what(), false);
      }
    }
  }
  for (const ReplyMessage::Failure &failure : reply.failures) {
    const HeldRequest *request = table_.in_slot(failure.slot);
    if (request != nullptr && !request->lost) {
      add_failure(*request, std::max(1, failure.error.code), failure.error.message, failure.skipped);
    }
  }
  for (std::int64_t index = 0; index < reply.denied_rows.size(); ++index) {
    denied_rows_.push_back(reply.denied_rows[index]);
  }
  for (const ReplyMessage::Applied &each : reply.applied) {
    const std::string_view name = each.display_name.empty() ? each.key : each.display_name;
    const auto found = std::find_if(applied_.begin(), applied_.end(), [name](const logitport_applied &earlier) {
      return std::string_view(earlier.processor.data, earlier.processor.size) == name;
    });
    if (found != applied_.end()) {  // in another part of the step
      found->rows += each.rows;
    } else {
      applied_.push_back({copy(name), each.rows});
    }
  }
  for (const ReplyMessage::Event &each : reply.events) {
    if (const HeldRequest *request = table_.in_slot(each.slot); request != nullptr) {
      events_.push_back({request->handle(), each.position, each.draft_offset, each.left_out, copy(each.processor),
                         copy(each.name), copy(each.values)});
    }
  }
}

void *Session::logits_buffer(std::size_t rows, std::size_t &size_bytes) {
  constexpr std::size_t most = std::size_t{1} << 24U;
  if (rows > most) {
    refuse("rows is " + std::to_string(rows) + "; a step has at most " + std::to_string(most));
  }
  return with_reconnect([&] { return backend_->logits_buffer(rows, size_bytes); });
}

}  // namespace logitport
