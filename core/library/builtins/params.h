// Reads the parameters of a built-in, as builtin_processors/logitport_builtins/params.py. Each error names the
// processor, the key and the value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "builtins/json.h"
#include "errors.h"

namespace logitport {

class Params {
 public:
  using Ids = std::vector<std::int32_t>;

  // A member with the value null counts as absent. Throws an Error for a key that is not one of `keys`.
  Params(std::string_view processor, const Json &params, const std::vector<std::string_view> &keys);

  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] bool is_text(std::string_view key) const;
  // The error for a message about these parameters.
  [[nodiscard]] Error error(const std::string &message) const;

  // The functions throw an Error if the key is absent, or its value another one.
  [[nodiscard]] std::string text(std::string_view key) const;
  // An integer of at least `minimum`. One that does not fit is the largest.
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t minimum) const;
  [[nodiscard]] double number(std::string_view key, double minimum, double maximum) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] std::int32_t token_id(std::string_view key) const;
  [[nodiscard]] Ids token_ids(std::string_view key) const;
  [[nodiscard]] std::vector<Ids> token_sequences(std::string_view key) const;
  // Numbers by token id, ascending.
  [[nodiscard]] std::vector<std::pair<std::int32_t, double>> token_numbers(std::string_view key, double minimum,
                                                                           double maximum) const;

 private:
  [[nodiscard]] const Json *find(std::string_view key) const;
  [[nodiscard]] const Json &required(std::string_view key) const;
  [[nodiscard]] Ids ids_of(const std::string &key, const Json &value) const;

  std::string processor_;
  const Json &params_;
};

// Throws an Error if an id of the parameters is not below the width of the logits.
void check_in_vocabulary(std::string_view processor, const std::vector<std::int32_t> &ids, std::int64_t vocab_size);

}  // namespace logitport
