// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A program's memory regions: those that it and its peers use, those that nobody may use for what
// somebody will, and how they change.
#include "program.h"

#include "memory/folios.h"
#include "registration/budget.h"

#include <algorithm>
#include <array>
#include <cerrno>

namespace sim {

namespace {
constexpr uint32_t cell_bytes = sizeof(uint64_t);
constexpr size_t page = 4096;
constexpr unsigned shared_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// Whether it is not registered with the device: no kernel has a handle of it.
bool follows(const ibv_mr& mr) {
  return mr.handle == UINT32_MAX;
}
} // namespace

// By other addresses than the program's own, where it says so.
ibv_mr* Program::register_shared() {
  if (shift_ == 0)
    return verbs_.reg_mr(pd_, shared_at(0), shared_.size_bytes(), shared_rights);
  return verbs_.reg_mr_iova(pd_, shared_at(0), shared_.size_bytes(),
                            reinterpret_cast<uintptr_t>(shared_at(0)) + shift_, shared_rights);
}

void Program::register_all() {
  const auto near_bytes = near_slots * slot_cells * cell_bytes;
  shift_ = choices_.once_in(4) ? uint64_t{1} << 44 : 0;
  shared_mr_ = register_shared();
  own_mr_ = verbs_.reg_mr(pd_, own_at(own_.data()), own_.size_bytes(), IBV_ACCESS_LOCAL_WRITE);
  near_offsets_ = choices_.once_in(6);
  near_mr_ = verbs_.reg_mr(pd_, own_at(own_.data()), near_bytes,
                           IBV_ACCESS_LOCAL_WRITE | (near_offsets_ ? IBV_ACCESS_ZERO_BASED : 0));
  side_mr_ = verbs_.reg_mr(pd_, shared_at(0), side_cells * cell_bytes, shared_rights);
  if (choices_.once_in(3))
    for (int i = 0; i < 5; ++i)
      counter_mrs_.push_back(verbs_.reg_mr(pd_, shared_at(0), shared_.size_bytes(), shared_rights));
  if (choices_.once_in(2))
    return;
  other_pd_ = verbs_.alloc_pd(context_);
  others_mr_ = verbs_.reg_mr(other_pd_, shared_at(0), shared_.size_bytes(), shared_rights);
  others_own_mr_ =
      verbs_.reg_mr(other_pd_, own_at(own_.data()), own_.size_bytes(), IBV_ACCESS_LOCAL_WRITE);
  readable_mr_ = verbs_.reg_mr(pd_, shared_at(0), shared_.size_bytes(), IBV_ACCESS_REMOTE_READ);
  sealed_mr_ = verbs_.reg_mr(pd_, own_at(own_.data()), own_.size_bytes(), 0);
}

void Program::deregister_all() {
  for (auto* list : {&old_mrs_, &counter_mrs_})
    for (ibv_mr* mr : *list)
      verbs_.dereg_mr(mr);
  for (ibv_mr* mr : {side_mr_, shared_mr_, near_mr_, own_mr_, others_mr_, others_own_mr_,
                     readable_mr_, sealed_mr_})
    if (mr != nullptr)
      verbs_.dereg_mr(mr);
  if (other_pd_ != nullptr)
    verbs_.dealloc_pd(other_pd_);
  verbs_.dealloc_pd(pd_);
}

// Bytes of a buffer, by one of the regions that it lies in. Of inline data only the address counts.
ibv_sge Program::element(uint32_t slot, uint32_t from, uint32_t bytes, bool inlined) {
  const bool near = slot < near_slots && !near_changing_ && habits_.near();
  const uint64_t first =
      near && near_offsets_ && !inlined ? 0 : reinterpret_cast<uintptr_t>(own_at(own_.data()));
  return {first + uint64_t{slot} * slot_cells * cell_bytes + from, bytes,
          (near ? near_mr_ : own_mr_)->lkey};
}

// Whether what peers do by it comes to the memory that is mapped there then, and not to the pages
// that were when it was registered.
bool Program::follows_addresses(uint32_t key) const {
  const auto is_it = [&](const ibv_mr* mr) {
    return mr != nullptr && mr->rkey == key && follows(*mr);
  };
  return is_it(shared_mr_) || is_it(side_mr_) || std::ranges::any_of(counter_mrs_, is_it);
}

// No more is leased than there is room for: what is registered with all rights of peers, and not
// for the program.
void Program::look_at_leases() {
  if (changes_at_all_)
    return; // which of them are the program's nobody knows
  std::vector<const ibv_mr*> its{shared_mr_, side_mr_, others_mr_};
  its.insert(its.end(), counter_mrs_.begin(), counter_mrs_.end());
  its.insert(its.end(), old_mrs_.begin(), old_mrs_.end());
  uint64_t kept = 0;
  fabric_.each_reachable(context_, [&](const ibv_mr& mr) {
    if (!shared_pages_.has(mr.addr) || std::ranges::find(its, &mr) != its.end())
      return;
    const uintptr_t grain = shared_pages_.huge ? adverb::memory::huge_page : page;
    const auto from = reinterpret_cast<uintptr_t>(mr.addr);
    kept += ((from + mr.length + grain - 1) & ~(grain - 1)) - (from & ~(grain - 1));
  });
  if (kept > world.budgets().leasable_bytes())
    trouble.push_back(std::to_string(kept) + " bytes are kept in place for peers");
}

// At any time, as another thread may: no program ever has what a view shows in the place of a page
// that is away (views.cpp). Its own values have fewer bits.
void Program::look_at_own() {
  constexpr unsigned mark = 0xD;
  for (const uint64_t& cell : own_)
    if (cell >> 60 == mark) {
      trouble.push_back("the pattern of a view stands in cell " +
                        std::to_string(&cell - own_.data()) + " of a program");
      return;
    }
}

// One more region of the same memory, which peers use from here on.
void Program::renew_key() {
  --renewals_;
  ibv_mr* fresh = register_shared();
  if (fresh == nullptr) {
    if (!(errno == ENOMEM && fabric_.refuses) && !(errno == EFAULT && shared_away_))
      trouble.emplace_back("ibv_reg_mr fails");
    return;
  }
  old_mrs_.push_back(std::exchange(shared_mr_, fresh));
}

void Program::end_key(uint32_t key) {
  fabric_.ends_keys = true;
  oracle_.key_ends(number_, key);
}

// Once no peer uses it any more; or at once, and they get the error.
bool Program::end_old_key() {
  if (old_mrs_.empty())
    return false;
  ibv_mr* old = old_mrs_.front();
  if (oracle_.uses_key(number_, old->rkey)) {
    if (!abrupt_ || !choices_.once_in(4))
      return false;
    end_key(old->rkey);
  }
  old_mrs_.erase(old_mrs_.begin());
  if (odd_ && !follows(*old) && choices_.once_in(3)) { // the first time
    fabric_.bound.insert(old);
    if (verbs_.dereg_mr(old) != EBUSY)
      trouble.emplace_back("ibv_dereg_mr of a region with a window does not say EBUSY");
    fabric_.bound.erase(old);
  }
  if (verbs_.dereg_mr(old) != 0)
    trouble.emplace_back("ibv_dereg_mr fails");
  return true;
}

// Nothing that is outstanding uses the first buffers; or it may fail, but no receive may.
bool Program::may_change_own() {
  bool used = false;
  for (const auto& [id, slot] : slots_) {
    if (slot >= near_slots)
      continue;
    if (oracle_.operation(id) == nullptr || !abrupt_)
      return false;
    used = true;
  }
  if (used)
    for (const auto& queue : queues_)
      oracle_.going(queue->number);
  return true;
}

// Longer or shorter by ibv_rereg_mr, or with other rights: the policy may want it registered
// otherwise then. One for which that fails would have to be given up.
// As the thread that hears of changes does, and ibv_rereg_mr, for whom no step can wait.
void Program::begin_change(void (Program::*change)()) {
  recalls_->begin_change(adverb::memory::all_stripes);
  next_change_ = change;
  looks_ = 0;
  go_on_changing();
}

bool Program::go_on_changing() {
  const bool ready = recalls_->all_back(adverb::memory::all_stripes);
  if (!ready && ++looks_ < patience_)
    return false;
  const auto change = std::exchange(next_change_, nullptr);
  if (!ready)
    recalls_->overdue(adverb::memory::all_stripes);
  // Or it was other memory of the same stripe that has changed: nobody is to notice.
  late_ = !ready && change == &Program::take_away && choices_.once_in(2);
  if (ready || late_)
    (this->*change)();
  late_ = false;
  recalls_->end_change(adverb::memory::all_stripes);
  return ready;
}

void Program::change_region() {
  --changes_;
  if (fabric_.refuses || shared_away_ || away_to_ != 0)
    return;
  int rc = 0;
  if (choices_.once_in(2)) {
    const uint32_t key = side_mr_->rkey;
    if (oracle_.uses_key(number_, key)) {
      if (!abrupt_)
        return;
      end_key(key);
    }
    side_wide_ = !side_wide_;
    changing_ = true;
    rc = verbs_.rereg_mr(side_mr_, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, shared_at(0),
                         side_wide_ ? shared_.size_bytes() : side_cells * cell_bytes, 0);
    changing_ = false;
  } else {
    if (!may_change_own())
      return;
    near_changing_ = true;
    if (near_offsets_ || choices_.once_in(2)) {
      near_wide_ = !near_wide_;
      rc =
          verbs_.rereg_mr(near_mr_, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, own_at(own_.data()),
                          near_wide_ ? own_.size_bytes() : near_slots * slot_cells * cell_bytes, 0);
    } else {
      near_lent_ = !near_lent_;
      rc = verbs_.rereg_mr(
          near_mr_, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD, pd_, nullptr, 0,
          static_cast<int>(near_lent_ ? shared_rights : unsigned{IBV_ACCESS_LOCAL_WRITE}));
    }
    near_changing_ = false;
  }
  if (rc != 0)
    trouble.push_back("ibv_rereg_mr: " + std::to_string(rc));
}

// What every provider refuses; a region stays as it was.
void Program::ask_nonsense() {
  void* const start = shared_at(0);
  const size_t bytes = shared_.size_bytes();
  constexpr int local = IBV_ACCESS_LOCAL_WRITE;
  if (choices_.once_in(2)) {
    ibv_mr* made = nullptr;
    switch (choices_.below(5)) {
    case 1:
      made = verbs_.reg_mr(pd_, start, bytes, IBV_ACCESS_REMOTE_WRITE);
      break;
    case 2:
      made = verbs_.reg_mr(pd_, start, bytes, 1 << 19);
      break;
    case 3:
      made = verbs_.reg_mr(pd_, start, SIZE_MAX, local);
      break;
    case 4:
      made = verbs_.reg_mr_iova(pd_, start, bytes, reinterpret_cast<uintptr_t>(start) + 8, local);
      break;
    default:
      made = verbs_.reg_mr(pd_, start, 0, local);
      break;
    }
    if (made != nullptr || (errno != EINVAL && !(errno == ENOMEM && fabric_.refuses)))
      trouble.emplace_back("ibv_reg_mr takes nonsense, or does not say EINVAL");
    return;
  }
  struct Change {
    int flags;
    void* start;
    size_t bytes;
    int access;
  };
  const std::array<Change, 6> all{
      {{0, nullptr, 0, 0},
       {1 << 20, nullptr, 0, 0},
       {IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, bytes, 0},
       {IBV_REREG_MR_CHANGE_TRANSLATION, start, 0, 0},
       {IBV_REREG_MR_CHANGE_PD, nullptr, 0, 0},
       {IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0, IBV_ACCESS_REMOTE_WRITE}}};
  const Change& one = all.at(choices_.below(all.size()));
  if (verbs_.rereg_mr(near_mr_, one.flags, nullptr, one.start, one.bytes, one.access) == 0)
    trouble.emplace_back("ibv_rereg_mr takes nonsense");
}

// A piece of its memory, which from here on is not mapped: what peers do there by a region that
// follows addresses earns the error, and what it does itself from there or to there may.
void Program::take_away() {
  losses_ -= std::min(losses_, 1U);
  hurries_ = false;
  if (choices_.once_in(2)) {
    if (!shared_away_)
      take_shared_away();
  } else if (away_to_ == 0) {
    take_own_away();
  }
}

void Program::take_shared_away() {
  shared_away_ = true;
  const bool first = choices_.once_in(3); // page
  oracle_.memory_goes(number_, first ? 0 : side_cells,
                      first ? side_cells : shared_cells - side_cells, late_);
  shared_pages_.take_away(first ? 0 : page, page);
  views_->taken_away(shared_pages_.mine() + (first ? 0 : page), page);
  mappings_->changed(shared_pages_.mine() + (first ? 0 : page), page);
}

// A page that no receive is to be filled on.
void Program::take_own_away() {
  constexpr size_t slot_bytes = slot_cells * cell_bytes;
  const size_t from = choices_.below((deep_ ? slots : few_slots) * slot_bytes / page) * page;
  const auto first = static_cast<uint32_t>(from / slot_bytes);
  const auto last = static_cast<uint32_t>((from + page - 1) / slot_bytes);
  for (const auto& [id, slot] : slots_)
    if (slot >= first && slot <= last && oracle_.operation(id) == nullptr)
      return;
  away_from_ = first;
  away_to_ = last + 1;
  for (const auto& queue : queues_)
    if (std::ranges::any_of(queue->order, [this](uint64_t id) { return is_away(slots_.at(id)); }))
      oracle_.going(queue->number);
  own_pages_.take_away(from, page);
  mappings_->changed(own_pages_.mine() + from, page);
}

// Once nobody is to find out that it was gone.
bool Program::give_back() {
  if (shared_away_ && oracle_.memory_returns(number_)) {
    shared_away_ = false;
    shared_pages_.give_back();
    return true;
  }
  if (away_to_ == 0)
    return false;
  away_from_ = away_to_ = 0;
  own_pages_.give_back();
  return true;
}

} // namespace sim
