// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The trace: who reads it sees whole events, in order, in the page, beside it and in a file.
#include "catch.h"
#include "test_observe_child.h"

#include "observe/directory.h"
#include "observe/layout.h"
#include "observe/trace_log.h"

#include <atomic>
#include <csignal>
#include <sys/stat.h>
#include <thread>
#include <vector>

using namespace adverb::observe;
using observe_test::Child;
using observe_test::process;
using observe_test::Sandbox;

namespace {

const Identity kIdentity{"/usr/lib/libadverb.so", "profile unpinned", "rxe", "rxe0"};

TraceEvent filled_with(uint32_t value) {
  return {.qpn = value,
          .kind = TraceKind::way,
          .first = static_cast<uint8_t>(value),
          .second = static_cast<uint8_t>(value),
          .reason = static_cast<uint8_t>(value),
          .key = value,
          .address = value,
          .bytes = value};
}

bool is_whole(const TraceEvent& event) {
  TraceEvent all = filled_with(event.qpn);
  all.time_ns = event.time_ns;
  return memcmp(&all, &event, sizeof all) == 0;
}

std::string with_events(const std::string& events) {
  return "{\"pid\": 1, \"program\": \"\", \"trace\": {\"meaning\": " +
         std::to_string(kTraceMeaning) +
         ", \"taken_ns\": 0, \"to_real_ns\": 0, \"events\": " + events + "}}";
}

TraceLog log_of(const Sandbox& box) {
  const auto pages = find_pages({box.path.string()}, geteuid());
  REQUIRE(pages.size() == 1);
  auto read = read_trace(pages[0].path);
  if (const auto* error = std::get_if<SnapshotError>(&read))
    FAIL(error->text);
  return std::get<TraceLog>(read);
}

} // namespace

TEST_CASE("the last events stay, with their numbers and times", "[observe][trace]") {
  adverb::SteadyClock clock;
  Trace trace(clock);
  const PageHeader header{};
  CHECK(trace_of(header, trace.ring()).events.empty());
  const auto before = static_cast<uint64_t>(clock.now().count());
  for (uint32_t i = 0; i < kTraceEvents + 10; ++i)
    trace.add(filled_with(i));
  const TraceLog log = trace_of(header, trace.ring());
  REQUIRE(log.events.size() == kTraceEvents);
  CHECK(log.events.front().first == 10);
  uint64_t last = before;
  for (const auto& [number, event] : log.events) {
    CHECK(event.qpn == number);
    CHECK(is_whole(event));
    CHECK(event.time_ns >= last);
    last = event.time_ns;
  }
  CHECK(last <= static_cast<uint64_t>(clock.now().count()));
}

TEST_CASE("writers at once and a reader: no event is torn", "[observe][trace]") {
  adverb::SteadyClock clock;
  Trace trace(clock);
  constexpr uint32_t each = 50'000;
  const auto write = [&](uint32_t from) {
    for (uint32_t i = 0; i < each; ++i)
      trace.add(filled_with(from + i));
  };
  std::thread first(write, 0), second(write, each);
  size_t torn = 0;
  const PageHeader header{};
  while (trace.ring().next < 2 * each)
    for (const auto& [number, event] : trace_of(header, trace.ring()).events)
      torn += is_whole(event) ? 0 : 1;
  first.join();
  second.join();
  CHECK(torn == 0);
  const TraceLog log = trace_of(header, trace.ring());
  // A writer leaves its event out only where another writes to the same slot just then.
  CHECK(log.events.size() > kTraceEvents - 2);
  for (const auto& [number, event] : log.events)
    CHECK(is_whole(event));
}

TEST_CASE("events from before the page are in it, a torn one is left out, a child has none",
          "[observe][trace]") {
  Sandbox box;
  Child child([](Child& self) {
    process.trace.add(filled_with(7));
    process.page.start(kIdentity);
    process.trace.add(filled_with(8));
    process.trace.add(filled_with(9));
    self.tell();
    self.wait_parent();
    const pid_t grandchild = fork();
    if (grandchild == 0)
      _exit(trace_of(process.page.header(), process.trace.ring()).events.empty() ? 0 : 1);
    int status = 0;
    waitpid(grandchild, &status, 0);
    return WEXITSTATUS(status);
  });
  REQUIRE(child.wait_told());
  TraceLog log = log_of(box);
  REQUIRE(log.events.size() == 3);
  for (uint32_t i = 0; i < 3; ++i) {
    CHECK(log.events[i].first == i);
    CHECK(log.events[i].second.qpn == 7 + i);
  }
  CHECK(log.pid == static_cast<uint32_t>(child.pid()));
  // Of a writer that was killed in the midst.
  const uint64_t odd = 3;
  const auto pages = find_pages({box.path.string()}, geteuid());
  const int fd = open(pages[0].path.c_str(), O_WRONLY);
  REQUIRE(pwrite(fd, &odd, sizeof odd,
                 offsetof(Page, trace) + offsetof(TraceRing, slots) + sizeof(TraceSlot)) ==
          sizeof odd);
  close(fd);
  log = log_of(box);
  REQUIRE(log.events.size() == 2);
  CHECK(log.events[1].second.qpn == 9);
  child.let_go();
  CHECK(child.finish() == 0);
}

TEST_CASE("a program that has ended leaves its trace in its statistics", "[observe][trace]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats").c_str(), 1);
  Child child([](Child&) {
    process.page.start(kIdentity);
    process.trace.add(filled_with(200));
    exit(0); // with its handlers
    return 1;
  });
  CHECK(child.finish() == 0);
  unsetenv("ADVERB_STATS_FILE");
  const auto read = read_trace_of_file(box.file("stats"));
  REQUIRE(std::holds_alternative<TraceLog>(read));
  const auto& log = std::get<TraceLog>(read);
  REQUIRE(log.events.size() == 1);
  CHECK(is_whole(log.events[0].second));
  CHECK(log.events[0].second.qpn == 200);

  for (const std::string& text : std::vector<std::string>{
           "", "{}", "[]", "{\"trace\": 3}", "{\"trace\": {\"meaning\": 0}}",
           with_events("[[1, 2]]"), with_events("[[0, 1, 2, 257, 0, 0, 0, 0, 0, 0]]"),
           with_events("[[0, 1, -2, 1, 0, 0, 0, 0, 0, 0]]"),
           with_events("[[0, 1e300, 2, 1, 0, 0, 0, 0, 0, 0]]")}) {
    std::ofstream(box.file("bad")) << text;
    const auto bad = read_trace_of_file(box.file("bad"));
    REQUIRE(std::holds_alternative<SnapshotError>(bad));
    CHECK(std::get<SnapshotError>(bad).text.find("bad: ") != std::string::npos);
  }
  std::ofstream(box.file("good")) << with_events("[[0, 1, 2, 1, 0, 0, 0, 0, 0, 0]]");
  CHECK(std::holds_alternative<TraceLog>(read_trace_of_file(box.file("good"))));
  // A pipe that nobody writes to is not waited for.
  REQUIRE(mkfifo(box.file("pipe").c_str(), 0600) == 0);
  CHECK(std::holds_alternative<SnapshotError>(read_trace_of_file(box.file("pipe"))));
  CHECK(std::get<SnapshotError>(read_trace_of_file(box.file("none"))).text.starts_with("cannot "));
}
