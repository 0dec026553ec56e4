// The columns of edits as objects of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

#include "columns.h"
#include "edits_reader.h"

namespace logitport {

// The elements of an object: of bytes or a memoryview of them, or of a contiguous array. Holds the object.
class Buffer {
 public:
  explicit Buffer(nanobind::handle object)
      : held_(PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
    if (!held_) {
      PyErr_Clear();
    }
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  ~Buffer() {
    if (held_) {
      PyBuffer_Release(&view_);
    }
  }

  // Whether these are bytes that are a whole number of elements, or elements of this type. `format` is its character in
  // Python's module struct.
  template <typename T>
  [[nodiscard]] bool holds(char format) const noexcept {
    if (!held_ || view_.format == nullptr || view_.format[0] == '\0' || view_.format[1] != '\0') {
      return false;
    }
    return (view_.format[0] == 'B' || view_.format[0] == format) && view_.len % static_cast<Py_ssize_t>(sizeof(T)) == 0;
  }

  // Whether this is an array of one dimension, and its format one of these characters.
  template <typename T>
  [[nodiscard]] bool is_array(std::string_view formats) const noexcept {
    return held_ && view_.ndim == 1 && view_.itemsize == static_cast<Py_ssize_t>(sizeof(T)) &&
           view_.format != nullptr && view_.format[0] != '\0' && view_.format[1] == '\0' &&
           formats.find(view_.format[0]) != std::string_view::npos;
  }

  template <typename T>
  [[nodiscard]] Column<T> column() const noexcept {
    return {view_.buf, std::int64_t{view_.len} / static_cast<std::int64_t>(sizeof(T))};
  }

 private:
  Py_buffer view_{};
  bool held_;
};

class EditBuffers {
 public:
  EditBuffers(nanobind::handle rows, nanobind::handle kinds, nanobind::handle offsets, nanobind::handle ids,
              nanobind::handle values)
      : rows_(rows), kinds_(kinds), offsets_(offsets), ids_(ids), values_(values) {}

  // Whether each column is a whole number of elements of its type.
  [[nodiscard]] bool hold_columns() const noexcept {
    return rows_.holds<std::int32_t>('i') && kinds_.holds<std::uint8_t>('B') && offsets_.holds<std::int32_t>('i') &&
           ids_.holds<std::int32_t>('i') && values_.holds<float>('f');
  }

  [[nodiscard]] EditColumns columns() const noexcept {
    return {rows_.column<std::int32_t>(), kinds_.column<std::uint8_t>(), offsets_.column<std::int32_t>(),
            ids_.column<std::int32_t>(), values_.column<float>()};
  }

 private:
  Buffer rows_, kinds_, offsets_, ids_, values_;
};

}  // namespace logitport
