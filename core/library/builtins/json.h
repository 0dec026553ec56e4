// Values of JSON: https://www.rfc-editor.org/rfc/rfc8259.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace logitport {

struct Json {
  enum class Kind : std::uint8_t { null, boolean, integer, number, text, list, object };
  using Members = std::vector<std::pair<std::string, Json>>;

  Kind kind = Kind::null;
  bool truth = false;
  std::int64_t integer = 0;  // one that does not fit is the nearest
  double number = 0;         // also of an integer
  std::string text;          // also the digits of a number
  std::vector<Json> items;
  Members members;  // of a name that occurs twice, the last value

  // The member of this name, or null.
  [[nodiscard]] const Json *find(std::string_view name) const;
  // As Python's `repr` of the value.
  [[nodiscard]] std::string repr() const;
};

// Parse a text. Throws std::invalid_argument, which says what is wrong, and where.
Json parse_json(std::string_view text);

// As Python's `repr` of a text.
std::string repr_of(std::string_view text);

}  // namespace logitport
