// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A program's memory regions: those that it and its peers use, those that nobody may use for what
// somebody will, and how they change.
#include "program.h"

#include <cerrno>

namespace sim {

namespace {
constexpr uint32_t cell_bytes = sizeof(uint64_t);
constexpr unsigned shared_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
} // namespace

// By other addresses than the program's own, where it says so.
ibv_mr* Program::register_shared() {
  if (shift_ == 0)
    return verbs_.reg_mr(pd_, shared_.data(), shared_.size_bytes(), shared_rights);
  return verbs_.reg_mr_iova(pd_, shared_.data(), shared_.size_bytes(),
                            reinterpret_cast<uintptr_t>(shared_.data()) + shift_, shared_rights);
}

void Program::register_all() {
  const auto near_bytes = near_slots * slot_cells * cell_bytes;
  shift_ = choices_.once_in(4) ? uint64_t{1} << 44 : 0;
  shared_mr_ = register_shared();
  own_mr_ = verbs_.reg_mr(pd_, own_.data(), own_.size_bytes(), IBV_ACCESS_LOCAL_WRITE);
  near_mr_ = verbs_.reg_mr(pd_, own_.data(), near_bytes, IBV_ACCESS_LOCAL_WRITE);
  side_mr_ = verbs_.reg_mr(pd_, shared_.data(), side_cells * cell_bytes, shared_rights);
  if (choices_.once_in(3))
    for (int i = 0; i < 5; ++i)
      counter_mrs_.push_back(
          verbs_.reg_mr(pd_, shared_.data(), shared_.size_bytes(), shared_rights));
  if (choices_.once_in(2))
    return;
  other_pd_ = verbs_.alloc_pd(context_);
  others_mr_ = verbs_.reg_mr(other_pd_, shared_.data(), shared_.size_bytes(), shared_rights);
  others_own_mr_ = verbs_.reg_mr(other_pd_, own_.data(), own_.size_bytes(), IBV_ACCESS_LOCAL_WRITE);
  readable_mr_ = verbs_.reg_mr(pd_, shared_.data(), shared_.size_bytes(), IBV_ACCESS_REMOTE_READ);
  sealed_mr_ = verbs_.reg_mr(pd_, own_.data(), own_.size_bytes(), 0);
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

// Of one of the regions that it lies in.
uint32_t Program::key_of(uint32_t slot) {
  return (slot < near_slots && !near_changing_ && habits_.near() ? near_mr_ : own_mr_)->lkey;
}

// One more region of the same memory, which peers use from here on.
void Program::renew_key() {
  --renewals_;
  ibv_mr* fresh = register_shared();
  if (fresh == nullptr) {
    if (errno != ENOMEM || !fabric_.refuses)
      trouble.emplace_back("ibv_reg_mr fails");
    return;
  }
  old_mrs_.push_back(std::exchange(shared_mr_, fresh));
}

// Once no peer uses it any more; or at once, and they get the error.
bool Program::end_old_key() {
  if (old_mrs_.empty())
    return false;
  ibv_mr* old = old_mrs_.front();
  if (oracle_.uses_key(number_, old->rkey)) {
    if (!abrupt_ || !choices_.once_in(4))
      return false;
    oracle_.key_ends(number_, old->rkey);
  }
  old_mrs_.erase(old_mrs_.begin());
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
void Program::change_region() {
  --changes_;
  if (fabric_.refuses)
    return;
  int rc = 0;
  if (choices_.once_in(2)) {
    const uint32_t key = side_mr_->rkey;
    if (oracle_.uses_key(number_, key)) {
      if (!abrupt_)
        return;
      oracle_.key_ends(number_, key);
    }
    side_wide_ = !side_wide_;
    changing_ = true;
    rc = verbs_.rereg_mr(side_mr_, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, shared_.data(),
                         side_wide_ ? shared_.size_bytes() : side_cells * cell_bytes, 0);
    changing_ = false;
  } else {
    if (!may_change_own())
      return;
    near_changing_ = true;
    if (choices_.once_in(2)) {
      near_wide_ = !near_wide_;
      rc =
          verbs_.rereg_mr(near_mr_, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, own_.data(),
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

} // namespace sim
