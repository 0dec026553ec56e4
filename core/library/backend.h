// Where a session runs: in a server, or in this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "edits_reader.h"
#include "errors.h"
#include "logits_row.h"
#include "reply_message.h"
#include "requests.h"
#include "step_content.h"

namespace logitport {

// The other end of a session. The methods throw an Error; it is `unavailable` if the connection was lost, and then
// `reopen` makes another one, which holds no requests.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend &) = delete;
  Backend &operator=(const Backend &) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::size_t max_requests() const = 0;
  // Admit requests, or replace those of their slots. Returns the error of each that is refused.
  virtual std::vector<std::optional<Error>> admit(const std::vector<HeldRequest *> &requests) = 0;
  // Drop a request. May be sent with the next frame.
  virtual void remove(const HeldRequest &request) = 0;
  // Begin a step. An earlier one that has no reply yet is dropped.
  virtual void begin_step(StepContent &content, LogitsShape shape) = 0;
  // Wait for the reply to the step: its edits are proven for logits of that shape, and its rows lie within. Valid until
  // the next step begins.
  virtual ReplyMessage &step_reply() = 0;
  // Have the server edit rows of the logits. `end_logits` waits for it, copies them back, and adds to the reply.
  virtual void send_logits(const Logits &logits, const Column<std::int32_t> &rows) = 0;
  virtual void end_logits(const Logits &logits, const Column<std::int32_t> &rows, ReplyMessage &reply) = 0;
  // Memory for `rows` rows, and its size in bytes.
  virtual char *logits_buffer(std::size_t rows, std::size_t &size_bytes) = 0;
  // Whether logits are in memory that must not be used any more.
  [[nodiscard]] virtual bool is_retired(const void *logits) const = 0;
  // Called after requests were added.
  virtual void requests_added() = 0;

  // Connect again, within this time. `expected_requests` are added next.
  virtual void reopen(double seconds, std::size_t expected_requests) = 0;
  // Pause between attempts to reconnect.
  virtual void pause(double seconds) = 0;
  // End all waits, on any thread.
  virtual void cancel() noexcept = 0;
  // Drop the connection: it cannot be used.
  virtual void lose() noexcept = 0;
};

}  // namespace logitport
