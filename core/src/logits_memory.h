// The memory of logits that are a tensor of torch or an array of numpy.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "logits_row.h"

namespace logitport {

// Holds a view of the logits, for as long as they are written to.
class LogitsMemory {
 public:
  // `is_bf16`: whether the elements of an array, which have 16 bits, are bf16.
  LogitsMemory(nanobind::handle logits, bool is_bf16);
  LogitsMemory(const LogitsMemory &) = delete;
  LogitsMemory &operator=(const LogitsMemory &) = delete;
  ~LogitsMemory();

  // None if they are no matrix of a datatype in the memory of the CPU, if they may not be written to, or if elements
  // share memory or are not aligned.
  [[nodiscard]] const std::optional<Logits> &logits() const noexcept { return logits_; }

 private:
  void open_tensor(nanobind::handle tensor);
  void open_array(nanobind::handle array, bool is_bf16);

  std::optional<Logits> logits_;
  Py_buffer view_{};
  bool held_ = false;  // whether there is a view
};

}  // namespace logitport
