// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A bad link for UC and UD: the setting ADVERB_LOOPBACK_LINK, and the fate of every packet. A fate
// depends on the seed, the ordinal of the queue pair and the ordinal of the packet. No thread and
// no clock changes it. README.md has the grammar.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace adverb::loopback {

constexpr uint64_t kReorderWaitNs = 10'000'000;

// What the link does. Probabilities are per packet; times are in nanoseconds.
struct LinkSetting {
  uint64_t seed = 1;
  double loss = 0;
  double burst = 0; // mean length of a run of losses, in packets; 0: losses are independent
  double duplicate = 0;
  double reorder = 0;
  uint64_t reorder_span = 0; // packets of the queue pair that overtake a held packet
  uint64_t reorder_wait_ns = kReorderWaitNs; // the longest wait for those packets
  double late = 0;
  uint64_t late_ns = 0;
  uint64_t delay_ns = 0;
  bool place_unbacked = false; // a WRITE_WITH_IMM without a receive still places its payload
};

// Reads a setting, such as "seed=7,loss=1e-2". Returns false if a word is wrong, and then
// `complaint` names the word and the reason.
bool parse_link(std::string_view text, LinkSetting& setting, std::string& complaint);

// How one copy of a packet travels.
enum class Way : uint8_t { prompt, held, late };

struct Fate {
  uint32_t copies = 1; // 0: the packet is lost
  std::array<Way, 2> way{Way::prompt, Way::prompt};
};

// A packet on the wire: the time at which it is due, in ns, and a number that keeps the order.
using Ticket = std::pair<uint64_t, uint64_t>;

// The link as one sending queue pair sees it. Guarded by the queue pair's exec_mutex.
class Lane {
public:
  // `queue_pair` counts the UC and UD queue pairs made from one opened device, from 0.
  Lane(const LinkSetting& setting, uint32_t queue_pair);

  const LinkSetting& setting() const { return setting_; }

  // The fate of the next message, which is `packets` long. UC takes the packets of one message in
  // order of their PSN only, so a message of several packets is lost unless all travel promptly.
  Fate next_message(uint32_t packets);

  // Remembers that the last packet is held, and where it waits on the wire.
  void hold(Ticket ticket);
  // Finds a held packet that enough others have overtaken. False if there is none.
  bool overtaken(Ticket& ticket);

private:
  enum class Draw : uint64_t { burst, duplicate, late, reorder, copies = 8 };

  bool chance(double probability, Draw purpose, uint32_t copy = 0) const;
  bool lost();
  Way way_of(uint32_t copy) const;
  Fate next_packet();

  struct Held {
    uint64_t until; // released once this many packets have been sent
    Ticket ticket;
  };

  LinkSetting setting_;
  uint64_t key_;
  uint64_t ordinal_ = 0; // of the next packet
  bool in_burst_ = false;
  std::deque<Held> held_;
};

} // namespace adverb::loopback
