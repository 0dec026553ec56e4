// The engine's end of benchmarks/c_library.py in C++: sessions of liblogitport, and the time of each half of a step.
#include <logitport.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Engine {
  logitport_session *session = nullptr;
  std::vector<logitport_handle> handles;
  std::size_t row_bytes = 0;
  bool is_first = true;
};

double nanoseconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count();
}

logitport_text text(const char *data) { return {data, std::strlen(data)}; }

bool is_ok(const Engine &engine, int code) {
  if (code != LOGITPORT_OK) {
    std::fprintf(stderr, "%s\n", logitport_error(engine.session).data);
  }
  return code == LOGITPORT_OK;
}

}  // namespace

extern "C" {

// Open a session with `rows` requests of `history` ids each; request i has chain i % `chains`: a built-in and its
// parameters. `target` is null for a session in this process. Returns null after an error.
Engine *bench_open(const char *target, std::int32_t vocab_size, const std::int32_t *ids, std::size_t rows,
                   std::size_t history, const char *const *names, const char *const *params, std::size_t chains) {
  logitport_options options = LOGITPORT_INIT(logitport_options);
  options.vocab_size = vocab_size;
  auto *engine = new Engine;
  engine->row_bytes = static_cast<std::size_t>(vocab_size) * sizeof(float);
  char error[512] = "";
  const int code = target == nullptr ? logitport_open_embedded(&options, &engine->session, error, sizeof error)
                                     : logitport_open(text(target), &options, &engine->session, error, sizeof error);
  if (code != LOGITPORT_OK) {
    std::fprintf(stderr, "%s\n", error);
    return nullptr;
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const logitport_processor processor{LOGITPORT_BUILTIN, text(names[row % chains]), text(params[row % chains])};
    logitport_request request = LOGITPORT_INIT(logitport_request);
    request.prompt_ids = ids + row * history;
    request.prompt_id_count = history / 2;
    request.output_ids = request.prompt_ids + history / 2;
    request.output_id_count = history - history / 2;
    request.processors = &processor;
    request.processor_count = 1;
    logitport_admission admission{};
    if (!is_ok(*engine, logitport_add(engine->session, &request, 1, &admission))) {
      return nullptr;
    }
    engine->handles.push_back(admission.handle);
  }
  return engine;
}

// Begin a step with an id for each request. Returns nanoseconds; negative after an error.
double bench_begin(Engine *engine, const std::int32_t *ids) {
  const auto began = std::chrono::steady_clock::now();
  std::vector<logitport_step_request> requests(engine->handles.size());
  for (std::size_t row = 0; row < requests.size(); ++row) {
    requests[row] = {engine->handles[row], ids + row, engine->is_first ? 0U : 1U, nullptr, 0, nullptr};
  }
  engine->is_first = false;
  const int code = logitport_begin(engine->session, requests.data(), requests.size(), nullptr, nullptr);
  const double taken = nanoseconds_since(began);
  return is_ok(*engine, code) ? taken : -1;
}

// The same for the other half of a step.
double bench_finish(Engine *engine, float *logits) {
  const auto began = std::chrono::steady_clock::now();
  logitport_result result = LOGITPORT_INIT(logitport_result);
  const int code = logitport_apply(engine->session, logits, engine->handles.size(), engine->row_bytes, &result);
  const double taken = nanoseconds_since(began);
  return is_ok(*engine, code) && result.failure_count == 0 ? taken : -1;
}

void bench_close(Engine *engine) {
  logitport_close(engine->session);
  delete engine;
}

}  // extern "C"
