// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// overlap [--seconds S | --rounds N] [--seed N]: receives that lie over each other, and what one
// peer sends, writes, reads and adds there, against a model that does one after the other. See
// README.md.
#include "ends.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>

namespace {

struct Place {
  uint32_t at;
  uint32_t bytes;
};

struct Receive {
  uint64_t id = 0;
  unsigned pair = 0;
  std::vector<Place> places;
  uint32_t bytes() const {
    uint32_t all = 0;
    for (const Place& place : places)
      all += place.bytes;
    return all;
  }
  bool meets(const Receive& other) const {
    return std::ranges::any_of(places, [&](const Place& a) {
      return std::ranges::any_of(other.places, [&](const Place& b) {
        return a.at < b.at + b.bytes && b.at < a.at + a.bytes;
      });
    });
  }
  bool meets_itself() const {
    for (size_t i = 0; i < places.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (Receive{0, 0, {places[i]}}.meets({0, 0, {places[j]}}))
          return true;
    return false;
  }
};

// One request of a's, and what is to be seen of it.
struct Sent {
  ibv_send_wr wr{};
  ibv_sge sge{};
  std::vector<uint8_t> comes; // READ, atomics: what a has in the end
};

struct Arrival {
  Receive receive;
  ibv_wc_opcode opcode;
  uint32_t bytes;
  uint32_t imm;
};

class Run {
public:
  Run(ibv_context* context, uint64_t seed) : random_(seed), ends_(context, shape_of(seed)) {
    model_.resize(Ends::memory_bytes);
    posted_.resize(ends_.pairs.size());
    // Few places, so that what is posted meets what was.
    for (uint32_t& spot : spots_)
      spot = below(Ends::memory_bytes - 1);
  }

  // Empty: all was as it has to be.
  std::string go(unsigned rounds) {
    spot_ = below(Ends::memory_bytes - 32768);
    for (int i = 0; i < 3 && wrong_.empty() && posted_.size() > 1; ++i)
      before_a_large_one();
    for (int i = 0; i < 3 && wrong_.empty(); ++i)
      beside_a_small_one();
    for (unsigned round = 0; round < rounds && wrong_.empty(); ++round)
      one_round();
    return wrong_.empty() ? wrong_ : wrong_ + words();
  }
  uint64_t requests() const { return requests_; }
  uint64_t receives() const { return next_id_ - 1; }
  uint64_t refused() const { return refused_; }

private:
  static Shape shape_of(uint64_t seed) {
    const bool uc = seed % 7 == 0;
    // Of an unreliable one's requests nobody hears when they are there, so that another queue
    // pair's could come after them.
    const unsigned pairs = uc ? 1 : 1 + static_cast<unsigned>(seed % 3);
    return {.uc = uc,
            .srq = (seed & 1) != 0,
            .events = (seed & 2) != 0,
            .late = (seed & 4) != 0,
            .seldom = (seed & 8) != 0,
            .pairs = pairs};
  }
  std::string words() const {
    return std::string(ends_.shape.uc ? " (UC" : " (RC") + (ends_.shape.srq ? ", SRQ" : "") +
           (ends_.shape.seldom ? ", few receives" : "") + (ends_.shape.events ? ", events" : "") +
           (ends_.shape.late ? ", late polls, " : ", ") + std::to_string(posted_.size()) +
           " pairs)";
  }

  uint32_t below(uint32_t end) {
    return std::uniform_int_distribution<uint32_t>(0, end - 1)(random_);
  }
  bool chance(uint32_t percent) { return below(100) < percent; }

  uint32_t some_bytes() {
    static constexpr std::array<uint32_t, 16> sizes = {1,     8,     64,    200,   256,   257,
                                                       1000,  4096,  5000,  16384, 16385, 20000,
                                                       32768, 65536, 65537, 100000};
    return sizes[below(chance(60) ? 8 : sizes.size())];
  }
  Place some_place() {
    const uint32_t bytes = some_bytes();
    uint32_t at = spots_[below(spots_.size())] + (chance(50) ? 0 : below(20000));
    if (chance(20)) // the part that two regions have
      at = Ends::inner_from + below(Ends::inner_bytes);
    return {std::min(at, Ends::memory_bytes - bytes), bytes};
  }
  const ibv_mr* region_of(const Place& place) {
    const bool inner = place.at >= Ends::inner_from &&
                       place.at + place.bytes <= Ends::inner_from + Ends::inner_bytes;
    return inner && chance(50) ? ends_.inner_b : ends_.outer_b;
  }
  void fill(uint8_t* at, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; ++i)
      at[i] = static_cast<uint8_t>(random_());
  }

