/* liblogitport: logit processors for engines in C, C++ and languages that call C.
 *
 * A session is the persistent batch of one engine. It runs in the server of this host (`logitport_open`: a Unix socket,
 * and shared memory for logits), or in this process (`logitport_open_embedded`: built-ins, no server). The loop:
 *
 *   logitport_add       for each new request, with its whole history
 *   logitport_begin     before the forward pass, with the ids that were sampled last; returns at once
 *   logitport_apply     after the forward pass; edits the logits in place; then sample
 *   logitport_remove    for each request that has ended
 *
 * Threads. Use a session on one thread at a time: callers lock if several threads share one. Different sessions need no
 * lock. Only `logitport_cancel` may be called while another thread is in a call with the same session. A child process
 * must not use a session that its parent has opened.
 *
 * Memory. The library reads the memory of arguments during the call only. What it returns through pointers belongs to
 * the session; each function states how long it is valid. Texts are UTF-8; pointers to texts come with their length in
 * bytes, and the texts that the library returns also end with a 0. A pointer may be null if its length is 0.
 *
 * Errors. Functions return a `logitport_code`. `logitport_error` has the message of the last call that failed: what was
 * wrong, where, and what to do. No exception and no signal leaves the library; it does not end the process.
 *
 * Versions. Structures that may grow begin with `size`, which `LOGITPORT_INIT` sets. Fields are only added, at the end,
 * and zero keeps the earlier behavior.
 */
#ifndef LOGITPORT_H
#define LOGITPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LOGITPORT_API __attribute__((visibility("default")))
#else
#define LOGITPORT_API
#endif

/* The codes of the protocol's errors (docs/protocol.md), and LOGITPORT_UNAVAILABLE. A server may send later codes. */
typedef enum logitport_code {
  LOGITPORT_OK = 0,
  LOGITPORT_INTERNAL = 1,
  LOGITPORT_INVALID_ARGUMENT = 2,
  LOGITPORT_LIMIT_EXCEEDED = 3,
  LOGITPORT_NOT_AUTHENTICATED = 4,
  LOGITPORT_NOT_PERMITTED = 5,
  LOGITPORT_NOT_FOUND = 6,
  LOGITPORT_NAME_TAKEN = 7,
  LOGITPORT_INVALID_PAYLOAD = 8,
  LOGITPORT_PAYLOAD_NOT_ALLOWED = 9,
  LOGITPORT_PYTHON_MISMATCH = 10,
  LOGITPORT_PROCESSOR_FAILED = 11,
  LOGITPORT_PROCESSOR_TIMED_OUT = 12,
  LOGITPORT_PROCESSOR_QUARANTINED = 13,
  LOGITPORT_NEED_SYNC = 14,
  LOGITPORT_STATE_LOST = 15,
  LOGITPORT_SESSION_CLOSED = 16,
  /* The server cannot be reached, has not replied in time, or the session was cancelled. */
  LOGITPORT_UNAVAILABLE = 100
} logitport_code;

typedef enum logitport_datatype {
  LOGITPORT_FLOAT32 = 0,
  LOGITPORT_FLOAT16 = 1, /* IEEE 754 binary16 */
  LOGITPORT_BFLOAT16 = 2
} logitport_datatype;

/* What names a processor. */
typedef enum logitport_naming {
  LOGITPORT_BUILTIN = 1, /* "thinking_budget", or "package.module:Class" of one that is installed on the server */
  LOGITPORT_NAME = 2,    /* "team/ban-french:v2" */
  LOGITPORT_DIGEST = 3,  /* 64 hexadecimal digits */
  LOGITPORT_PAYLOAD = 4  /* the JSON of a shipped processor */
} logitport_naming;

typedef struct logitport_session logitport_session;

/* A request of a session. 0 is none. No handle of a session is used twice. */
typedef uint64_t logitport_handle;

/* A text and its length in bytes. */
typedef struct logitport_text {
  const char *data;
  size_t size;
} logitport_text;

/* Set all fields of a structure to 0, and its `size`. */
#define LOGITPORT_INIT(type) {sizeof(type)}

