// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/cq_users.h"
#include "queue/qp_lane.h"

#include <algorithm>
#include <cassert>

namespace adverb::model {

CqUser* CqUsers::find_by_request(const ibv_wc& wc) const {
  if (!other_numbers_)
    return nullptr;
  const auto at =
      std::ranges::find_if(all_, [&wc](const auto& entry) { return entry.second->posted(wc); });
  return at == all_.end() ? nullptr : at->second;
}

bool CqUsers::is_late(const ibv_wc& wc) const noexcept {
  return std::ranges::any_of(gone_, [&wc](const Gone& gone) {
    const uint64_t number = wc.wr_id & ~marker_bit;
    return gone.qpn == wc.qp_num && ((wc.wr_id & receive_bit) != 0 ||
                                     (number >= gone.numbers.from && number < gone.numbers.end));
  });
}

void CqUsers::add(uint32_t qpn, CqUser& user) {
  const bool is_new = all_.try_emplace(qpn, &user).second;
  assert(is_new);
  static_cast<void>(is_new);
  other_numbers_ = other_numbers_ || user.other_number;
  recent_[qpn % recent_max] = {};
}

void CqUsers::remove(uint32_t qpn) {
  const auto at = all_.find(qpn);
  assert(at != all_.end());
  gone_[next_gone_++ % gone_.size()] = {qpn, at->second->numbers()};
  all_.erase(at);
  recent_[qpn % recent_max] = {};
}

} // namespace adverb::model
