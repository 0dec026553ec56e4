#include "apply_cpu.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <cstdlib>
#include <optional>
#include <string_view>

#include "bias_sums.h"
#include "bindings.h"
#include "edit_buffers.h"
#include "floats.h"
#include "logits_row.h"

namespace nb = nanobind;

namespace logitport {
namespace {

// Elements, about 20 us: more work releases the interpreter's lock, which takes up to 5 ms to get back.
constexpr std::int64_t long_work = 1 << 16;

template <typename Visit>
bool for_each_row(const EditColumns &edits, const Visit &visit) {
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
bool apply_to(const EditColumns &edits, const Logits &logits) {
  BiasSums biases(edits);
  const auto row_of = [&](Span span) { return Row<Float>(logits, edits.rows[span.first]); };
  if (logits.datatype == Datatype::bf16 &&
      !for_each_row(edits, [&](Span span) { return !biases.meet_nan(row_of(span), span); })) {
    return false;
  }
  return for_each_row(edits, [&](Span span) {
    const Row<Float> row = row_of(span);
    if (edits.kind(span.first) == EditKind::force) {
      row.fill();
      row[edits.ids[edits.offsets[span.first]]] = 0;
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

// The memory of an array, which it holds.
class Matrix {
 public:
  explicit Matrix(nb::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_STRIDED) != 0) {  // writable, without a format
      throw nb::python_error();
    }
  }
  Matrix(const Matrix &) = delete;
  Matrix &operator=(const Matrix &) = delete;
  ~Matrix() { PyBuffer_Release(&view_); }

  // None if the array has no two dimensions, or elements that share memory or are not aligned.
  [[nodiscard]] std::optional<Logits> logits(Datatype datatype) const noexcept {
    const std::int64_t size = datatype == Datatype::fp32 ? 4 : 2;
    if (view_.ndim != 2 || view_.itemsize != size) {
      return std::nullopt;
    }
    const Logits logits{
        static_cast<char *>(view_.buf), view_.shape[0], view_.shape[1], view_.strides[0], view_.strides[1], datatype};
    const std::int64_t row = std::abs(logits.row_stride), id = std::abs(logits.id_stride);
    const bool apart = (id >= size && row / id >= logits.width) || (row >= size && id / row >= logits.rows);
    const bool aligned = (reinterpret_cast<std::uintptr_t>(view_.buf) % static_cast<std::uintptr_t>(size)) == 0 &&
                         row % size == 0 && id % size == 0;
    return apart && aligned ? std::optional(logits) : std::nullopt;
  }

 private:
  Py_buffer view_{};
};

std::optional<Datatype> datatype_of(std::string_view name) noexcept {
  if (name == "FP32") {
    return Datatype::fp32;
  }
  if (name == "FP16") {
    return Datatype::fp16;
  }
  return name == "BF16" ? std::optional(Datatype::bf16) : std::nullopt;
}

// Number of elements that the edits read or write, about.
std::int64_t work_of(const EditColumns &edits, std::int64_t width) noexcept {
  std::int64_t work = edits.ids.size();
  for (std::int64_t edit = 0; edit < edits.size(); ++edit) {
    const EditKind kind = edits.kind(edit);
    work += kind == EditKind::deny || kind == EditKind::bias ? 0 : width;
  }
  return work;
}

bool apply_edits_to_array(nb::handle rows, nb::handle kinds, nb::handle offsets, nb::handle ids, nb::handle values,
                          nb::handle array, std::string_view datatype) {
  const EditBuffers buffers(rows, kinds, offsets, ids, values);
  const Matrix matrix(array);
  const auto known = datatype_of(datatype);
  const auto logits = known ? matrix.logits(*known) : std::nullopt;
  if (!logits || !buffers.hold_columns()) {
    return false;
  }
  const EditColumns edits = buffers.columns();
  if (!proven(edits, logits->rows, logits->width)) {
    return false;
  }
  if (work_of(edits, logits->width) < long_work) {
    return apply_edits(edits, *logits);
  }
  const nb::gil_scoped_release unlocked;
  return apply_edits(edits, *logits);
}

}  // namespace

bool apply_edits(const EditColumns &edits, const Logits &logits) {
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

void bind_apply_cpu(nb::module_ &module) {
  module.def("apply_edits", &apply_edits_to_array, nb::arg("rows"), nb::arg("kinds"), nb::arg("offsets"),
             nb::arg("ids"), nb::arg("values"), nb::arg("logits"), nb::arg("datatype"),
             "Apply columns of edits to logits, a writable array [rows, vocab_size] of FP32, FP16 or BF16 bits.\n\n"
             "Returns False, and has changed nothing, if it cannot.");
}

}  // namespace logitport
