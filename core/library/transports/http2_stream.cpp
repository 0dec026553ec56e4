#include "transports/http2_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <arpa/inet.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <system_error>

#include "errors.h"
#include "reply_message.h"

namespace logitport {
namespace {

enum FrameType : std::uint8_t {
  data_frame = 0,
  headers_frame = 1,
  reset_frame = 3,
  settings_frame = 4,
  ping_frame = 6,
  goaway_frame = 7,
  continuation_frame = 9,
};

constexpr std::uint8_t ack = 0x1, end_stream = 0x1, end_headers = 0x4, padded = 0x8, priority = 0x20;
constexpr std::size_t frame_header_bytes = 9, message_prefix_bytes = 5;
// The library announces no larger frame than HTTP/2's default. A server's first reply has a few hundred bytes.
constexpr std::size_t max_frame_bytes = 1U << 14U, max_message_bytes = 1U << 20U, max_headers_bytes = 1U << 18U;
constexpr std::uint32_t call_stream = 1;

void put_number(std::string &data, std::uint32_t value, unsigned bytes) {
  for (unsigned byte = bytes; byte-- > 0;) {
    data.push_back(static_cast<char>(value >> (8 * byte)));
  }
}

std::uint32_t number_at(std::string_view data, std::size_t offset, unsigned bytes) {
  std::uint32_t value = 0;
  for (unsigned byte = 0; byte < bytes; ++byte) {
    value = value << 8U | static_cast<unsigned char>(data[offset + byte]);
  }
  return value;
}

std::string framed(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload) {
  std::string frame;
  put_number(frame, static_cast<std::uint32_t>(payload.size()), 3);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  put_number(frame, stream, 4);
  frame.append(payload);
  return frame;
}

// A string of HPACK (RFC 7541), without Huffman's code.
void put_text(std::string &block, std::string_view text) {
  std::size_t size = text.size();
  if (size < 127) {
    block.push_back(static_cast<char>(size));
  } else {
    block.push_back(127);
    for (size -= 127; size >= 128; size >>= 7U) {
      block.push_back(static_cast<char>((size & 127U) | 128U));
    }
    block.push_back(static_cast<char>(size));
  }
  block.append(text);
}

// A header that enters no table.
void put_header(std::string &block, std::string_view name, std::string_view value) {
  block.push_back(0);
  put_text(block, name);
  put_text(block, value);
}

// Reads a block of headers. The library announces that it keeps no table, so each name that is not one of HPACK's own
// is in the block. A text in Huffman's code is left out: gRPC's libraries send none of those that are needed so.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view block) : rest_(block) {}

  // Read the next header with a name and a value in plain text. Returns false at the end, and for a malformed block.
  bool next(std::string_view &name, std::string_view &value) {
    while (!rest_.empty()) {
      const auto first = static_cast<unsigned char>(rest_.front());
      std::size_t index = 0;
      if ((first & 0x80U) != 0) {  // both in a table
        if (!read_number(7, index)) {
          return false;
        }
        continue;
      }
      if ((first & 0xE0U) == 0x20U) {  // a size of the table
        if (!read_number(5, index)) {
          return false;
        }
        continue;
      }
      bool is_plain = true;
      name = {};
      if (!read_number((first & 0xC0U) == 0x40U ? 6 : 4, index) || (index == 0 && !read_text(name, is_plain)) ||
          !read_text(value, is_plain)) {
        return false;
      }
      if (is_plain && !name.empty()) {
        return true;
      }
    }
    return false;
  }

 private:
  bool read_number(unsigned bits, std::size_t &number) {
    const std::size_t mask = (std::size_t{1} << bits) - 1;
    number = static_cast<unsigned char>(rest_.front()) & mask;
    rest_.remove_prefix(1);
    if (number < mask) {
      return true;
    }
    for (unsigned shift = 0; shift < 28 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      number += static_cast<std::size_t>(byte & 127U) << shift;
      if (byte < 128U) {
        return true;
      }
    }
    return false;
  }

