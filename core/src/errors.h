// Errors of the core. Python sees them as exceptions of `logitport.errors`.
#pragma once

#include <stdexcept>
#include <string>

namespace logitport {

// Codes of `logitport.v1.ErrorCode` that the core uses.
enum class ErrorCode : int {
  internal = 1,
  invalid_argument = 2,
  limit_exceeded = 3,
  not_authenticated = 4,
  not_permitted = 5,
  not_found = 6,
  need_sync = 14,
  state_lost = 15,
  session_closed = 16,
  // Not of the protocol: the server cannot be reached, or has not replied in time.
  unavailable = 100,
};

// An error that reaches Python as the exception of its code. May be thrown while the interpreter's lock is released.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string &message) : std::runtime_error(message), code_(code) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace logitport
