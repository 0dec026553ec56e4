#include "errors.h"

#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "bindings.h"

namespace nb = nanobind;

namespace logitport {
namespace {

// Python callable (code, message) -> exception. Never released: the interpreter may be gone when statics are destroyed.
PyObject *error_factory = nullptr;

void set_error_factory(const nb::object &factory) {
  nb::object previous = nb::steal(error_factory);
  error_factory = nb::object(factory).release().ptr();
}

void set_python_error(ErrorCode code, const char *message) {
  if (error_factory == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, message);
    return;
  }
  try {
    nb::object error = nb::handle(error_factory)(static_cast<int>(code), message);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  } catch (nb::python_error &failure) {
    failure.restore();
  }
}

// Exceptions that nanobind makes from Python's stay as they are; any other one that is not ours is a defect.
void translate(const std::exception_ptr &exception, void * /*payload*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error &error) {
    set_python_error(error.code(), error.what());
  } catch (const nb::python_error &) {
    throw;
  } catch (const nb::builtin_exception &) {
    throw;
  } catch (const std::bad_alloc &) {
    throw;
  } catch (const std::exception &error) {
    set_python_error(ErrorCode::internal, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_ &module) {
  module.def("set_error_factory", &set_error_factory, nb::arg("factory"),
             "Set the callable (code, message) that makes the exception for an error of the core.");
  nb::register_exception_translator(translate);
}

}  // namespace logitport
