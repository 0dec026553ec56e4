// The functions of logitport.h: no exception leaves them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "embedded_backend.h"
#include "logitport.h"
#include "server_backend.h"
#include "session.h"

#ifndef LOGITPORT_VERSION
#define LOGITPORT_VERSION "0"
#endif

using logitport::Error;
using logitport::ErrorCode;
using logitport::Session;

struct logitport_session {
  std::unique_ptr<Session> session;
  std::string error;
};

namespace {

constexpr double default_timeout_seconds = 60.0;

// Call `call`, which may throw. Returns its code, and writes the message of an error with `report`.
template <typename Call, typename Report>
std::int32_t guarded(const Call &call, const Report &report) noexcept {
  const auto reported = [&report](std::int32_t code, const char *message) noexcept {
    try {
      report(message);
      return code;
    } catch (const std::exception &) {  // no memory for the message
      return static_cast<std::int32_t>(LOGITPORT_LIMIT_EXCEEDED);
    }
  };
  try {
    return call();
  } catch (const Error &error) {
    return reported(static_cast<std::int32_t>(error.code()), error.what());
  } catch (const std::bad_alloc &) {
    return reported(LOGITPORT_LIMIT_EXCEEDED, "this process has no memory left for the call");
  } catch (const std::exception &error) {
    return reported(LOGITPORT_INTERNAL, error.what());
  } catch (...) {
    return reported(LOGITPORT_INTERNAL, "an unknown exception");
  }
}

// Call a function of a session.
template <typename Call>
std::int32_t in_session(logitport_session *session, const Call &call) {
  if (session == nullptr) {
    return LOGITPORT_INVALID_ARGUMENT;
  }
  return guarded([&] { return call(*session->session); }, [session](const char *message) { session->error = message; });
}

void require(bool condition, const char *message) {
  if (!condition) {
    throw Error(ErrorCode::invalid_argument, message);
  }
}

std::string string_of(const logitport_text &text, const char *name) {
  require(text.size == 0 || text.data != nullptr, name);
  return text.size == 0 ? std::string() : std::string(text.data, text.size);
}

// Options of this version: of an earlier one, the fields that follow are 0.
logitport_options complete(const logitport_options *given) {
  require(given != nullptr && given->size >= sizeof(std::size_t) + sizeof(std::int32_t),
          "options is null, or its size is not set: initialize it with LOGITPORT_INIT(logitport_options)");
  logitport_options options{};
  std::memcpy(&options, given, std::min(given->size, sizeof options));
  const auto is_time = [](double seconds) { return std::isfinite(seconds); };
  require(options.vocab_size >= 1, "vocab_size must be the width of the logits, at least 1");
  require(options.datatype >= LOGITPORT_FLOAT32 && options.datatype <= LOGITPORT_BFLOAT16,
          "datatype must be a logitport_datatype");
  require(options.max_draft_tokens >= 0, "max_draft_tokens must not be negative");
  require(options.max_requests >= 0, "max_requests must not be negative");
  require(is_time(options.timeout_seconds) && options.timeout_seconds >= 0,
          "timeout_seconds must be 0 or a positive number");
  require(is_time(options.reconnect_seconds), "reconnect_seconds must be a number");
  require(options.eos_token_id_count == 0 || options.eos_token_ids != nullptr, "eos_token_ids is null");
  options.timeout_seconds = options.timeout_seconds > 0 ? options.timeout_seconds : default_timeout_seconds;
  options.reconnect_seconds = options.reconnect_seconds == 0.0 ? options.timeout_seconds : options.reconnect_seconds;
  return options;
}

logitport::SessionOptions opening_of(const logitport_options &options) {
  static constexpr const char *datatypes[] = {"FP32", "FP16", "BF16"};
  logitport::SessionOptions opening;
  opening.vocab_size = options.vocab_size;
  opening.datatype = datatypes[options.datatype];
  for (std::size_t index = 0; index < options.eos_token_id_count; ++index) {
    const std::int32_t id = options.eos_token_ids[index];
    require(id >= 0 && id < options.vocab_size, "eos_token_ids has an id outside of the vocabulary");
    opening.eos_token_ids.push_back(id);
  }
  opening.max_draft_tokens = options.max_draft_tokens;
  opening.max_requests = options.max_requests;
  opening.tokenizer_id = string_of(options.tokenizer_id, "tokenizer_id is null");
  opening.model_name = string_of(options.model_name, "model_name is null");
  opening.engine = string_of(options.engine, "engine is null");
  return opening;
}

// Open a session on the backend that `connect` makes.
template <typename Connect>
std::int32_t open_session(const logitport_options *given, logitport_session **session, char *error,
                          std::size_t error_size, const Connect &connect) {
  const auto report = [error, error_size](const char *message) {
    if (error != nullptr && error_size != 0) {
      const std::size_t size = std::min(std::strlen(message), error_size - 1);
      std::memcpy(error, message, size);
      error[size] = '\0';
    }
  };
  return guarded(
      [&] {
        require(session != nullptr, "session is null: pass the address of a pointer");
        *session = nullptr;
        const logitport_options options = complete(given);
        auto opened = std::make_unique<logitport_session>();
        opened->session = std::make_unique<Session>(
            connect(options),
            logitport::SessionLimits{options.vocab_size, static_cast<logitport::Datatype>(options.datatype),
                                     options.max_draft_tokens, options.timeout_seconds, options.reconnect_seconds});
        *session = opened.release();
        return LOGITPORT_OK;
      },
      report);
}

}  // namespace

