// The Python module logitport_core._core.
#include <nanobind/nanobind.h>

#include "bindings.h"

namespace {

// Number of the interface between this module and the package logitport. Increase it, here and in
// client/logitport/core/compiled.py, with each change after which one no longer works with an earlier other.
constexpr int interface_number = 17;

// Columns of the protocol are little-endian, and are read and written in place. Hashes are products of 128 bits.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof(void *) == 8,
              "the compiled core needs a little-endian machine of 64 bits; logitport runs in pure Python on others");

}  // namespace

NB_MODULE(_core, module) {
  // Objects that still exist when the interpreter exits, in modules and threads, would be reported as leaks.
  nanobind::set_leak_warnings(false);
  module.attr("INTERFACE") = interface_number;
  logitport::bind_errors(module);
  logitport::bind_checksum(module);
  logitport::bind_history(module);
  logitport::bind_states(module);
  logitport::bind_edits(module);
  logitport::bind_reply(module);
  logitport::bind_step_frame(module);
  logitport::bind_batch(module);
}
