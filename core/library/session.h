// The session of an engine: its requests, and its steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend.h"
#include "logitport.h"
#include "logits_row.h"
#include "requests.h"
#include "step_content.h"

namespace logitport {

// What an engine chooses, beside what it states to the server.
struct SessionLimits {
  std::int32_t vocab_size;
  Datatype datatype;
  std::int32_t max_draft_tokens;
  double timeout_seconds, reconnect_seconds;
};

// The functions of logitport.h, which throw an Error.
class Session {
 public:
  Session(std::unique_ptr<Backend> backend, const SessionLimits &limits)
      : backend_(std::move(backend)), limits_(limits), content_() {}

  // Returns the first error.
  std::int32_t add(const logitport_request *requests, std::size_t count, logitport_admission *admissions);
  void remove(const logitport_handle *handles, std::size_t count);
  void rewind(logitport_handle handle, std::int64_t length) { table_.at(handle).history.rewind(length); }
  [[nodiscard]] std::int64_t history_length(logitport_handle handle) const {
    return table_.at(handle).history.length();
  }
  // Returns the number of rows.
  std::size_t begin(const logitport_step_request *requests, std::size_t count, const logitport_row *rows,
                    std::size_t row_count);
  void apply(void *logits, std::size_t rows, std::size_t row_stride, logitport_result *result);
  void *logits_buffer(std::size_t rows, std::size_t &size_bytes);
  [[nodiscard]] logitport_stats stats() const noexcept {
    return {sizeof(logitport_stats), reconnects_, resyncs_, table_.size()};
  }
  void cancel() noexcept { backend_->cancel(); }

 private:
  template <typename Call>
  auto with_reconnect(const Call &call) -> decltype(call());
  void recover(double seconds);
  void fail(HeldRequest &request, const Error &error);
  void lose(HeldRequest &request, const Error &error);
  // Admit requests again, with their present histories.
  void resend(const std::vector<HeldRequest *> &requests);

  void find_requests(const logitport_step_request *requests, std::size_t count);
  void check_lengths(const logitport_step_request *requests) const;
  void read_ids(const logitport_step_request *requests);
  void read_parents(const logitport_step_request *requests);
  void read_rows(const logitport_row *rows, std::size_t row_count);
  [[nodiscard]] std::optional<Error> wrong_ids(const logitport_step_request &request) const;
  [[nodiscard]] Logits checked(void *logits, std::size_t rows, std::size_t row_stride) const;
  ReplyMessage &synchronized_reply();
  void repeat();
  void write_result(const ReplyMessage &reply);
  void add_failure(const HeldRequest &request, std::int32_t code, std::string_view message, bool skipped);

  std::unique_ptr<Backend> backend_;
  SessionLimits limits_;
  RequestTable table_;
  std::uint64_t reconnects_ = 0, resyncs_ = 0;
  bool has_lost_ = false;              // whether a request was ever lost
  std::vector<std::string> messages_;  // of the last admissions

  // The step.
  StepContent content_;
  std::vector<HeldRequest *> requests_;
  std::vector<logitport_handle> handles_;  // theirs: to compare these, no request has to be read
  std::uint64_t changes_ = 0;              // of the table, when the requests were found
  bool is_begun_ = false, is_sent_ = false;
  // The result of the last step. Its texts are views of the reply, or of the error of a lost request.
  std::vector<logitport_failure> failures_;
  std::vector<logitport_applied> applied_;
  std::vector<logitport_event> events_;
  std::vector<std::int32_t> denied_rows_;
  std::vector<std::string> texts_;  // copies, each with a 0 behind it
};

}  // namespace logitport
