#include "builtins/params.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

namespace logitport {
namespace {

constexpr std::int64_t max_id = std::numeric_limits<std::int32_t>::max();

std::string joined(const std::vector<std::string_view> &words) {
  std::string all;
  for (const std::string_view word : words) {
    all += (all.empty() ? "" : ", ") + std::string(word);
  }
  return all;
}

std::string short_number(double number) {
  std::array<char, 40> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), "%g", number));
  return text.data();
}

bool is_number(const Json &value) { return value.kind == Json::Kind::integer || value.kind == Json::Kind::number; }

bool is_id(const Json &value) {
  return value.kind == Json::Kind::integer && value.integer >= 0 && value.integer <= max_id;
}

}  // namespace

Params::Params(std::string_view processor, const Json &params, const std::vector<std::string_view> &keys)
    : processor_(processor), params_(params) {
  for (const auto &[name, value] : params.members) {
    if (value.kind != Json::Kind::null && name != "__req__" &&
        std::find(keys.begin(), keys.end(), name) == keys.end()) {
      throw error("unknown parameter " + repr_of(name) + "; known parameters: " + joined(keys));
    }
  }
}

const Json *Params::find(std::string_view key) const {
  const Json *found = params_.find(key);
  return found == nullptr || found->kind == Json::Kind::null ? nullptr : found;
}

const Json &Params::required(std::string_view key) const {
  const Json *found = find(key);
  if (found == nullptr) {
    throw error(std::string(key) + " is missing");
  }
  return *found;
}

Error Params::error(const std::string &message) const {
  return {ErrorCode::invalid_argument, processor_ + ": " + message};
}

bool Params::is_text(std::string_view key) const {
  const Json *found = find(key);
  return found != nullptr && found->kind == Json::Kind::text;
}

std::string Params::text(std::string_view key) const {
  const Json &value = required(key);
  if (value.kind != Json::Kind::text) {
    throw error(std::string(key) + " must be a string, not " + value.repr());
  }
  return value.text;
}

std::int64_t Params::integer(std::string_view key, std::int64_t minimum) const {
  const Json &value = required(key);
  if (value.kind != Json::Kind::integer || value.integer < minimum) {
    throw error(std::string(key) + " must be an integer of at least " + std::to_string(minimum) + ", not " +
                value.repr());
  }
  return value.integer;
}

double Params::number(std::string_view key, double minimum, double maximum) const {
  const Json &value = required(key);
  if (!is_number(value) || !(minimum <= value.number && value.number <= maximum)) {
    throw error(std::string(key) + " must be a number in [" + short_number(minimum) + ", " + short_number(maximum) +
                "], not " + value.repr());
  }
  return value.number;
}

bool Params::boolean(std::string_view key) const {
  const Json &value = required(key);
  if (value.kind != Json::Kind::boolean) {
    throw error(std::string(key) + " must be true or false, not " + value.repr());
  }
  return value.truth;
}

std::int32_t Params::token_id(std::string_view key) const {
  const std::int64_t value = integer(key, 0);
  if (value > max_id) {
    throw error(std::string(key) + " must be a token id, so at most " + std::to_string(max_id) + ", not " +
                required(key).repr());
  }
  return static_cast<std::int32_t>(value);
}

Params::Ids Params::token_ids(std::string_view key) const { return ids_of(std::string(key), required(key)); }

std::vector<Params::Ids> Params::token_sequences(std::string_view key) const {
  const Json &value = required(key);
  if (value.kind != Json::Kind::list) {
    throw error(std::string(key) + " must be a list of lists of token ids, not " + value.repr());
  }
  std::vector<Ids> sequences;
  sequences.reserve(value.items.size());
  for (std::size_t index = 0; index < value.items.size(); ++index) {
    sequences.push_back(ids_of(std::string(key) + "[" + std::to_string(index) + "]", value.items[index]));
  }
  const auto empty = std::find_if(sequences.begin(), sequences.end(), [](const Ids &ids) { return ids.empty(); });
  if (empty != sequences.end()) {
    throw error(std::string(key) + "[" + std::to_string(empty - sequences.begin()) +
                "] is empty; it must have at least one token id");
  }
  return sequences;
}

std::vector<std::pair<std::int32_t, double>> Params::token_numbers(std::string_view key, double minimum,
                                                                   double maximum) const {
  const Json &value = required(key);
  if (value.kind != Json::Kind::object) {
    throw error(std::string(key) + " must be an object with a number for each token id, not " + value.repr());
  }
  std::vector<std::pair<std::int32_t, double>> numbers;
  for (const auto &[name, number] : value.members) {
    const bool is_decimal =
        !name.empty() && name.size() <= 10 && name.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t id = is_decimal ? std::stoll(name) : -1;
    if (id < 0 || id > max_id) {
      throw error(std::string(key) + " must have token ids as keys, integers in [0, " + std::to_string(max_id) +
                  "], not " + repr_of(name).substr(0, 100));
    }
    if (!is_number(number) || !(minimum <= number.number && number.number <= maximum)) {
      throw error(std::string(key) + "[" + std::to_string(id) + "] must be a number in [" + short_number(minimum) +
                  ", " + short_number(maximum) + "], not " + number.repr());
    }
    numbers.emplace_back(static_cast<std::int32_t>(id), number.number);
  }
  std::stable_sort(numbers.begin(), numbers.end(),
                   [](const auto &one, const auto &other) { return one.first < other.first; });
  for (std::size_t index = 1; index < numbers.size(); ++index) {
    if (numbers[index].first == numbers[index - 1].first) {
      throw error(std::string(key) + " has token id " + std::to_string(numbers[index].first) + " twice");
    }
  }
  return numbers;
}

Params::Ids Params::ids_of(const std::string &key, const Json &value) const {
  if (value.kind != Json::Kind::list) {
    throw error(key + " must be a list of token ids, not " + value.repr());
  }
  Ids ids;
  ids.reserve(value.items.size());
  for (const Json &item : value.items) {
    if (!is_id(item)) {
      throw error(key + " must hold token ids, integers in [0, " + std::to_string(max_id) + "], not " + item.repr());
    }
    ids.push_back(static_cast<std::int32_t>(item.integer));
  }
  return ids;
}

void check_in_vocabulary(std::string_view processor, const std::vector<std::int32_t> &ids, std::int64_t vocab_size) {
  const std::int32_t largest = ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end());
  if (largest >= vocab_size) {
    throw Error(ErrorCode::invalid_argument, std::string(processor) + ": the parameters name token id " +
                                                 std::to_string(largest) + ", but ids must lie in [0, " +
                                                 std::to_string(vocab_size) +
                                                 "): check that they are for this model's tokenizer");
  }
}

}  // namespace logitport
