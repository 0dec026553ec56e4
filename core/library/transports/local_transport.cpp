#include "transports/local_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "errors.h"
#include "frame_socket.h"

namespace logitport {
namespace {

constexpr std::size_t part_bytes = std::size_t{1} << 16U;
constexpr std::size_t token_bytes = 32;
constexpr double handshake_seconds = 10.0;

[[noreturn]] void not_trusted(const std::string &what) {
  throw Error(ErrorCode::not_permitted, what + "; nothing was sent to it");
}

bool is_trusted(uid_t user) noexcept { return user == 0 || user == ::geteuid(); }

// The folder of a server's socket, /.../logitport-*/session.sock: private agents of other programs have other names.
std::string checked_folder(const std::string &path) {
  constexpr std::string_view name = "/session.sock", folder_name = "logitport-";
  const bool has_name = path.size() > name.size() && path[0] == '/' && path.find('\0') == std::string::npos &&
                        path.compare(path.size() - name.size(), name.size(), name) == 0;
  std::string folder = has_name ? path.substr(0, path.size() - name.size()) : "";
  if (folder.empty() || folder.compare(folder.rfind('/') + 1, folder_name.size(), folder_name) != 0) {
    not_trusted("'" + path + "' is not the name of a server's socket, /.../logitport-*/session.sock");
  }
  return folder;
}

// Take the first of the descriptors that came with a message, and close the others.
void take_descriptors(msghdr &message, Descriptor &descriptor) {
  for (cmsghdr *header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + index * sizeof number, sizeof number);
      Descriptor received(number);
      if (descriptor.get() < 0) {
        descriptor = std::move(received);
      }
    }
  }
}

}  // namespace

SharedMemory::SharedMemory(const Descriptor &descriptor, std::size_t size) : size_(size) {
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  struct stat status{};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(descriptor.get(), &status) != 0 || status.st_size < 0 ||
      static_cast<std::size_t>(status.st_size) < size) {
    throw Error(ErrorCode::internal,
                "the server opened a region of memory that it can take away, which would end this process; the "
                "connection was closed: update the server");
  }
  void *mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::limit_exceeded,
                "cannot map " + std::to_string(size) + " bytes of memory for logits: " + system_error_text(errno));
  }
  data_ = static_cast<char *>(mapped);
}

SharedMemory::~SharedMemory() { ::munmap(data_, size_); }

LocalTransport::LocalTransport(const std::string &path, std::string_view token, std::size_t max_bytes,
                               const Wakeup &wakeup, const Deadline &deadline)
    : wakeup_(wakeup), max_bytes_(max_bytes), part_(new char[part_bytes]) {
  if (token.size() != token_bytes) {
    not_trusted("the server sent a token of " + std::to_string(token.size()) + " bytes, not " +
                std::to_string(token_bytes));
  }
  const Deadline limit = deadline.earlier(Deadline(handshake_seconds));
  connect(path, limit);
  send(token, limit);
  char welcome = 0;
  if (wakeup_.wait(socket_.get(), POLLIN, limit) == 0 || ::recv(socket_.get(), &welcome, 1, MSG_DONTWAIT) != 1 ||
      welcome != 1) {
    throw Error(ErrorCode::unavailable, "the server did not accept the session at " + path);
  }
  try {
    early_ = std::make_unique<EarlyReceiver>(socket_.get(), max_bytes_);
  } catch (const std::system_error &error) {
    throw Error(ErrorCode::unavailable, std::string("no thread for a session: ") + error.what());
  }
}

LocalTransport::~LocalTransport() { end(); }

