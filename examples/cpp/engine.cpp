// A complete engine in C++: continuous batching, overlap, speculative decoding, and logit processors that run
// elsewhere.
//
// Read `Engine` to write an engine of your own; docs/engines/c.md explains it. The model is a toy with random weights,
// in place of yours. `engine HOST:PORT` uses a server of this host; without an argument, the processors run in this
// process.
#include <logitport.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Ids = std::vector<std::int32_t>;

constexpr std::int32_t vocab_size = 128;
constexpr std::size_t max_drafts = 3;

logitport_text text(const std::string &value) { return {value.data(), value.size()}; }

// One request, from submission to its end.
struct Generation {
  std::string name;
  std::vector<std::pair<std::string, std::string>> chain;  // built-ins, and their parameters
  Ids prompt, output;
  std::string error;
  logitport_handle handle = 0;  // the session's name for the request
  Ids fresh;                    // ids that were sampled last; not yet sent
  Ids drafts;                   // ids that may follow

  [[nodiscard]] Ids history() const {
    Ids ids = prompt;
    ids.insert(ids.end(), output.begin(), output.end());
    return ids;
  }
};

// Logits that depend on the last id. A model of yours has a cache for each slot.
struct Model {
  void forward(const Ids &history, float *row) const {
    std::minstd_rand random(static_cast<unsigned>(history.back() + 1));
    for (std::int32_t id = 0; id < vocab_size; ++id) {
      row[id] = std::uniform_real_distribution<float>(-4, 4)(random);
    }
  }
};

// Decodes greedily, in a persistent batch.
class Engine {
 public:
  // `target` is a server's, or empty.
  Engine(const std::string &target, std::size_t slots, std::size_t length) : slots_(slots), length_(length) {
    logitport_options options = LOGITPORT_INIT(logitport_options);
    options.vocab_size = vocab_size;
    options.max_draft_tokens = max_drafts;
    options.engine = text("examples/cpp");
    char error[512] = "";
    const int code = target.empty() ? logitport_open_embedded(&options, &session_, error, sizeof error)
                                    : logitport_open(text(target), &options, &session_, error, sizeof error);
    if (code != LOGITPORT_OK) {
      throw std::runtime_error(error);
    }
  }
  ~Engine() { logitport_close(session_); }
  Engine(const Engine &) = delete;
  Engine &operator=(const Engine &) = delete;

  void submit(Generation &one) { waiting_.push_back(&one); }
  [[nodiscard]] bool is_busy() const { return !waiting_.empty() || !running_.empty(); }

  // Run one forward pass for all running requests.
  void step() {
    admit();
    std::vector<logitport_step_request> requests;
    for (Generation *one : running_) {
      one->drafts = guess(one->history());
      requests.push_back(
          {one->handle, one->fresh.data(), one->fresh.size(), one->drafts.data(), one->drafts.size(), nullptr});
    }
    // Send the ids that were sampled last. Returns at once: the edits are found while the model computes.
    std::size_t rows = 0;
    check(logitport_begin(session_, requests.data(), requests.size(), nullptr, &rows));
    float *logits = forward(rows);
    logitport_result result = LOGITPORT_INIT(logitport_result);
    check(logitport_apply(session_, logits, rows, vocab_size * sizeof(float), &result));
    for (std::size_t index = 0; index < result.failure_count; ++index) {
      const logitport_failure &failure = result.failures[index];
      for (Generation *one : running_) {
        if (one->handle == failure.handle) {
          one->error = failure.message.data;
        }
      }
    }
    const std::vector<Generation *> running = running_;
    for (Generation *one : running) {
      if (!one->error.empty() || verify(*one, logits)) {
        leave(*one);
      }
      logits += (one->drafts.size() + 1) * vocab_size;
    }
    ++steps;
  }

  std::size_t steps = 0, accepted = 0;

 private:
  void check(int code) const {
    if (code != LOGITPORT_OK) {
      throw std::runtime_error(logitport_error(session_).data);
    }
  }

