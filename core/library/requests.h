// The requests that a session holds, by slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "errors.h"
#include "history.h"

namespace logitport {

// An entry of a chain.
struct ProcessorCall {
  std::int32_t naming = 0;  // a `logitport_naming`, which is the field of `Processor`
  std::string name, params;
};

// A request, from its admission to its removal. Its history has the new ids of every step.
struct HeldRequest {
  HeldRequest(const std::int32_t *prompt, std::size_t prompt_count, const std::int32_t *output,
              std::size_t output_count)
      : history(prompt, prompt_count, output, output_count) {}

  std::int32_t slot = 0, generation = 0;
  History history;
  std::vector<ProcessorCall> processors;
  std::string request_id, sampling_params, tenant;
  bool skips = false, is_admitted = false;
  // As the server has stated at the admission.
  bool reads_logits = false, follows_from_history = false;
  bool has_sent_logits = false;  // so the server may have state that does not follow from the history
  std::optional<Error> lost;     // the server does not hold it, and it fails in all steps

  [[nodiscard]] std::uint64_t handle() const noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(generation)) << 32U | static_cast<std::uint32_t>(slot);
  }
};

class RequestTable {
 public:
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // Number of changes of the requests.
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

  // Give a request the lowest free slot, and a generation. Throws an Error if the session holds `limit` requests.
  HeldRequest &add(std::unique_ptr<HeldRequest> request, std::size_t limit);
  void remove(const HeldRequest &request);
  // The request of a handle. Throws an Error if there is none.
  [[nodiscard]] HeldRequest &at(std::uint64_t handle) const;
  // The request of a slot, or null.
  [[nodiscard]] HeldRequest *in_slot(std::int32_t slot) const noexcept;
  // All requests that were admitted, and are not lost.
  [[nodiscard]] std::vector<HeldRequest *> kept() const;

 private:
  std::vector<std::unique_ptr<HeldRequest>> by_slot_;
  std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>> free_;
  std::size_t size_ = 0;
  std::uint64_t changes_ = 0;
  std::int32_t generation_ = 0;
};

}  // namespace logitport