void LocalTransport::connect(const std::string &path, const Deadline &deadline) {
  const std::string folder_path = checked_folder(path);
  const Descriptor folder(::open(folder_path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status{};
  if (folder.get() < 0 || ::fstat(folder.get(), &status) != 0) {
    throw Error(ErrorCode::unavailable, "cannot reach the server's socket " + path + ": " + system_error_text(errno) +
                                            "; the engine must run on the server's host, outside of other containers");
  }
  if (!is_trusted(status.st_uid) || (status.st_mode & 0777U) != 0700U) {
    not_trusted(folder_path + " belongs to another user, or other users have access to it");
  }
  // By the descriptor, not by the path, which may lead to another folder by now.
  const std::string name = "/proc/self/fd/" + std::to_string(folder.get()) + "/session.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), std::min(name.size(), sizeof address.sun_path - 1));
  socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  while (socket_.get() < 0 ||
         ::connect(socket_.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0) {
    if (errno != EAGAIN || deadline.has_passed()) {  // EAGAIN: many others are connecting
      throw Error(ErrorCode::unavailable, "cannot reach the server's socket " + path + ": " + system_error_text(errno));
    }
    constexpr double pause = 0.01;
    wakeup_.sleep(Deadline(pause));
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || !is_trusted(peer.uid)) {
    not_trusted("a program of another user listens on " + path);
  }
}

void LocalTransport::send(std::string_view frames, const Deadline &deadline) {
  while (!frames.empty()) {
    const ssize_t count = ::send(socket_.get(), frames.data(), frames.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      frames.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const short ready = wakeup_.wait(socket_.get(), POLLOUT | POLLIN, deadline);
      if (ready == 0) {
        lost("the server did not receive a frame in time: it has stopped");
      }
      if ((ready & POLLOUT) == 0) {  // the server receives nothing while it waits for room for a reply
        receive_some(deadline, nullptr);
      }
    } else if (errno != EINTR) {
      lost(system_error_text(errno));
    }
  }
}

void LocalTransport::leave(const ExpectedReply &expected) const { early_->leave(expected); }

std::optional<EarlyReply> LocalTransport::claim() {
  EarlyReply reply = early_->claim();
  if (reply.is_read) {
    return reply;
  }
  incoming_.append(reply.data.get(), reply.size);
  return std::nullopt;
}

std::string_view LocalTransport::receive(const Deadline &deadline) {
  incoming_.erase(0, std::exchange(taken_, 0));
  while (!has_frame()) {
    receive_some(deadline, nullptr);
  }
  std::uint32_t size = 0;
  std::memcpy(&size, incoming_.data(), sizeof size);
  taken_ = length_bytes + size;
  return std::string_view(incoming_).substr(length_bytes, size);
}

std::string_view LocalTransport::receive(const Deadline &deadline, Descriptor &descriptor) {
  incoming_.erase(0, std::exchange(taken_, 0));
  receive_some(deadline, &descriptor);
  return receive(deadline);
}

void LocalTransport::end() const noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

// Receive what is there, at least a byte. Throws an Error.
void LocalTransport::receive_some(const Deadline &deadline, Descriptor *descriptor) {
  for (;;) {
    iovec part{part_.get(), part_bytes};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor != nullptr) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
    }
    const ssize_t count = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count > 0) {
      if (descriptor != nullptr) {
        take_descriptors(message, *descriptor);
      }
      incoming_.append(part_.get(), static_cast<std::size_t>(count));
      return;
    }
    if (count == 0) {
      lost("the server closed it");
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (wakeup_.wait(socket_.get(), POLLIN, deadline) == 0) {
        lost("a frame had no reply in time, although a running server would reply: it has stopped");
      }
    } else if (errno != EINTR) {
      lost(system_error_text(errno));
    }
  }
}

bool LocalTransport::has_frame() const {
  if (incoming_.size() < length_bytes) {
    return false;
  }
  std::uint32_t size = 0;
  std::memcpy(&size, incoming_.data(), sizeof size);
  if (size > max_bytes_) {
    end();
    throw Error(ErrorCode::limit_exceeded, "the server sent a reply of " + std::to_string(size) +
                                               " bytes; the library reads at most " + std::to_string(max_bytes_));
  }
  return incoming_.size() - length_bytes >= size;
}

void LocalTransport::lost(const std::string &why) const {
  end();
  throw Error(ErrorCode::unavailable, "the connection to the server was lost: " + why);
}

}  // namespace logitport