typedef struct logitport_options {
  size_t size;
  int32_t vocab_size; /* width of the logits, with padding; required */
  int32_t datatype;   /* a logitport_datatype */
  const int32_t *eos_token_ids;
  size_t eos_token_id_count;
  int32_t max_draft_tokens;    /* of a request in one step */
  int32_t max_requests;        /* 0: the server's limit; embedded 4096 */
  logitport_text tokenizer_id; /* of the operator's tokenizer, for grammars and texts */
  logitport_text model_name;   /* for the operator's lists */
  logitport_text engine;       /* the same, such as "my-engine 1.2" */
  logitport_text token;        /* of an authenticated caller; may be empty */
  /* Seconds to wait for a server or a reply, whatever the server's own deadlines are. 0: 60. A server that has stopped
   * is noticed after its deadline of a step and 10 s, or after this time if that is less. */
  double timeout_seconds;
  /* How long a call tries to reconnect after the connection was lost. 0: `timeout_seconds`. Negative: never. */
  double reconnect_seconds;
} logitport_options;

typedef struct logitport_processor {
  int32_t naming; /* a logitport_naming */
  logitport_text name;
  logitport_text params; /* a JSON object; empty for {} */
} logitport_processor;

typedef struct logitport_request {
  size_t size;
  const int32_t *prompt_ids;
  size_t prompt_id_count;
  const int32_t *output_ids; /* ids that were sampled before, if the request continues */
  size_t output_id_count;
  const logitport_processor *processors; /* in execution order */
  size_t processor_count;
  logitport_text request_id;
  logitport_text sampling_params; /* the engine's, a JSON object; empty for {} */
  logitport_text tenant;
  int32_t skips_on_error; /* 1: a failing processor leaves the rows unchanged, and the request continues */
} logitport_request;

/* The result for one request of `logitport_add`. The message is valid until the next call of `logitport_add`. */
typedef struct logitport_admission {
  logitport_handle handle; /* 0 if the request was refused */
  int32_t code;            /* a logitport_code */
  int32_t reads_logits;    /* 1 if the server edits the logits of this request itself: see logitport_logits_buffer */
  logitport_text message;  /* of the error */
} logitport_admission;

/* A request of a step, with the ids that joined its history since its last step; none in its first step. */
typedef struct logitport_step_request {
  logitport_handle handle;
  const int32_t *new_ids;
  size_t new_id_count;
  /* Ids that a speculating engine has not accepted yet. They do not join the history: accepted ones are new ids of the
   * next step. */
  const int32_t *draft_ids;
  size_t draft_id_count;
  /* For each draft the index of the draft that it follows, less than its own; -1 if it follows the history. Null: each
   * follows the one before it. */
  const int32_t *draft_parents;
} logitport_step_request;

/* A row of the logits. */
typedef struct logitport_row {
  uint32_t request; /* its index in the step */
  /* 0: the row sees the history. j: it sees the history, the ancestors of draft j - 1, and that draft. */
  int32_t draft_offset;
} logitport_row;

/* A request that failed in a step. Its rows are unspecified, and it fails in all later steps: remove it. If `skipped`
 * is 1, its rows are unchanged, and it continues. */
typedef struct logitport_failure {
  logitport_handle handle;
  int32_t code;
  int32_t skipped;
  logitport_text message;
} logitport_failure;

/* What a processor reports: docs/reports.md. */
typedef struct logitport_event {
  logitport_handle handle;
  int32_t position;                       /* in the output, of the id that the row samples */
  int32_t draft_offset;                   /* of the row, if it is not the number of drafts that the row has seen */
  int32_t left_out;                       /* number of further events, if `name` is empty */
  logitport_text processor, name, values; /* `values` is a JSON object */
} logitport_event;

/* A processor, and the number of rows that it was applied to. */
typedef struct logitport_applied {
  logitport_text processor;
  int32_t rows;
} logitport_applied;

/* The result of a step. Valid until the next call of `logitport_begin`, `logitport_apply` or `logitport_close`. */
typedef struct logitport_result {
  size_t size;
  const logitport_failure *failures;
  size_t failure_count;
  const int32_t *all_denied_rows; /* rows in which edits have denied every id: do not sample from them */
  size_t all_denied_row_count;
  const logitport_applied *applied;
  size_t applied_count;
  const logitport_event *events;
  size_t event_count;
} logitport_result;

/* Counts of a session. */
typedef struct logitport_stats {
  size_t size;
  uint64_t reconnects;
  uint64_t resyncs;  /* histories that were sent again, because the server's differed */
  uint64_t requests; /* that the session holds */
} logitport_stats;

/* The version of the library, such as "1.2.0". */
LOGITPORT_API const char *logitport_version(void);

