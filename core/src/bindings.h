// The functions that add each job's classes and functions to the Python module, one for each file.
#pragma once

#include <nanobind/nanobind.h>

namespace logitport {

void bind_errors(nanobind::module_ &module);
void bind_edits(nanobind::module_ &module);
void bind_checksum(nanobind::module_ &module);
void bind_history(nanobind::module_ &module);
void bind_states(nanobind::module_ &module);
void bind_batch(nanobind::module_ &module);
void bind_reply(nanobind::module_ &module);
void bind_step_frame(nanobind::module_ &module);

}  // namespace logitport
