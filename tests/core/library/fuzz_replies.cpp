// Reads mutated replies of servers, and parameters of requests: fuzz_replies COUNT SEED. Built with sanitizers, which
// end it at the first finding.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "apply_cpu.h"
#include "builtins/builtin_states.h"
#include "frames.h"
#include "message_fields.h"
#include "step_check.h"
#include "step_message.h"
#include "transports/http2_stream.h"

using namespace logitport;

namespace {

using Random = std::mt19937_64;

constexpr std::int64_t vocab = 70, rows = 4;

std::size_t below(Random &random, std::size_t count) { return random() % count; }

// Change some bytes, remove some, insert some, or repeat a part.
std::string mutated(std::string data, Random &random) {
  for (std::size_t change = 1 + below(random, 4); change > 0; --change) {
    const std::size_t place = below(random, data.size() + 1), size = 1 + below(random, 5);
    switch (below(random, 5)) {
      case 0:
        if (place < data.size()) {
          data[place] = static_cast<char>(random());
        }
        break;
      case 1:
        if (place < data.size()) {
          data[place] = static_cast<char>(data[place] + (below(random, 2) == 0 ? 1 : -1));
        }
        break;
      case 2:
        data.erase(place, size);
        break;
      case 3:
        data.insert(place, std::string(size, static_cast<char>(random())));
        break;
      default:
        data.insert(place, data.substr(below(random, data.size() + 1), size));
    }
  }
  return data;
}

std::string response(BytesField field, const MessageWriter &body) {
  MessageWriter message;
  message.varint(fields::SessionResponse::seq, 7);
  message.bytes(field, body.data());
  return message.data();
}

std::string step_reply() {
  EditsWriter edits(vocab);
  const std::vector<std::int32_t> ids{1, 3, 69};
  const std::vector<float> values{1.5F, -2.0F, 0.25F};
  edits.begin_row(0);
  edits.deny(ids.data(), ids.size());
  edits.begin_row(1);
  edits.bias(ids.data(), values.data(), ids.size());
  edits.allow(ids.data(), 2);
  edits.begin_row(2);
  edits.force(5);
  edits.begin_row(3);
  std::vector<std::int32_t> many(40);
  for (std::size_t index = 0; index < many.size(); ++index) {
    many[index] = static_cast<std::int32_t>(index);
  }
  edits.deny(many.data(), many.size());
  const std::vector<std::int32_t> denied{2};
  const std::vector<AppliedRows> applied{{"disallowed_tokens", "", 4}};
  const std::vector<EventMessage> events{{0, "bad_words", "ids_denied", 3, "{}", 0, 1}};
  StepReplyWriter writer;
  writer.write({7, &edits.columns(), &denied, &applied, 1, true, &events});
  return std::string(writer.message());
}

MessageWriter failure() {
  MessageWriter error, failed;
  error.varint(fields::Error::code, 14);
  error.bytes(fields::Error::message, "differs");
  failed.varint(fields::Failure::slot, 1);
  failed.bytes(fields::Failure::error, error.data());
  return failed;
}

std::vector<std::string> replies() {
  MessageWriter edits, added, chain, opened, local, error, region, edited;
  edits.column(fields::StepEdits::logits_rows, std::vector<std::int32_t>{0, 3});
  edits.bytes(fields::StepEdits::failures, failure().data());
  chain.bytes(fields::AdmittedChain::processors, "min_p");
  added.bytes(fields::RequestsAdded::failures, failure().data());
  added.bytes(fields::RequestsAdded::chains, chain.data());
  added.bytes(fields::RequestsAdded::reads_logits, std::string(1, '\1'));
  local.bytes(fields::LocalTransport::socket_path, "/run/logitport-a/session.sock");
  local.bytes(fields::LocalTransport::access_token, std::string(32, 't'));
  opened.varint(fields::SessionOpened::max_requests, 5);
  opened.bytes(fields::SessionOpened::local_transport, local.data());
  error.varint(fields::Error::code, 2);
  error.bytes(fields::Error::message, "wrong");
  region.varint(fields::RegionOpened::region_id, 3);
  edited.bytes(fields::StepLogitsEdited::failures, failure().data());
  edited.column(fields::StepLogitsEdited::all_denied_rows, std::vector<std::int32_t>{1});
  using Response = fields::SessionResponse;
  return {step_reply(),
          response(Response::edits, edits),
          response(Response::added, added),
          response(Response::opened, opened),
          response(Response::error, error),
          response(Response::region_opened, region),
          response(Response::logits, edited)};
}

// Apply edits to logits of exactly their size.
void apply(const ReplyMessage &reply, Datatype datatype) {
  const auto size = static_cast<std::size_t>(rows * vocab * size_of(datatype));
  const std::unique_ptr<char[]> data(new char[size]());
  const Logits logits{data.get(), {rows, vocab}, vocab * size_of(datatype), size_of(datatype), datatype};
  static_cast<void>(apply_edits(reply.edits, logits));
}

void read_reply(std::string_view data, PackedEdits &sorted, std::size_t &accepted) {
  ResponseMessage found;
  if (!read_response(data, found)) {
    return;
  }
  ReplyMessage reply;
  AddedMessage added;
  SessionTerms terms;
  ErrorMessage error;
  std::uint64_t region_id = 0;
  static_cast<void>(read_added(found.body, added));
  static_cast<void>(read_opened(found.body, terms));
  static_cast<void>(read_error(found.body, error));
  static_cast<void>(read_region_id(found.body, region_id));
  ReplyMessage usual;
  static_cast<void>(read_reply_message(data, usual));
  if (read_step_edits(found.body, reply) && find_problem(reply, {rows, vocab}, sorted).empty()) {
    ++accepted;
    for (const Datatype datatype : {Datatype::fp32, Datatype::fp16, Datatype::bf16}) {
      apply(reply, datatype);
    }
    static_cast<void>(read_logits_edited(found.body, reply));
  }
}

void read_params(const std::string &text) {
  static const std::vector<std::int32_t> eos{1};
  static const std::vector<std::int32_t> prompt{1, 2, 1, 2, 3};
  const History history(prompt.data(), prompt.size(), nullptr, 0);
  for (const char *name : {"bad_words", "disallowed_tokens", "frequency_penalty", "logit_bias", "loop_guard",
                           "min_tokens", "no_repeat_ngram", "presence_penalty", "thinking_budget"}) {
    try {
      EditsWriter edits(vocab);
      edits.begin_row(0);
      make_builtin_state(name, json_object(text, "params"), history, {vocab, eos})->edit(history, edits);
    } catch (const Error &) {  // refused
    }
  }
}

const std::vector<std::string> params{
    R"({"token_ids": [1, 2, 69]})",
    R"({"logit_bias": {"1": 1.5, "69": -1e1}})",
    R"({"bad_words_ids": [[1, 2], [3]], "generated_only": false})",
    R"({"ngram_size": 2, "window_size": 9, "whitelist_token_ids": [3]})",
    R"({"thinking_budget": 3, "thinking_start_ids": [1], "thinking_end_ids": [2], "end_text": [4], "soft_from": 1})",
    R"({"action": "end", "repeats": 2, "max_period": 3, "min_length": 2, "plain_repeats": 0})",
    R"({"min_tokens": 4, "stop_token_ids": [5], "x": "\u00e9\ud83d\ude00", "y": null, "z": true})",
    R"({"presence_penalty": 0.5})"};

// What a server of gRPC sends first: settings, a ping, headers, and a reply; then the end of the call.
std::string stream_of(const std::string &reply) {
  const auto frame = [](char type, char flags, char stream, const std::string &payload) {
    std::string made{'\0', static_cast<char>(payload.size() >> 8U), static_cast<char>(payload.size())};
    return made + type + flags + std::string{'\0', '\0', '\0', stream} + payload;
  };
  const std::string prefix{'\0', '\0', '\0', static_cast<char>(reply.size() >> 8U), static_cast<char>(reply.size())};
  const auto header = [](const std::string &name, const std::string &value) {
    return std::string(1, '\x40') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) + value;
  };
  return frame(4, 0, 0, "") + frame(6, 0, 0, "12345678") + frame(1, 4, 1, "\x20\x88") +
         frame(0, 8, 1, "\2" + prefix + reply + "xx") +
         frame(1, 5, 1,
               header("grpc-status", "8") + header("grpc-message", "a%20b") +
                   header("logitport-error-bin", std::string("\0\x08\x03", 3)));
}