  bool read_text(std::string_view &text, bool &is_plain) {
    if (rest_.empty()) {
      return false;
    }
    is_plain &= (static_cast<unsigned char>(rest_.front()) & 0x80U) == 0;
    std::size_t size = 0;
    if (!read_number(7, size) || size > rest_.size()) {
      return false;
    }
    text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

// The text of a `grpc-message`, in which some characters are written as %XX.
std::string percent_decoded(std::string_view text) {
  const auto digit = [](char character) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    const std::size_t found = digits.find(static_cast<char>(character >= 'a' ? character - 32 : character));
    return found == std::string_view::npos ? -1 : static_cast<int>(found);
  };
  std::string decoded;
  for (std::size_t index = 0; index < text.size(); ++index) {
    if (text[index] == '%' && index + 2 < text.size() && digit(text[index + 1]) >= 0 && digit(text[index + 2]) >= 0) {
      decoded.push_back(static_cast<char>(digit(text[index + 1]) * 16 + digit(text[index + 2])));
      index += 2;
    } else {
      decoded.push_back(text[index]);
    }
  }
  return decoded;
}

// The address of a loopback, or of a Unix socket. Throws an Error for another one.
socklen_t address_of(const std::string &target, sockaddr_storage &address) {
  if (target.rfind("unix:", 0) == 0) {
    std::string path = target.substr(5);
    if (path.rfind("//", 0) == 0) {
      path.erase(0, 2);
    }
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof local.sun_path) {
      throw Error(ErrorCode::invalid_argument, "target is '" + target + "', with a path of " +
                                                   std::to_string(path.size()) + " bytes; a Unix socket has 1 to " +
                                                   std::to_string(sizeof local.sun_path - 1));
    }
    std::memcpy(local.sun_path, path.data(), path.size());
    std::memcpy(&address, &local, sizeof local);
    return sizeof local;
  }
  const std::size_t colon = target.rfind(':');
  std::string host = target.substr(0, colon == std::string::npos ? 0 : colon);
  const std::string port = colon == std::string::npos ? "" : target.substr(colon + 1);
  const bool is_port = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos &&
                       std::stoul(port) <= 65535;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  sockaddr_in four{};
  sockaddr_in6 six{};
  if (is_port && inet_pton(AF_INET, host == "localhost" ? "127.0.0.1" : host.c_str(), &four.sin_addr) == 1 &&
      ntohl(four.sin_addr.s_addr) >> 24U == 127) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<std::uint16_t>(std::stoul(port)));
    std::memcpy(&address, &four, sizeof four);
    return sizeof four;
  }
  if (is_port && inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr)) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<std::uint16_t>(std::stoul(port)));
    std::memcpy(&address, &six, sizeof six);
    return sizeof six;
  }
  throw Error(
      ErrorCode::invalid_argument,
      "target is '" + target +
          "': write HOST:PORT with a loopback address (localhost, 127.0.0.1 or [::1]), or unix:PATH. Servers of "
          "other hosts are reached by gRPC");
}

// The Error of a call that has ended with a status of gRPC, without one of logitport.
Error status_error(const std::string &target, std::string_view status, const std::string &text) {
  const std::string shown = text.empty() ? "without a message" : text;
  if (status == "16") {
    return {ErrorCode::not_authenticated, target + " does not accept the caller: " + shown};
  }
  if (status == "7") {
    return {ErrorCode::not_permitted, target + " refuses the session: " + shown};
  }
  if (status == "8") {
    return {ErrorCode::limit_exceeded, target + " refuses the session: " + shown};
  }
  return {ErrorCode::unavailable, target + " has ended the session (status " +
                                      std::string(status.empty() ? "unknown" : status) + "): " + shown};
}

}  // namespace

Http2Stream::Http2Stream(const std::string &target, std::string_view path, std::string_view token, const Wakeup &wakeup,
                         const Deadline &deadline)
    : target_(target), wakeup_(&wakeup) {
  connect(target, deadline);
  std::string settings;
  const auto set = [&settings](std::uint32_t name, std::uint32_t value) {
    put_number(settings, name, 2);
    put_number(settings, value, 4);
  };
  set(1, 0);       // HEADER_TABLE_SIZE: the server keeps no table of headers
  set(2, 0);       // ENABLE_PUSH
  set(0xFE03, 1);  // of gRPC: binary metadata come as they are, not in base64
  std::string headers;
  put_header(headers, ":method", "POST");
  put_header(headers, ":scheme", "http");
  put_header(headers, ":path", path);
  put_header(headers, ":authority", target.rfind("unix:", 0) == 0 ? std::string_view("localhost") : target);
  put_header(headers, "te", "trailers");
  put_header(headers, "content-type", "application/grpc");
  put_header(headers, "user-agent", "liblogitport");
  if (!token.empty()) {
    put_header(headers, "authorization", "Bearer " + std::string(token));
  }
  if (headers.size() > max_frame_bytes) {
    throw Error(ErrorCode::invalid_argument, "token has " + std::to_string(token.size()) + " bytes, which is too long");
  }
  send_all("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + framed(settings_frame, 0, 0, settings) +
               framed(headers_frame, end_headers, call_stream, headers),
           deadline);
}

