// The columns of edits, in their one order: that of the fields of `Edits` in proto/logitport/v1/common.proto.
#pragma once

#include <cstdint>

#include "message_fields.h"

namespace logitport {

// Compressed sparse rows: edit e changes row rows[e], and owns the ids (or words) from offsets[e] to offsets[e + 1].
template <template <typename> class Elements>
struct EditColumns {
  Elements<std::int32_t> rows;
  Elements<std::uint8_t> kinds;
  Elements<std::int32_t> offsets;
  Elements<std::int32_t> ids;
  Elements<float> values;  // as many as ids, or none
};

// Call `visit` with each column, after its field in the message.
template <typename Columns, typename Visit>
void for_each_column(Columns &edits, const Visit &visit) {
  visit(fields::Edits::rows, edits.rows);
  visit(fields::Edits::kinds, edits.kinds);
  visit(fields::Edits::offsets, edits.offsets);
  visit(fields::Edits::ids, edits.ids);
  visit(fields::Edits::values, edits.values);
}

// Return what `make` makes of the five columns, for a tuple of Python.
template <typename Columns, typename Make>
auto from_columns(Columns &edits, const Make &make) {
  return make(edits.rows, edits.kinds, edits.offsets, edits.ids, edits.values);
}

}  // namespace logitport
