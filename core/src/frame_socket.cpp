#include "frame_socket.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0  // macOS; Python ignores the signal
#endif

namespace logitport {
namespace {

constexpr std::size_t capacity_bytes = std::size_t{1} << 16U;

}  // namespace

FrameSocket::FrameSocket(int descriptor, std::string_view received, std::size_t max_bytes)
    : descriptor_(descriptor),
      max_bytes_(std::min(max_bytes, capacity_bytes - length_bytes)),
      data_(new char[std::max(capacity_bytes, received.size())]),
      size_(received.size()) {
  std::copy(received.begin(), received.end(), data_.get());
}

bool FrameSocket::has_frame() const noexcept { return size_ >= length_bytes && size_ >= frame_end(); }

bool FrameSocket::receive() {
  while (!has_frame()) {
    if (size_ >= length_bytes && frame_end() - length_bytes > max_bytes_) {
      return false;
    }
    const ssize_t count = ::recv(descriptor_, data_.get() + size_, capacity_bytes - size_, 0);
    if (count > 0) {
      size_ += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      return false;
    }
  }
  return frame_end() - length_bytes <= max_bytes_;
}

std::string_view FrameSocket::frame() const noexcept {
  return has_frame() ? std::string_view(data_.get() + length_bytes, frame_end() - length_bytes) : std::string_view();
}

void FrameSocket::remove_frame() {
  if (!has_frame()) {
    return;
  }
  const std::size_t end = frame_end();
  std::copy(data_.get() + end, data_.get() + size_, data_.get());
  size_ -= end;
}

int FrameSocket::send(std::string_view message) const noexcept {
  while (!message.empty()) {
    const ssize_t count = ::send(descriptor_, message.data(), message.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      message.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Behind the first frame. Its length is there.
std::size_t FrameSocket::frame_end() const noexcept {
  std::uint32_t length = 0;
  std::memcpy(&length, data_.get(), sizeof length);
  return length_bytes + length;
}

}  // namespace logitport
