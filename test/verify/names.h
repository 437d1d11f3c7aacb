// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Verbs numbers as the words the manual pages use.
#pragma once

#include <string>

namespace verify {

std::string errno_name(int err); // "0" for none
const char* status_name(int wc_status);
const char* wc_opcode_name(int opcode);
const char* wr_opcode_name(int opcode);
const char* state_name(int qp_state);
const char* event_name(int event_type);

} // namespace verify
