// Uses sessions on many threads, and cancels some: stress_threads SECONDS [TARGET]. Built with ThreadSanitizer.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "logitport.h"

namespace {

constexpr std::int32_t vocab = 50;
std::atomic<long> steps{0};
std::atomic<bool> is_wrong{false};

logitport_text text(const char *data) { return {data, std::strlen(data)}; }

logitport_session *open_session(const char *target) {
  logitport_options options = LOGITPORT_INIT(logitport_options);
  options.vocab_size = vocab;
  options.timeout_seconds = 20;
  options.reconnect_seconds = -1;
  logitport_session *session = nullptr;
  char error[256] = "";
  const std::int32_t code = target == nullptr ? logitport_open_embedded(&options, &session, error, sizeof error)
                                              : logitport_open(text(target), &options, &session, error, sizeof error);
  if (code != LOGITPORT_OK) {
    std::fprintf(stderr, "%s\n", error);
    is_wrong = true;
  }
  return session;
}

// Steps of one request, until the time is over or the session is cancelled.
void decode(logitport_session *session, std::chrono::steady_clock::time_point end, bool may_be_cancelled) {
  logitport_processor processor{LOGITPORT_BUILTIN, text("no_repeat_ngram"), text("{\"ngram_size\": 1}")};
  const std::int32_t prompt[] = {1, 2};
  logitport_request request = LOGITPORT_INIT(logitport_request);
  request.prompt_ids = prompt;
  request.prompt_id_count = 2;
  request.processors = &processor;
  request.processor_count = 1;
  for (std::int32_t id = 3; std::chrono::steady_clock::now() < end; id = 3) {
    logitport_admission admission{};
    std::int32_t code = logitport_add(session, &request, 1, &admission);
    for (std::size_t new_ids = 0; code == LOGITPORT_OK && id < vocab; ++id, new_ids = 1) {
      std::vector<float> logits(vocab, 0.0F);
      logitport_step_request step{admission.handle, &id, new_ids, nullptr, 0, nullptr};
      code = logitport_begin(session, &step, 1, nullptr, nullptr);
      std::this_thread::sleep_for(std::chrono::microseconds(id % 5 == 0 ? 1500 : 0));  // the early receiver
      logitport_result result = LOGITPORT_INIT(logitport_result);
      code = code == LOGITPORT_OK ? logitport_apply(session, logits.data(), 1, vocab * sizeof(float), &result) : code;
      if (code == LOGITPORT_OK && (logits[1] == 0.0F || result.failure_count != 0)) {
        is_wrong = true;
      }
      ++steps;
    }
    if (code == LOGITPORT_OK) {
      code = logitport_remove(session, &admission.handle, 1);
    }
    if (code != LOGITPORT_OK) {
      is_wrong = is_wrong || !(may_be_cancelled && code == LOGITPORT_UNAVAILABLE);
      return;
    }
  }
}

}  // namespace

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1.0;
  const char *target = argc > 2 ? argv[2] : nullptr;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                          std::chrono::duration<double>(seconds));
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([=]() {
      while (std::chrono::steady_clock::now() < end && !is_wrong) {
        logitport_session *session = open_session(number % 2 == 0 ? target : nullptr);
        if (session == nullptr) {
          return;
        }
        const bool is_cancelled = number < 2;
        std::thread canceller([=]() {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          if (is_cancelled) {
            logitport_cancel(session);
          }
        });
        decode(session, end, is_cancelled);
        canceller.join();
        logitport_close(session);
      }
    });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  std::printf("%ld steps\n", steps.load());
  return is_wrong || steps == 0 ? 1 : 0;
}
