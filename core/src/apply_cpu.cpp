#include "apply_cpu.h"

#include "bias_sums.h"
#include "floats.h"

namespace logitport {
namespace {

template <typename Visit>
bool for_each_row(const EditsView &edits, const Visit &visit) {
  for (std::int64_t first = 0, end = 0; first < edits.size(); first = end) {
    for (end = first + 1; end < edits.size() && edits.rows[end] == edits.rows[first];) {
      ++end;
    }
    if (!visit(Span{first, end})) {
      return false;
    }
  }
  return true;
}

template <typename Float>
bool apply_to(const EditsView &edits, const Logits &logits) {
  BiasSums biases(edits);
  const auto row_of = [&](Span span) { return Row<Float>(logits, edits.rows[span.first]); };
  if (logits.datatype == Datatype::bf16 &&
      !for_each_row(edits, [&](Span span) { return !biases.meet_nan(row_of(span), span); })) {
    return false;
  }
  return for_each_row(edits, [&](Span span) {
    const Row<Float> row = row_of(span);
    if (edits.kind(span.first) == EditKind::force) {
      row.deny_all();
      row.set(edits.ids[edits.offsets[span.first]], 0);
    }
    biases.add(row, span);
    for (std::int64_t edit = span.first; edit < span.end; ++edit) {  // their order has no effect
      switch (edits.kind(edit)) {
        case EditKind::allow:
          row.allow(edits.ids_of(edit));
          break;
        case EditKind::bitmask:
          row.mask(edits.ids_of(edit));
          break;
        case EditKind::deny:
          row.deny(edits.ids_of(edit));
          break;
        case EditKind::force:
        case EditKind::bias:
          break;
      }
    }
    return true;
  });
}

}  // namespace

bool apply_edits(const EditsView &edits, const Logits &logits) {
  switch (logits.datatype) {
    case Datatype::fp32:
      return apply_to<Fp32>(edits, logits);
    case Datatype::fp16:
      return apply_to<Fp16>(edits, logits);
    case Datatype::bf16:
      return apply_to<Bf16>(edits, logits);
  }
  return false;
}

bool takes_long(const EditsView &edits, LogitsShape logits) noexcept {
  constexpr std::int64_t long_work = 1 << 16;
  std::int64_t work = edits.ids.size();
  for (std::int64_t edit = 0; edit < edits.kinds.size() && work < long_work; ++edit) {
    const EditKind kind = edits.kind(edit);
    work += kind == EditKind::deny || kind == EditKind::bias ? 0 : logits.width;
  }
  return work >= long_work;
}

}  // namespace logitport
