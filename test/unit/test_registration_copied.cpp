// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The critical size: that it is what the times say, that what was measured is kept for this user
// alone, and that memory is copied until that has cost what a window would have.
#include "memory/monitor.h"
#include "region_fixture.h"
#include "registration/copied.h"
#include "registration/critical_size.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using namespace region_test;
using namespace adverb::registration;
using std::chrono::nanoseconds;

constexpr uint64_t KiB = 1 << 10;

// What the four steps of a round take: a copy, a window, both of absent memory.
using Step = std::function<double(uint64_t bytes)>; // ns

// A clock that is looked at before and after each step, in the order in which they are taken.
class Scripted final : public adverb::Clock {
public:
  explicit Scripted(std::array<Step, 4> steps) : steps_(std::move(steps)) {}
  nanoseconds now() noexcept override {
    if (look_++ % 2 == 1) {
      const unsigned step = look_ / 2 - 1;
      const uint64_t bytes = (step / 4) % 2 == 0 ? 16 * KiB : 256 * KiB;
      const double late = step / 8 == late_round ? 1e9 : 0;
      now_ += nanoseconds(static_cast<int64_t>(steps_.at(step % 4)(bytes) + late));
    }
    return now_;
  }
  unsigned late_round = 3; // others have the processor then

private:
  std::array<Step, 4> steps_;
  unsigned look_ = 0;
  nanoseconds now_{1000};
};

Step line(double fixed, double per_byte) {
  return [=](uint64_t bytes) { return fixed + (per_byte * static_cast<double>(bytes)); };
}

struct Device {
  ibv_mr mr{};
  int live = 0;
  int made = 0;
  int refuses_from = 1 << 20; // the how manieth
  Registering verbs() {
    return {[this](void* start, size_t bytes) -> ibv_mr* {
              if (++made >= refuses_from) {
                errno = ENOMEM;
                return nullptr;
              }
              static_cast<char*>(start)[bytes - 1] = 1; // it is there, and may be written
              ++live;
              return &mr;
            },
            [this](ibv_mr*) { --live; }};
  }
};

uint64_t off_by(uint64_t a, uint64_t b) {
  return a > b ? a - b : b - a;
}

