// Frames of a session other than steps, and their replies: messages of proto/logitport/v1/processing.proto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "message_writer.h"
#include "reply_message.h"
#include "requests.h"

namespace logitport {

// What an engine states when it opens a session.
struct SessionOptions {
  std::int32_t vocab_size = 0;
  std::string datatype;
  std::vector<std::int32_t> eos_token_ids;
  std::int32_t max_draft_tokens = 0, max_requests = 0;
  std::string tokenizer_id, model_name, engine;
};

// The reply to an opening frame. The texts are views of the message.
struct SessionTerms {
  std::int32_t max_requests = 0;
  bool has_local_transport = false;
  std::string_view socket_path, access_token;
  std::int64_t max_message_bytes = 0;
  double step_deadline_seconds = 0, add_deadline_seconds = 0;  // 0: no limit
};

// The reply to a frame that admits requests. Views of the message.
struct AddedMessage {
  struct Chain {
    std::vector<std::string_view> processors;
    bool follows_from_history = false;
  };

  std::vector<ReplyMessage::Failure> failures;
  std::vector<Chain> chains;
  std::string_view reads_logits;
  bool regions_retired = false;
};

// Where logits are, in memory that is shared with the server.
struct LogitsPlace {
  std::uint64_t region_id = 0, byte_offset = 0;
  std::size_t rows = 0;
};

// Messages without their length: of the frame that opens a session. `expected_requests` are added next.
std::string open_message(const SessionOptions &options, std::size_t expected_requests);

// Frames after their length.
std::string remove_frame(std::uint64_t seq, const std::vector<std::int32_t> &slots,
                         const std::vector<std::int32_t> &generations);
std::string open_region_frame(std::uint64_t seq, std::size_t size_bytes, std::uint64_t replaces);
std::string logits_frame(std::uint64_t seq, const SessionOptions &options, const LogitsPlace &place);

// Writes a frame that admits requests, with their present histories.
class AddFrame {
 public:
  void add(const HeldRequest &request);
  [[nodiscard]] std::size_t size() const noexcept { return requests_.data().size(); }
  // The frame after its length; the object is then empty.
  [[nodiscard]] std::string take(std::uint64_t seq);

 private:
  MessageWriter requests_;
};

// Each returns false for another message.
bool read_opened(std::string_view data, SessionTerms &terms);
bool read_added(std::string_view data, AddedMessage &added);
bool read_region_id(std::string_view data, std::uint64_t &region_id);

}  // namespace logitport