  void post_some_receives(unsigned pair, uint32_t many) {
    std::vector<std::vector<Place>> receives(many);
    for (std::vector<Place>& places : receives) {
      places.resize(chance(70) ? 1 : 1 + below(Ends::sges));
      std::ranges::generate(places, [&] { return some_place(); });
    }
    post_receives(pair, receives);
  }
  void post_receives(unsigned pair, const std::vector<std::vector<Place>>& receives) {
    const auto many = static_cast<uint32_t>(receives.size());
    std::vector<Receive> made(many);
    std::vector<ibv_recv_wr> wrs(many);
    std::vector<std::array<ibv_sge, Ends::sges>> sges(many);
    for (uint32_t i = 0; i < many; ++i) {
      const Receive& receive = made[i] = {next_id_++, pair, receives[i]};
      for (size_t j = 0; j < receive.places.size(); ++j)
        sges[i][j] = {reinterpret_cast<uintptr_t>(ends_.at_b.data) + receive.places[j].at,
                      receive.places[j].bytes, region_of(receive.places[j])->lkey};
      wrs[i] = {receive.id, nullptr, sges[i].data(), static_cast<int>(receive.places.size())};
    }
    for (uint32_t i = 0; i < many;) { // in lists
      const uint32_t end = i + 1 + below(many - i);
      for (uint32_t j = i; j < end; ++j)
        wrs[j].next = j + 1 < end ? &wrs[j + 1] : nullptr;
      const ibv_recv_wr* const bad = ends_.post_receives(pair, &wrs[i]);
      const auto all = bad == nullptr ? end : static_cast<uint32_t>(bad - wrs.data());
      for (; i < all; ++i)
        posted_[pair].push_back(made[i]);
      if (bad == nullptr)
        continue;
      ++refused_;
      if (!may_be_refused(made[i++]))
        return fail("a receive is refused that could be posted");
    }
  }
  // Between one that stands in staging and one of another queue pair that does not (README.md).
  bool may_be_refused(const Receive& receive) const {
    unsigned all = receive.meets_itself() ? 1 : 0;
    unsigned others = 0;
    const auto look = [&](const Receive& other) {
      for (const Place& place : other.places) { // each of them is here or there
        const bool meets = receive.meets({0, 0, {place}});
        all += meets ? 1 : 0;
        others += meets && other.pair != receive.pair ? 1 : 0;
      }
    };
    for (const auto& posted : posted_)
      std::ranges::for_each(posted, look);
    for (const Arrival& arrival : to_arrive_)
      look(arrival.receive);
    return others != 0 && all > 1;
  }

  // In the order of a's requests, which is that of b's memory.
  Sent& next_sent(uint32_t bytes) {
    Sent& sent = sent_.emplace_back();
    sent.sge = {reinterpret_cast<uintptr_t>(ends_.at_a.data) + used_a_, bytes, ends_.mr_a->lkey};
    sent.wr.wr_id = sent_.size() - 1;
    sent.wr.sg_list = &sent.sge;
    sent.wr.num_sge = bytes == 0 ? 0 : 1;
    used_a_ += (bytes + 7) & ~7U;
    return sent;
  }
  uint8_t* bytes_of(const Sent& sent) { return reinterpret_cast<uint8_t*>(sent.sge.addr); }
  void reach(Sent& sent, const Place& place) {
    sent.wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(ends_.at_b.data) + place.at;
    sent.wr.wr.rdma.rkey = region_of(place)->rkey;
  }

