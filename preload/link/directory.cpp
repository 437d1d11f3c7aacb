// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/directory.h"
#include "link/identity.h"

#include <algorithm>

namespace adverb::link {

using wire::Answer;

void Directory::put(const LocalQp& qp) {
  const std::lock_guard hold(lock_);
  const auto [at, fresh] = qps_.try_emplace(qp.handle, qp);
  if (fresh)
    by_number_.emplace(qp.qpn, qp.handle);
  else
    at->second = qp;
}

bool Directory::remove(uint64_t handle, LocalQp* was) {
  const std::lock_guard hold(lock_);
  const auto it = qps_.find(handle);
  if (it == qps_.end())
    return false;
  if (was != nullptr)
    *was = it->second;
  const auto [begin, end] = by_number_.equal_range(it->second.qpn);
  by_number_.erase(std::find_if(begin, end, [&](const auto& e) { return e.second == handle; }));
  qps_.erase(it);
  return true;
}

bool Directory::find(uint64_t handle, LocalQp& qp) const {
  const std::lock_guard hold(lock_);
  const auto it = qps_.find(handle);
  if (it == qps_.end())
    return false;
  qp = it->second;
  return true;
}

Answer Directory::match(const wire::Bind& bind, LocalQp& qp) const {
  const std::lock_guard hold(lock_);
  Answer answer = Answer::no_such_qp;
  const auto [begin, end] = by_number_.equal_range(bind.dqpn);
  for (auto it = begin; it != end; ++it) {
    const LocalQp& candidate = qps_.at(it->second);
    if (!candidate.connected) {
      answer = Answer::not_ready;
      continue;
    }
    const bool path = candidate.ah.is_global != 0 ? id_of(candidate.ah.grh.dgid) == bind.sgid &&
                                                        id_of(candidate.sgid) == bind.dgid
                                                  : candidate.ah.dlid == bind.slid;
    if (path && candidate.dest_qpn == bind.sqpn) {
      qp = candidate;
      return Answer::ok;
    }
    if (answer == Answer::no_such_qp)
      answer = Answer::mismatch;
  }
  return answer;
}

std::set<ibv_device*> Directory::devices(uint32_t qpn) const {
  const std::lock_guard hold(lock_);
  std::set<ibv_device*> out;
  const auto [begin, end] = by_number_.equal_range(qpn);
  for (auto it = begin; it != end; ++it)
    out.insert(qps_.at(it->second).device);
  return out;
}

} // namespace adverb::link
