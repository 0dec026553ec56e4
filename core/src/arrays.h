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

// An argument: int32[n], which may be read-only. Bind it with `noconvert`: a conversion wraps large ids.
using Ids = nanobind::ndarray<const std::int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

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

// rows, kinds, offsets, ids and values, in the order of the fields of `Edits`.
using EditsArrays = std::tuple<NumpyArray<std::int32_t>, NumpyArray<std::uint8_t>, NumpyArray<std::int32_t>,
                               NumpyArray<std::int32_t>, NumpyArray<float>>;

inline EditsArrays to_arrays(EditsColumns &&columns) {
  return {to_numpy(std::move(columns.rows)), to_numpy(std::move(columns.kinds)), to_numpy(std::move(columns.offsets)),
          to_numpy(std::move(columns.ids)), to_numpy(std::move(columns.values))};
}

}  // namespace logitport
