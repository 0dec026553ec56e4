// Values of Python that need no conversion: dicts, lists, tuples, ints.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <limits>

namespace logitport {

// Another value. The Python version has to read it: it may be valid, or it raises the error.
class NotAccepted : public std::exception {};

inline void require(bool condition) {
  if (!condition) {
    throw NotAccepted();
  }
}

inline nanobind::object attribute(nanobind::handle object, const char *name) {
  nanobind::object value = nanobind::steal(PyObject_GetAttrString(object.ptr(), name));
  if (!value.is_valid()) {
    PyErr_Clear();
    throw NotAccepted();
  }
  return value;
}

// The value of a key, or null.
inline PyObject *find(nanobind::handle dict, nanobind::handle key) {
  PyObject *value = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (value == nullptr) {
    PyErr_Clear();  // of a key that has no hash
  }
  return value;
}

// An int, but not a bool or another object that has a number.
inline std::int32_t integer(nanobind::handle object) {
  require(PyLong_CheckExact(object.ptr()));
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(object.ptr(), &overflow);
  require(overflow == 0 && value >= std::numeric_limits<std::int32_t>::min() &&
          value <= std::numeric_limits<std::int32_t>::max());
  return static_cast<std::int32_t>(value);
}

// Calls `visit` with each item of a list or tuple. Returns false for another object.
template <typename Visit>
bool for_each_item(nanobind::handle sequence, const Visit &visit) {
  if (PyList_CheckExact(sequence.ptr())) {
    for (Py_ssize_t index = 0; index < PyList_Size(sequence.ptr()); ++index) {
      visit(nanobind::handle(PyList_GetItem(sequence.ptr(), index)));
    }
    return true;
  }
  if (PyTuple_CheckExact(sequence.ptr())) {
    for (Py_ssize_t index = 0; index < PyTuple_Size(sequence.ptr()); ++index) {
      visit(nanobind::handle(PyTuple_GetItem(sequence.ptr(), index)));
    }
    return true;
  }
  return false;
}

}  // namespace logitport
