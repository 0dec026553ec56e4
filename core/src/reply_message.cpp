#include "reply_message.h"

#include <array>
#include <cstddef>
#include <limits>

#include "message_fields.h"
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
  return reader.value <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
}

bool read_edits(std::string_view data, EditsView &edits) {
  static constexpr std::array<std::int32_t, 1> no_offsets{};  // the column of no edits, which may also be empty
  edits = {};
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = false;
    for_each_column(edits, [&reader, &valid](BytesField field, auto &column) {
      if (reader.tag == field.tag()) {
        valid = column.size() == 0 && read_column(reader.bytes, column);  // not a field twice
      }
    });
    if (!valid) {
      return false;
    }
  }
  if (edits.offsets.size() == 0) {
    edits.offsets = {no_offsets.data(), no_offsets.size()};
  }
  return reader.is_at_end();
}

bool read_applied(std::string_view data, ReplyMessage::Applied &applied) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::RowsApplied::processor.tag()) {
      applied.key = reader.bytes;
    } else if (reader.tag == fields::RowsApplied::display_name.tag()) {
      applied.display_name = reader.bytes;
    } else if (reader.tag != fields::RowsApplied::rows.tag() || !read_number(reader, applied.rows)) {
      return false;
    }
  }
  return reader.is_at_end();
}

bool read_event(std::string_view data, ReplyMessage::Event &event) {
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = true;
    switch (reader.tag) {
      case fields::Event::slot.tag():
        valid = read_number(reader, event.slot);
        break;
      case fields::Event::processor.tag():
        event.processor = reader.bytes;
        break;
      case fields::Event::name.tag():
        event.name = reader.bytes;
        break;
      case fields::Event::position.tag():
        valid = read_number(reader, event.position);
        break;
      case fields::Event::values.tag():
        event.values = reader.bytes;
        break;
      case fields::Event::left_out.tag():
        valid = read_number(reader, event.left_out);
        break;
      default:
        valid = false;
    }
    if (!valid) {
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
    switch (reader.tag) {
      case fields::StepEdits::edits.tag():
        valid = !has_edits && read_edits(reader.bytes, message.edits);
        has_edits = true;
        break;
      case fields::StepEdits::applied.tag():
        valid = read_applied(reader.bytes, message.applied.emplace_back());
        break;
      case fields::StepEdits::events.tag():
        valid = read_event(reader.bytes, message.events.emplace_back());
        break;
      case fields::StepEdits::all_denied_rows.tag():
        valid = read_column(reader.bytes, message.denied_rows);
        break;
      case fields::StepEdits::ended_admissions.tag():
        valid = read_number(reader, message.ended_admissions);
        break;
      case fields::StepEdits::should_move.tag():
        valid = true;
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
    if (reader.tag == fields::SessionResponse::seq.tag()) {
      message.seq = reader.value;
    } else if (reader.tag == fields::SessionResponse::edits.tag() && !has_edits &&
               read_step_edits(reader.bytes, message)) {
      has_edits = true;
    } else {
      return false;
    }
  }
  return has_edits && reader.is_at_end();
}

}  // namespace logitport