  void message(unsigned pair) {
    const Receive receive = std::move(posted_[pair].front());
    posted_[pair].pop_front();
    const uint32_t bytes = chance(70) ? receive.bytes() : below(receive.bytes() + 1);
    Sent& sent = next_sent(bytes);
    sent.wr.opcode = chance(30) ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
    sent.wr.imm_data = static_cast<uint32_t>(receive.id);
    fill(bytes_of(sent), bytes);
    uint32_t done = 0;
    for (const Place& place : receive.places) {
      const uint32_t here = std::min(place.bytes, bytes - done);
      std::copy_n(bytes_of(sent) + done, here, model_.begin() + place.at);
      done += here;
    }
    to_arrive_.push_back(
        {receive, IBV_WC_RECV, bytes, sent.wr.opcode == IBV_WR_SEND ? 0 : sent.wr.imm_data});
  }
  void write(unsigned pair, const Place& place, bool immediate) {
    Sent& sent = next_sent(place.bytes);
    sent.wr.opcode = immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    fill(bytes_of(sent), place.bytes);
    std::copy_n(bytes_of(sent), place.bytes, model_.begin() + place.at);
    reach(sent, place);
    if (!immediate)
      return;
    sent.wr.imm_data = static_cast<uint32_t>(posted_[pair].front().id);
    to_arrive_.push_back(
        {posted_[pair].front(), IBV_WC_RECV_RDMA_WITH_IMM, place.bytes, sent.wr.imm_data});
    posted_[pair].pop_front();
  }
  void read() {
    const Place place = some_place();
    Sent& sent = next_sent(place.bytes);
    sent.wr.opcode = IBV_WR_RDMA_READ;
    sent.comes.assign(model_.begin() + place.at, model_.begin() + place.at + place.bytes);
    reach(sent, place);
  }
  void add() {
    Place place = some_place();
    place = {std::min(place.at, Ends::memory_bytes - 8) & ~7U, 8};
    Sent& sent = next_sent(8);
    sent.wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    sent.comes.assign(model_.begin() + place.at, model_.begin() + place.at + 8);
    uint64_t value = 0;
    memcpy(&value, &model_[place.at], 8);
    const uint64_t more = random_();
    value += more;
    memcpy(&model_[place.at], &value, 8);
    sent.wr.wr.atomic = {reinterpret_cast<uintptr_t>(ends_.at_b.data) + place.at, more, 0,
                         region_of(place)->rkey};
  }

  void forget_sent() {
    sent_.clear();
    used_a_ = 0;
  }