  // Give free slots to waiting requests. A request that is refused ends here.
  void admit() {
    while (!waiting_.empty() && running_.size() < slots_) {
      Generation &one = *waiting_.front();
      waiting_.pop_front();
      std::vector<logitport_processor> chain;
      for (const auto &[name, params] : one.chain) {
        chain.push_back({LOGITPORT_BUILTIN, text(name), text(params)});
      }
      logitport_request request = LOGITPORT_INIT(logitport_request);
      request.prompt_ids = one.prompt.data();
      request.prompt_id_count = one.prompt.size();
      request.processors = chain.data();
      request.processor_count = chain.size();
      request.request_id = text(one.name);
      logitport_admission admission{};
      if (logitport_add(session_, &request, 1, &admission) == LOGITPORT_OK) {
        one.handle = admission.handle;
        running_.push_back(&one);
      } else if (admission.code != LOGITPORT_OK) {
        one.error = admission.message.data;
      } else {
        throw std::runtime_error(logitport_error(session_).data);  // the server is lost
      }
    }
  }

  // One row for each request's last id, and one for each draft.
  float *forward(std::size_t rows) {
    void *memory = nullptr;  // shared with the server: processors that read logits find them there
    check(logitport_logits_buffer(session_, rows, &memory, nullptr));
    auto *row = static_cast<float *>(memory);
    for (const Generation *one : running_) {
      Ids seen = one->history();
      model_.forward(seen, row);
      row += vocab_size;
      for (const std::int32_t draft : one->drafts) {
        seen.push_back(draft);
        model_.forward(seen, row);
        row += vocab_size;
      }
    }
    return static_cast<float *>(memory);
  }

  // Guess that what followed the last id before follows it again (Saxena, 2023, prompt lookup decoding).
  static Ids guess(const Ids &history) {
    for (std::size_t at = history.size() - 1; at-- > 0;) {
      if (history[at] == history.back()) {
        const std::size_t end = std::min(history.size(), at + 1 + max_drafts);
        return {history.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                history.begin() + static_cast<std::ptrdiff_t>(end)};
      }
    }
    return {};
  }

  // Accept right drafts and the id sampled after them: the next step sends them. Returns whether the request is done.
  bool verify(Generation &one, const float *logits) {
    one.fresh.clear();
    for (std::size_t row = 0;; ++row, logits += vocab_size) {
      const auto sampled = static_cast<std::int32_t>(std::max_element(logits, logits + vocab_size) - logits);
      one.fresh.push_back(sampled);
      one.output.push_back(sampled);
      if (one.output.size() == length_) {
        return true;
      }
      if (row == one.drafts.size() || one.drafts[row] != sampled) {
        return false;
      }
      ++accepted;
    }
  }

  void leave(Generation &one) {
    check(logitport_remove(session_, &one.handle, 1));
    running_.erase(std::find(running_.begin(), running_.end(), &one));
  }

  logitport_session *session_ = nullptr;
  Model model_;
  std::size_t slots_, length_;
  std::deque<Generation *> waiting_;
  std::vector<Generation *> running_;
};

int main(int argc, char **argv) try {
  std::string odd_ids = "1";
  for (std::int32_t id = 3; id < vocab_size; id += 2) {
    odd_ids += ", " + std::to_string(id);
  }
  const std::pair<std::string, std::string> odd{"disallowed_tokens", "{\"token_ids\": [" + odd_ids + "]}"};
  const std::pair<std::string, std::string> repeats{"no_repeat_ngram", R"({"ngram_size": 2})"};
  std::vector<Generation> generations{{"nothing", {}, {1, 2, 3}},
                                      {"no odd ids", {odd}, {1, 2, 3}},
                                      {"no pair twice", {repeats}, {1, 2, 3}},
                                      {"both", {odd, repeats}, {1, 2, 3}},
                                      {"an unknown processor", {{"no_such_thing", "{}"}}, {1, 2, 3}}};
  Engine engine(argc > 1 ? argv[1] : "", 2, 24);
  for (Generation &one : generations) {
    engine.submit(one);
  }
  while (engine.is_busy()) {
    engine.step();
  }
  for (const Generation &one : generations) {
    std::printf("%20s:", one.name.c_str());
    for (const std::int32_t id : one.output) {
      std::printf(" %d", id);
    }
    std::printf("%s%s\n", one.error.empty() ? "" : " ", one.error.c_str());
  }
  std::printf("%zu steps; %zu accepted draft tokens\n", engine.steps, engine.accepted);
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
