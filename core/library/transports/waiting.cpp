#include "transports/waiting.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <system_error>

#include "errors.h"

namespace logitport {

Deadline::Deadline(double seconds) {
  constexpr double longest = 1e9;
  const double bounded = std::isnan(seconds) ? 0.0 : std::clamp(seconds, 0.0, longest);
  at_ = std::chrono::steady_clock::now() +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(bounded));
}

int Deadline::milliseconds() const noexcept {
  constexpr double longest = 1e6;  // the caller polls again
  return static_cast<int>(std::ceil(std::min(seconds() * 1e3, longest)));
}

double Deadline::seconds() const noexcept {
  return std::max(0.0, std::chrono::duration<double>(at_ - std::chrono::steady_clock::now()).count());
}

Descriptor &Descriptor::operator=(Descriptor &&other) noexcept {
  if (this != &other) {
    const Descriptor closed(number_);
    number_ = other.release();
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) {
    ::close(number_);
  }
}

int Descriptor::release() noexcept {
  const int number = number_;
  number_ = -1;
  return number;
}

Wakeup::Wakeup() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_.get() < 0) {
    throw Error(ErrorCode::unavailable, "no descriptor for a session: " + system_error_text(errno) +
                                            "; raise the limit of open files (ulimit -n)");
  }
}

void Wakeup::wake() noexcept {
  is_awake_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

short Wakeup::wait(int descriptor, short events, const Deadline &deadline) const {
  for (;;) {
    std::array<pollfd, 2> polled{{{event_.get(), POLLIN, 0}, {descriptor, events, 0}}};
    const int count = ::poll(polled.data(), polled.size(), deadline.milliseconds());
    if (count < 0 && errno != EINTR) {
      throw Error(ErrorCode::unavailable, "cannot wait for a reply: " + system_error_text(errno));
    }
    if (count > 0 && polled[0].revents != 0) {
      throw Error(ErrorCode::unavailable, "the session was cancelled; close it, and open another one");
    }
    if (count > 0) {
      return polled[1].revents;
    }
    if (deadline.has_passed()) {
      return 0;
    }
  }
}

void Wakeup::sleep(const Deadline &deadline) const { static_cast<void>(wait(-1, 0, deadline)); }

std::string system_error_text(int number) { return std::generic_category().message(number); }

}  // namespace logitport
