// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"
#include "skip.h"
#include "test_observe_child.h"

#include "observe/counters.h"
#include "observe/directory.h"
#include "observe/layout.h"
#include "observe/page.h"
#include "observe/snapshot.h"

#include <climits>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <pthread.h>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace adverb::observe;
using observe_test::Child;
using observe_test::process;
using observe_test::Sandbox;
using observe_test::slurp;

namespace {

const Identity kIdentity{"/usr/lib/libadverb.so", "profile unpinned", "rxe", "rxe0"};

std::vector<FoundPage> pages_in(const Sandbox& box) {
  return find_pages({box.path.string()}, geteuid());
}

Snapshot snapshot_of(const Sandbox& box) {
  const auto pages = pages_in(box);
  REQUIRE(pages.size() == 1);
  auto read = read_snapshot(pages[0].path);
  if (const auto* error = std::get_if<SnapshotError>(&read))
    FAIL(error->text);
  return std::get<Snapshot>(read);
}

uint64_t get(const Snapshot& s, Counter c) {
  return s.counters[static_cast<size_t>(c)];
}

} // namespace

TEST_CASE("another process reads the counters while they grow", "[observe]") {
  Sandbox box;
  Child child([](Child& self) {
    process.counters.count(Counter::regions_unpinned, 3); // before the page exists
    process.page.label_rule(1, "big regions");
    process.page.start(kIdentity);
    process.counters.count(Counter::regions_unpinned, 4);
    process.counters.gauge_add(Gauge::pinned_bytes, 4096);
    process.counters.gauge_add(Gauge::pinned_bytes, -8192);
    process.counters.count_rule(1);
    process.page.add_device("rxe1");
    process.page.add_device("rxe0");
    process.page.tell_no_views("rxe0: no module");
    self.tell();
    self.wait_parent();
    process.page.tell_no_views({});
    process.counters.count(Counter::regions_unpinned);
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(child.wait_told());
  const auto pages = pages_in(box);
  REQUIRE(pages.size() == 1);
  CHECK(pages[0].live);
  CHECK(pages[0].name.pid == child.pid());
  struct stat mode;
  REQUIRE(stat(pages[0].path.c_str(), &mode) == 0);
  CHECK((mode.st_mode & 0777) == 0600);

  const Snapshot first = snapshot_of(box);
  CHECK(get(first, Counter::regions_unpinned) == 7);
  CHECK(first.gauges[static_cast<size_t>(Gauge::pinned_bytes)] == -4096);
  CHECK(first.pid == static_cast<uint32_t>(child.pid()));
  CHECK(first.policy == "profile unpinned");
  CHECK(first.program == std::filesystem::read_symlink("/proc/self/exe"));
  CHECK(first.devices == std::vector<std::string>{"rxe0", "rxe1"});
  REQUIRE(first.rules.size() == 1);
  CHECK(first.rules[0].label == "big regions");
  CHECK(first.rules[0].hits == 1);
  CHECK(first.no_views == "rxe0: no module");
  CHECK(to_json(first, -1).find(R"("no_views":"rxe0: no module")") != std::string::npos);

  child.let_go();
  REQUIRE(child.wait_told());
  const Snapshot second = snapshot_of(box);
  CHECK(get(second, Counter::regions_unpinned) == 8);
  CHECK(second.no_views.empty());
  CHECK(to_json(second, -1).find("no_views") == std::string::npos);
  child.let_go();
  CHECK(child.finish() == 0);
  CHECK(box.files() == 0);
}

TEST_CASE("concurrent counts are all there", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([t] {
        for (int i = 0; i < 20000; ++i) {
          process.counters.count(Counter::kicks);
          if (i == 500 * t)
            process.page.start(kIdentity);
        }
      });
    for (auto& thread : threads)
      thread.join();
    process.counters.gather(); // what raced with the change of page
    return process.counters.value(Counter::kicks) == 80000 ? 0 : 1;
  });
  CHECK(child.finish() == 0);
}

