// Sequences of Python as vectors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

namespace logitport {

// The items of a sequence. To read an item may run code of Python, which may change the sequence, so it is copied
// first. nanobind's own conversion to a vector reads a list in place.
inline nanobind::tuple items_of(nanobind::handle sequence) {
  auto items = nanobind::steal<nanobind::tuple>(PySequence_Tuple(sequence.ptr()));
  if (!items.is_valid()) {
    nanobind::raise_python_error();
  }
  return items;
}

template <typename T>
std::vector<T> numbers_of(nanobind::handle sequence) {
  const nanobind::tuple items = items_of(sequence);
  std::vector<T> numbers(items.size());
  for (std::size_t index = 0; index < numbers.size(); ++index) {
    if (!nanobind::try_cast(items[index], numbers[index])) {
      throw nanobind::type_error("a number of the sequence has another type, or is too large");
    }
  }
  return numbers;
}

}  // namespace logitport