extern "C" {

const char *logitport_version(void) { return LOGITPORT_VERSION; }

std::int32_t logitport_open(logitport_text target, const logitport_options *options, logitport_session **session,
                            char *error, std::size_t error_size) {
  return open_session(options, session, error, error_size, [target](const logitport_options &checked) {
    std::string token = string_of(checked.token, "token is null");
    require(token.find_first_of("\r\n") == std::string::npos && token.find('\0') == std::string::npos,
            "token has a character that no token has");
    return std::make_unique<logitport::ServerBackend>(
        logitport::ServerTarget{string_of(target, "target is null"), std::move(token), checked.timeout_seconds},
        opening_of(checked));
  });
}

std::int32_t logitport_open_embedded(const logitport_options *options, logitport_session **session, char *error,
                                     std::size_t error_size) {
  return open_session(options, session, error, error_size, [](const logitport_options &checked) {
    return std::make_unique<logitport::EmbeddedBackend>(opening_of(checked));
  });
}

void logitport_close(logitport_session *session) { delete session; }

void logitport_cancel(logitport_session *session) {
  if (session != nullptr) {
    session->session->cancel();
  }
}

logitport_text logitport_error(const logitport_session *session) {
  if (session == nullptr) {
    static constexpr char message[] = "session is null: open one with logitport_open";
    return {message, sizeof message - 1};
  }
  return {session->error.c_str(), session->error.size()};
}

std::int32_t logitport_add(logitport_session *session, const logitport_request *requests, std::size_t count,
                           logitport_admission *admissions) {
  return in_session(session, [&](Session &called) {
    require(count == 0 || (requests != nullptr && admissions != nullptr), "requests or admissions is null");
    for (std::size_t index = 0; index < count; ++index) {
      require(requests[index].size == sizeof(logitport_request),
              "the size of a request is not set: initialize it with LOGITPORT_INIT(logitport_request)");
    }
    const std::int32_t code = called.add(requests, count, admissions);
    for (std::size_t index = 0; code != LOGITPORT_OK && index < count; ++index) {
      if (admissions[index].code == code) {
        session->error.assign(admissions[index].message.data, admissions[index].message.size);
        break;
      }
    }
    return code;
  });
}

std::int32_t logitport_remove(logitport_session *session, const logitport_handle *handles, std::size_t count) {
  return in_session(session, [&](Session &called) {
    require(count == 0 || handles != nullptr, "handles is null");
    called.remove(handles, count);
    return LOGITPORT_OK;
  });
}

std::int32_t logitport_rewind(logitport_session *session, logitport_handle handle, std::int64_t length) {
  return in_session(session, [&](Session &called) {
    called.rewind(handle, length);
    return LOGITPORT_OK;
  });
}

std::int32_t logitport_history_length(logitport_session *session, logitport_handle handle, std::int64_t *length) {
  return in_session(session, [&](Session &called) {
    require(length != nullptr, "length is null");
    *length = called.history_length(handle);
    return LOGITPORT_OK;
  });
}

std::int32_t logitport_begin(logitport_session *session, const logitport_step_request *requests, std::size_t count,
                             const logitport_row *rows, std::size_t *row_count) {
  return in_session(session, [&](Session &called) {
    require(count == 0 || requests != nullptr, "requests is null");
    require(rows == nullptr || row_count != nullptr, "rows is not null, and row_count is");
    const std::size_t found = called.begin(requests, count, rows, row_count == nullptr ? 0 : *row_count);
    if (row_count != nullptr) {
      *row_count = found;
    }
    return LOGITPORT_OK;
  });
}

std::int32_t logitport_apply(logitport_session *session, void *logits, std::size_t rows, std::size_t row_stride,
                             logitport_result *result) {
  return in_session(session, [&](Session &called) {
    require(result == nullptr || result->size >= sizeof(std::size_t),
            "the size of result is not set: initialize it with LOGITPORT_INIT(logitport_result)");
    called.apply(logits, rows, row_stride, result);
    return LOGITPORT_OK;
  });
}

std::int32_t logitport_logits_buffer(logitport_session *session, std::size_t rows, void **logits,
                                     std::size_t *size_bytes) {
  return in_session(session, [&](Session &called) {
    require(logits != nullptr, "logits is null: pass the address of a pointer");
    std::size_t size = 0;
    *logits = called.logits_buffer(rows, size);
    if (size_bytes != nullptr) {
      *size_bytes = size;
    }
    return LOGITPORT_OK;
  });
}

std::int32_t logitport_stats_of(const logitport_session *session, logitport_stats *stats) {
  if (session == nullptr || stats == nullptr || stats->size < sizeof(std::size_t)) {
    return LOGITPORT_INVALID_ARGUMENT;
  }
  logitport_stats found = session->session->stats();
  found.size = std::min(stats->size, sizeof found);
  std::memcpy(stats, &found, found.size);
  return LOGITPORT_OK;
}

}  // extern "C"
