// The local transport: frames on a Unix socket, and memory that is shared with the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "early_receiver.h"
#include "transports/waiting.h"

namespace logitport {

// Memory that is shared with the server: a mapping, which this object ends.
class SharedMemory {
 public:
  // Map a descriptor that the server has sent. Throws an Error if the server could take the memory away.
  SharedMemory(const Descriptor &descriptor, std::size_t size);
  ~SharedMemory();
  SharedMemory(const SharedMemory &) = delete;
  SharedMemory &operator=(const SharedMemory &) = delete;

  [[nodiscard]] char *data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool contains(const void *address) const noexcept {
    const auto *byte = static_cast<const char *>(address);
    return byte >= data_ && byte < data_ + size_;
  }

 private:
  char *data_ = nullptr;
  std::size_t size_;
};

// The connection of one session. The engine's thread calls all methods.
class LocalTransport {
 public:
  // Connect to the socket that a server offers, if it can be trusted, and write the token. `max_bytes`: of a reply.
  // Throws an Error.
  LocalTransport(const std::string &path, std::string_view token, std::size_t max_bytes, const Wakeup &wakeup,
                 const Deadline &deadline);
  ~LocalTransport();
  LocalTransport(const LocalTransport &) = delete;
  LocalTransport &operator=(const LocalTransport &) = delete;

  // Send frames, each after its length. Throws an Error.
  void send(std::string_view frames, const Deadline &deadline);
  // Leave the next reply to a thread, which reads it while the engine does other work. The thread may go on with the
  // replies after that, until `claim` finds none: call it before a frame whose reply is not left.
  void leave(const ExpectedReply &expected) const;
  // The reply that was left, if it was read. Otherwise, `receive` gets what has arrived.
  std::optional<EarlyReply> claim();
  // Receive a reply. Valid until the next call. Throws an Error.
  std::string_view receive(const Deadline &deadline);
  // Receive a reply, and the descriptor that comes with its first byte.
  std::string_view receive(const Deadline &deadline, Descriptor &descriptor);
  // End the connection. Replies that are on their way are lost.
  void end() const noexcept;

 private:
  void connect(const std::string &path, const Deadline &deadline);
  void receive_some(const Deadline &deadline, Descriptor *descriptor);
  [[nodiscard]] bool has_frame() const;
  [[noreturn]] void lost(const std::string &why) const;

  const Wakeup &wakeup_;
  std::size_t max_bytes_;
  Descriptor socket_;
  std::unique_ptr<char[]> part_;  // of a reply, as it is received
  std::string incoming_;
  std::size_t taken_ = 0;  // bytes of `incoming_` that the last reply had
  std::unique_ptr<EarlyReceiver> early_;
};

}  // namespace logitport
