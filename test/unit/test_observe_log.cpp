// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "catch.h"
#include "test_observe_child.h"

#include "observe/counters.h"
#include "observe/log.h"
#include "observe/page.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace adverb::observe;
using observe_test::Child;
using observe_test::process;
using observe_test::Sandbox;
using observe_test::slurp;

namespace {

size_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

} // namespace

TEST_CASE("a line is adverb[pid] level: text", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    process.log.open(LogLevel::debug);
    process.log.error("device {} has {} ports", "rxe0", 1);
    process.log.warn("w");
    process.log.info("i");
    process.log.debug("d");
    return 0;
  });
  const std::string prefix = "adverb[" + std::to_string(child.pid()) + "] ";
  REQUIRE(child.finish() == 0);
  CHECK(child.err == prefix + "error: device rxe0 has 1 ports\n" + prefix + "warn: w\n" + prefix +
                         "info: i\n" + prefix + "debug: d\n");
}

TEST_CASE("lines below the level are not written", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    process.log.open(LogLevel::error);
    process.log.warn("no");
    process.log.error("yes");
    process.log.open(LogLevel::off);
    process.log.error("no");
    return 0;
  });
  REQUIRE(child.finish() == 0);
  CHECK(lines(child.err) == 1);
  CHECK(child.err.find("yes") != std::string::npos);
}

TEST_CASE("without open warnings are written and info is not", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    Log log(process.counters, process.clock); // the process's own is silent in a fork child
    log.info("no");
    log.warn("yes");
    return 0;
  });
  REQUIRE(child.finish() == 0);
  CHECK(lines(child.err) == 1);
}

TEST_CASE("ADVERB_LOG wins over the policy, and a wrong value is said", "[observe]") {
  Sandbox box;
  setenv("ADVERB_LOG", "debug", 1);
  Child verbose([](Child&) {
    process.log.open(LogLevel::off);
    process.log.debug("d");
    return 0;
  });
  verbose.finish();
  CHECK(verbose.err.find("debug: d") != std::string::npos);

  setenv("ADVERB_LOG", "loud", 1);
  Child wrong([](Child&) {
    process.log.open(LogLevel::warn);
    return 0;
  });
  wrong.finish();
  CHECK(wrong.err.find("ADVERB_LOG=loud") != std::string::npos);
}

TEST_CASE("a log file is appended to and its name knows the process", "[observe]") {
  Sandbox box;
  setenv("ADVERB_LOG_FILE", box.file("log.%p").c_str(), 1);
  Child child([](Child&) {
    process.log.open(LogLevel::info, "/nonexistent/ignored");
    process.log.info("one");
    process.log.open(LogLevel::info);
    process.log.info("two");
    return 0;
  });
  const std::string path = box.file("log." + std::to_string(child.pid()));
  REQUIRE(child.finish() == 0);
  CHECK(child.err.empty());
  const std::string text = slurp(path);
  CHECK(lines(text) == 2);
  CHECK(text.find("] info: two") != std::string::npos);
}

TEST_CASE("what others have put in a log file's place is not written to", "[observe]") {
  Sandbox box;
  const std::string mine = box.file("mine");
  std::ofstream(mine) << "kept\n";
  const auto complaint_of = [&](const std::string& name) {
    Child child([&](Child&) {
      alarm(60); // a FIFO must not hold it up
      process.log.open(LogLevel::info, name);
      process.log.info("said");
      return 0;
    });
    CHECK(child.finish() == 0);
    CHECK(child.err.find("info: said") != std::string::npos);
    return child.err;
  };
  const std::string fifo = box.file("fifo");
  REQUIRE(mkfifo(fifo.c_str(), 0666) == 0);
  CHECK(complaint_of(fifo).find("a FIFO that nobody reads") != std::string::npos);
  const std::string link = box.file("link");
  REQUIRE(symlink(mine.c_str(), link.c_str()) == 0);
  CHECK(complaint_of(link).find("a symbolic link") != std::string::npos);
  const std::string second = box.file("second");
  REQUIRE(::link(mine.c_str(), second.c_str()) == 0);
  CHECK(complaint_of(second).find("a second name") != std::string::npos);
  CHECK(slurp(mine) == "kept\n");
  // What only the system puts there may be a link.
  Child child([&](Child&) {
    process.log.open(LogLevel::info, "/dev/stderr");
    process.log.info("said");
    return 0;
  });
  CHECK(child.finish() == 0);
  CHECK(child.err.find("info: said") != std::string::npos);
  CHECK(child.err.find("cannot open") == std::string::npos);
  if (geteuid() != 0)
    return;
  const std::string theirs = box.file("theirs");
  std::ofstream(theirs) << "";
  REQUIRE(chown(theirs.c_str(), 65534, 65534) == 0);
  CHECK(complaint_of(theirs).find("another user") != std::string::npos);
  CHECK(slurp(theirs).empty());
}

TEST_CASE("a log file that cannot be opened is said on stderr", "[observe]") {
  Sandbox box;
  Child child([&box](Child&) {
    process.log.open(LogLevel::info, box.file("absent/log"));
    process.log.info("still heard");
    return 0;
  });
  child.finish();
  CHECK(child.err.find("cannot open the log file") != std::string::npos);
  CHECK(child.err.find("still heard") != std::string::npos);
}