Http2Stream::~Http2Stream() {
  closing_.wake();
  if (thread_ != nullptr) {
    thread_->join();
  }
}

void Http2Stream::connect(const std::string &target, const Deadline &deadline) {
  sockaddr_storage address{};
  const socklen_t size = address_of(target, address);
  socket_ = Descriptor(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket_.get() < 0) {
    throw Error(ErrorCode::unavailable, "no socket for a session: " + system_error_text(errno));
  }
  int number = 0;
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr *>(&address), size) != 0) {
    number = errno;
    if (number == EINPROGRESS) {
      socklen_t length = sizeof number;
      number = ETIMEDOUT;
      if (wakeup_->wait(socket_.get(), POLLOUT, deadline) != 0) {
        ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &number, &length);
      }
    }
  }
  if (number != 0) {
    throw Error(ErrorCode::unavailable, "no server at " + target + ": " + system_error_text(number) +
                                            "; start one with `logitport serve`, or correct the target");
  }
  if (address.ss_family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
}

void Http2Stream::send_all(std::string_view data, const Deadline &deadline) {
  while (!data.empty()) {
    const ssize_t count = ::send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      data.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (wakeup_->wait(socket_.get(), POLLOUT, deadline) == 0) {
        throw Error(ErrorCode::unavailable, target_ + " did not receive a frame in time: it has stopped");
      }
    } else if (errno != EINTR) {
      throw Error(ErrorCode::unavailable, "the connection to " + target_ + " was lost: " + system_error_text(errno));
    }
  }
}

