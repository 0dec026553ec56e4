#include "builtins/json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>

namespace logitport {
namespace {

constexpr int max_depth = 128;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json parse() {
    Json value = read(0);
    skip_space();
    if (at_ != text_.size()) {
      fail("unexpected text behind the value");
    }
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string &what) const {
    throw std::invalid_argument(what + " at byte " + std::to_string(at_));
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char character) {
    skip_space();
    if (peek() != character || at_ >= text_.size()) {
      return false;
    }
    ++at_;
    return true;
  }

  // NOLINTBEGIN(misc-no-recursion): at most `max_depth` deep
  Json read(int depth) {
    if (depth > max_depth) {
      fail("values within more than " + std::to_string(max_depth) + " others");
    }
    skip_space();
    Json value;
    switch (peek()) {
      case '{':
        read_object(value, depth);
        break;
      case '[':
        read_list(value, depth);
        break;
      case '"':
        value.kind = Json::Kind::text;
        value.text = read_text();
        break;
      case 't':
      case 'f':
        value.kind = Json::Kind::boolean;
        value.truth = peek() == 't';
        read_word(value.truth ? "true" : "false");
        break;
      case 'n':
        read_word("null");
        break;
      default:
        read_number(value);
    }
    return value;
  }

  void read_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) {
      fail("unexpected character");
    }
    at_ += word.size();
  }

  void read_object(Json &value, int depth) {
    value.kind = Json::Kind::object;
    ++at_;
    if (take('}')) {
      return;
    }
    do {
      skip_space();
      if (peek() != '"') {
        fail("expected the name of a member");
      }
      std::string name = read_text();
      if (!take(':')) {
        fail("expected ':'");
      }
      Json member = read(depth + 1);
      const auto found = std::find_if(value.members.begin(), value.members.end(),
                                      [&name](const auto &each) { return each.first == name; });
      if (value.members.size() < max_compared && found != value.members.end()) {
        found->second = std::move(member);
      } else {
        value.members.emplace_back(std::move(name), std::move(member));
      }
    } while (take(','));
    if (!take('}')) {
      fail("expected ',' or '}'");
    }
  }

  void read_list(Json &value, int depth) {
    value.kind = Json::Kind::list;
    ++at_;
    if (take(']')) {
      return;
    }
    do {
      value.items.push_back(read(depth + 1));
    } while (take(','));
    if (!take(']')) {
      fail("expected ',' or ']'");
    }
  }

  // NOLINTEND(misc-no-recursion)

  std::string read_text() {
    std::string text;
    for (++at_; peek() != '"'; ++at_) {
      if (at_ >= text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20U) {
        fail("a string without its end, or with a control character");
      }
      if (text_[at_] != '\\') {
        text.push_back(text_[at_]);
        continue;
      }
      ++at_;
      constexpr std::string_view escapes = "\"\\/bfnrt", characters = "\"\\/\b\f\n\r\t";
      if (const std::size_t found = escapes.find(peek()); found != std::string_view::npos && at_ < text_.size()) {
        text.push_back(characters[found]);
      } else if (peek() == 'u') {
        put_character(text);
      } else {
        fail("unknown escape");
      }
    }
    ++at_;
    return text;
  }

  unsigned read_hex() {
    unsigned value = 0;
    for (int digit = 0; digit < 4; ++digit) {
      ++at_;
      const std::size_t found = std::string_view("0123456789abcdefABCDEF").find(peek());
      if (at_ >= text_.size() || found == std::string_view::npos) {
        fail("expected four hexadecimal digits");
      }
      value = value * 16 + static_cast<unsigned>(found < 16 ? found : found - 6);
    }
    return value;
  }

  void put_character(std::string &text) {
    unsigned code = read_hex();
    if (code >= 0xD800U && code < 0xDC00U && text_.substr(at_ + 1, 2) == "\\u") {
      at_ += 2;
      const unsigned low = read_hex();
      if (low < 0xDC00U || low >= 0xE000U) {
        fail("half of a surrogate pair");
      }
      code = 0x10000U + ((code - 0xD800U) << 10U) + (low - 0xDC00U);
    } else if (code >= 0xD800U && code < 0xE000U) {
      fail("half of a surrogate pair");
    }
    const auto put = [&text](unsigned byte) { text.push_back(static_cast<char>(byte)); };
    if (code < 0x80U) {
      put(code);
    } else if (code < 0x800U) {
      put(0xC0U | code >> 6U);
      put(0x80U | (code & 0x3FU));
    } else if (code < 0x10000U) {
      put(0xE0U | code >> 12U);
      put(0x80U | ((code >> 6U) & 0x3FU));
      put(0x80U | (code & 0x3FU));
    } else {
      put(0xF0U | code >> 18U);
      put(0x80U | ((code >> 12U) & 0x3FU));
      put(0x80U | ((code >> 6U) & 0x3FU));
      put(0x80U | (code & 0x3FU));
    }
  }

  bool skip_digits() {
    const std::size_t before = at_;
    while (peek() >= '0' && peek() <= '9') {
      ++at_;
    }
    return at_ != before;
  }

  void read_number(Json &value) {
    const std::size_t begin = at_;
    at_ += peek() == '-' ? 1 : 0;
    const bool is_zero = peek() == '0';
    const std::size_t digits = at_;
    if (!skip_digits() || (is_zero && at_ != digits + 1)) {
      fail("unexpected character");
    }
    value.kind = Json::Kind::integer;
    if (peek() == '.') {
      ++at_;
      value.kind = Json::Kind::number;
      if (!skip_digits()) {
        fail("expected a digit");
      }
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      value.kind = Json::Kind::number;
      at_ += peek() == '+' || peek() == '-' ? 1 : 0;
      if (!skip_digits()) {
        fail("expected a digit");
      }
    }
    value.text = text_.substr(begin, at_ - begin);
    value.number = std::strtod(value.text.c_str(), nullptr);
    if (value.kind == Json::Kind::integer) {
      value.integer = std::strtoll(value.text.c_str(), nullptr, 10);
    } else if (!std::isfinite(value.number)) {
      fail("a number that is too large");
    }
  }

  // Names of larger objects are not compared: that would take quadratic time.
  static constexpr std::size_t max_compared = 64;

  std::string_view text_;
  std::size_t at_ = 0;
};