TEST_CASE("a descriptor number the program took over is never written to", "[observe]") {
  Sandbox box;
  Child child([&box](Child&) {
    process.log.open(LogLevel::info, box.file("log"));
    process.log.info("before");
    for (int fd = 3; fd < 64; ++fd)
      close(fd);
    const int mine = open(box.file("data").c_str(), O_CREAT | O_RDWR, 0600);
    for (int fd = mine + 1; fd < 64; ++fd)
      dup2(mine, fd);
    process.log.info("after");
    return process.counters.value(Counter::log_dropped) == 1 ? 0 : 1;
  });
  CHECK(child.finish() == 0);
  CHECK(slurp(box.file("data")).empty());
  CHECK(lines(slurp(box.file("log"))) == 1);
}

TEST_CASE("what has become the program's descriptor 2 is never written to", "[observe]") {
  Sandbox box;
  Child child([&box](Child&) {
    process.log.open(LogLevel::info);
    std::array<int, 2> sockets{};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) != 0)
      return 2;
    dup2(sockets[0], STDERR_FILENO);
    process.log.info("for nobody");
    std::array<char, 1> byte{};
    const bool silent = recv(sockets[1], byte.data(), byte.size(), MSG_DONTWAIT) < 0;
    dup2(open(box.file("data").c_str(), O_CREAT | O_RDWR, 0600), STDERR_FILENO);
    process.log.info("for nobody");
    dup2(open(box.file("log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600), STDERR_FILENO);
    process.log.info("for nobody");
    return silent && process.counters.value(Counter::log_dropped) == 3 ? 0 : 1;
  });
  CHECK(child.finish() == 0);
  CHECK(slurp(box.file("data")).empty());
  CHECK(slurp(box.file("log")).empty());
}

TEST_CASE("a fork child is silent until it opens its log again", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    process.log.open(LogLevel::info);
    process.log.info("parent");
    const pid_t pid = fork();
    if (pid == 0) {
      process.log.error("silent");
      process.log.open(LogLevel::info);
      process.log.info("child");
      exit(0);
    }
    waitpid(pid, nullptr, 0);
    return 0;
  });
  REQUIRE(child.finish() == 0);
  CHECK(lines(child.err) == 2);
  CHECK(child.err.find("silent") == std::string::npos);
  CHECK(child.err.find("child") != std::string::npos);
}

TEST_CASE("forking while other threads log never hangs the child", "[observe]") {
  Sandbox box;
  Child child([&box](Child&) {
    process.log.open(LogLevel::info, box.file("log"));
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&stop] {
        while (!stop)
          process.log.info("busy");
      });
    int bad = 0;
    for (int i = 0; i < 100; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        alarm(20); // a hang dies here and is seen by the parent
        process.log.open(LogLevel::info, "");
        process.log.open(LogLevel::info, box.file("log"));
        process.log.info("child");
        _exit(0);
      }
      int status = 0;
      waitpid(pid, &status, 0);
      bad += status != 0;
    }
    stop = true;
    for (auto& thread : threads)
      thread.join();
    return bad;
  });
  CHECK(child.finish() == 0);
}

TEST_CASE("a reader that went away does not kill the program", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    int ends[2];
    (void)!pipe(ends);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    adverb::observe::take_stderr_as_first();
    process.log.open(LogLevel::info);
    errno = 1234;
    process.log.info("into nothing");
    sigset_t pending;
    sigpending(&pending);
    return errno == 1234 && !sigismember(&pending, SIGPIPE) &&
                   process.counters.value(Counter::log_dropped) == 1
               ? 0
               : 1;
  });
  CHECK(child.finish() == 0);
}

TEST_CASE("long lines are cut, not lost", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    Log log(process.counters, process.clock);
    log.warn("{}", std::string(5000, 'x'));
    return 0;
  });
  REQUIRE(child.finish() == 0);
  CHECK(lines(child.err) == 1);
  CHECK(std::count(child.err.begin(), child.err.end(), 'x') == 1000);
}

TEST_CASE("log_once says a thing once and a thousand keys do not break it", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    int said = 0;
    for (int i = 0; i < 3; ++i)
      said += process.log.once("peer 1 is stock");
    said += process.log.once("peer 2 is stock");
    if (said != 2)
      return 1;
    int fresh = 0;
    for (int i = 0; i < 1000; ++i)
      fresh += process.log.once("key " + std::to_string(i));
    return fresh == 510 && process.counters.value(Counter::log_dropped) == 490 &&
                   !process.log.once("key 3")
               ? 0
               : 2;
  });
  CHECK(child.finish() == 0);
}

TEST_CASE("log_every holds back repeats and counts them", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    const bool first = process.log.every("naks", 3600);
    const bool second = process.log.every("naks", 3600);
    const bool other = process.log.every("retries", 3600);
    const bool always = process.log.every("tick", 0) && process.log.every("tick", 0);
    return first && !second && other && always && process.counters.value(Counter::log_dropped) == 1
               ? 0
               : 1;
  });
  CHECK(child.finish() == 0);
}

TEST_CASE("the start line names library, policy, provider and devices, once", "[observe]") {
  Sandbox box;
  Child child([](Child&) {
    process.log.open(LogLevel::info);
    process.page.start({"/lib/libadverb.so", "profile unpinned", "rxe", "rxe0 rxe1"});
    process.page.start({"/lib/libadverb.so", "profile unpinned", "rxe", "rxe0 rxe1"});
    return 0;
  });
  const std::string prefix = "adverb[" + std::to_string(child.pid()) + "] info: ";
  REQUIRE(child.finish() == 0);
  CHECK(child.err == prefix + "adverb " ADVERB_VERSION ": library /lib/libadverb.so, policy "
                              "profile unpinned, provider rxe rxe0 rxe1\n");
}
