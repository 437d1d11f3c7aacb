// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much memory there is for a process, and whether it is short, by what the kernel's files say.
#include "catch.h"
#include "memory/limits.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace {

using namespace adverb::memory;
namespace fs = std::filesystem;

std::string fresh_directory() {
  std::string made = "/tmp/adverb-limits-XXXXXX";
  REQUIRE(mkdtemp(made.data()) != nullptr);
  return made;
}

struct Host {
  std::string root = fresh_directory();
  ~Host() { fs::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  void memory(int total, int available) const {
    write("/proc/meminfo", "MemTotal: " + std::to_string(total) +
                               " kB\nMemAvailable: " + std::to_string(available) + " kB\n");
  }
};

TEST_CASE("there is as much memory as the host has, or the least that a control group may have") {
  const Host host;
  CHECK(memory_limit(host.root).bytes == 0);
  host.memory(1000, 900);
  CHECK(memory_limit(host.root).bytes == 1000 * 1024);
  host.write("/proc/self/cgroup", "0::/a/b\n");
  host.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(memory_limit(host.root).bytes == 1000 * 1024);
  host.write("/sys/fs/cgroup/a/memory.max", "500000\n");
  CHECK(memory_limit(host.root).bytes == 500000);
  host.write("/sys/fs/cgroup/a/b/memory.max", "400000\n");
  CHECK(memory_limit(host.root).bytes == 400000);
  host.write("/proc/self/cgroup", "12:memory:/a/b\n1:name=systemd:/\n"); // version 1
  CHECK(memory_limit(host.root).bytes == 1000 * 1024);
}

TEST_CASE("within a namespace of control groups the limit of its own topmost counts") {
  const Host host;
  host.memory(1000, 900);
  host.write("/proc/self/cgroup", "0::/\n");
  CHECK(memory_limit(host.root).bytes == 1000 * 1024);
  host.write("/sys/fs/cgroup/memory.max", "300000\n");
  CHECK(memory_limit(host.root).bytes == 300000);
}

TEST_CASE("memory is short where somebody waits for it, or little is available") {
  const Host host;
  host.memory(1000, 51);
  CHECK_FALSE(is_memory_short(host.root));
  host.memory(1000, 49);
  CHECK(is_memory_short(host.root));
  const auto pressure = [](const char* percent) {
    return std::string("some avg10=") + percent +
           " avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00";
  };
  host.write("/proc/pressure/memory", pressure("9.99"));
  CHECK_FALSE(is_memory_short(host.root));
  host.write("/proc/pressure/memory", pressure("10.00"));
  CHECK(is_memory_short(host.root));
  host.write("/proc/self/cgroup", "0::/a\n");
  CHECK(is_memory_short(host.root));
  host.write("/sys/fs/cgroup/a/memory.pressure", pressure("0.00")); // others' affair
  CHECK_FALSE(is_memory_short(host.root));
}

TEST_CASE("the group that has the limit is named, the topmost of those with the same") {
  const Host host;
  host.memory(1000, 900);
  CHECK(memory_limit(host.root).group.empty());
  host.write("/proc/self/cgroup", "0::/a/b\n");
  host.write("/sys/fs/cgroup/a/memory.max", "500000\n");
  CHECK(memory_limit(host.root).group == "/a");
  host.write("/sys/fs/cgroup/a/b/memory.max", "500000\n");
  CHECK(memory_limit(host.root).group == "/a");
  host.write("/sys/fs/cgroup/a/b/memory.max", "400000\n");
  CHECK(memory_limit(host.root).group == "/a/b");
}

TEST_CASE("who lives in a control group, or below it, shares what it may have") {
  const Host host;
  for (const auto& [process, group] : {std::pair{"1000001", "/a"}, std::pair{"1000002", "/a/b"},
                                       std::pair{"1000003", "/ab"}, std::pair{"1000004", "/../c"}})
    host.write(std::string("/proc/") + process + "/cgroup", std::string("0::") + group + "\n");
  const std::array all{pid_t{1000001}, pid_t{1000002}, pid_t{1000003}, pid_t{1000004},
                       pid_t{1000005}}; // the last has ended
  CHECK(processes_in("/a", {}, host.root) == 1);
  CHECK(processes_in("/a", all, host.root) == 3);
  CHECK(processes_in("/a/b", all, host.root) == 2);
  CHECK(processes_in("/", all, host.root) == 4); // of a namespace, whose others are not below it
  CHECK(processes_in("", all, host.root) == 5);
}

} // namespace
