// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A short history that the simulation's oracle is told of.
#pragma once

#include "../sim/oracle.h"
#include "catch.h"

#include <string>

namespace sim_test {

using namespace sim;

// Two programs, one connection: queue pair 0 of program 0, queue pair 1 of program 1.
struct History {
  explicit History(Transport transport = Transport::rc) {
    oracle.connected(0, 0, 1, 1, false, transport);
    oracle.connected(1, 1, 0, 0, false, transport);
  }
  Operation& next(Kind kind, uint32_t cell, bool fenced = false) {
    operation = {};
    operation.id = ++id;
    operation.kind = kind;
    operation.fenced = fenced;
    operation.target = {1, cell, 1};
    if (kind == Kind::write || kind == Kind::write_imm || kind == Kind::send)
      operation.values = {100 + id};
    return operation;
  }
  uint64_t post(Kind kind, uint32_t cell = 0, bool fenced = false) {
    next(kind, cell, fenced);
    oracle.posted(operation);
    return id;
  }
  void complete(uint64_t which, Status status = Status::success) {
    oracle.completed({which, 0, status, "a status", 1,
                      oracle.operation(which)->kind == Kind::read ? 8U : 0U, false, 0});
  }
  void read(uint64_t which, uint64_t value) {
    oracle.brought(which, {value});
    complete(which);
  }
  void arrive(uint64_t receive, uint64_t value, uint32_t bytes = 8) {
    oracle.received({receive, 1, Status::success, "a status", -1, bytes, false, 0}, {value, 0});
  }
  // What is found, with these cells at the end.
  std::string end(uint64_t first = 0, uint64_t second = 0) {
    oracle.ended({{0, 0}, {first, second}});
    return oracle.findings().empty() ? "" : oracle.findings().front();
  }
  Oracle oracle{2, 2};
  Operation operation;
  uint64_t id = 0;
};

inline bool says(const std::string& finding, const char* what) {
  INFO(finding);
  return finding.find(what) != std::string::npos;
}

} // namespace sim_test
