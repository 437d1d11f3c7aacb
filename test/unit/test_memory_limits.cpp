// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much memory there is for a process, and whether it is short, by what the kernel's files say.
#include "catch.h"
#include "memory/limits.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

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
  CHECK(memory_limit(host.root) == 0);
  host.memory(1000, 900);
  CHECK(memory_limit(host.root) == 1000 * 1024);
  host.write("/proc/self/cgroup", "0::/a/b\n");
  host.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  CHECK(memory_limit(host.root) == 1000 * 1024);
  host.write("/sys/fs/cgroup/a/memory.max", "500000\n");
  CHECK(memory_limit(host.root) == 500000);
  host.write("/sys/fs/cgroup/a/b/memory.max", "400000\n");
  CHECK(memory_limit(host.root) == 400000);
  host.write("/proc/self/cgroup", "12:memory:/a/b\n1:name=systemd:/\n"); // version 1
  CHECK(memory_limit(host.root) == 1000 * 1024);
}

TEST_CASE("within a namespace of control groups the limit of its own topmost counts") {
  const Host host;
  host.memory(1000, 900);
  host.write("/proc/self/cgroup", "0::/\n");
  CHECK(memory_limit(host.root) == 1000 * 1024);
  host.write("/sys/fs/cgroup/memory.max", "300000\n");
  CHECK(memory_limit(host.root) == 300000);
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

TEST_CASE("processes of another control group, and those that have ended, are not of this one") {
  const Host host;
  host.write("/proc/self/cgroup", "0::/a\n");
  host.write("/proc/1000001/cgroup", "0::/a\n");
  host.write("/proc/1000002/cgroup", "0::/a/b\n");
  CHECK(of_this_group({}, host.root) == 1);
  const std::array processes{pid_t{1000001}, pid_t{1000002}, pid_t{1000003}};
  CHECK(of_this_group(processes, host.root) == 2);
  // Where there are no groups all that run are of one.
  for (const char* process : {"self", "1000001", "1000002"})
    host.write(std::string("/proc/") + process + "/cgroup", "12:memory:/a\n");
  CHECK(of_this_group(processes, host.root) == 3);
}

} // namespace
