// A session in this process: built-ins of the compiled core.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend.h"
#include "frames.h"
#include "state.h"
#include "step_server.h"

namespace logitport {

// Computes a step when it begins: that takes less time than to wake another thread.
class EmbeddedBackend final : public Backend {
 public:
  explicit EmbeddedBackend(SessionOptions options);

  [[nodiscard]] std::size_t max_requests() const override;
  std::vector<std::optional<Error>> admit(const std::vector<HeldRequest *> &requests) override;
  void remove(const HeldRequest &request) override;
  void begin_step(StepContent &content, LogitsShape shape) override;
  ReplyMessage &step_reply() override;
  void send_logits(const Logits & /*logits*/, const Column<std::int32_t> & /*rows*/) override {}
  void end_logits(const Logits & /*logits*/, const Column<std::int32_t> & /*rows*/, ReplyMessage & /*reply*/) override {
  }
  char *logits_buffer(std::size_t rows, std::size_t &size_bytes) override;
  [[nodiscard]] bool is_retired(const void * /*logits*/) const override { return false; }
  void requests_added() override {}
  void reopen(double seconds, std::size_t expected_requests) override;
  void pause(double /*seconds*/) override { check_open(); }
  void cancel() noexcept override { is_cancelled_ = true; }
  void lose() noexcept override {}

 private:
  // A request, as a server has it: its own history, and the states that follow it.
  struct ActiveRequest {
    explicit ActiveRequest(const History &engine_history);

    History history;
    std::vector<std::unique_ptr<State>> states;
  };

  void admit(const HeldRequest &request);
  std::size_t number_of(const std::string &builtin);
  bool find_out_of_sync(const StepContent &content);
  void check_open() const;

  SessionOptions options_;
  StepServer server_;
  std::unordered_map<std::int32_t, std::unique_ptr<ActiveRequest>> requests_;  // by slot
  std::vector<std::string> builtins_;                                          // by number
  std::uint64_t seq_ = 0;
  ReplyMessage reply_;
  std::optional<Error> error_;
  std::vector<char> buffer_;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace logitport