TEST_CASE("critical size: where the line of copies meets that of windows") {
  // 14 us a window and 0.1 ns a byte: 140,000 bytes; absent, what brings the pages is in both.
  Scripted clock({line(0, 0.1), line(14'000, 0), line(0, 0.5), line(14'000, 0.1)});
  Device device;
  const auto size = measure_critical_size(clock, device.verbs());
  REQUIRE(size);
  CHECK(off_by(size->resident, 140'000) < 100);
  CHECK(off_by(size->absent, 35'000) < 100);
  CHECK(device.made == 20);
  CHECK(device.live == 0);
}

TEST_CASE("critical size: what never pays, and what always does, are its ends") {
  Device device;
  Scripted dear({line(10, 0.1), line(50'000, 0.2), line(10, 0.1), line(50'000, 0.2)});
  CHECK(measure_critical_size(dear, device.verbs())->resident == critical_most);
  Scripted cheap({line(100, 0.1), line(10, 0.01), line(100, 0.1), line(10, 0.01)});
  CHECK(measure_critical_size(cheap, device.verbs())->resident == critical_least);
  Scripted always({line(1000, 0.1), line(10, 0.1), line(1000, 0.1), line(10, 0.1)});
  CHECK(measure_critical_size(always, device.verbs())->resident == critical_least);
}

TEST_CASE("critical size: a clock that stands still and a device that refuses tell nothing") {
  Device device;
  Scripted still({line(0, 0), line(0, 0), line(0, 0), line(0, 0)});
  still.late_round = 1000;
  CHECK_FALSE(measure_critical_size(still, device.verbs()));
  CHECK(device.made == 0);
  Scripted clock({line(0, 0.1), line(14'000, 0), line(0, 0.5), line(14'000, 0.1)});
  device.refuses_from = 7;
  CHECK_FALSE(measure_critical_size(clock, device.verbs()));
  CHECK(device.live == 0);
}

// A directory of this test alone.
struct Folder {
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path.data()); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::vector<std::string> list() const { return {path.data()}; }
  std::string file() const {
    return std::string(path.data()) + "/adverb-critical-size." + std::to_string(geteuid()) +
           ".mlx5_0";
  }
  std::array<char, 32> path{"/tmp/adverb-kept.XXXXXX"};
};

TEST_CASE("critical size: what was measured is kept, for each device") {
  const Folder folder;
  CHECK_FALSE(kept_critical_size(folder.list(), "mlx5_0"));
  keep_critical_size(folder.list(), "mlx5_0", {256 * KiB, 32 * KiB});
  const auto size = kept_critical_size(folder.list(), "mlx5_0");
  REQUIRE(size);
  CHECK(size->resident == 256 * KiB);
  CHECK(size->absent == 32 * KiB);
  CHECK_FALSE(kept_critical_size(folder.list(), "mlx5_1"));
  // Anew: the last one counts, and nothing else is left in the folder.
  keep_critical_size(folder.list(), "mlx5_0", {128 * KiB, 16 * KiB});
  CHECK(kept_critical_size(folder.list(), "mlx5_0")->resident == 128 * KiB);
  const std::filesystem::directory_iterator files(folder.path.data());
  CHECK(std::distance(begin(files), end(files)) == 1);
}

TEST_CASE("critical size: what others put there, and nonsense, counts for nothing") {
  const Folder folder;
  const auto write = [&](const std::string& text) { std::ofstream(folder.file()) << text; };
  for (const char* text : {"", "\n", "critical size 2: 65536 resident 65536 absent\n",
                           "critical size 1: 1 resident 65536 absent\n",
                           "critical size 1: 65536 resident 99999999999 absent\n",
                           "critical size 1: -1 resident 65536 absent\n"}) {
    INFO(text);
    write(text);
    CHECK_FALSE(kept_critical_size(folder.list(), "mlx5_0"));
  }
  write("critical size 1: 65536 resident 65536 absent\n");
  CHECK(kept_critical_size(folder.list(), "mlx5_0"));
  // Another file by a link, a file of another user's (root may make one), a pipe.
  std::filesystem::rename(folder.file(), folder.file() + ".other");
  REQUIRE(symlink((folder.file() + ".other").c_str(), folder.file().c_str()) == 0);
  CHECK_FALSE(kept_critical_size(folder.list(), "mlx5_0"));
  std::filesystem::remove(folder.file());
  REQUIRE(mkfifo(folder.file().c_str(), 0600) == 0);
  CHECK_FALSE(kept_critical_size(folder.list(), "mlx5_0"));
  std::filesystem::remove(folder.file());
  std::filesystem::rename(folder.file() + ".other", folder.file());
  if (geteuid() == 0) {
    REQUIRE(chown(folder.file().c_str(), 65534, 65534) == 0);
    CHECK_FALSE(kept_critical_size(folder.list(), "mlx5_0"));
  }
  CHECK_FALSE(kept_critical_size(folder.list(), "../mlx5_0"));
  keep_critical_size(folder.list(), "../escaped", {128 * KiB, 16 * KiB});
  CHECK_FALSE(std::filesystem::exists(std::string(folder.path.data()) + "/../escaped"));
}

// Nothing changes, so that windows are kept.
class Quiet final : public adverb::memory::Monitor {
public:
  bool watch(adverb::memory::Range, adverb::memory::Range) override { return true; }
  void unwatch(adverb::memory::Range) noexcept override {}
};

// A window where it is due, else a staging block.
struct Copying : Fixture {
  Copying() : Fixture(R"("staging": "1MiB", "pinned_budget": "1MiB")") {
    bench.world.parts.monitor.put(monitor);
  }
  bool has_window(const ibv_mr* mr, uint64_t offset, uint32_t length, bool out = true) {
    Hold hold;
    ibv_sge sge = element(mr, offset, length);
    REQUIRE(localize(sge, hold, out ? 0 : write_right, out) == 0);
    const bool window = hold.window != nullptr;
    CHECK(window != static_cast<bool>(hold.block));
    if (hold.block)
      staging.give(hold.block);
    else
      regions.release(staging, hold);
    return window;
  }
  std::shared_ptr<Quiet> monitor = std::make_shared<Quiet>();
};

TEST_CASE("copied: until that has cost what a window would have") {
  Copying f;
  const ibv_mr* mr = f.add("none");
  CHECK(f.has_window(mr, 0, 4096)); // nothing is measured
  f.regions.copy_up_to(4 * 4096);
  for (int i = 0; i < 3; ++i)
    CHECK_FALSE(f.has_window(mr, page, 4096));
  CHECK(f.has_window(mr, page, 4096));
  // What is always copied is not counted.
  for (int i = 0; i < 100; ++i)
    CHECK_FALSE(f.has_window(mr, 0, copy_below - 1));
}

TEST_CASE("copied: what is as long as the critical size has a window at once, receives too") {
  Copying f;
  const ibv_mr* mr = f.add("none");
  f.regions.copy_up_to(8192);
  CHECK(f.has_window(mr, 0, 8192));
  CHECK_FALSE(f.has_window(mr, 8192, 2048));
  CHECK(f.has_window(mr, 8192, 2048, false));
}

TEST_CASE("copied: what is to be used in place has a window, as does who finds one") {
  Copying f;
  const ibv_mr* mr = f.add("none");
  f.regions.copy_up_to(1 << 20);
  CHECK_FALSE(f.has_window(mr, 0, 4096));
  Hold hold;
  ibv_sge sge = f.element(mr, 0, 4096);
  REQUIRE(f.regions.localize(&f.device.pd, f.staging, 0, 0, true, sge, hold) == 0);
  CHECK(hold.window != nullptr);
  f.regions.release(f.staging, hold);
  CHECK(f.has_window(mr, 0, 4096));
  CHECK_FALSE(f.has_window(mr, 4096, 4096));
}

TEST_CASE("copied: what another region had copied at the same place does not count") {
  Copying f;
  ibv_mr* mr = f.add("none");
  f.regions.copy_up_to(2 * 4096);
  CHECK_FALSE(f.has_window(mr, 0, 4096));
  CHECK(f.regions.remove(mr).rc == 0);
  mr = f.add("none");
  CHECK_FALSE(f.has_window(mr, 0, 4096));
  CHECK(f.has_window(mr, 0, 4096));
}

} // namespace
