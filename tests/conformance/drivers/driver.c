/* The driver of liblogitport: see tests/conformance/driver_process.py. */
#include <logitport.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_words = 64, max_ids = 64, max_requests = 32, name_size = 32 };

typedef struct request {
  char name[name_size];
  logitport_handle handle;
} request;

typedef struct ids {
  int32_t values[max_ids];
  size_t count;
} ids;

static logitport_session *session;
static request requests[max_requests];
static size_t request_count;
static int32_t vocab_size;
static int steps;

static void fail(const char *message, const char *word) {
  fprintf(stderr, "%s: %s\n", message, word);
  exit(2);
}

static request *find(const char *name) {
  for (size_t index = 0; index < request_count; ++index) {
    if (strcmp(requests[index].name, name) == 0) {
      return &requests[index];
    }
  }
  if (request_count == max_requests || strlen(name) >= name_size) {
    fail("too many requests, or too long a name", name);
  }
  strcpy(requests[request_count].name, name);
  return &requests[request_count++];
}

static const char *name_of(logitport_handle handle) {
  for (size_t index = 0; index < request_count; ++index) {
    if (requests[index].handle == handle) {
      return requests[index].name;
    }
  }
  return "?";
}

/* Cut `text` at each separator. Returns the number of parts. */
static size_t split(char *text, char separator, char **parts, size_t most) {
  size_t count = 0;
  for (;;) {
    if (count == most) {
      fail("too many parts", text);
    }
    parts[count++] = text;
    text = strchr(text, separator);
    if (text == NULL) {
      return count;
    }
    *text++ = '\0';
  }
}

static void read_ids(char *list, ids *found) {
  found->count = 0;
  for (char *part = strtok(list, ","); part != NULL; part = strtok(NULL, ",")) {
    if (found->count == max_ids) {
      fail("too many ids", part);
    }
    found->values[found->count++] = atoi(part);
  }
}

static logitport_text text_of(const char *text) { return (logitport_text){text, strlen(text)}; }

static void print_text(logitport_text text) {
  putchar('"');
  for (size_t index = 0; index < text.size; ++index) {
    const unsigned char each = (unsigned char)text.data[index];
    if (each == '"' || each == '\\') {
      printf("\\%c", each);
    } else if (each < ' ') {
      printf("\\u%04x", each);
    } else {
      putchar(each);
    }
  }
  putchar('"');
}

static int print_error(int32_t code, logitport_text message) {
  if (code != LOGITPORT_OK) {
    printf("{\"error\": %d, \"message\": ", code);
    print_text(message);
    printf("}");
  }
  return code != LOGITPORT_OK;
}

static void print_done(int32_t code) {
  if (!print_error(code, logitport_error(session))) {
    printf("{}");
  }
}

static void open_session(const char *target, char **words) {
  ids eos;
  read_ids(words[3], &eos);
  logitport_options options = LOGITPORT_INIT(logitport_options);
  options.vocab_size = vocab_size = atoi(words[1]);
  options.max_draft_tokens = atoi(words[2]);
  options.eos_token_ids = eos.values;
  options.eos_token_id_count = eos.count;
  options.timeout_seconds = atof(words[4]);
  options.reconnect_seconds = atof(words[5]);
  char error[1024] = "";
  const int32_t code = strcmp(target, "embedded") == 0
                           ? logitport_open_embedded(&options, &session, error, sizeof error)
                           : logitport_open(text_of(target), &options, &session, error, sizeof error);
  if (!print_error(code, text_of(error))) {
    printf("{}");
  }
}

static void add(char **words, size_t count) {
  ids prompt, output;
  read_ids(words[3], &prompt);
  read_ids(words[4], &output);
  logitport_processor chain[max_words];
  for (size_t index = 5; index < count; ++index) {
    char *params = strchr(words[index], '=');
    *params++ = '\0';
    const int is_digest = strlen(words[index]) == 64;
    chain[index - 5] = (logitport_processor){
        strchr(words[index], '/') != NULL ? LOGITPORT_NAME : is_digest ? LOGITPORT_DIGEST : LOGITPORT_BUILTIN,
        text_of(words[index]), text_of(params)};
  }
  logitport_request request = LOGITPORT_INIT(logitport_request);
  request.prompt_ids = prompt.values;
  request.prompt_id_count = prompt.count;
  request.output_ids = output.values;
  request.output_id_count = output.count;
  request.processors = chain;
  request.processor_count = count - 5;
  request.request_id = text_of(words[1]);
  request.skips_on_error = atoi(words[2]);
  logitport_admission admission = {0};
  const int32_t code = logitport_add(session, &request, 1, &admission);
  if (!print_error(code, admission.code != LOGITPORT_OK ? admission.message : logitport_error(session))) {
    find(words[1])->handle = admission.handle;
    printf("{\"reads_logits\": %s}", admission.reads_logits ? "true" : "false");
  }
}

