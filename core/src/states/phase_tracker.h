// The blocks of one history: where each begins, and its phase.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../history.h"

namespace logitport {

// Numbers of phases, as in client/logitport/phases/phase_tags.py.
enum class Phase : std::int8_t { answer = 0, thinking = 1, tool_call = 2, header = 3 };
constexpr int phases = 4;

// Ids, one or more, that begin a block of a phase just after them.
struct PhaseTag {
  std::vector<std::int32_t> ids;
  Phase begins;
  int within;       // number of the phase that the tag ends; negative: it counts in each
  bool first_only;  // whether it counts in the output only as the first ids of a block
};

// The tags of a model. Ids that are negative are none.
struct PhaseTags {
  std::vector<PhaseTag> tags;  // if several end at the same id, the longest counts, or the earlier of equally long ones
  Phase starts_in;             // the phase of an output that the prompt does not decide
  std::int32_t opening_id = -1;  // a start tag that stays possible before the answer's first id
  std::int32_t newline = -1;     // an id that may precede it
};

// Follows the phases of one history. Reads each id once.
class PhaseTracker {
 public:
  // In one word: an output may consist of tags.
  class Block {
   public:
    Block(std::int64_t begin, Phase phase) noexcept : word_(begin * phases + static_cast<int>(phase)) {}
    [[nodiscard]] std::int64_t begin() const noexcept { return word_ / phases; }
    [[nodiscard]] Phase phase() const noexcept { return static_cast<Phase>(word_ % phases); }

   private:
    std::int64_t word_;
  };

  PhaseTracker(const History &history, PhaseTags tags);

  // Read a history from its beginning.
  void restart(const History &history);
  // Follow a history after ids were appended.
  void read(const History &history);
  // Follow a history that was just cut back to its present length.
  void rewind(const History &history);

  // The phase of the history's next id, and where its block begins: the history's length just after the tag, which may
  // lie in the prompt.
  [[nodiscard]] Phase phase() const noexcept { return blocks_.back().phase(); }
  [[nodiscard]] std::int64_t begin() const noexcept { return blocks_.back().begin(); }
  // The block of the id after this length of the history. Not before the output.
  [[nodiscard]] Block block_at(std::int64_t length) const noexcept;
  // The id that no edit may change now: it opens the first thinking block. Negative if there is none.
  [[nodiscard]] std::int32_t exempt_id(const History &history) const noexcept {
    return opens_ && blocks_.size() == 1 ? opening_id(history) : -1;
  }
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  static constexpr std::int64_t chunk = 64;  // ids that are compared at once

  void read_until(const History &history, std::int64_t end);
  [[nodiscard]] bool ends_tag(const std::int32_t *ids, std::int64_t count) const noexcept;
  void record(const History &history, std::int64_t length);
  [[nodiscard]] std::int32_t opening_id(const History &history) const noexcept;

  PhaseTags tags_;
  std::vector<std::int32_t> last_ids_;  // of the tags: most steps read nothing else of them
  // The first is never removed: it stands for all of the prompt.
  std::vector<Block> blocks_;
  std::int64_t length_ = 0;  // of the history that was read
  bool opens_ = false;       // whether the first thinking block may still open
};

}  // namespace logitport
