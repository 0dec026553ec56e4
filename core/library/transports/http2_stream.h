// One call of gRPC on a connection of its own: it opens a session, and its end ends the session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "transports/waiting.h"

namespace logitport {

// What HTTP/2 needs for the first frame of a session and its reply: https://www.rfc-editor.org/rfc/rfc9113. Frames that
// follow travel on the local transport. Not a general client: no TLS, no flow control for large messages.
class Http2Stream {
 public:
  // Connect, and begin the call. `target`: see `logitport_open`. `path`: of the method. `token`: of the caller, or
  // empty. Throws an Error.
  Http2Stream(const std::string &target, std::string_view path, std::string_view token, const Wakeup &wakeup,
              const Deadline &deadline);
  ~Http2Stream();
  Http2Stream(const Http2Stream &) = delete;
  Http2Stream &operator=(const Http2Stream &) = delete;

  // Send a message. Throws an Error.
  void send(std::string_view message, const Deadline &deadline);
  // Receive a message. Throws the Error with which the server has ended the call, or one of the connection.
  std::string receive(const Deadline &deadline);
  // From now on, answer the server's pings on a thread. Throws an Error.
  void keep();

 private:
  struct Frame {
    std::uint8_t type = 0, flags = 0;
    std::uint32_t stream = 0;
    std::string payload;
  };

  void connect(const std::string &target, const Deadline &deadline);
  void send_all(std::string_view data, const Deadline &deadline);
  // Receive a frame. Throws an Error.
  Frame read(const Deadline &deadline);
  void fill(std::size_t size, const Deadline &deadline);
  // Handle a frame of the connection. Throws the Error that it states.
  void handle(const Frame &frame, const Deadline &deadline);
  void read_headers(const Frame &frame);
  [[noreturn]] void end_call(std::string_view headers) const;
  void run() noexcept;

  std::string target_;
  const Wakeup *wakeup_;  // ends waits: of the session, then of the thread
  Wakeup closing_;        // of the thread
  Descriptor socket_;
  std::string received_;  // and not processed
  std::string message_;   // of the call, received so far, after its prefix
  std::string headers_;   // that a frame has begun
  std::unique_ptr<std::thread> thread_;
};

}  // namespace logitport
