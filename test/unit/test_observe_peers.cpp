// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The table of peers: who reads it sees whole entries, in the page and beside it.
#include "catch.h"
#include "test_observe_child.h"

#include "observe/directory.h"
#include "observe/layout.h"
#include "observe/page.h"
#include "observe/snapshot.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include <nlohmann/json.hpp>

using namespace adverb::observe;
using observe_test::Child;
using observe_test::process;
using observe_test::Sandbox;

namespace {

const Identity kIdentity{"/usr/lib/libadverb.so", "profile unpinned", "rxe", "rxe0"};

// Every byte of it says which one it is.
PeerEntry filled_with(uint8_t value) {
  PeerEntry entry{};
  std::ranges::fill(entry.address, static_cast<char>('a' + value % 16));
  entry.address[sizeof entry.address - 1] = '\0';
  std::ranges::fill(entry.process, value);
  entry.role = PeerRole::initiator;
  entry.level = PeerLevel::host;
  entry.processes = value;
  std::ranges::fill(entry.numbers, value);
  return entry;
}

bool is_whole(const PeerEntry& entry) {
  const auto value = static_cast<uint8_t>(entry.processes);
  const PeerEntry all = filled_with(value);
  return memcmp(&all, &entry, sizeof all) == 0;
}

Snapshot snapshot_of(const Sandbox& box) {
  const auto pages = find_pages({box.path.string()}, geteuid());
  REQUIRE(pages.size() == 1);
  auto read = read_snapshot(pages[0].path);
  if (const auto* error = std::get_if<SnapshotError>(&read))
    FAIL(error->text);
  return std::get<Snapshot>(read);
}

} // namespace

TEST_CASE("no reader in the process sees half an entry", "[observe][peers]") {
  PeerTable table;
  std::atomic<bool> enough{false};
  std::atomic<unsigned> written{0};
  table.write(3, filled_with(0));
  std::thread writer([&] {
    for (; !enough; ++written)
      table.write(3, filled_with(static_cast<uint8_t>(written)));
  });
  // Until so many were written, and so many met another than the look before: both were under way
  // at once.
  size_t whole = 0, torn = 0, others = 0;
  for (uint8_t before = 0; written < 200000 || others < 100;)
    if (PeerEntry entry; read_peer(table.slots()[3], entry)) {
      ++(is_whole(entry) ? whole : torn);
      others += entry.numbers[0] != before ? 1 : 0;
      before = static_cast<uint8_t>(entry.numbers[0]);
    }
  enough = true;
  writer.join();
  CHECK(torn == 0);
  CHECK(whole >= 100);
  PeerEntry last;
  REQUIRE(read_peer(table.slots()[3], last));
  CHECK(is_whole(last));
}

TEST_CASE("no reader of the page sees half an entry, and each sees it", "[observe][peers]") {
  Sandbox box;
  Child child([](Child& self) {
    process.page.start(kIdentity);
    process.peers.write(0, filled_with(0));
    process.peers.write(kOthers, filled_with(0));
    self.tell();
    self.wait_parent(); // has seen both
    for (unsigned i = 0;; ++i) {
      process.peers.write(0, filled_with(static_cast<uint8_t>(i)));
      process.peers.write(kOthers, filled_with(static_cast<uint8_t>(i)));
    }
    return 0;
  });
  REQUIRE(child.wait_told());
  size_t seen = snapshot_of(box).peers.size();
  size_t torn = 0;
  CHECK(seen == 2); // nobody writes
  child.let_go();
  for (int round = 0; round < 300; ++round) {
    const Snapshot snapshot = snapshot_of(box);
    seen += snapshot.peers.size();
    torn += static_cast<size_t>(
        std::ranges::count_if(snapshot.peers, [](const auto& e) { return !is_whole(e); }));
  }
  kill(child.pid(), SIGKILL);
  CHECK(torn == 0);
}

TEST_CASE("an entry whose writer was killed in the midst is left out, and nobody waits",
          "[observe][peers]") {
  Sandbox box;
  Child child([](Child& self) {
    process.page.start(kIdentity);
    process.peers.write(0, filled_with(1));
    process.peers.write(1, filled_with(2));
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(child.wait_told());
  const auto pages = find_pages({box.path.string()}, geteuid());
  REQUIRE(pages.size() == 1);
  const uint64_t odd = 3;
  const int fd = open(pages[0].path.c_str(), O_WRONLY);
  REQUIRE(pwrite(fd, &odd, sizeof odd, offsetof(Page, peers)) == sizeof odd);
  close(fd);
  const Snapshot snapshot = snapshot_of(box);
  REQUIRE(snapshot.peers.size() == 1);
  CHECK(snapshot.peers[0].processes == 2);
  child.let_go();
}

TEST_CASE("entries there were before the page are in it, and the JSON names their numbers",
          "[observe][peers]") {
  Sandbox box;
  setenv("ADVERB_STATS_FILE", box.file("stats").c_str(), 1);
  Child child([](Child& self) {
    PeerEntry entry = filled_with(0);
    strcpy(entry.address, "10.0.0.2");
    entry[PeerNumber::auth_failures] = 7;
    entry[PeerNumber::bound_channels] = 9;
    process.peers.write(0, entry); // before the page exists
    process.page.start(kIdentity);
    self.tell();
    self.wait_parent();
    return 0;
  });
  REQUIRE(child.wait_told());
  const std::string shown = to_json(snapshot_of(box));
  child.let_go();
  CHECK(child.finish() == 0);
  for (const auto& text : {shown, observe_test::slurp(box.file("stats"))}) {
    const auto peers = nlohmann::json::parse(text)["peers"];
    REQUIRE(peers.size() == 1);
    CHECK(peers[0]["address"] == "10.0.0.2");
    CHECK(peers[0]["role"] == "initiator");
    CHECK(peers[0]["level"] == "host");
    CHECK(peers[0]["auth_failures"] == 7);
    CHECK(peers[0]["bounds_hit"]["channels"] == 9);
    CHECK(peers[0]["bounds_hit"]["links"] == 0);
  }
}

TEST_CASE("a fork child has a table of its own", "[observe][peers]") {
  Sandbox box;
  Child parent([](Child&) {
    process.page.start(kIdentity);
    process.peers.write(0, filled_with(1));
    const pid_t child = fork();
    if (child == 0) {
      PeerEntry entry;
      const bool empty = !read_peer(process.peers.slots()[0], entry);
      process.peers.write(0, filled_with(2));
      _exit(empty ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    PeerEntry entry;
    return status == 0 && read_peer(process.peers.slots()[0], entry) && entry.processes == 1 ? 0
                                                                                             : 1;
  });
  CHECK(parent.finish() == 0);
}
