// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// landing [--seconds S | --rounds N] [--seed N]: lists of READs, and of WRITEs and SENDs with a
// fence behind them, from and to local bytes that lie over each other. See README.md.
#include "ends.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace {

constexpr uint32_t space = 128 << 10; // bytes of a's that requests name, and of b's that they read
constexpr uint32_t list_max = 8;
constexpr int local = IBV_ACCESS_LOCAL_WRITE;
constexpr uint64_t shift = uint64_t{1} << 44;
// Around those at which bytes are copied another way.
constexpr std::array<uint32_t, 10> sizes = {8,    250,    256,    4000,   10'000,
                                            9000, 20'000, 40'000, 60'000, 70'000};

// One request after the other.
class Run {
public:
  Run(ibv_context* context, uint64_t seed)
      : random_(seed), ends_(context, {.events = seed % 4 == 0}), local_(space),
        mr_(ibv_reg_mr(ends_.pd, own_.data, own_.bytes, local)),
        moved_(ibv_reg_mr_iova(ends_.pd, own_.data, own_.bytes, address(0) + shift, local)),
        sources_(list_max), small_(below(3) == 0), same_(below(2) == 0) {
    if (mr_ == nullptr || moved_ == nullptr)
      die("ibv_reg_mr");
    for (uint32_t i = 0; i < space; ++i)
      ends_.at_b.data[i] = static_cast<uint8_t>(i % 251 ^ i >> 8);
  }
  ~Run() {
    ibv_dereg_mr(mr_);
    ibv_dereg_mr(moved_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // False: something has other bytes than it is to have.
  bool list() {
    const uint32_t count = 2 + below(list_max - 1);
    std::array<ibv_send_wr, list_max> list{};
    std::array<ibv_sge, list_max> elements{};
    kept_.clear();
    room_ = space;
    uint32_t receives = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t bytes = size();
      const uint32_t at = place(bytes);
      elements[i] = element(at, bytes);
      list[i].sg_list = &elements[i];
      list[i].num_sge = 1;
      list[i].send_flags = IBV_SEND_SIGNALED;
      list[i].wr.rdma.rkey = ends_.outer_b->rkey;
      sources_[i].clear();
      if (may_be_sent(i, bytes))
        receives += send(list[i], i, at, bytes);
      else if (may_be_written(at, bytes))
        read(list[i], at, bytes);
      else
        list[i].opcode = IBV_WR_RDMA_READ, list[i].num_sge = 0; // of nothing
    }
    post({list.data(), count});
    ends_.of_a.await(count);
    ends_.of_b.await(receives);
    requests_ += count;
    bool good = memcmp(own_.data, local_.data(), space) == 0;
    for (uint32_t i = 0; i < count; ++i)
      good = good && (sources_[i].empty() ||
                      memcmp(targets_[i], sources_[i].data(), sources_[i].size()) == 0);
    return good;
  }
  unsigned long requests() const { return requests_; }

private:
  uint32_t below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  uint32_t size() { return small_ ? sizes[below(3)] : sizes[below(sizes.size())]; }
  uint64_t address(uint32_t at) const { return reinterpret_cast<uintptr_t>(own_.data) + at; }
  // By one of the regions that they lie in.
  ibv_sge element(uint32_t at, uint32_t bytes) {
    return below(3) != 0 ? ibv_sge{address(at), bytes, mr_->lkey}
                         : ibv_sge{address(at) + shift, bytes, moved_->lkey};
  }
  // Again and again the same, so that what stands in for it may be kept; or anywhere.
  uint32_t place(uint32_t bytes) {
    return std::min(small_ ? below(300) : same_ ? 10'000 * below(4) : below(space), space - bytes);
  }
  bool may_be_sent(uint32_t i, uint32_t bytes) { return i != 0 && bytes <= room_ && below(2) == 0; }
  // No request before it takes its bytes from there.
  bool may_be_written(uint32_t at, uint32_t bytes) const {
    return std::none_of(kept_.begin(), kept_.end(), [&](const auto& part) {
      return at < part.second && part.first < at + bytes;
    });
  }
  // Behind what is read of b's memory, each to bytes of its own. How many receives it takes.
  uint32_t send(ibv_send_wr& wr, uint32_t i, uint32_t at, uint32_t bytes) {
    kept_.emplace_back(at, at + bytes);
    sources_[i].assign(local_.begin() + at, local_.begin() + at + bytes);
    targets_[i] = ends_.at_b.data + space + (space - room_);
    room_ -= bytes;
    wr.send_flags |= IBV_SEND_FENCE;
    wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(targets_[i]);
    wr.opcode = below(3) == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
    if (wr.opcode == IBV_WR_RDMA_WRITE)
      return 0;
    ibv_sge sge{wr.wr.rdma.remote_addr, bytes, ends_.outer_b->lkey};
    ibv_recv_wr receive{0, nullptr, &sge, 1};
    if (ends_.post_receives(0, &receive) != nullptr)
      die("ibv_post_recv");
    return 1;
  }
  void read(ibv_send_wr& wr, uint32_t at, uint32_t bytes) {
    const uint32_t from = below(space - bytes + 1);
    wr.opcode = IBV_WR_RDMA_READ;
    wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(ends_.at_b.data) + from;
    std::copy_n(ends_.at_b.data + from, bytes, local_.begin() + at);
  }
  // By one call, or each by its own.
  void post(std::span<ibv_send_wr> list) {
    const bool one_call = below(3) != 0;
    for (size_t i = 0; i + 1 < list.size(); ++i)
      list[i].next = one_call ? &list[i + 1] : nullptr;
    for (ibv_send_wr& wr : list.first(one_call ? 1 : list.size())) {
      ibv_send_wr* bad = nullptr;
      if ((errno = ibv_post_send(ends_.pairs[0].a, &wr, &bad)) != 0)
        die("ibv_post_send");
    }
  }

  std::mt19937_64 random_;
  Ends ends_;
  Memory own_{space};
  std::vector<uint8_t> local_; // as that is to be
  ibv_mr* const mr_;
  ibv_mr* const moved_; // the same bytes, by other addresses
  std::vector<std::vector<uint8_t>> sources_;
  std::array<uint8_t*, list_max> targets_{};
  std::vector<std::pair<uint32_t, uint32_t>> kept_; // [from, to) of a list's sources
  uint32_t room_ = 0;
  const bool small_;
  const bool same_;
  unsigned long requests_ = 0;
};

// Atomics, with a peer that allows nothing else, some of them unsignaled: of those whose results go
// to the same bytes the last is to be found there.
class Count {
public:
  Count(ibv_context* context, uint64_t seed)
      : random_(seed), ends_(context, {.atomics = true}),
        mr_(ibv_reg_mr(ends_.pd, own_.data, own_.bytes, local)) {
    if (mr_ == nullptr)
      die("ibv_reg_mr");
  }
  ~Count() { ibv_dereg_mr(mr_); }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

  // False: a result is not where it is to be.
  bool list() {
    uint32_t signaled = 0;
    for (uint32_t i = 0; i < list_max; ++i) {
      const auto place = static_cast<uint32_t>(random_() % places_.size());
      ibv_sge sge{reinterpret_cast<uintptr_t>(own_.data) + 4000 * place, 8, mr_->lkey};
      ibv_send_wr wr{};
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      wr.send_flags = i + 1 == list_max || random_() % 2 == 0 ? IBV_SEND_SIGNALED : 0;
      wr.wr.atomic = {reinterpret_cast<uintptr_t>(ends_.at_b.data), 1, 0, ends_.outer_b->rkey};
      ibv_send_wr* bad = nullptr;
      if ((errno = ibv_post_send(ends_.pairs[0].a, &wr, &bad)) != 0)
        die("ibv_post_send");
      signaled += wr.send_flags != 0 ? 1 : 0;
      places_[place] = count_++;
    }
    ends_.of_a.await(signaled);
    bool good = true;
    for (size_t i = 0; i < places_.size(); ++i)
      good = good && memcmp(own_.data + 4000 * i, &places_[i], sizeof places_[i]) == 0;
    return good;
  }

private:
  std::mt19937_64 random_;
  Ends ends_;
  Memory own_{12'000};
  ibv_mr* const mr_;
  std::array<uint64_t, 3> places_{}; // what each is to have
  uint64_t count_ = 0;
};

} // namespace

int main(int argc, char** argv) {
  const Asked asked(argc, argv, 5);
  const Device device;
  constexpr int lists = 200; // of a run
  unsigned long requests = 0, runs = 0;
  uint64_t seed = asked.seed;
  bool good = true;
  do {
    Run run(device.context, seed);
    for (int i = 0; good && i < lists; ++i)
      good = run.list();
    requests += run.requests();
    Count atomics(device.context, seed);
    for (int i = 0; good && i < lists; ++i)
      good = atomics.list();
    requests += static_cast<unsigned long>(lists) * list_max;
    ++runs;
  } while (good && asked.more(runs) && ++seed != 0);
  printf("%sok - the later of two READs wins, and a fence holds what is behind it\n",
         good ? "" : "not ");
  if (!good)
    printf("# --seed %llu\n", static_cast<unsigned long long>(seed));
  printf("# %lu requests\n1..1\n", requests);
  return good ? 0 : 1;
}
