// The state of `no_repeat_ngram`: finds the ids that followed earlier occurrences of the last ids of a history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../state.h"
#include "context_hash.h"
#include "first_denial.h"

namespace logitport {

// Forbids a repeated n-gram of `size` ids, 1 or more, within the last `window` ids, unless it ends in an id of
// `whitelist`, which is sorted.
struct NGramRule {
  std::int64_t size;
  std::int64_t window;
  std::vector<std::int32_t> whitelist;
};

// The positions of one history by their context, the `size - 1` ids before them.
//
// A hash table with chains: each bucket has its latest position, and each position the one before it in its bucket. So
// an id is added, and removed by a rewind, in constant time. A look-up follows the chain of one bucket as far as the
// window reaches, and compares the ids, because contexts share buckets.
//
// Equal n-grams would make the chain of a repetitive text as long as the text. A look-up that meets more equal n-grams
// than others removes all but the latest of them, except among the last ids, so that rejected drafts need no more than
// removing them from the front of their chains. A rewind that goes further back builds the index again.
//
// At 32k ids: about 0.28 MB.
class NGramIndex : public State {
 public:
  NGramIndex(const History &history, NGramRule rule, std::int64_t vocab_size);

  [[nodiscard]] bool advances() const noexcept override { return true; }
  void advance(const History &history, std::int32_t token_id) override;
  void rewind(const History &history) override;
  void restart(const History &history) override;
  void prefetch(const History &history) noexcept override;
  void prefetch_edit(const History &history) noexcept override;
  void edit(const History &history, EditsWriter &edits) override;
  [[nodiscard]] EditSize edit_size() const noexcept override { return {0, 1}; }
  [[nodiscard]] std::size_t bytes() const noexcept override;

 private:
  // A position in a chain: position - first_ + 1; 0 ends the chain.
  using Link = std::int32_t;

  void build(const History &history);
  void link_lanes(const std::int32_t *ids, std::int64_t length);
  void link_last();
  void remove_superseded(const History &history, const std::vector<std::int32_t> &denied);
  [[nodiscard]] bool may_be_denied(std::int32_t id) const;
  [[nodiscard]] bool denies_at(const History &history, std::int64_t length);
  [[nodiscard]] bool have_one_context(const History &history, std::int64_t position,
                                      std::int64_t length) const noexcept;
  [[nodiscard]] std::int64_t earliest(std::int64_t length) const noexcept;
  [[nodiscard]] std::int32_t leaving_id(const std::int32_t *ids) const noexcept;
  [[nodiscard]] Link &head() noexcept { return heads_[hash_.bucket(context_, bits_)]; }
  [[nodiscard]] Link &earlier(std::int64_t position) noexcept {
    return earlier_[static_cast<std::size_t>(position - first_)];
  }
  [[nodiscard]] Link link_to(std::int64_t position) const noexcept { return static_cast<Link>(position - first_ + 1); }
  [[nodiscard]] std::int64_t position_of(Link link) const noexcept { return first_ + link - 1; }

  NGramRule rule_;
  std::int64_t vocab_size_;
  ContextHash hash_;
  std::int64_t first_;              // ids before it are outside every window
  std::int64_t length_ = 0;         // of the history that is indexed
  std::int64_t rewindable_to_ = 0;  // for shorter histories, superseded positions are missing
  std::uint64_t context_ = 0;       // hash of the last ids
  int bits_ = 0;                    // of a bucket's number
  std::vector<Link> heads_;
  std::vector<Link> earlier_;
  FirstDenial first_denial_;
};

}  // namespace logitport
