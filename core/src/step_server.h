// Answers the frames of one session that are usual steps, from their bytes to the bytes of the reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "batch.h"
#include "clock.h"
#include "frame_socket.h"
#include "step_message.h"
#include "step_tally.h"

namespace logitport {

// What the replies state beside the edits.
struct ReplyTerms {
  std::int32_t ended_admissions = 0;
  bool should_move = false;
};

struct Served {
  bool goes_on;            // whether to call again; otherwise, Python has to go on
  std::uint64_t last_seq;  // of the last frame that was answered
  int error_number;        // of sending the reply; or 0
};

class StepServer {
 public:
  StepServer(const BatchLimits &limits, std::vector<double> step_bounds, std::vector<double> processor_bounds)
      : batch_(limits), tally_(std::move(step_bounds), std::move(processor_bounds)) {}

  [[nodiscard]] Batch &batch() noexcept { return batch_; }
  [[nodiscard]] StepTally &tally() noexcept { return tally_; }
  // Name a processor by its number in the chains; "" for a display name that is the key. Numbers ascend from 0.
  void add_processor(std::string key, std::string display_name);

  // Compute the step of a serialized `SessionRequest` with this number. Returns false if it is refused; at once if that
  // is known. Throws an Error as `Batch::step`.
  // `partly`: see `Batch::step`.
  bool answer(std::string_view data, std::uint64_t seq, const ReplyTerms &terms, Transport transport,
              bool partly = false);
  // The reply to the last step.
  [[nodiscard]] const StepReplyWriter &reply() const noexcept { return writer_; }

  // Answer the frames of a socket, numbered from `last_seq` + 1 on, while they are usual steps. Returns when the next
  // one is not, or arrives after `seconds` or `max_steps`: the frame that was not answered is left in the socket's
  // memory. Returns after a large reply, too: the caller copies it, because the engine may send the frame again, and
  // frees the memory, because the next frame may be long in coming.
  Served serve(FrameSocket &socket, std::uint64_t last_seq, const ReplyTerms &terms, Transport transport,
               double seconds, std::uint64_t max_steps);

  // Whether the last frame was a step that was refused, and would be again, also in part. Resets it.
  [[nodiscard]] bool take_refused() noexcept;
  // Free the memory of edits and replies if it is large. The last reply goes with it.
  void release_large();

 private:
  [[nodiscard]] bool is_large() const noexcept { return batch_.has_large_edits() || writer_.is_large(); }
  const std::vector<AppliedRows> &applied();
  const std::vector<EventMessage> &events();

  Batch batch_;
  StepTally tally_;
  StepReplyWriter writer_;
  std::vector<std::string> keys_, display_names_;
  std::vector<AppliedRows> applied_;
  std::vector<EventMessage> events_;
  std::uint64_t refused_seq_ = 0;
};

}  // namespace logitport