/* Open a session with a server of this host.
 *
 * `target`: HOST:PORT with a loopback address, or unix:PATH. Servers of other hosts are reached by gRPC: see
 * docs/protocol.md.
 * `error`: gets the message of an error, cut to `error_size` bytes with its last 0; may be null.
 * Fails with INVALID_ARGUMENT, UNAVAILABLE, LIMIT_EXCEEDED, NOT_AUTHENTICATED or NOT_PERMITTED. */
LOGITPORT_API int32_t logitport_open(logitport_text target, const logitport_options *options,
                                     logitport_session **session, char *error, size_t error_size);

/* Open a session in this process, without a server, for the built-ins bad_words, disallowed_tokens, frequency_penalty,
 * logit_bias, loop_guard, min_tokens, no_repeat_ngram, presence_penalty and thinking_budget. The calls are the same. */
LOGITPORT_API int32_t logitport_open_embedded(const logitport_options *options, logitport_session **session,
                                              char *error, size_t error_size);

/* End the session, and free its memory. Null is ignored. */
LOGITPORT_API void logitport_close(logitport_session *session);

/* End the session's connection, on any thread: calls that wait, and all later ones, return UNAVAILABLE. Only
 * `logitport_close` is useful then. */
LOGITPORT_API void logitport_cancel(logitport_session *session);

/* The message of the last call that failed. Valid until the next call with this session. */
LOGITPORT_API logitport_text logitport_error(const logitport_session *session);

/* Admit requests, and wait for the server's replies.
 *
 * `admissions`: gets `count` results. A refused request does not affect the others.
 * Returns OK if all were admitted; else the code of the first error. UNAVAILABLE, or an error that is no request's own,
 * admits none, and sets all handles to 0. */
LOGITPORT_API int32_t logitport_add(logitport_session *session, const logitport_request *requests, size_t count,
                                    logitport_admission *admissions);

/* Drop requests. Does not wait. Fails with NOT_FOUND, and drops none, if the session does not hold one of them. */
LOGITPORT_API int32_t logitport_remove(logitport_session *session, const logitport_handle *handles, size_t count);

/* Cut the history of a request back to `length` ids, but not into its prompt: after a preemption, for example. The next
 * step tells the server. Fails with NOT_FOUND or INVALID_ARGUMENT. */
LOGITPORT_API int32_t logitport_rewind(logitport_session *session, logitport_handle handle, int64_t length);

/* The number of ids of a request's history. */
LOGITPORT_API int32_t logitport_history_length(logitport_session *session, logitport_handle handle, int64_t *length);

/* Send a step, and return at once: the server works while the model's forward pass runs. A request that is left out
 * keeps its state. A step that was begun, and not applied, is dropped.
 *
 * `rows`: of the logits. Null: the requests in order, each with a row, and one row more for each of its drafts.
 * `row_count`: of `rows`, on call. Gets the number of rows of the logits if it is not null.
 * An id outside of the vocabulary fails its request, in `logitport_apply`. Another argument that is wrong returns
 * NOT_FOUND or INVALID_ARGUMENT, and nothing was sent. A lost connection is found, and replaced, in `logitport_apply`.
 */
LOGITPORT_API int32_t logitport_begin(logitport_session *session, const logitport_step_request *requests, size_t count,
                                      const logitport_row *rows, size_t *row_count);

/* Receive the edits of the step, and apply them.
 *
 * `logits`: `rows` rows of `vocab_size` elements of the session's datatype, aligned to an element.
 * `row_stride`: bytes from one row to the next, at least those of a row, and a multiple of the element's.
 * `result`: see there; may be null.
 * Returns OK also if requests have failed: look at `result`. INVALID_ARGUMENT leaves the logits unchanged, and the call
 * may be repeated. After UNAVAILABLE, the call may be repeated, or the session closed. */
LOGITPORT_API int32_t logitport_apply(logitport_session *session, void *logits, size_t rows, size_t row_stride,
                                      logitport_result *result);

/* Get memory for logits that is shared with the server: processors that read logits then edit them there, and `apply`
 * copies none. `row_stride` of such logits is `vocab_size` elements.
 *
 * `size_bytes`: gets the size of the memory; may be null.
 * Call it before each forward pass: the memory is the same until more rows are needed, the connection is replaced, or
 * `logitport_add` has admitted requests. Memory of earlier calls must not be written to after the next `logitport_add`;
 * `logitport_apply` refuses it then. It stays mapped until `logitport_close`. */
LOGITPORT_API int32_t logitport_logits_buffer(logitport_session *session, size_t rows, void **logits,
                                              size_t *size_bytes);

/* Get the counts of a session. */
LOGITPORT_API int32_t logitport_stats_of(const logitport_session *session, logitport_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