void Http2Stream::fill(std::size_t size, const Deadline &deadline) {
  std::array<char, 4096> part{};
  while (received_.size() < size) {
    const ssize_t count = ::recv(socket_.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (count > 0) {
      received_.append(part.data(), static_cast<std::size_t>(count));
    } else if (count == 0) {
      throw Error(ErrorCode::unavailable, target_ +
                                              " has closed the connection; if it uses TLS, which the library does "
                                              "not, use its Unix socket or a loopback address without TLS");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (wakeup_->wait(socket_.get(), POLLIN, deadline) == 0) {
        throw Error(ErrorCode::unavailable, target_ + " did not reply in time: it has stopped, or is no server");
      }
    } else if (errno != EINTR) {
      throw Error(ErrorCode::unavailable, "the connection to " + target_ + " was lost: " + system_error_text(errno));
    }
  }
}

void Http2Stream::send(std::string_view message, const Deadline &deadline) {
  std::string data(1, '\0');  // not compressed
  put_number(data, static_cast<std::uint32_t>(message.size()), 4);
  data.append(message);
  if (data.size() > max_frame_bytes) {
    throw Error(ErrorCode::invalid_argument, "the options of the session have " + std::to_string(message.size()) +
                                                 " bytes; pass fewer eos_token_ids and shorter texts");
  }
  send_all(framed(data_frame, 0, call_stream, data), deadline);
}

std::string Http2Stream::receive(const Deadline &deadline) {
  for (;;) {
    if (message_.size() >= message_prefix_bytes) {
      const std::size_t size = number_at(message_, 1, 4);
      if (message_[0] != 0 || size > max_message_bytes) {
        throw Error(ErrorCode::unavailable, target_ + " sent a message that the library does not read");
      }
      if (message_.size() >= message_prefix_bytes + size) {
        std::string message = message_.substr(message_prefix_bytes, size);
        message_.erase(0, message_prefix_bytes + size);
        return message;
      }
    }
    handle(read(deadline), deadline);
  }
}

Http2Stream::Frame Http2Stream::read(const Deadline &deadline) {
  fill(frame_header_bytes, deadline);
  const std::size_t size = number_at(received_, 0, 3);
  Frame frame;
  frame.type = static_cast<std::uint8_t>(received_[3]);
  frame.flags = static_cast<std::uint8_t>(received_[4]);
  frame.stream = number_at(received_, 5, 4) & 0x7FFFFFFFU;
  if (size > max_frame_bytes) {
    throw Error(ErrorCode::unavailable, target_ + " does not speak HTTP/2 without TLS: is it a logitport server?");
  }
  fill(frame_header_bytes + size, deadline);
  frame.payload = received_.substr(frame_header_bytes, size);
  received_.erase(0, frame_header_bytes + size);
  return frame;
}

void Http2Stream::handle(const Frame &frame, const Deadline &deadline) {
  switch (frame.type) {
    case settings_frame:
    case ping_frame:
      if ((frame.flags & ack) == 0) {
        send_all(framed(frame.type, ack, 0, frame.type == ping_frame ? std::string_view(frame.payload) : ""), deadline);
      }
      return;
    case goaway_frame:
      if (frame.payload.size() >= 4 && (number_at(frame.payload, 0, 4) & 0x7FFFFFFFU) >= call_stream) {
        return;  // the call goes on
      }
      throw Error(ErrorCode::unavailable, target_ + " accepts no call on this connection: it is about to stop");
    case reset_frame:
      throw Error(ErrorCode::unavailable, target_ + " has ended the session");
    case headers_frame:
    case continuation_frame:
      read_headers(frame);
      return;
    case data_frame: {
      std::string_view data = frame.payload;
      if ((frame.flags & padded) != 0) {
        const std::size_t padding = data.empty() ? 0 : static_cast<unsigned char>(data[0]) + std::size_t{1};
        if (padding > data.size() || padding == 0) {
          throw Error(ErrorCode::unavailable, target_ + " sent a frame with more padding than data");
        }
        data = data.substr(1, data.size() - padding);
      }
      if (message_.size() + data.size() > max_message_bytes + message_prefix_bytes) {
        throw Error(ErrorCode::unavailable, target_ + " sent a longer message than a session's first reply");
      }
      message_.append(data);
      if ((frame.flags & end_stream) != 0) {
        end_call("");
      }
      return;
    }
    default:  // of flow control, or unknown
      return;
  }
}

void Http2Stream::read_headers(const Frame &frame) {
  std::string_view block = frame.payload;
  if (frame.type == headers_frame) {
    headers_.clear();
    std::size_t before = 0, behind = 0;
    if ((frame.flags & padded) != 0 && !block.empty()) {
      behind = static_cast<unsigned char>(block[0]);
      before = 1;
    }
    before += (frame.flags & priority) != 0 ? 5 : 0;
    if (before + behind > block.size()) {
      throw Error(ErrorCode::unavailable, target_ + " sent malformed headers");
    }
    block = block.substr(before, block.size() - before - behind);
  }
  if (headers_.size() + block.size() > max_headers_bytes) {
    throw Error(ErrorCode::unavailable, target_ + " sent too many headers");
  }
  headers_.append(block);
  std::string_view name, value;
  bool has_status = false;  // of the call, not of HTTP: then these are the last headers
  for (HeaderReader reader(headers_); reader.next(name, value);) {
    has_status |= name == "grpc-status";
  }
  if (has_status && ((frame.flags & end_headers) != 0 || frame.type == continuation_frame)) {
    end_call(headers_);
  }
}

void Http2Stream::end_call(std::string_view headers) const {
  std::string_view name, value, status, text;
  ErrorMessage error;
  for (HeaderReader reader(headers); reader.next(name, value);) {
    if (name == "grpc-status") {
      status = value;
    } else if (name == "grpc-message") {
      text = value;
    } else if (name == "logitport-error-bin" && !value.empty() && value.front() == '\0' &&
               !read_error(value.substr(1), error)) {
      error = {};
    }
  }
  if (error.code > 0) {
    throw Error(static_cast<ErrorCode>(error.code), std::string(error.message));
  }
  throw status_error(target_, status, percent_decoded(text));
}

void Http2Stream::keep() {
  wakeup_ = &closing_;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the engine's threads receive its signals
  try {
    thread_ = std::make_unique<std::thread>(&Http2Stream::run, this);
  } catch (const std::system_error &error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::unavailable, std::string("no thread for a session: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// The end of the call needs no message: the server closes the local transport with it.
void Http2Stream::run() noexcept {
  constexpr double forever = 1e9;
  try {
    for (;;) {
      if (received_.size() < frame_header_bytes) {
        static_cast<void>(closing_.wait(socket_.get(), POLLIN, Deadline(forever)));
      }
      constexpr double patience = 5.0;  // for the rest of a frame
      handle(read(Deadline(patience)), Deadline(patience));
      message_.clear();
    }
  } catch (const std::exception &) {
    return;
  }
}

}  // namespace logitport
