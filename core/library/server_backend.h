// A session in a server of this host.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "edits_writer.h"
#include "frames.h"
#include "transports/http2_stream.h"
#include "transports/local_transport.h"

namespace logitport {

// How long calls wait.
struct ServerTarget {
  std::string address, token;
  double timeout_seconds = 0;
};

class ServerBackend final : public Backend {
 public:
  // Connects. Throws an Error.
  ServerBackend(ServerTarget target, SessionOptions options);

  [[nodiscard]] std::size_t max_requests() const override { return max_requests_; }
  std::vector<std::optional<Error>> admit(const std::vector<HeldRequest *> &requests) override;
  void remove(const HeldRequest &request) override;
  void begin_step(StepContent &content, LogitsShape shape) override;
  ReplyMessage &step_reply() override;
  void send_logits(const Logits &logits, const Column<std::int32_t> &rows) override;
  void end_logits(const Logits &logits, const Column<std::int32_t> &rows, ReplyMessage &reply) override;
  char *logits_buffer(std::size_t rows, std::size_t &size_bytes) override;
  [[nodiscard]] bool is_retired(const void *logits) const override;
  void requests_added() override;
  void reopen(double seconds, std::size_t expected_requests) override;
  void pause(double seconds) override { wakeup_.sleep(Deadline(seconds)); }
  void cancel() noexcept override { wakeup_.wake(); }
  void lose() noexcept override;

 private:
  // A frame without a reply.
  struct SentFrame {
    std::uint64_t seq;
    std::uint32_t reply_tag;
    double seconds;  // that the server may take for it
  };

  // Memory for logits. Without a region, the server cannot access it.
  struct Region {
    std::shared_ptr<SharedMemory> memory;
    std::uint64_t id = 0;
  };

  [[nodiscard]] double limit(double deadline_seconds) const noexcept;
  [[nodiscard]] std::size_t row_bytes() const noexcept;
  LocalTransport &transport();
  // Receive the reply to the first frame without one. Throws an Error if the server has refused the frame.
  ResponseMessage receive(Descriptor *descriptor = nullptr);
  ResponseMessage checked(std::string_view data, const SentFrame &sent);
  // Send a frame and the removals before it, and receive its reply.
  ResponseMessage exchange(std::string_view frame, std::uint32_t reply_tag, double seconds,
                           Descriptor *descriptor = nullptr);
  void send(std::string_view frame, std::uint64_t seq, std::uint32_t reply_tag, double seconds);
  void receive_earlier();
  // Receive the reply to the step, if there is none yet.
  void collect_step();
  bool receive_step();
  bool admit(const std::vector<HeldRequest *> &requests, std::size_t first, std::size_t end, AddFrame &frame,
             std::vector<std::optional<Error>> &errors);
  void open_region(Region &region, std::size_t size);
  [[noreturn]] void wrong(const std::string &what);

  ServerTarget target_;
  SessionOptions options_;
  Wakeup wakeup_;
  std::size_t max_requests_ = 0, max_frame_bytes_ = 0;
  double step_seconds_ = 0, add_deadline_seconds_ = 0;
  std::unique_ptr<Http2Stream> stream_;
  std::unique_ptr<LocalTransport> transport_;
  std::uint64_t seq_ = 0;
  std::deque<SentFrame> sent_;
  std::vector<std::int32_t> removed_slots_, removed_generations_;  // not sent yet
  std::string frames_;
  // The step: whether it has no reply yet, and whether the early receiver gets that; the reply, or the error of it.
  bool is_awaited_ = false, is_left_ = false;
  std::optional<Error> error_;
  LogitsShape shape_;
  EarlyReply early_;
  std::string data_, logits_data_;
  ReplyMessage reply_;
  PackedEdits sorted_;
  std::vector<std::int32_t> sorted_rows_;
  // Whether the engine did other work before it waited for the last reply: only then another thread receives it.
  bool overlaps_ = true;
  std::chrono::steady_clock::time_point begun_at_;
  // Memory for logits: the engine's, copies, and memory that must not be used for new requests, or any more.
  Region buffer_, staging_;
  std::list<std::shared_ptr<SharedMemory>> replaced_, retired_;
  bool in_buffer_ = false;  // whether the logits that were sent are in `buffer_`
};

}  // namespace logitport
