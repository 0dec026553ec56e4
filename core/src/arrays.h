// Arrays and bytes that go from Python to the core and back.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "columns.h"
#include "edit_columns.h"
#include "edits_writer.h"

namespace logitport {

// An argument: int32[n], which may be read-only. Bind it with `noconvert`: a conversion wraps large ids.
using Ids = nanobind::ndarray<const std::int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

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

// Calls `visit` with each number of an array of int32 or int64. Returns false for another object.
template <typename Visit>
bool for_each_number(nanobind::handle array, const Visit &visit) {
  const auto visit_all = [&visit](const auto &numbers) {
    for (std::int64_t index = 0; index < numbers.size(); ++index) {
      visit(std::int64_t{numbers[index]});
    }
    return true;
  };
  const Buffer buffer(array);
  return (buffer.is_array<std::int32_t>("il") && visit_all(buffer.column<std::int32_t>())) ||
         (buffer.is_array<std::int64_t>("lq") && visit_all(buffer.column<std::int64_t>()));
}

template <typename T>
using NumpyArray = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

// A numpy array of elements in the memory of `owner`, without a copy. The array keeps the owner.
template <typename T, typename Owner>
NumpyArray<T> to_numpy(T *data, std::size_t size, Owner owner) {
  auto kept = std::make_unique<Owner>(std::move(owner));
  const nanobind::capsule capsule(kept.get(), [](void *pointer) noexcept { delete static_cast<Owner *>(pointer); });
  static_cast<void>(kept.release());
  return NumpyArray<T>(data, {size}, capsule);
}

template <typename T>
NumpyArray<T> to_numpy(std::vector<T> &&values) {
  T *data = values.data();  // a move keeps the address
  const std::size_t size = values.size();
  return to_numpy(data, size, std::move(values));
}

inline std::string_view view(const nanobind::bytes &data) {
  return {static_cast<const char *>(data.data()), data.size()};
}

inline nanobind::bytes to_bytes(std::string_view data) { return nanobind::bytes(data.data(), data.size()); }

template <typename T>
nanobind::bytes to_bytes(const std::vector<T> &elements) {
  return nanobind::bytes(elements.data(), elements.size() * sizeof(T));
}

template <typename T>
nanobind::bytes to_bytes(const Column<T> &column) {
  return to_bytes(column.bytes());
}

// Columns of edits, each as bytes: `EditColumns` of client/logitport/core/edits.py.
using BytesColumns = nanobind::typed<nanobind::tuple, nanobind::bytes, nanobind::bytes, nanobind::bytes,
                                     nanobind::bytes, nanobind::bytes>;

template <typename Edits>
BytesColumns to_bytes_columns(const Edits &edits) {
  return from_columns(edits,
                      [](const auto &...columns) { return BytesColumns(nanobind::make_tuple(to_bytes(columns)...)); });
}

// Columns of edits as arrays: the attributes of `Edits` of client/logitport/core/edits.py.
using EditsArrays = std::tuple<NumpyArray<std::int32_t>, NumpyArray<std::uint8_t>, NumpyArray<std::int32_t>,
                               NumpyArray<std::int32_t>, NumpyArray<float>>;

inline EditsArrays to_arrays(PackedEdits &&edits) {
  return from_columns(edits, [](auto &...columns) { return EditsArrays(to_numpy(std::move(columns))...); });
}

}  // namespace logitport
