// The built-ins of embedded sessions: their parameters, and their states.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "builtins/json.h"
#include "history.h"
#include "state.h"

namespace logitport {

// What a state needs of its session.
struct BuiltinContext {
  std::int64_t vocab_size;
  const std::vector<std::int32_t> &eos_token_ids;
};

// Parse parameters, or another JSON object; empty text is {}. `where` is its name in errors. Throws an Error.
Json json_object(std::string_view text, const std::string &where);

// Make the state of a built-in for a history, from its parameters. Throws an Error if there is no such built-in, or if
// it refuses the parameters: with the messages of builtin_processors/logitport_builtins.
std::unique_ptr<State> make_builtin_state(std::string_view name, const Json &params, const History &history,
                                          const BuiltinContext &context);

}  // namespace logitport
