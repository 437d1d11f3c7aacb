// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Which way requests take: the library's own choice (steering/choose.h), asked with made-up facts.
#include "steering/choose.h"
#include "tools/explain.h"
#include "ways/table.h"

#include <cstdio>
#include <string>
#include <vector>

namespace adverb::tools {

namespace {

using steering::Facts;
using steering::KeyVerdict;
using steering::Peer;

constexpr struct {
  const char* name;
  ibv_wr_opcode opcode;
} operations[] = {
    {"WRITE", IBV_WR_RDMA_WRITE},
    {"WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM},
    {"READ", IBV_WR_RDMA_READ},
    {"atomic", IBV_WR_ATOMIC_FETCH_AND_ADD},
};

constexpr struct {
  const char* name;
  Peer peer;
  KeyVerdict::Kind key;
  bool leased = false;
  bool viewed = false;
} targets[] = {
    {"an unpinned region of a peer that runs adverb", Peer::linked, KeyVerdict::Kind::virtual_key},
    {"a part of such a region that its owner leases", Peer::linked, KeyVerdict::Kind::virtual_key,
     true},
    {"a part of such a region that the NIC reads through adverb.ko (np)", Peer::linked,
     KeyVerdict::Kind::virtual_key, false, true},
    {"a pinned region of a peer that runs adverb", Peer::linked, KeyVerdict::Kind::real},
    {"a peer without adverb", Peer::stock, KeyVerdict::Kind::unknown},
    {"a peer of which nothing is known yet", Peer::unknown, KeyVerdict::Kind::unknown},
};

std::string said_of(const Facts& facts) {
  return steering::words(steering::choose(facts, ways::table()), facts);
}

} // namespace

void print_ways() {
  puts("ways      of requests of connected queue pairs, signaled, with 8 bytes");
  Facts send;
  send.connected = true;
  printf("  SEND: %s\n", said_of(send).c_str());
  send.ahead = send.proven = true;
  send.peer = Peer::linked;
  printf("  SEND of more than four packets, with losses made good in software: %s\n",
         said_of(send).c_str());
  for (const auto& target : targets) {
    printf("  to %s\n", target.name);
    // Operations that are told the same share a line.
    std::vector<std::pair<std::string, std::string>> lines;
    for (const auto& operation : operations) {
      Facts facts;
      facts.opcode = operation.opcode;
      facts.length = 8;
      facts.connected = true;
      facts.peer = target.peer;
      facts.key = {1, target.key};
      facts.signaled = true;
      facts.leased = target.leased;
      facts.viewed = target.viewed;
      const std::string said = said_of(facts);
      if (!lines.empty() && lines.back().second == said)
        lines.back().first += std::string(", ") + operation.name;
      else
        lines.emplace_back(operation.name, said);
    }
    for (const auto& [names, said] : lines)
      printf("    %s: %s\n", names.c_str(), said.c_str());
  }
}

} // namespace adverb::tools
