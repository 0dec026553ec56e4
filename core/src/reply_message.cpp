#include "reply_message.h"

#include <array>
#include <cstddef>
#include <limits>

#include "message_reader.h"

namespace logitport {
namespace {

template <typename T>
bool read_column(std::string_view bytes, Column<T> &column) {
  column = {bytes.data(), static_cast<std::int64_t>(bytes.size() / sizeof(T))};
  return bytes.size() % sizeof(T) == 0;
}

bool read_number(const MessageReader &reader, std::int32_t &number) {
  number = static_cast<std::int32_t>(reader.value);
  return reader.is_varint && reader.value <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
}

bool read_edits(std::string_view data, EditsView &edits) {
  static constexpr std::array<char, 4> no_offsets{};  // the column of no edits, which may also be empty
  std::array<std::string_view, 6> columns;            // by number of the field
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.field == 0 || reader.field >= columns.size() || reader.is_varint || !columns[reader.field].empty()) {
      return false;
    }
    columns[reader.field] = reader.bytes;
  }
  if (columns[3].empty()) {
    columns[3] = {no_offsets.data(), no_offsets.size()};
  }
  return reader.is_at_end() && read_column(columns[1], edits.rows) && read_column(columns[2], edits.kinds) &&
         read_column(columns[3], edits.offsets) && read_column(columns[4], edits.ids) &&
         read_column(columns[5], edits.values);
}

bool read_applied(std::string_view data, ReplyMessage::Applied &applied) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.field == 1 && !reader.is_varint) {
      applied.key = reader.bytes;
    } else if (reader.field == 3 && !reader.is_varint) {
      applied.display_name = reader.bytes;
    } else if (reader.field != 2 || !read_number(reader, applied.rows)) {
      return false;
    }
  }
  return reader.is_at_end();
}

bool read_step_edits(std::string_view data, ReplyMessage &message) {
  bool has_edits = false;
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = false;
    switch (reader.field) {
      case 1:
        valid = !reader.is_varint && !has_edits && read_edits(reader.bytes, message.edits);
        has_edits = true;
        break;
      case 4:
        valid = !reader.is_varint && read_applied(reader.bytes, message.applied.emplace_back());
        break;
      case 5:
        valid = !reader.is_varint && read_column(reader.bytes, message.denied_rows);
        break;
      case 6:
        valid = read_number(reader, message.ended_admissions);
        break;
      case 8:
        valid = reader.is_varint;
        message.should_move = reader.value != 0;
        break;
      default:
        break;
    }
    if (!valid) {
      return false;
    }
  }
  return reader.is_at_end() && (has_edits || read_edits({}, message.edits));
}

}  // namespace

bool read_reply_message(std::string_view data, ReplyMessage &message) {
  bool has_edits = false;
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.field == 1 && reader.is_varint) {
      message.seq = reader.value;
    } else if (reader.field == 5 && !reader.is_varint && !has_edits && read_step_edits(reader.bytes, message)) {
      has_edits = true;
    } else {
      return false;
    }
  }
  return has_edits && reader.is_at_end();
}

}  // namespace logitport
