#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "apply_cpu.h"
#include "bindings.h"
#include "edit_buffers.h"
#include "edits_reader.h"
#include "logits_memory.h"

namespace nb = nanobind;

namespace logitport {
namespace {

// Elements that take about 20 us. It can take 5 ms to get the interpreter's lock back.
constexpr std::int64_t long_work = 1 << 16;

// Number of elements that the edits read or write, about.
std::int64_t work_of(const EditColumns &edits, std::int64_t width) noexcept {
  std::int64_t work = edits.ids.size();
  for (std::int64_t edit = 0; edit < edits.size(); ++edit) {
    const EditKind kind = edits.kind(edit);
    work += kind == EditKind::deny || kind == EditKind::bias ? 0 : width;
  }
  return work;
}

bool apply_to_memory(const EditColumns &edits, const Logits &logits) {
  if (work_of(edits, logits.width) < long_work) {
    return apply_edits(edits, logits);
  }
  const nb::gil_scoped_release unlocked;
  return apply_edits(edits, logits);
}

bool edits_proven(nb::handle rows, nb::handle kinds, nb::handle offsets, nb::handle ids, nb::handle values,
                  std::int64_t num_rows, std::int64_t vocab_size) {
  const EditBuffers buffers(rows, kinds, offsets, ids, values);
  return buffers.hold_columns() && proven(buffers.columns(), num_rows, vocab_size);
}

bool apply_columns(nb::handle rows, nb::handle kinds, nb::handle offsets, nb::handle ids, nb::handle values,
                   nb::handle logits, bool is_bf16) {
  const EditBuffers buffers(rows, kinds, offsets, ids, values);
  const LogitsMemory memory(logits, is_bf16);
  if (!memory.logits() || !buffers.hold_columns()) {
    return false;
  }
  const EditColumns edits = buffers.columns();
  return proven(edits, memory.logits()->rows, memory.logits()->width) && apply_to_memory(edits, *memory.logits());
}

// Edits that were proven for logits of a shape and datatype. Holds the columns, which are not copied.
class ReadEdits {
 public:
  ReadEdits(nb::handle rows, nb::handle kinds, nb::handle offsets, nb::handle ids, nb::handle values,
            std::int64_t num_rows, std::int64_t vocab_size, Datatype datatype)
      : buffers_(rows, kinds, offsets, ids, values),
        num_rows_(num_rows),
        vocab_size_(vocab_size),
        datatype_(datatype) {}

  [[nodiscard]] bool are_proven() const noexcept {
    return buffers_.hold_columns() && proven(buffers_.columns(), num_rows_, vocab_size_);
  }

  [[nodiscard]] bool apply(nb::handle logits) const {
    const LogitsMemory memory(logits, false);
    const auto &found = memory.logits();
    return found && found->rows == num_rows_ && found->width == vocab_size_ && found->datatype == datatype_ &&
           apply_to_memory(buffers_.columns(), *found);
  }

 private:
  EditBuffers buffers_;
  std::int64_t num_rows_, vocab_size_;
  Datatype datatype_;
};

// None if this is not proven.
nb::object read_edits(const nb::bytes &rows, const nb::bytes &kinds, const nb::bytes &offsets, const nb::bytes &ids,
                      const nb::bytes &values, std::int64_t num_rows, std::int64_t vocab_size, Datatype datatype) {
  auto edits = std::make_unique<ReadEdits>(rows, kinds, offsets, ids, values, num_rows, vocab_size, datatype);
  return edits->are_proven() ? nb::cast(edits.release(), nb::rv_policy::take_ownership) : nb::none();
}

}  // namespace

void bind_edits(nb::module_ &module) {
  module.def("edits_proven", &edits_proven, nb::arg("rows"), nb::arg("kinds"), nb::arg("offsets"), nb::arg("ids"),
             nb::arg("values"), nb::arg("num_rows"), nb::arg("vocab_size"),
             "Whether columns, objects with little-endian bytes, are valid edits in ascending order of rows.");
  module.def("apply_edits", &apply_columns, nb::arg("rows"), nb::arg("kinds"), nb::arg("offsets"), nb::arg("ids"),
             nb::arg("values"), nb::arg("logits"), nb::arg("is_bf16"),
             "Apply columns of edits to logits, [rows, vocab_size], of torch or numpy.\n\n"
             "With is_bf16, they are an array of int16 with the bits of bfloat16. Returns False, and has changed "
             "nothing, if it cannot.");
  nb::enum_<Datatype>(module, "Datatype")
      .value("FP32", Datatype::fp32)
      .value("FP16", Datatype::fp16)
      .value("BF16", Datatype::bf16);
  nb::class_<ReadEdits>(module, "ReadEdits", "Edits that were proven for logits of a shape and datatype.")
      .def("apply", &ReadEdits::apply, nb::arg("logits"),
           "Apply the edits to logits of torch or numpy.\n\nReturns False, and has changed nothing, if it cannot.");
  module.def("read_edits", &read_edits, nb::arg("rows"), nb::arg("kinds"), nb::arg("offsets"), nb::arg("ids"),
             nb::arg("values"), nb::arg("num_rows"), nb::arg("vocab_size"), nb::arg("datatype"),
             nb::sig("def read_edits(rows: bytes, kinds: bytes, offsets: bytes, ids: bytes, values: bytes, "
                     "num_rows: int, vocab_size: int, datatype: Datatype) -> ReadEdits | None"),
             "Check columns as edits_proven. Returns None if it is not proven.");
}

}  // namespace logitport
