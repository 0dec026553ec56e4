// The columns of edits as objects of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "arrays.h"
#include "edits_reader.h"

namespace logitport {

// The five columns of `EditsView`. Holds the objects.
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

  [[nodiscard]] EditsView columns() const noexcept {
    return {{rows_.column<std::int32_t>(), kinds_.column<std::uint8_t>(), offsets_.column<std::int32_t>(),
             ids_.column<std::int32_t>(), values_.column<float>()}};
  }

 private:
  Buffer rows_, kinds_, offsets_, ids_, values_;
};

}  // namespace logitport
