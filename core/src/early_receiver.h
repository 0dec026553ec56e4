// Receives and reads the replies of a session on a thread of its own, while the engine does other work. Linux only.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "reply_message.h"

namespace logitport {

// The step whose reply is awaited. No step has the number 0: then a reply is received, and not read.
struct ExpectedReply {
  std::uint64_t seq = 0;
  LogitsShape shape;
};

// What has been received, with the length of the frame before it.
struct EarlyReply {
  std::unique_ptr<char[]> data;
  std::size_t size = 0;
  // Whether this is a whole frame, and `message` its message: the reply that was expected, with edits that are proven
  // for logits of this shape.
  bool is_read = false;
  LogitsShape shape;
  ReplyMessage message;
};

// The thread needs no lock of the interpreter: on a machine whose cores are busy, each wait for that lock would delay
// the engine. Its end shuts the connection down.
class EarlyReceiver {
 public:
  // `descriptor`: a connected socket, which stays the caller's. `max_bytes`: of a frame; the thread leaves larger ones
  // to the caller. Throws std::system_error.
  EarlyReceiver(int descriptor, std::size_t max_bytes);
  ~EarlyReceiver();
  EarlyReceiver(const EarlyReceiver &) = delete;
  EarlyReceiver &operator=(const EarlyReceiver &) = delete;

  // Leave the next reply to the thread. It goes on with replies that are left before `claim` found one missing.
  void leave(const ExpectedReply &expected);
  // What the thread has received. If that is no whole frame, the rest is the caller's.
  EarlyReply claim();
  // Wait for the thread, after the connection was shut down. On any thread.
  void join() noexcept;

 private:
  void close() const noexcept;
  void run() noexcept;
  bool receive() noexcept;
  void read();
  void wake_on_reply(bool wakes) const noexcept;
  [[nodiscard]] bool has_frame() const noexcept;
  [[nodiscard]] std::size_t announced() const noexcept;
  [[nodiscard]] std::size_t missing() const noexcept;

  std::mutex mutex_;  // of what changes, but the thread
  std::mutex join_mutex_;
  int descriptor_, epoll_;
  std::size_t max_bytes_;
  bool watches_ = false;
  ExpectedReply expected_;
  EarlyReply reply_;
  std::size_t capacity_ = 0;  // of `reply_.data`
  pid_t process_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace logitport
