// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The companions that an owner has made for peers, and what each of them is charged to: to a queue
// pair by which its peer has shown itself, or else to the bound for all that have shown nothing.
// What counts is what is there: one counts until its queue pair and its receives are gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace adverb::link {

class Companion;

namespace owning {
struct Link;
} // namespace owning

// Service thread only; charges end there, too.
class CompanionCharges {
public:
  struct Charge {
    std::weak_ptr<owning::Link> link;
    std::weak_ptr<Companion> end;
    uint64_t timer = 0; // until the nonce comes; 0: it has
    uint64_t qp = 0;    // by which its peer has shown itself, a handle; 0: it has not
    bool ends = false;  // closed, and not gone yet
    // It counts against the bound for those whose peers have shown nothing.
    bool is_unshown() const noexcept { return qp == 0 && !ends; }
  };

  // The number that the next one gets.
  uint64_t next() const noexcept { return next_; }
  // Counts until nobody holds `end` any more. `shown`: what Charge::qp is if there is room.
  void add(const std::shared_ptr<owning::Link>& link, const std::shared_ptr<Companion>& end,
           uint64_t timer, uint64_t shown);
  // Null: it is gone.
  Charge* find(uint64_t number);
  Charge* find(const std::shared_ptr<Companion>& end);
  // Those that are charged to the queue pair are fewer than may be.
  bool has_room(uint64_t qp) const;
  // Which of the unshown gives way to one more of `link`'s: the oldest of the link with most, of
  // the host with most. 0: there is none, or `link` is of that host and no poorer than that link.
  uint64_t giving_way_to(const owning::Link& link) const;
  // The charges of `from` are `to`'s.
  void move(const std::shared_ptr<owning::Link>& from, const std::shared_ptr<owning::Link>& to);

  template <typename Function> void for_each(Function function) {
    for (auto& [number, charge] : *all_)
      function(charge);
  }

private:
  using All = std::map<uint64_t, Charge>; // the oldest first
  // Companions may outlive their owner.
  const std::shared_ptr<All> all_ = std::make_shared<All>();
  uint64_t next_ = 1;
};

} // namespace adverb::link
