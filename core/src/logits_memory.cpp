#include "logits_memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace nb = nanobind;

namespace logitport {
namespace {

// The table of functions that a type of tensors has as `__dlpack_c_exchange_api__`, as DLPack 1.3 defines it:
// https://dmlc.github.io/dlpack/latest/python_spec.html. Other ways to the memory run Python code, or copy what
// describes it, and take ten times as long.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi *previous;
  void *allocate;
  void *to_managed;
  void *from_managed;
  int (*to_tensor)(void *object, nb::dlpack::dltensor *tensor);
  void *current_stream;
};

constexpr std::int32_t cpu = 1;  // kDLCPU

// Whether this is torch.Tensor. A subclass may have no memory, or other values than those in it.
bool is_tensor_of_torch(nb::handle type) {
  return nb::cast<std::string_view>(type.attr("__module__")) == "torch" &&
         nb::cast<std::string_view>(type.attr("__name__")) == "Tensor";
}

// The functions of a type, or null. Of the last type they are kept.
const ExchangeApi *exchange_api(nb::handle type) {
  static PyObject *known = nullptr;  // never released: the interpreter may be gone when statics are destroyed
  static const ExchangeApi *api = nullptr;
  if (known != type.ptr()) {
    Py_XDECREF(known);
    known = type.inc_ref().ptr();
    api = nullptr;
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0 && is_tensor_of_torch(type)) {
      const auto *found = static_cast<const ExchangeApi *>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      api = found->major == 1 ? found : nullptr;
    }
  }
  return api;
}

std::optional<Datatype> datatype_of(const nb::dlpack::dtype &dtype) noexcept {
  if (dtype.lanes == 1 && dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) {
    if (dtype.bits == 32) {
      return Datatype::fp32;
    }
    return dtype.bits == 16 ? std::optional(Datatype::fp16) : std::nullopt;
  }
  const bool is_bf16 =
      dtype.lanes == 1 && dtype.bits == 16 && dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat);
  return is_bf16 ? std::optional(Datatype::bf16) : std::nullopt;
}

bool is_usable(const Logits &logits) noexcept {
  const std::int64_t size = size_of(logits.datatype);
  const std::int64_t row = std::abs(logits.row_stride), id = std::abs(logits.id_stride);
  const bool apart = (id >= size && row / id >= logits.shape.width) || (row >= size && id / row >= logits.shape.rows);
  return logits.data != nullptr && apart && row % size == 0 && id % size == 0 &&
         reinterpret_cast<std::uintptr_t>(logits.data) % static_cast<std::uintptr_t>(size) == 0;
}

}  // namespace

LogitsMemory::LogitsMemory(nb::handle logits, bool is_bf16) {
  if (PyObject_CheckBuffer(logits.ptr()) != 0) {
    open_array(logits, is_bf16);
  } else {
    open_tensor(logits);
  }
  if (logits_ && !is_usable(*logits_)) {
    logits_.reset();
  }
}

LogitsMemory::~LogitsMemory() {
  if (held_) {
    PyBuffer_Release(&view_);
  }
}

void LogitsMemory::open_tensor(nb::handle tensor) {
  const ExchangeApi *api = exchange_api(tensor.type());
  nb::dlpack::dltensor found{};
  if (api == nullptr || api->to_tensor == nullptr || api->to_tensor(tensor.ptr(), &found) != 0) {
    PyErr_Clear();
    return;
  }
  const auto datatype = datatype_of(found.dtype);
  if (!datatype || found.device.device_type != cpu || found.ndim != 2 || found.strides == nullptr) {
    return;
  }
  const std::int64_t size = size_of(*datatype);
  const Logits logits{static_cast<char *>(found.data) + found.byte_offset,
                      {found.shape[0], found.shape[1]},
                      found.strides[0] * size,
                      found.strides[1] * size,
                      *datatype};
  // A view of the imaginary parts of complex numbers may have the negated values. It has gaps between its elements.
  if (found.strides[1] == 1 || !nb::cast<bool>(tensor.attr("is_neg")())) {
    logits_ = logits;
  }
}

void LogitsMemory::open_array(nb::handle array, bool is_bf16) {
  held_ = PyObject_GetBuffer(array.ptr(), &view_, PyBUF_RECORDS) == 0;  // writable, with strides and format
  if (!held_) {
    PyErr_Clear();
    return;
  }
  if (view_.ndim != 2 || view_.format == nullptr) {
    return;
  }
  std::optional<Datatype> datatype;
  if (is_bf16) {
    datatype = std::strcmp(view_.format, "h") == 0 ? std::optional(Datatype::bf16) : std::nullopt;
  } else if (std::strcmp(view_.format, "f") == 0) {
    datatype = Datatype::fp32;
  } else if (std::strcmp(view_.format, "e") == 0) {
    datatype = Datatype::fp16;
  }
  if (datatype) {
    logits_ = Logits{static_cast<char *>(view_.buf),
                     {view_.shape[0], view_.shape[1]},
                     view_.strides[0],
                     view_.strides[1],
                     *datatype};
  }
}

}  // namespace logitport
