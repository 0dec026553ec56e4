#include "frames.h"

#include <cstring>

#include "frame_socket.h"
#include "message_fields.h"
#include "message_reader.h"
#include "message_writer.h"

namespace logitport {
namespace {

// As protobuf: nothing for a number that is 0, and for empty text.
void number(MessageWriter &message, VarintField field, std::uint64_t value) {
  if (value != 0) {
    message.varint(field, value);
  }
}

void text(MessageWriter &message, BytesField field, std::string_view value) {
  if (!value.empty()) {
    message.bytes(field, value);
  }
}

std::string frame(std::uint64_t seq, BytesField field, std::string_view content) {
  MessageWriter message;
  message.resize(length_bytes);
  message.varint(fields::SessionRequest::seq, seq);
  message.bytes(field, content);
  message.overwrite(0, static_cast<std::uint32_t>(message.data().size() - length_bytes));
  return message.take();
}

double read_float(std::string_view bytes) {
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return double{value};
}

bool read_local_transport(std::string_view data, SessionTerms &terms) {
  MessageReader reader(data);
  while (reader.next()) {
    switch (reader.tag) {
      case fields::LocalTransport::socket_path.tag():
        terms.socket_path = reader.bytes;
        break;
      case fields::LocalTransport::access_token.tag():
        terms.access_token = reader.bytes;
        break;
      case fields::LocalTransport::max_message_bytes.tag():
        terms.max_message_bytes = static_cast<std::int64_t>(reader.value);
        break;
      default:
        break;
    }
  }
  return reader.is_at_end();
}

bool read_chain(std::string_view data, AddedMessage::Chain &chain) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::AdmittedChain::processors.tag()) {
      chain.processors.push_back(reader.bytes);
    } else if (reader.tag == fields::AdmittedChain::follows_from_history.tag()) {
      chain.follows_from_history = reader.value != 0;
    }
  }
  return reader.is_at_end();
}

BytesField naming_field(std::int32_t naming) {
  switch (naming) {
    case 2:
      return fields::Processor::name;
    case 3:
      return fields::Processor::digest;
    case 4:
      return fields::Processor::payload;
    default:
      return fields::Processor::builtin;
  }
}

}  // namespace

std::string open_message(const SessionOptions &options, std::size_t expected_requests) {
  using Open = fields::OpenSession;
  MessageWriter open;
  number(open, Open::vocab_size, static_cast<std::uint64_t>(options.vocab_size));
  text(open, Open::datatype, options.datatype);
  text(open, Open::device, "cpu");
  text(open, Open::model_name, options.model_name);
  text(open, Open::tokenizer_id, options.tokenizer_id);
  std::string packed;
  for (const std::int32_t id : options.eos_token_ids) {
    auto value = static_cast<std::uint32_t>(id);
    for (; value >= 0x80U; value >>= 7U) {
      packed.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
    }
    packed.push_back(static_cast<char>(value));
  }
  text(open, Open::eos_token_ids, packed);
  number(open, Open::max_requests, static_cast<std::uint64_t>(options.max_requests));
  number(open, Open::max_draft_tokens, static_cast<std::uint64_t>(options.max_draft_tokens));
  text(open, Open::engine, options.engine);
  number(open, Open::expected_requests, expected_requests);
  return frame(1, fields::SessionRequest::open, open.data()).substr(length_bytes);
}

std::string remove_frame(std::uint64_t seq, const std::vector<std::int32_t> &slots,
                         const std::vector<std::int32_t> &generations) {
  MessageWriter remove;
  remove.column(fields::RemoveRequests::slots, slots);
  remove.column(fields::RemoveRequests::generations, generations);
  return frame(seq, fields::SessionRequest::remove, remove.data());
}

std::string open_region_frame(std::uint64_t seq, std::size_t size_bytes, std::uint64_t replaces) {
  MessageWriter open;
  number(open, fields::OpenRegion::size_bytes, size_bytes);
  number(open, fields::OpenRegion::replaces, replaces);
  return frame(seq, fields::SessionRequest::open_region, open.data());
}

