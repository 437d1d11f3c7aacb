// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/companion_charges.h"
#include "link/bounds.h"
#include "link/companion.h"
#include "link/owner_parts.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace adverb::link {

using owning::Link;

void CompanionCharges::add(const std::shared_ptr<Link>& link, const std::shared_ptr<Companion>& end,
                           uint64_t timer, uint64_t shown) {
  const uint64_t number = next_++;
  all_->emplace(number, Charge{link, end, timer, shown != 0 && has_room(shown) ? shown : 0, false});
  end->keep(std::shared_ptr<void>(nullptr, [weak = std::weak_ptr(all_), number](void*) {
    if (const auto all = weak.lock())
      all->erase(number);
  }));
}

CompanionCharges::Charge* CompanionCharges::find(uint64_t number) {
  const auto at = all_->find(number);
  return at == all_->end() ? nullptr : &at->second;
}

CompanionCharges::Charge* CompanionCharges::find(const std::shared_ptr<Companion>& end) {
  const auto at = std::ranges::find_if(
      *all_, [&](const auto& entry) { return entry.second.end.lock() == end; });
  return at == all_->end() ? nullptr : &at->second;
}

bool CompanionCharges::has_room(uint64_t qp) const {
  return static_cast<size_t>(std::ranges::count_if(*all_, [qp](const auto& entry) {
           return entry.second.qp == qp;
         })) < bounds::companions_of_qp;
}

uint64_t CompanionCharges::giving_way_to(const Link& link) const {
  std::unordered_map<std::string, size_t> of_host;
  std::unordered_map<const Link*, size_t> of_link;
  for (const auto& [number, charge] : *all_)
    if (const auto its = charge.link.lock(); its && charge.is_unshown()) {
      ++of_host[its->who->address()];
      ++of_link[its.get()];
    }
  if (of_link.empty())
    return 0;
  const auto by_count = [](const auto& entry) { return entry.second; };
  const size_t of_its_host = of_host[link.who->address()];
  const auto greedy_host = std::ranges::max_element(of_host, {}, by_count);
  const bool is_modest_host = of_its_host == 0 || of_its_host + 1 < greedy_host->second;
  const std::string host = is_modest_host ? greedy_host->first : link.who->address();
  std::erase_if(of_link, [&](const auto& entry) { return entry.first->who->address() != host; });
  if (of_link.empty())
    return 0;
  const auto greedy = std::ranges::max_element(of_link, {}, by_count);
  const size_t its = of_link.contains(&link) ? of_link[&link] : 0;
  if (!is_modest_host && its != 0 && its + 1 >= greedy->second)
    return 0;
  return std::ranges::find_if(*all_,
                              [&](const auto& entry) {
                                return entry.second.is_unshown() &&
                                       entry.second.link.lock().get() == greedy->first;
                              })
      ->first;
}

void CompanionCharges::move(const std::shared_ptr<Link>& from, const std::shared_ptr<Link>& to) {
  for (auto& [number, charge] : *all_)
    if (charge.link.lock() == from)
      charge.link = to;
}

} // namespace adverb::link