TEST_CASE("a page of another layout is refused with both versions named", "[observe]") {
  Sandbox box;
  Child child([](Child& self) {
    process.page.start(kIdentity);
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(child.wait_told());
  const std::string path = pages_in(box).at(0).path;
  const uint64_t other = kLayout + 1;
  const int fd = open(path.c_str(), O_WRONLY);
  REQUIRE(pwrite(fd, &other, sizeof other, offsetof(PageHeader, layout)) == sizeof other);
  close(fd);
  const auto read = read_snapshot(path);
  REQUIRE(std::holds_alternative<SnapshotError>(read));
  const std::string text = std::get<SnapshotError>(read).text;
  CHECK(text.find("libadverb.so " ADVERB_VERSION) != std::string::npos);
  CHECK(text.find(std::to_string(child.pid())) != std::string::npos);
  child.let_go();
}

TEST_CASE("what is no page is refused, whatever it holds", "[observe]") {
  Sandbox box;
  for (size_t size : {size_t{0}, size_t{7}, sizeof(PageHeader), sizeof(Page), 2 * sizeof(Page)}) {
    const std::string path = box.file("adverb.1.2.3");
    std::ofstream(path) << std::string(size, 'A');
    CHECK(std::holds_alternative<SnapshotError>(read_snapshot(path)));
  }
  CHECK(std::holds_alternative<SnapshotError>(read_snapshot(box.file("absent"))));
  symlink(box.file("adverb.1.2.3").c_str(), box.file("adverb.1.2.4").c_str());
  CHECK(std::holds_alternative<SnapshotError>(read_snapshot(box.file("adverb.1.2.4"))));
}

TEST_CASE("a killed process leaves a page that the next one removes", "[observe]") {
  Sandbox box;
  Child killed([](Child& self) {
    process.page.start(kIdentity);
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(killed.wait_told());
  kill(killed.pid(), SIGKILL);
  CHECK(killed.finish() == 128 + SIGKILL);
  REQUIRE(pages_in(box).size() == 1);
  CHECK_FALSE(pages_in(box)[0].live);

  Child next([](Child& self) {
    process.page.start(kIdentity);
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(next.wait_told());
  REQUIRE(pages_in(box).size() == 1);
  CHECK(pages_in(box)[0].name.pid == next.pid());
  next.let_go();
}

TEST_CASE("an exec'ed successor without adverb makes the page stale", "[observe]") {
  Sandbox box;
  Child child([](Child& self) {
    process.page.start(kIdentity);
    fcntl(STDERR_FILENO, F_SETFD, 0);
    // The shell tells the parent through stderr that the exec has happened.
    self.tell();
    execl("/bin/sh", "sh", "-c", "echo up >&2; exec sleep 600", nullptr);
    return 1;
  });
  REQUIRE(child.wait_told());
  // The mapping is gone when the exec has happened; nothing else signals it without a pipe read.
  bool live = true;
  for (int i = 0; i < 120'000 && live; ++i) { // a watchdog of two minutes
    live = pages_in(box).at(0).live;
    if (live)
      usleep(1000);
  }
  CHECK_FALSE(live);
  CHECK(remove_stale(pages_in(box)) == 1);
  CHECK(box.files() == 0);
  kill(child.pid(), SIGKILL);
}

TEST_CASE("pages of live processes and other users' files survive the sweep", "[observe]") {
  Sandbox box;
  Child child([](Child& self) {
    process.page.start(kIdentity);
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(child.wait_told());
  // Young and without a header: somebody may be making it right now.
  std::ofstream(box.file("adverb." + std::to_string(geteuid()) + ".4194303.1")) << "";
  std::ofstream(box.file("adverb.notes")) << "mine";
  CHECK(remove_stale(pages_in(box)) == 0);
  CHECK(box.files() == 3);
  child.let_go();
}

TEST_CASE("page names parse only as they are written", "[observe]") {
  const auto name = parse_page_name("adverb.1000.42.123456789");
  REQUIRE(name);
  CHECK(name->uid == 1000);
  CHECK(name->pid == 42);
  CHECK(name->start_time == 123456789);
  for (const char* bad :
       {"", "adverb", "adverb.", "adverb.1.2", "adverb.1.2.", "adverb.1.2.3.4", "adverb.-1.2.3",
        "adverb.1.0.3", "adverb.01.2.3", "adverb.1.2.3x", "xadverb.1.2.3", "adverb.1.2.+3",
        "adverb.1.99999999999.3", "adverb.99999999999.2.3", "adverb.1.2.99999999999999999999999"})
    CHECK_FALSE(parse_page_name(bad));
}

TEST_CASE("a fork child counts on a page of its own", "[observe]") {
  Sandbox box;
  Child parent([&box](Child& self) {
    process.page.start(kIdentity);
    process.counters.count(Counter::kicks, 10);
    const pid_t child = fork();
    if (child == 0) {
      if (process.counters.value(Counter::kicks) != 0)
        exit(2);
      process.counters.count(Counter::kicks, 5); // before its page exists
      if (box.files() != 1)
        exit(3);
      process.page.start(kIdentity);
      process.counters.count(Counter::kicks, 1);
      self.tell();
      self.wait_parent();
      exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    // The child's end must leave the parent's page.
    if (status != 0 || box.files() != 1 || process.counters.value(Counter::kicks) != 10)
      return 1;
    return 0;
  });
  REQUIRE(parent.wait_told());
  const auto pages = pages_in(box);
  REQUIRE(pages.size() == 2);
  for (const FoundPage& page : pages) {
    CHECK(page.live);
    const auto read = read_snapshot(page.path);
    REQUIRE(std::holds_alternative<Snapshot>(read));
    const uint64_t expected = page.name.pid == parent.pid() ? 10 : 6;
    CHECK(get(std::get<Snapshot>(read), Counter::kicks) == expected);
  }
  parent.let_go();
  CHECK(parent.finish() == 0);
  CHECK(box.files() == 0);
}

TEST_CASE("a fork child that never uses verbs leaves nothing and touches nothing", "[observe]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats").c_str(), 1);
  Child parent([&box](Child&) {
    process.page.start(kIdentity);
    const pid_t child = fork();
    if (child == 0)
      exit(0);
    waitpid(child, nullptr, 0);
    return box.files() == 1 ? 0 : 1;
  });
  CHECK(parent.finish() == 0);
  CHECK(nlohmann::json::parse(slurp(box.file("stats")))["policy"] == "profile unpinned");
}

TEST_CASE("a directory without room costs the page, not the program", "[observe]") {
  Sandbox box;
  // A file-size limit makes the reservation fail as a full tmpfs would.
  Child child([](Child&) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_FSIZE, &none);
    process.page.start(kIdentity);
    process.counters.count(Counter::kicks, 2);
    return process.counters.value(Counter::kicks) == 2 ? 0 : 1;
  });
  CHECK(child.finish() == 0);
  CHECK(box.files() == 0);
  CHECK(child.err.find("no shared page") != std::string::npos);
}

TEST_CASE("who makes a page for a process that is another's, or no more, names nobody",
          "[observe]") {
  Sandbox box;
  const auto own = own_page_name();
  REQUIRE(own);
  const auto named = [&](const PageName& name, bool links = false) {
    const auto path = box.path / name.text();
    if (links)
      std::filesystem::create_symlink("/dev/null", path);
    else
      std::ofstream(path) << "page";
    const auto found = processes_with_pages({box.path.string()});
    std::filesystem::remove(path);
    return !found.empty();
  };
  CHECK(named(*own));
  CHECK_FALSE(named(*own, true));
  CHECK_FALSE(named({own->uid, own->pid, own->start_time + 1}));
  CHECK_FALSE(named({own->uid + 1, own->pid, own->start_time})); // whose file it is not
  if (geteuid() != 0) {
    adverb::test::skip("needs root to give a file away");
    return;
  }
  // A file of somebody else's, as he may make it.
  const PageName his{own->uid + 1, own->pid, own->start_time};
  const auto path = box.path / his.text();
  std::ofstream(path) << "page";
  REQUIRE(chown(path.c_str(), his.uid, his.uid) == 0);
  CHECK(processes_with_pages({box.path.string()}).empty());
}

TEST_CASE("a thread with the smallest stack can be the first to use verbs", "[observe]") {
  pthread_attr_t small;
  REQUIRE(pthread_attr_init(&small) == 0);
  REQUIRE(pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN) == 0);
  bool named = false;
  pthread_t thread{};
  REQUIRE(pthread_create(
              &thread, &small,
              [](void* named_) -> void* {
                *static_cast<bool*>(named_) = own_page_name().has_value();
                return nullptr;
              },
              &named) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&small);
  CHECK(named);
}
