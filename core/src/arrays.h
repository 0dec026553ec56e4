// Arrays that go from Python to the core and back.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "edits_writer.h"

namespace logitport {

// An argument: int32[n], as it is or converted without loss by Python. It may be read-only.
using Ids = nanobind::ndarray<const std::int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
using NumpyArray = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

// A numpy array of a vector's elements, without a copy; the array keeps the vector.
template <typename T>
NumpyArray<T> to_numpy(std::vector<T> &&values) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T *data = kept->data();
  const std::size_t size = kept->size();
  const nanobind::capsule owner(kept.get(),
                                [](void *pointer) noexcept { delete static_cast<std::vector<T> *>(pointer); });
  kept.release();
  return NumpyArray<T>(data, {size}, owner);
}

// rows, kinds, offsets, ids and values, in the order of the fields of `Edits`.
using EditsArrays = std::tuple<NumpyArray<std::int32_t>, NumpyArray<std::uint8_t>, NumpyArray<std::int32_t>,
                               NumpyArray<std::int32_t>, NumpyArray<float>>;

inline EditsArrays to_arrays(EditsColumns &&columns) {
  return {to_numpy(std::move(columns.rows)), to_numpy(std::move(columns.kinds)), to_numpy(std::move(columns.offsets)),
          to_numpy(std::move(columns.ids)), to_numpy(std::move(columns.values))};
}

}  // namespace logitport
