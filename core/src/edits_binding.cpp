#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>

#include "apply_cpu.h"
#include "bindings.h"
#include "edit_buffers.h"
#include "edits_reader.h"
#include "logits_memory.h"

namespace nb = nanobind;

namespace logitport {
namespace {

bool edits_proven(nb::handle rows, nb::handle kinds, nb::handle offsets, nb::handle ids, nb::handle values,
                  std::int64_t num_rows, std::int64_t vocab_size) {
  const EditBuffers buffers(rows, kinds, offsets, ids, values);
  return buffers.hold_columns() && proven(buffers.columns(), {num_rows, vocab_size});
}

template <typename T>
Column<T> copy(const Column<T> &column, std::string &memory) {
  memory = column.bytes();
  return {memory.data(), column.size()};
}

bool apply_columns(nb::handle rows, nb::handle kinds, nb::handle offsets, nb::handle ids, nb::handle values,
                   nb::handle logits, bool is_bf16) {
  const EditBuffers buffers(rows, kinds, offsets, ids, values);
  const LogitsMemory memory(logits, is_bf16);
  if (!memory.logits() || !buffers.hold_columns()) {
    return false;
  }
  EditsView edits = buffers.columns();
  if (!takes_long(edits, memory.logits()->shape)) {
    return proven(edits, memory.logits()->shape) && apply_edits(edits, *memory.logits());
  }
  // Copies of what indexes memory: without the interpreter's lock, another thread could change arrays that were proven.
  std::array<std::string, 4> copies;
  edits.rows = copy(edits.rows, copies[0]);
  edits.kinds = copy(edits.kinds, copies[1]);
  edits.offsets = copy(edits.offsets, copies[2]);
  edits.ids = copy(edits.ids, copies[3]);
  const nb::gil_scoped_release unlocked;
  return proven(edits, memory.logits()->shape) && apply_edits(edits, *memory.logits());
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
}

}  // namespace logitport
