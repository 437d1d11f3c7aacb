// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a policy means for one program, in words.
#pragma once

#include "policy/policy.h"
#include "tools/program.h"

#include <string>

namespace adverb::tools {

// What to say when Policy::strands_remote() holds.
constexpr const char* stranded_note =
    "regions with remote rights are not pinned and no peer is asked if it runs adverb, so remote "
    "access to them will fail; set \"peers\": \"auto\" for this program";

// Writes to stdout. `device` is the only device to explain, or empty for all that rules name.
void print_explanation(const policy::Policy& policy, const std::string& origin,
                       const Program& program, const std::string& device);

// Who carries requests of queue pairs to pinned regions of the peer, if rules say so; to stdout.
// `whose` ends the title.
void print_steering(const policy::Policy& policy, const std::string& device,
                    const std::string& whose, const in6_addr& peer);

// Which way requests take, and why, whatever the policy; to stdout.
void print_ways();

} // namespace adverb::tools
