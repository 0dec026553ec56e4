// Reading edits: the packed columns of client/logitport/core/edits.py.
#pragma once

#include <cstdint>

#include "columns.h"
#include "edit_columns.h"
#include "edits_writer.h"

namespace logitport {

struct LogitsShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;  // size of the vocabulary

  bool operator==(const LogitsShape &other) const noexcept { return rows == other.rows && width == other.width; }
};

// Edits in memory of the caller.
struct EditsView : EditColumns<Column> {
  [[nodiscard]] std::int64_t size() const noexcept { return rows.size(); }
  [[nodiscard]] EditKind kind(std::int64_t edit) const noexcept { return static_cast<EditKind>(kinds[edit]); }
  [[nodiscard]] std::int64_t count(std::int64_t edit) const noexcept {
    return std::int64_t{offsets[edit + 1]} - offsets[edit];
  }
  [[nodiscard]] Column<std::int32_t> ids_of(std::int64_t edit) const noexcept {
    return ids.part(offsets[edit], count(edit));
  }
};

// Whether the columns describe edits of a batch with rows in ascending order, as a server packs them. If so, an index
// that they hold is in its range. False means that this is not proven: edits in another order are valid, too.
bool proven(const EditsView &edits, LogitsShape logits) noexcept;

}  // namespace logitport
