#include "builtins/builtin_states.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "builtins/params.h"
#include "states/banned_sequences.h"
#include "states/loop_breaker.h"
#include "states/ngram_index.h"
#include "states/penalty.h"
#include "states/thinking_blocks.h"
#include "states/token_list.h"

namespace logitport {
namespace {

using Ids = std::vector<std::int32_t>;
using StatePointer = std::unique_ptr<State>;

constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();  // no history is longer
constexpr std::size_t max_tag_ids = 64, max_text_ids = 256;

constexpr std::string_view no_tokenizer =
    "embedded sessions of the library have no tokenizer: give ids, or use a server";

// The tags of a thinking block. Source: client/logitport/phases/phase_presets.py.
struct ThinkingTags {
  Ids start, end;
  std::optional<std::int32_t> newline;
};

struct Preset {
  std::string_view name;
  std::int32_t start, end, newline;
};

constexpr std::array<Preset, 4> presets{{{"qwen3", 151667, 151668, 198},
                                         {"deepseek_r1", 128798, 128799, 201},
                                         {"glm4_moe", 151350, 151351, 198},
                                         {"inkling", 200008, 200010, 198}}};
constexpr std::string_view preset_names = "qwen3, deepseek_r1, glm4_moe, inkling";
constexpr std::array<std::string_view, 4> tag_keys{"preset", "thinking_start_ids", "thinking_end_ids", "newline_id"};

StatePointer disallowed_tokens(const Json &json, const History & /*history*/, const BuiltinContext &context) {
  const Params params("disallowed_tokens", json, {"token_ids"});
  Ids ids = params.token_ids("token_ids");
  check_in_vocabulary("disallowed_tokens", ids, context.vocab_size);
  return std::make_unique<TokenList>(std::move(ids), -1);
}

StatePointer logit_bias(const Json &json, const History & /*history*/, const BuiltinContext &context) {
  constexpr double limit = 100.0;
  const Params params("logit_bias", json, {"logit_bias"});
  Ids ids;
  std::vector<float> values;
  for (const auto &[id, value] : params.token_numbers("logit_bias", -limit, limit)) {
    ids.push_back(id);
    values.push_back(static_cast<float>(value));
  }
  check_in_vocabulary("logit_bias", ids, context.vocab_size);
  return std::make_unique<BiasList>(std::move(ids), std::move(values));
}

StatePointer min_tokens(const Json &json, const History & /*history*/, const BuiltinContext &context) {
  const Params params("min_tokens", json, {"min_tokens", "stop_token_ids"});
  const Ids stop_ids = params.has("stop_token_ids") ? params.token_ids("stop_token_ids") : Ids();
  const std::int64_t count = params.integer("min_tokens", 0);
  check_in_vocabulary("min_tokens", stop_ids, context.vocab_size);
  std::set<std::int32_t> ending(stop_ids.begin(), stop_ids.end());
  for (const std::int32_t id : context.eos_token_ids) {
    if (id < context.vocab_size) {
      ending.insert(id);
    }
  }
  if (count != 0 && ending.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "min_tokens: no id that ends a sequence is known: set stop_token_ids, or open the session with "
                "eos_token_ids");
  }
  return std::make_unique<TokenList>(Ids(ending.begin(), ending.end()), std::min(count, longest + 1));
}

StatePointer no_repeat_ngram(const Json &json, const History &history, const BuiltinContext &context) {
  const Params params("no_repeat_ngram", json, {"ngram_size", "window_size", "whitelist_token_ids"});
  const std::int64_t window = params.has("window_size") ? params.integer("window_size", 1) : longest;
  Ids whitelist = params.has("whitelist_token_ids") ? params.token_ids("whitelist_token_ids") : Ids();
  const std::int64_t size = params.integer("ngram_size", 1);
  std::sort(whitelist.begin(), whitelist.end());
  whitelist.erase(std::unique(whitelist.begin(), whitelist.end()), whitelist.end());
  whitelist.erase(std::lower_bound(whitelist.begin(), whitelist.end(), context.vocab_size), whitelist.end());
  return std::make_unique<NGramIndex>(
      history, NGramRule{std::min(size, longest), std::min(window, longest), std::move(whitelist)}, context.vocab_size);
}

StatePointer bad_words(const Json &json, const History & /*history*/, const BuiltinContext &context) {
  const Params params("bad_words", json, {"bad_words_ids", "generated_only"});
  const bool generated_only = params.has("generated_only") && params.boolean("generated_only");
  const std::vector<Ids> sequences = params.token_sequences("bad_words_ids");
  for (const Ids &sequence : sequences) {
    check_in_vocabulary("bad_words", sequence, context.vocab_size);
  }
  return std::make_unique<BannedSequences>(sequences, generated_only);
}

StatePointer penalty(std::string_view name, bool per_occurrence, const Json &json, const History &history) {
  constexpr double limit = 2.0;
  const Params params(name, json, {name});
  return std::make_unique<Penalty>(history, static_cast<float>(params.number(name, -limit, limit)), per_occurrence);
}

StatePointer presence_penalty(const Json &json, const History &history, const BuiltinContext & /*context*/) {
  return penalty("presence_penalty", false, json, history);
}

StatePointer frequency_penalty(const Json &json, const History &history, const BuiltinContext & /*context*/) {
  return penalty("frequency_penalty", true, json, history);
}

bool contains(const Ids &ids, const Ids &part) {
  return std::search(ids.begin(), ids.end(), part.begin(), part.end()) != ids.end();
}

Ids joined(const Ids &first, const Ids &second) {
  Ids all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

// Whether the ids that close a block complete a start tag, if they follow the block's own start tag at once.
bool opens_again(const ThinkingTags &tags, const Ids &text) {
  const Ids closing = joined(text, tags.end);
  std::vector<Ids> closings{joined(tags.start, closing)};
  if (tags.newline) {
    closings.push_back(joined(joined(tags.start, {*tags.newline}), closing));
  }
  const auto size = static_cast<std::ptrdiff_t>(tags.start.size());
  for (const Ids &ids : closings) {
    // If both tags end at the last id, the longer one counts.
    const std::ptrdiff_t last =
        static_cast<std::ptrdiff_t>(ids.size()) - (tags.end.size() <= tags.start.size() ? 0 : 1);
    for (std::ptrdiff_t end = size + 1; end <= last; ++end) {
      if (std::equal(tags.start.begin(), tags.start.end(), ids.begin() + end - size)) {
        return true;
      }
    }
  }
  return false;
}

// Why a block would not be closed by the ids that are forced; "" if it is closed.
std::string closing_problem(const ThinkingTags &tags, const Ids &text, std::int64_t budget) {
  Ids closing = joined(text, tags.end);
  if (tags.newline) {
    closing.insert(closing.begin(), *tags.newline);
  }
  if (contains(closing, tags.start)) {
    return std::string(text.empty() ? "newline_id and thinking_end_ids" : "newline_id, end_text and thinking_end_ids") +
           " must not contain thinking_start_ids: no block would close";
  }
  if (!text.empty() && (text.front() == tags.end.front() || contains(text, tags.end))) {
    return "end_text must not begin like thinking_end_ids, or contain them: the block would close before its end";
  }
  if (budget == 0 && opens_again(tags, text)) {
    return "no block that is cut short at once would close: the last ids of thinking_start_ids and the first that "
           "close the block are thinking_start_ids again";
  }
  return "";
}

ThinkingTags read_tags(const Params &params) {
  const std::string give = "give a preset (" + std::string(preset_names) +
                           "), or thinking_start_ids and "
                           "thinking_end_ids";
  if (std::none_of(tag_keys.begin(), tag_keys.end(), [&params](std::string_view key) { return params.has(key); })) {
    throw params.error("the tags of thinking are not known: " + std::string(no_tokenizer) + "; or " + give);
  }
  if (params.has("preset")) {
    for (std::size_t index = 1; index < tag_keys.size(); ++index) {
      if (params.has(tag_keys[index])) {
        throw params.error("preset and " + std::string(tag_keys[index]) + " exclude each other: leave one of them out");
      }
    }
    const std::string name = params.text("preset");
    for (const Preset &preset : presets) {
      if (preset.name == name) {
        return {{preset.start}, {preset.end}, preset.newline};
      }
    }
    throw params.error("unknown preset " + repr_of(name) + "; known presets: " + std::string(preset_names));
  }
  if (!params.has("thinking_start_ids") || !params.has("thinking_end_ids")) {
    throw params.error(give);
  }
  ThinkingTags tags{params.token_ids("thinking_start_ids"), params.token_ids("thinking_end_ids"), std::nullopt};
  if (tags.start.empty() || tags.start.size() > max_tag_ids || tags.end.empty() || tags.end.size() > max_tag_ids) {
    throw params.error("thinking_start_ids and thinking_end_ids must hold 1 to " + std::to_string(max_tag_ids) +
                       " ids");
  }
  if (params.has("newline_id")) {
    tags.newline = params.token_id("newline_id");
  }
  return tags;
}

Ids all_ids(const ThinkingTags &tags, const Ids &text) {
  Ids ids = joined(joined(tags.start, tags.end), text);
  if (tags.newline) {
    ids.push_back(*tags.newline);
  }
  return ids;
}

StatePointer thinking_budget(const Json &json, const History &history, const BuiltinContext &context) {
  const Params params("thinking_budget", json,
                      {"thinking_budget", "preset", "thinking_start_ids", "thinking_end_ids", "newline_id", "end_text",
                       "soft_from", "min_thinking"});
  const std::int64_t budget = params.integer("thinking_budget", 0);
  const ThinkingTags tags = read_tags(params);
  if (params.is_text("end_text")) {
    throw params.error("end_text is a text, which needs the session's tokenizer: " + std::string(no_tokenizer));
  }
  const Ids text = params.has("end_text") ? params.token_ids("end_text") : Ids();
  if (text.size() > max_text_ids) {
    throw params.error("end_text has " + std::to_string(text.size()) + " ids; give at most " +
                       std::to_string(max_text_ids));
  }
  const std::int64_t soft_from = params.has("soft_from") ? params.integer("soft_from", 0) : -1;
  const std::int64_t min_thinking = params.has("min_thinking") ? params.integer("min_thinking", 0) : 0;
  if (min_thinking > budget) {
    throw params.error("min_thinking is " + std::to_string(min_thinking) + ", and thinking_budget " +
                       std::to_string(budget) + ": give no less as budget");
  }
  if (params.has("soft_from") && soft_from >= budget) {
    throw params.error("soft_from is " + std::to_string(soft_from) + ", and thinking_budget " + std::to_string(budget) +
                       ": give less as soft_from");
  }
  if (const std::string problem = closing_problem(tags, text, budget); !problem.empty()) {
    throw params.error(problem);
  }
  check_in_vocabulary("thinking_budget", all_ids(tags, text), context.vocab_size);
  return std::make_unique<ThinkingBlocks>(
      history, ThinkingLimit{budget, tags.start, tags.end, tags.newline, text, soft_from, min_thinking});
}

// The names of `LoopAction`.
constexpr std::array<std::string_view, 4> actions{"report", "deny_next", "end", "end_thinking"};

LoopAction read_action(const Params &params) {
  const std::string name = params.text("action");
  const auto *found = std::find(actions.begin(), actions.end(), name);
  if (found == actions.end()) {
    throw params.error("unknown action " + repr_of(name) + "; known actions: report, deny_next, end, end_thinking");
  }
  return static_cast<LoopAction>(found - actions.begin());
}

StatePointer loop_guard(const Json &json, const History &history, const BuiltinContext &context) {
  constexpr std::int64_t max_period = 8192;
  const Params params("loop_guard", json,
                      {"action", "repeats", "max_period", "min_length", "plain_repeats", "preset", "thinking_start_ids",
                       "thinking_end_ids", "newline_id"});
  const auto integer = [&params](std::string_view key, std::int64_t usual, std::int64_t minimum) {
    return params.has(key) ? std::min(params.integer(key, minimum), longest) : usual;
  };
  const std::int64_t repeats = integer("repeats", 3, 2), period = integer("max_period", 512, 1);
  if (period > max_period) {
    throw params.error("max_period must be at most " + std::to_string(max_period) + ", not " + std::to_string(period));
  }
  const CycleRule rule{repeats, static_cast<std::int32_t>(period), integer("min_length", 64, 0),
                       integer("plain_repeats", 96, 0)};
  const LoopAction action = read_action(params);
  if (action == LoopAction::end_thinking) {
    const ThinkingTags tags = read_tags(params);
    if (const std::string problem = closing_problem(tags, {}, 0); !problem.empty()) {
      throw params.error(problem);
    }
    check_in_vocabulary("loop_guard", all_ids(tags, {}), context.vocab_size);
    return std::make_unique<LoopBreaker>(history, rule,
                                         ThinkingLimit{0, tags.start, tags.end, tags.newline, {}, -1, 0});
  }
  for (const std::string_view key : tag_keys) {
    if (params.has(key)) {
      throw params.error(std::string(key) + " is only for the action end_thinking: leave it out");
    }
  }
  std::set<std::int32_t> ends;
  if (action == LoopAction::end) {
    std::copy_if(context.eos_token_ids.begin(), context.eos_token_ids.end(), std::inserter(ends, ends.end()),
                 [&context](std::int32_t id) { return id < context.vocab_size; });
    if (ends.empty()) {
      throw params.error(
          "no id that ends a sequence is known for the action end: open the session with eos_token_ids, or choose "
          "another action");
    }
  }
  return std::make_unique<LoopBreaker>(history, rule, action, Ids(ends.begin(), ends.end()));
}

struct Builtin {
  std::string_view name;
  StatePointer (*make)(const Json &, const History &, const BuiltinContext &);
};

constexpr std::array<Builtin, 9> builtins{{{"bad_words", bad_words},
                                           {"disallowed_tokens", disallowed_tokens},
                                           {"frequency_penalty", frequency_penalty},
                                           {"logit_bias", logit_bias},
                                           {"loop_guard", loop_guard},
                                           {"min_tokens", min_tokens},
                                           {"no_repeat_ngram", no_repeat_ngram},
                                           {"presence_penalty", presence_penalty},
                                           {"thinking_budget", thinking_budget}}};

}  // namespace

Json json_object(std::string_view text, const std::string &where) {
  Json value;
  try {
    value = parse_json(text.empty() ? "{}" : text);
  } catch (const std::invalid_argument &error) {
    throw Error(ErrorCode::invalid_argument, where + ": not JSON (" + error.what() + "); send an object, such as {}");
  }
  if (value.kind != Json::Kind::object) {
    throw Error(ErrorCode::invalid_argument, where + ": must be a JSON object; send an object, such as {}");
  }
  return value;
}

std::unique_ptr<State> make_builtin_state(std::string_view name, const Json &params, const History &history,
                                          const BuiltinContext &context) {
  const auto *found =
      std::find_if(builtins.begin(), builtins.end(), [name](const Builtin &each) { return each.name == name; });
  if (found == builtins.end()) {
    std::string names;
    for (const Builtin &each : builtins) {
      names += (names.empty() ? "" : ", ") + std::string(each.name);
    }
    throw Error(ErrorCode::not_found, "no built-in " + repr_of(name) + " runs in an embedded session of the library, " +
                                          "which has " + names + ": use one of them, or a server");
  }
  for (const std::string_view key : {"phase", "phase_tags"}) {
    const Json *value = params.find(key);
    if (value != nullptr && value->kind != Json::Kind::null) {
      throw Error(ErrorCode::invalid_argument, std::string(name) +
                                                   ": embedded sessions of the library have no phases: " + "leave " +
                                                   std::string(key) + " out, or use a server");
    }
  }
  return found->make(params, history, context);
}

}  // namespace logitport
