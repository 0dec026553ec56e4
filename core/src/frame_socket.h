// The frames of the local transport, on the connected socket of a session: each after its length, little-endian.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace logitport {

constexpr std::size_t length_bytes = 4;  // of the length before each frame

// Reads and writes a socket that Python owns, without the interpreter. Only frames that fit into its memory: it leaves
// others, and the end of the connection, to Python.
class FrameSocket {
 public:
  // `received`: what was received before, and not processed. `max_bytes`: of a frame; there may be a lower limit.
  FrameSocket(int descriptor, std::string_view received, std::size_t max_bytes);

  // Whether a whole frame is there.
  [[nodiscard]] bool has_frame() const noexcept;
  // Wait until a whole frame is there. Returns false if Python is to receive it.
  bool receive();
  // The frame that was received, valid until the next call of `receive`, or empty.
  [[nodiscard]] std::string_view frame() const noexcept;
  // The next call of `receive` begins after this frame, if there is one.
  void remove_frame();
  // What was received and not removed.
  [[nodiscard]] std::string_view received() const noexcept { return {data_.get(), size_}; }

  // Send all of a message. Returns 0, or the error number.
  [[nodiscard]] int send(std::string_view message) const noexcept;

 private:
  [[nodiscard]] std::size_t frame_end() const noexcept;

  int descriptor_;
  std::size_t max_bytes_;
  std::unique_ptr<char[]> data_;  // not a vector, which would write to all of it for each idle session
  std::size_t size_ = 0;
};

}  // namespace logitport