static void print_result(const logitport_result *result, const float *logits, size_t rows) {
  const size_t row_bytes = (size_t)vocab_size * sizeof(float);
  printf("{\"logits\": [");
  for (size_t row = 0; row < rows; ++row) {
    printf("%s\"", row == 0 ? "" : ", ");
    for (size_t index = 0; index < row_bytes; ++index) {
      printf("%02x", ((const unsigned char *)logits)[row * row_bytes + index]);
    }
    printf("\"");
  }
  printf("], \"failures\": {");
  for (size_t index = 0; index < result->failure_count; ++index) {
    const logitport_failure *each = &result->failures[index];
    printf("%s\"%s\": {\"code\": %d, \"skipped\": %s, \"message\": ", index == 0 ? "" : ", ", name_of(each->handle),
           each->code, each->skipped ? "true" : "false");
    print_text(each->message);
    printf("}");
  }
  printf("}, \"all_denied_rows\": [");
  for (size_t index = 0; index < result->all_denied_row_count; ++index) {
    printf("%s%d", index == 0 ? "" : ", ", result->all_denied_rows[index]);
  }
  printf("], \"applied\": {");
  for (size_t index = 0; index < result->applied_count; ++index) {
    printf("%s", index == 0 ? "" : ", ");
    print_text(result->applied[index].processor);
    printf(": %d", result->applied[index].rows);
  }
  printf("}, \"events\": [");
  for (size_t index = 0; index < result->event_count; ++index) {
    const logitport_event *each = &result->events[index];
    printf("%s[\"%s\", ", index == 0 ? "" : ", ", name_of(each->handle));
    print_text(each->processor);
    printf(", %d, ", each->position);
    print_text(each->name);
    printf(", %s]", each->values.size == 0 ? "{}" : each->values.data);
  }
  printf("]}");
}

static void step(char **words, size_t count) {
  static ids new_ids[max_words], drafts[max_words], parents[max_words];
  logitport_step_request step_requests[max_words];
  logitport_row rows[max_words];
  size_t end = 1;
  for (; end < count && strcmp(words[end], "rows") != 0; ++end) {
    char *parts[4];
    if (split(words[end], ':', parts, 4) != 4) {
      fail("not NAME:NEW:DRAFTS:PARENTS", words[end]);
    }
    read_ids(parts[1], &new_ids[end]);
    read_ids(parts[2], &drafts[end]);
    read_ids(parts[3], &parents[end]);
    step_requests[end - 1] = (logitport_step_request){
        find(parts[0])->handle, new_ids[end].values, new_ids[end].count,
        drafts[end].values,     drafts[end].count,   parents[end].count == 0 ? NULL : parents[end].values};
  }
  size_t row_count = 0;
  for (size_t index = end + 1; index < count; ++index) {
    char *parts[2];
    split(words[index], '+', parts, 2);
    rows[row_count].draft_offset = atoi(parts[1]);
    rows[row_count].request = 0;
    while (step_requests[rows[row_count].request].handle != find(parts[0])->handle) {
      ++rows[row_count].request;
    }
    ++row_count;
  }
  ++steps;
  const int32_t begun = logitport_begin(session, step_requests, end - 1, end < count ? rows : NULL, &row_count);
  if (print_error(begun, logitport_error(session))) {
    return;
  }
  float *logits = calloc(row_count * (size_t)vocab_size + 1, sizeof(float));
  for (size_t row = 0; row < row_count; ++row) {
    for (int32_t id = 0; id < vocab_size; ++id) {
      logits[row * (size_t)vocab_size + (size_t)id] = (float)((13 * steps + 31 * (int)row + 17 * id) % 101) / 8 - 4;
    }
  }
  logitport_result result = LOGITPORT_INIT(logitport_result);
  const int32_t code = logitport_apply(session, logits, row_count, (size_t)vocab_size * sizeof(float), &result);
  if (!print_error(code, logitport_error(session))) {
    print_result(&result, logits, row_count);
  }
  free(logits);
}

static void remove_requests(char **words, size_t count) {
  logitport_handle handles[max_words];
  for (size_t index = 1; index < count; ++index) {
    handles[index - 1] = find(words[index])->handle;
  }
  print_done(logitport_remove(session, handles, count - 1));
}

static void print_length(const char *name) {
  int64_t length = 0;
  const int32_t code = logitport_history_length(session, find(name)->handle, &length);
  if (!print_error(code, logitport_error(session))) {
    printf("{\"length\": %lld}", (long long)length);
  }
}

static void print_stats(void) {
  logitport_stats stats = LOGITPORT_INIT(logitport_stats);
  const int32_t code = logitport_stats_of(session, &stats);
  if (!print_error(code, logitport_error(session))) {
    printf("{\"reconnects\": %llu, \"resyncs\": %llu}", (unsigned long long)stats.reconnects,
           (unsigned long long)stats.resyncs);
  }
}

int main(int count, char **arguments) {
  static char line[1 << 16];
  if (count != 2) {
    fail("usage", "driver TARGET");
  }
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    char *words[max_words];
    const size_t words_count = split(line, ' ', words, max_words);
    const char *command = words[0];
    if (strcmp(command, "open") == 0) {
      open_session(arguments[1], words);
    } else if (strcmp(command, "add") == 0) {
      add(words, words_count);
    } else if (strcmp(command, "step") == 0) {
      step(words, words_count);
    } else if (strcmp(command, "remove") == 0) {
      remove_requests(words, words_count);
    } else if (strcmp(command, "rewind") == 0) {
      print_done(logitport_rewind(session, find(words[1])->handle, atoll(words[2])));
    } else if (strcmp(command, "length") == 0) {
      print_length(words[1]);
    } else if (strcmp(command, "stats") == 0) {
      print_stats();
    } else if (strcmp(command, "close") == 0) {
      logitport_close(session);
      printf("{}\n");
      return 0;
    } else {
      fail("unknown command", command);
    }
    printf("\n");
    fflush(stdout);
  }
  return 1;
}
