// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Every row of the send queue's table is walked by the other tests of this program, and the table
// is the one that queue/README.md shows. Last of them, as the list of sources has it.
#include "queue_bench.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

using namespace adverb;
using namespace adverb::test;

namespace {

bool walked[stages][dispositions][events];

bool& walked_at(Stage stage, Disposition disposition, Event event) {
  return walked[static_cast<size_t>(stage)][static_cast<size_t>(disposition)]
               [static_cast<size_t>(event)];
}

// Allocations of this thread, counted by the operators below.
thread_local uint64_t allocations = 0;

} // namespace

void* operator new(size_t bytes) {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* what) noexcept {
  std::free(what);
}
void operator delete(void* what, size_t) noexcept {
  std::free(what);
}

namespace adverb::steering {
void watch_event(Stage stage, Disposition disposition, Event event) noexcept {
  walked_at(stage, disposition, event) = true;
}
} // namespace adverb::steering

namespace {

// Every (stage, disposition, event) that queue/README.md has a row for, and what it makes of it.
std::map<std::string, std::string> rows_of_readme() {
  std::ifstream file(ADVERB_SOURCE "/preload/queue/README.md");
  std::map<std::string, std::string> out;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(words, cell, '|');) {
      const auto from = cell.find_first_not_of(' ');
      if (from != std::string::npos)
        cells.push_back(cell.substr(from, cell.find_last_not_of(' ') - from + 1));
    }
    const bool is_row = cells.size() == 6 && std::find(stage_names.begin(), stage_names.end(),
                                                       cells[0]) != stage_names.end();
    if (is_row)
      out[cells[0] + " " + cells[1] + " " + cells[2]] = cells[3] + " " + cells[4];
  }
  return out;
}

std::string name(Stage stage, Disposition disposition) {
  return std::string(stage_names[static_cast<size_t>(stage)]) + " " +
         std::string(disposition_names[static_cast<size_t>(disposition)]);
}
std::string name(Stage stage, Disposition disposition, Event event) {
  return name(stage, disposition) + " " + std::string(event_names[static_cast<size_t>(event)]);
}

} // namespace

TEST_CASE("a post allocates nothing once its way exists", "[queue]") {
  Bench b;
  b.post(IBV_WR_SEND);
  b.land(0);
  b.device.keep = false;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  Completion c;
  c.wc.status = success;
  b.stand_.landed.reserve(1000);
  const uint64_t before = allocations;
  for (c.wc.wr_id = 1; c.wc.wr_id < 200; ++c.wc.wr_id) {
    b.ring.append(wr);
    b.queue.turn(c.wc.wr_id);
    b.queue.on_completion(c);
  }
  const uint64_t after = allocations;
  CHECK(b.ring.empty());
  CHECK(after == before);
}

TEST_CASE("the table of queue/README.md is the code's, and every row has been walked", "[queue]") {
  const auto shown = rows_of_readme();
  std::map<std::string, std::string> coded;
  for (const Row& row : table) {
    coded[name(row.stage, row.disposition, row.event)] = name(row.to_stage, row.to_disposition);
    INFO(name(row.stage, row.disposition, row.event));
    CHECK(walked_at(row.stage, row.disposition, row.event));
  }
  CHECK(shown == coded);
}
