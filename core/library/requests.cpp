#include "requests.h"

#include <limits>
#include <utility>

namespace logitport {

HeldRequest &RequestTable::add(std::unique_ptr<HeldRequest> request, std::size_t limit) {
  if (size_ >= limit) {
    throw Error(ErrorCode::limit_exceeded, "the session holds " + std::to_string(size_) +
                                               " requests, and may hold no more (max_requests): remove some first");
  }
  if (free_.empty()) {
    by_slot_.emplace_back();
    free_.push(static_cast<std::int32_t>(by_slot_.size()) - 1);
  }
  generation_ = generation_ == std::numeric_limits<std::int32_t>::max() ? 1 : generation_ + 1;
  request->slot = free_.top();
  request->generation = generation_;
  free_.pop();
  ++size_;
  ++changes_;
  std::unique_ptr<HeldRequest> &held = by_slot_[static_cast<std::size_t>(request->slot)];
  held = std::move(request);
  return *held;
}

void RequestTable::remove(const HeldRequest &request) {
  const std::int32_t slot = request.slot;
  free_.push(slot);
  by_slot_[static_cast<std::size_t>(slot)].reset();
  --size_;
  ++changes_;
}

HeldRequest &RequestTable::at(std::uint64_t handle) const {
  HeldRequest *found = in_slot(static_cast<std::int32_t>(handle & 0xFFFFFFFFU));
  if (found == nullptr || found->handle() != handle) {
    throw Error(ErrorCode::not_found, "handle " + std::to_string(handle) +
                                          " is not of this session: it was removed, or belongs to another session");
  }
  return *found;
}

HeldRequest *RequestTable::in_slot(std::int32_t slot) const noexcept {
  const auto index = static_cast<std::size_t>(static_cast<std::uint32_t>(slot));
  return index < by_slot_.size() ? by_slot_[index].get() : nullptr;
}

std::vector<HeldRequest *> RequestTable::kept() const {
  std::vector<HeldRequest *> found;
  for (const std::unique_ptr<HeldRequest> &request : by_slot_) {
    if (request != nullptr && request->is_admitted && !request->lost) {
      found.push_back(request.get());
    }
  }
  return found;
}

}  // namespace logitport