  void make_requests(unsigned pair) {
    forget_sent();
    const std::deque<Receive>& posted = posted_[pair];
    const uint32_t many = 1 + below(12);
    for (uint32_t i = 0; i < many && used_a_ + 4 * 100'000 < ends_.at_a.bytes; ++i) {
      const uint32_t which = below(10);
      if (which < 5 && !posted.empty())
        message(pair);
      else if (ends_.shape.uc && posted.empty())
        break; // nobody would hear when it is there
      else if (which < 6 && !posted.empty())
        write(pair, some_place(), true);
      else if (which < 8 || ends_.shape.uc)
        write(pair, some_place(), false);
      else if (which < 9)
        read();
      else
        add();
    }
    while (!posted.empty() && ends_.shape.seldom && used_a_ + 4 * 100'000 < ends_.at_a.bytes)
      message(pair);
    if (ends_.shape.uc && !posted.empty())
      message(pair);
  }

  void post_requests(unsigned pair) {
    for (Sent& sent : sent_)
      sent.wr.send_flags = chance(50) || &sent == &sent_.back() ? IBV_SEND_SIGNALED : 0;
    requests_ += sent_.size();
    for (size_t i = 0; i < sent_.size();) {
      const size_t end = i + 1 + below(static_cast<uint32_t>(sent_.size() - i));
      for (size_t j = i; j < end; ++j) {
        sent_[j].wr.sg_list = &sent_[j].sge;
        sent_[j].wr.next = j + 1 < end ? &sent_[j + 1].wr : nullptr;
      }
      ibv_send_wr* bad = nullptr;
      if ((errno = ibv_post_send(ends_.pairs[pair].a, &sent_[i].wr, &bad)) != 0)
        die("ibv_post_send");
      i = end;
      if (!ends_.shape.late && chance(50))
        take_arrivals(false);
    }
  }

  void take_sent() {
    for (bool last = sent_.empty(); !last;) {
      for (const ibv_wc& wc : ends_.of_a.take(true)) {
        if (wc.status != IBV_WC_SUCCESS)
          return fail(std::string("a request ends with \"") + ibv_wc_status_str(wc.status) + '"');
        last |= wc.wr_id + 1 == sent_.size();
      }
      if (!ends_.shape.late)
        take_arrivals(false);
    }
    for (const Sent& sent : sent_)
      if (!sent.comes.empty() && !std::equal(sent.comes.begin(), sent.comes.end(), bytes_of(sent)))
        fail("what request " + std::to_string(sent.wr.wr_id) + " (opcode " +
             std::to_string(sent.wr.opcode) + ") brought is not what was there");
  }

  void take_arrivals(bool wait) {
    for (const ibv_wc& wc : ends_.of_b.take(wait)) {
      if (to_arrive_.empty() || wc.status != IBV_WC_SUCCESS)
        return fail(std::string("a receive ends with \"") + ibv_wc_status_str(wc.status) + '"');
      const Arrival expected = to_arrive_.front();
      to_arrive_.pop_front();
      const uint32_t imm = (wc.wc_flags & IBV_WC_WITH_IMM) != 0 ? wc.imm_data : 0;
      if (wc.wr_id != expected.receive.id || wc.opcode != expected.opcode ||
          wc.byte_len != expected.bytes || imm != expected.imm)
        fail("a completion is not of the receive whose turn it is");
    }
  }

  void one_round() {
    if (chance(30)) { // b itself
      const Place place = some_place();
      fill(ends_.at_b.data + place.at, place.bytes);
      std::copy_n(ends_.at_b.data + place.at, place.bytes, model_.begin() + place.at);
    }
    // What one queue pair is asked for follows on what another has done.
    const unsigned turns = posted_.size() == 1 ? 1 : 1 + below(4);
    for (unsigned i = 0; i < turns && wrong_.empty(); ++i) {
      for (unsigned pair = 0; pair < posted_.size(); ++pair)
        if (ends_.shape.seldom ? chance(20) : posted_[pair].size() < Ends::depth / 2)
          post_some_receives(pair, 1 + below(8));
      const unsigned pair = below(static_cast<uint32_t>(posted_.size()));
      make_requests(pair);
      carry_out(pair);
    }
    arrive();
  }

  // Others write beside where a small message is to come, often enough to do it without b's help;
  // then comes a large message for both places, and one more of what they write.
  void beside_a_small_one() {
    const Place beside{spot_ + 12288, 16384};
    post_receives(0, {{{spot_, 200}}});
    for (int i = 0; i < 10; ++i) {
      forget_sent();
      write(0, beside, false);
      carry_out(0);
    }
    post_receives(0, {{{spot_, 32768}}});
    forget_sent();
    message(0);
    message(0);
    write(0, beside, false);
    carry_out(0);
    arrive();
  }

  // Small receives over large ones of another queue pair that were posted before, and their
  // messages come first.
  void before_a_large_one() {
    post_receives(1, {{{spot_, 4096}}, {{spot_ + 8192, 8192}}});
    post_receives(0, {{{spot_ + 2000, 8}}, {{spot_ + 9000, 200}}});
    for (const unsigned pair : {0U, 1U}) {
      forget_sent();
      while (!posted_[pair].empty())
        message(pair);
      carry_out(pair);
    }
    arrive();
  }

  void carry_out(unsigned pair) {
    post_requests(pair);
    take_sent();
  }
  void arrive() {
    while (wrong_.empty() && !to_arrive_.empty())
      take_arrivals(true);
    if (!wrong_.empty())
      return;
    const auto [ours, theirs] = std::mismatch(model_.begin(), model_.end(), ends_.at_b.data);
    if (ours != model_.end())
      fail("byte " + std::to_string(ours - model_.begin()) + " is not as the last one left it");
  }

  void fail(std::string why) {
    if (wrong_.empty())
      wrong_ = std::move(why);
  }

  std::mt19937_64 random_;
  Ends ends_;
  std::vector<uint8_t> model_; // b's memory as it has to be when all that was posted has ended
  std::array<uint32_t, 3> spots_{};
  std::vector<std::deque<Receive>> posted_; // of each pair, and nothing sent for them yet
  std::deque<Arrival> to_arrive_;
  std::deque<Sent> sent_;
  uint32_t used_a_ = 0;
  uint32_t spot_ = 0;
  uint64_t next_id_ = 1;
  uint64_t requests_ = 0;
  uint64_t refused_ = 0; // receives
  std::string wrong_;
};

} // namespace

int main(int argc, char** argv) {
  const Asked asked(argc, argv, 5);
  const Device device;
  uint64_t seed = asked.seed;
  unsigned long runs = 0, requests = 0, receives = 0, refused = 0, bad = 0;
  do {
    Run run(device.context, seed);
    const std::string wrong = run.go(200);
    requests += run.requests();
    receives += run.receives();
    refused += run.refused();
    ++runs;
    if (!wrong.empty()) {
      ++bad;
      printf("# --seed %lu: %s\n", static_cast<unsigned long>(seed), wrong.c_str());
    }
    ++seed;
  } while (asked.more(runs) && bad < 10);
  printf("%sok - receives over each other hold what one after the other would have left\n",
         bad == 0 ? "" : "not ");
  printf("# %lu runs, %lu requests, %lu receives, %lu of them refused, %lu runs wrong\n1..1\n",
         runs, requests, receives, refused, bad);
  return bad == 0 ? 0 : 1;
}