// The shortest text with which Python writes a float.
std::string repr_of_number(double number) {
  std::array<char, 40> text{};
  for (int digits = 1; digits <= 17; ++digits) {
    static_cast<void>(std::snprintf(text.data(), text.size(), "%.*g", digits, number));
    if (std::strtod(text.data(), nullptr) == number) {
      break;
    }
  }
  std::string found = text.data();
  return found.find_first_of(".en") == std::string::npos ? found + ".0" : found;
}

}  // namespace

const Json *Json::find(std::string_view name) const {
  const Json *found = nullptr;
  for (const auto &[each, value] : members) {
    if (each == name) {
      found = &value;
    }
  }
  return found;
}

// NOLINTBEGIN(misc-no-recursion): as deep as the parsed text
std::string Json::repr() const {
  const auto joined = [](const auto &values, const auto &write) {
    std::string all;
    for (const auto &value : values) {
      all += (all.empty() ? "" : ", ") + write(value);
    }
    return all;
  };
  switch (kind) {
    case Kind::null:
      return "None";
    case Kind::boolean:
      return truth ? "True" : "False";
    case Kind::integer:
      return text;
    case Kind::number:
      return repr_of_number(number);
    case Kind::text:
      return repr_of(text);
    case Kind::list:
      return "[" + joined(items, [](const Json &item) { return item.repr(); }) + "]";
    case Kind::object:
      return "{" +
             joined(members, [](const auto &member) { return repr_of(member.first) + ": " + member.second.repr(); }) +
             "}";
  }
  return "";
}

// NOLINTEND(misc-no-recursion)

Json parse_json(std::string_view text) { return Parser(text).parse(); }

std::string repr_of(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == quote || character == '\\') {
      quoted.push_back('\\');
    }
    constexpr std::string_view named = "\n\t\r", names = "ntr";
    if (const std::size_t found = named.find(character); found != std::string_view::npos) {
      quoted.push_back('\\');
      quoted.push_back(names[found]);
    } else if (byte < 0x20U || byte == 0x7FU) {
      constexpr std::string_view digits = "0123456789abcdef";
      quoted += "\\x";
      quoted.push_back(digits[byte >> 4U]);
      quoted.push_back(digits[byte & 15U]);
    } else {
      quoted.push_back(character);
    }
  }
  quoted.push_back(quote);
  return quoted;
}

}  // namespace logitport
