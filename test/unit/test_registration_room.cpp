// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Room for what has to be registered, and time for it.
#include "memory/limits.h"
#include "region_fixture.h"
#include "registration/budget.h"

#include <atomic>
#include <future>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace region_test;

TEST_CASE("what nobody uses makes room for what is needed, whatever the budget says") {
  Fixture f(R"("staging": "1MiB", "pinned_budget": "1GiB")");
  ibv_mr* mr = f.add("none", all_rights | IBV_ACCESS_REMOTE_ATOMIC);
  const auto use = [&](size_t offset, Hold& hold) {
    ibv_sge sge = f.element(mr, offset, 2000);
    return f.localize(sge, hold);
  };
  const auto fill = [&] {
    f.device.limit = UINT64_MAX;
    for (size_t at = 0; at < 4; ++at) {
      Hold hold;
      REQUIRE(use(at * page, hold) == 0);
      f.regions.release(f.staging, hold);
    }
    f.device.limit = 4 * page;
  };
  fill();
  SECTION("a window, one of another context, too") {
    Hold hold;
    REQUIRE(use(3000, hold) == 0); // over two pages
    CHECK(f.device.registered == 5);
    CHECK(f.device.regions.size() == 3);
    Regions others(f.bench.world, &f.device.context);
    ibv_mr* other = nullptr;
    REQUIRE_FALSE(others.add(others.backend(*policy::find_backend("none")), f.wanted(), other));
    ibv_sge sge{f.memory.address(), 2 * page, other->lkey};
    Hold second;
    REQUIRE(others.localize(&f.device.pd, f.staging, copy_below, 0, true, sge, second) == 0);
    ibv_sge more{f.memory.address() + 2 * page, 2 * page, other->lkey};
    Hold third;
    CHECK(others.localize(&f.device.pd, f.staging, copy_below, 0, true, more, third) ==
          ENOMEM); // all is in use
    others.release(f.staging, second);
    others.remove(other);
    others.close();
    f.regions.release(f.staging, hold);
  }
  SECTION("a grant") {
    const auto grant = f.grant(mr->rkey, f.memory.address(), 8, IBV_ACCESS_REMOTE_ATOMIC);
    REQUIRE(grant);
    f.regions.revoke(grant);
  }
  SECTION("a slab of staging memory") {
    f.device.limit = Staging::slab_bytes + page;
    const Block block = f.staging.take(100);
    REQUIRE(block);
    f.staging.give(block);
  }
  SECTION("a region of the program's own") {
    f.add("pinned");
    CHECK(f.device.regions.size() == 1);
  }
}

TEST_CASE("the windows' budget is half of what RLIMIT_MEMLOCK leaves, at most") {
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0))
      _exit(1);
    const auto rules = policy_of(R"("pinned_budget": "16MiB")");
    world_test::Bench bench(&FakeProvider::table(), rules.get());
    _exit(bench.world.budgets().window_bytes() == 1 << 19 ? 0 : 2);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK((WIFEXITED(status) ? WEXITSTATUS(status) : -1) == 0);
}

TEST_CASE("a registration that takes its time stops nobody else") {
  Fixture f;
  ibv_mr* mr = f.add("none");
  std::promise<void> begun;
  std::promise<void> go_on;
  std::atomic<bool> slowly{true};
  f.device.on_register = [&] {
    if (!slowly.exchange(false))
      return;
    begun.set_value();
    go_on.get_future().wait();
  };
  Hold slow;
  Hold quick;
  auto first = std::async(std::launch::async, [&] {
    ibv_sge sge = f.element(mr, 0, page);
    return f.localize(sge, slow);
  });
  begun.get_future().wait();
  auto second = std::async(std::launch::async, [&] {
    ibv_sge sge = f.element(mr, 2 * page, page);
    return f.localize(sge, quick);
  });
  CHECK(second.wait_for(std::chrono::seconds(120)) == std::future_status::ready);
  go_on.set_value();
  CHECK(first.get() == 0);
  CHECK(second.get() == 0);
  f.regions.release(f.staging, slow);
  f.regions.release(f.staging, quick);
}

TEST_CASE(
    "unless the policy says, a share of the host's memory may be pinned, looked at each 5 s") {
  Fixture f(R"("staging": "1MiB")");
  Budgets& budgets = f.bench.world.budgets();
  auto& tasks = f.bench.service.tasks;
  budgets.look_again(); // nobody has asked yet
  CHECK(tasks.empty());
  const uint64_t first = budgets.window_bytes();
  CHECK(first >= page);
  CHECK(first <= adverb::memory::memory_limit().bytes / 16);
  budgets.look_again();
  CHECK(tasks.empty());
  f.bench.service.pass(std::chrono::seconds(5));
  budgets.look_again();
  budgets.look_again();
  CHECK(tasks.size() == 1);
  f.bench.service.run_tasks();
  CHECK(budgets.window_bytes() >= page);
}

TEST_CASE("what the policy says may be pinned stays that, and is not looked at again") {
  Fixture f(R"("staging": "1MiB", "pinned_budget": "64KiB")");
  CHECK(f.bench.world.budgets().window_bytes() == 64U << 10);
  f.bench.service.pass(std::chrono::seconds(5));
  f.bench.world.budgets().look_again();
  CHECK(f.bench.service.tasks.empty());
}

TEST_CASE("memory is looked at while peers have leases, though they ask for nothing") {
  Fixture f(R"("staging": "1MiB")");
  Budgets& budgets = f.bench.world.budgets();
  auto& service = f.bench.service;
  REQUIRE(budgets.take_leased(page));
  for (int look = 0; look < 3; ++look) {
    service.pass(Budgets::looks_each);
    budgets.look_again();
    CHECK(service.tasks.empty()); // it has just been done
  }
  budgets.give_leased(page);
  service.pass(2 * Budgets::looks_each);
  budgets.look_again();
  CHECK(service.tasks.size() == 1);
  CHECK(service.timers.empty());
}