std::string logits_frame(std::uint64_t seq, const SessionOptions &options, const LogitsPlace &place) {
  MessageWriter region, tensor, logits;
  number(region, fields::Region::region_id, place.region_id);
  number(region, fields::Region::byte_offset, place.byte_offset);
  text(tensor, fields::Tensor::datatype, options.datatype);
  std::string shape;
  for (auto size : {static_cast<std::uint64_t>(place.rows), static_cast<std::uint64_t>(options.vocab_size)}) {
    for (; size >= 0x80U; size >>= 7U) {
      shape.push_back(static_cast<char>((size & 0x7FU) | 0x80U));
    }
    shape.push_back(static_cast<char>(size));
  }
  tensor.bytes(fields::Tensor::shape, shape);
  tensor.bytes(fields::Tensor::region, region.data());
  logits.bytes(fields::StepLogits::logits, tensor.data());
  return frame(seq, fields::SessionRequest::logits, logits.data());
}

void AddFrame::add(const HeldRequest &request) {
  using fields::Request;
  const auto column = [](const History &history, std::int64_t begin, std::int64_t end) {
    return std::string_view(reinterpret_cast<const char *>(history.data() + begin),
                            static_cast<std::size_t>(end - begin) * sizeof(std::int32_t));
  };
  const History &history = request.history;
  MessageWriter content;
  text(content, Request::request_id, request.request_id);
  text(content, Request::prompt_ids, column(history, 0, history.prompt_length()));
  text(content, Request::output_ids, column(history, history.prompt_length(), history.length()));
  for (const ProcessorCall &call : request.processors) {
    MessageWriter processor, entry;
    processor.bytes(naming_field(call.naming), call.name);
    entry.bytes(fields::ProcessorCall::processor, processor.data());
    text(entry, fields::ProcessorCall::params, call.params);
    content.bytes(Request::processors, entry.data());
  }
  text(content, Request::sampling_params, request.sampling_params);
  text(content, Request::tenant, request.tenant);
  number(content, Request::on_error, request.skips ? 2 : 1);
  MessageWriter slotted;
  number(slotted, fields::SlottedRequest::slot, static_cast<std::uint64_t>(request.slot));
  number(slotted, fields::SlottedRequest::generation, static_cast<std::uint64_t>(request.generation));
  slotted.bytes(fields::SlottedRequest::request, content.data());
  requests_.bytes(fields::AddRequests::requests, slotted.data());
}

std::string AddFrame::take(std::uint64_t seq) {
  std::string made = frame(seq, fields::SessionRequest::add, requests_.data());
  requests_.clear();
  return made;
}

bool read_opened(std::string_view data, SessionTerms &terms) {
  MessageReader reader(data);
  while (reader.next()) {
    switch (reader.tag) {
      case fields::SessionOpened::max_requests.tag():
        terms.max_requests = static_cast<std::int32_t>(reader.value);
        break;
      case fields::SessionOpened::local_transport.tag():
        terms.has_local_transport = true;
        if (!read_local_transport(reader.bytes, terms)) {
          return false;
        }
        break;
      case fields::SessionOpened::step_deadline_seconds.tag():
        terms.step_deadline_seconds = read_float(reader.bytes);
        break;
      case fields::SessionOpened::add_deadline_seconds.tag():
        terms.add_deadline_seconds = read_float(reader.bytes);
        break;
      default:
        break;
    }
  }
  return reader.is_at_end();
}

bool read_added(std::string_view data, AddedMessage &added) {
  MessageReader reader(data);
  while (reader.next()) {
    bool valid = true;
    switch (reader.tag) {
      case fields::RequestsAdded::failures.tag():
        valid = read_failure(reader.bytes, added.failures.emplace_back());
        break;
      case fields::RequestsAdded::reads_logits.tag():
        added.reads_logits = reader.bytes;
        break;
      case fields::RequestsAdded::chains.tag():
        valid = read_chain(reader.bytes, added.chains.emplace_back());
        break;
      case fields::RequestsAdded::regions_retired.tag():
        added.regions_retired = reader.value != 0;
        break;
      default:
        break;
    }
    if (!valid) {
      return false;
    }
  }
  return reader.is_at_end();
}

bool read_region_id(std::string_view data, std::uint64_t &region_id) {
  MessageReader reader(data);
  while (reader.next()) {
    if (reader.tag == fields::RegionOpened::region_id.tag()) {
      region_id = reader.value;
    }
  }
  return reader.is_at_end();
}

}  // namespace logitport
