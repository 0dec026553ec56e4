#include "early_receiver.h"

#ifdef __linux__

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>
#include <system_error>
#include <utility>

#include "frame_socket.h"

namespace logitport {
namespace {

// Of a system call that receives the beginning of a frame, and of one that receives the rest of a large one.
constexpr std::size_t usual_bytes = std::size_t{1} << 16U, large_bytes = std::size_t{1} << 20U;

// Blocks all signals in threads that are started meanwhile: Python's main thread has to notice them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals &) = delete;
  BlockedSignals &operator=(const BlockedSignals &) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

EarlyReceiver::EarlyReceiver(int descriptor, std::size_t max_bytes)
    // A duplicate: epoll drops a descriptor that is closed elsewhere, and would not report the connection's end.
    : descriptor_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      max_bytes_(max_bytes),
      process_(::getpid()) {
  epoll_event event{};
  event.events = EPOLLONESHOT;
  try {
    if (descriptor_ < 0 || epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor_, &event) != 0) {
      throw std::system_error(errno, std::generic_category());
    }
    const BlockedSignals blocked;
    thread_ = std::make_unique<std::thread>(&EarlyReceiver::run, this);
  } catch (...) {  // no destructor runs
    close();
    throw;
  }
  pthread_setname_np(thread_->native_handle(), "logitport-early");
}

EarlyReceiver::~EarlyReceiver() {
  if (::getpid() == process_) {
    ::shutdown(descriptor_, SHUT_RDWR);
    join();
  } else {
    // A process that was forked has the object, but not the thread.
    [[maybe_unused]] const std::thread *leaked = thread_.release();
  }
  close();
}

void EarlyReceiver::close() const noexcept {
  ::close(descriptor_);
  ::close(epoll_);
}

void EarlyReceiver::leave(const ExpectedReply &expected) {
  const std::scoped_lock locked(mutex_);
  expected_ = expected;
  reply_.is_read = false;  // a reply that was not claimed belongs to an earlier step
  if (!watches_) {
    watches_ = true;
    wake_on_reply(true);
  }
}

EarlyReply EarlyReceiver::claim() {
  const std::scoped_lock locked(mutex_);
  if (watches_ && !has_frame()) {
    watches_ = false;
    wake_on_reply(false);
  }
  capacity_ = 0;
  return std::exchange(reply_, {});
}

void EarlyReceiver::join() noexcept {
  const std::scoped_lock locked(join_mutex_);  // `thread::join` throws for a thread that another one joins meanwhile
  if (thread_->joinable()) {
    thread_->join();
  }
}

void EarlyReceiver::run() noexcept {
  epoll_event event{};
  while ((event.events & EPOLLHUP) == 0) {
    if (::epoll_wait(epoll_, &event, 1, -1) < 1) {
      event.events = 0;  // interrupted
      continue;
    }
    const std::scoped_lock locked(mutex_);
    // An event that was on its way when the caller claimed the reply, or bytes after a whole frame, are the caller's.
    watches_ = watches_ && !has_frame() && receive();
    // Arms the one-shot event again: without it, epoll would not report the connection's end.
    wake_on_reply(watches_);
  }
}

// Receive what has arrived, but no more than one frame needs. Returns false if the caller has to go on.
bool EarlyReceiver::receive() noexcept try {
  while (!has_frame()) {
    if (announced() > max_bytes_) {
      return false;  // the caller refuses it
    }
    // Not all that the length announces: only as much memory as twice what has arrived.
    const std::size_t wanted =
        reply_.size + std::max(usual_bytes, std::min(missing(), std::max(reply_.size, large_bytes)));
    if (wanted > capacity_) {
      std::unique_ptr<char[]> grown(new char[wanted]);
      std::copy(reply_.data.get(), reply_.data.get() + reply_.size, grown.get());
      reply_.data = std::move(grown);
      capacity_ = wanted;
    }
    // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): it does not block
    const ssize_t count = ::recv(descriptor_, reply_.data.get() + reply_.size, wanted - reply_.size, MSG_DONTWAIT);
    if (count > 0) {
      reply_.size += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);  // the caller meets other errors itself
    }
  }
  read();
  return true;
} catch (const std::exception &) {
  return false;  // no memory
}

void EarlyReceiver::read() {
  const std::string_view frame(reply_.data.get() + length_bytes, reply_.size - length_bytes);
  reply_.shape = expected_.shape;
  reply_.is_read = read_reply_message(frame, reply_.message) && reply_.message.seq == expected_.seq &&
                   proven(reply_.message.edits, expected_.shape);
}

void EarlyReceiver::wake_on_reply(bool wakes) const noexcept {
  epoll_event event{};
  event.events = EPOLLONESHOT | (wakes ? static_cast<std::uint32_t>(EPOLLIN) : 0U);
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, descriptor_, &event);
}

bool EarlyReceiver::has_frame() const noexcept { return reply_.size >= length_bytes && missing() == 0; }

// Length of the frame that has begun to arrive; 0 if it is not known.
std::size_t EarlyReceiver::announced() const noexcept {
  if (reply_.size < length_bytes) {
    return 0;
  }
  std::uint32_t length = 0;
  std::memcpy(&length, reply_.data.get(), sizeof length);
  return length;
}

// Of that frame; 0 if its length is not known.
std::size_t EarlyReceiver::missing() const noexcept {
  return reply_.size < length_bytes ? 0 : std::max(reply_.size, length_bytes + announced()) - reply_.size;
}

}  // namespace logitport

#endif