// Open streams with servers that send these bytes.
void read_streams(std::size_t count, Random &random, const std::string &reply) {
  const std::string path = "/tmp/logitport-fuzz-" + std::to_string(::getpid());
  const Descriptor listening(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  ::unlink(path.c_str());
  if (::bind(listening.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
      ::listen(listening.get(), 8) != 0) {
    std::perror("bind");
    std::exit(2);
  }
  for (std::size_t index = 0; index < count; ++index) {
    const std::string sent = mutated(stream_of(reply), random);
    std::thread server([&]() {
      const Descriptor accepted(::accept(listening.get(), nullptr, nullptr));
      static_cast<void>(::send(accepted.get(), sent.data(), sent.size(), MSG_NOSIGNAL));
      ::shutdown(accepted.get(), SHUT_WR);
      std::string rest(4096, '\0');
      while (::recv(accepted.get(), rest.data(), rest.size(), 0) > 0) {
      }
    });
    try {
      const Wakeup wakeup;
      const Deadline deadline(5.0);
      Http2Stream stream("unix:" + path, "/path", "token", wakeup, deadline);
      stream.send("message", deadline);
      static_cast<void>(stream.receive(deadline));
      stream.keep();
    } catch (const Error &) {  // the stream is refused
    }
    server.join();
  }
  ::unlink(path.c_str());
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "fuzz_replies COUNT SEED\n");
    return 2;
  }
  const std::size_t count = std::strtoull(argv[1], nullptr, 10);
  Random random(std::strtoull(argv[2], nullptr, 10));
  const std::vector<std::string> seeds = replies();
  PackedEdits sorted;
  std::size_t accepted = 0;
  for (std::size_t index = 0; index < count; ++index) {
    read_reply(mutated(seeds[index % seeds.size()], random), sorted, accepted);
    if (index % 50 == 0) {
      read_params(mutated(params[index / 50 % params.size()], random));
    }
  }
  read_streams(count / 5000, random, seeds[3]);
  std::printf("%zu replies were read, and %zu applied\n", count, accepted);
  return accepted == 0 ? 1 : 0;
}
