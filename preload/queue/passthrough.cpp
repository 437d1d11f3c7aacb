// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Passthrough requests that are not the common case: lists, what does not report, lent elements.
#include "queue/passthrough.h"
#include "world/no_cancel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

namespace adverb::queue {

// Apart, so that devices whose posts are no system calls keep nothing for it: it takes 10 ns.
int PassthroughSends::post_uncancelled(ibv_send_wr* wr, ibv_send_wr** bad) {
  const NoCancel whole;
  return parts_.post_send(parts_.qp, wr, bad);
}

// What another is to carry goes by the ring, where the choice is made.
bool PassthroughSends::is_by_device(const ibv_send_wr& wr) const noexcept {
  if (has_wrong_count(wr))
    return true;
  uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i)
    length += wr.sg_list[i].length;
  return steer_ == nullptr || steer_->by_device(wr.opcode, wr.wr.rdma.remote_addr, length);
}

bool PassthroughSends::ask(const ibv_send_wr& wr, uint32_t traits) {
  const uint32_t key = steering::remote_key(wr);
  if ((traits & steering::trait_one_sided) == 0 || real_.is(key) || virtual_.is(key))
    return false;
  steering::KeyAnswer answer;
  if (!parts_.keys.is_real(key, answer)) {
    virtual_ = answer;
    return false;
  }
  real_ = answer;
  if (!key_is_known(wr, traits))
    return false;
  parts_.keys.on_real(key);
  return true;
}

int PassthroughSends::not_taken(const ibv_send_wr& wr, int why) noexcept {
  reports_.unpost_signaled();
  receives_ -= steering::traits_of(wr.opcode) / steering::trait_receives % 2;
  return why;
}

void PassthroughSends::take(const ibv_send_wr& wr, uint32_t traits) noexcept {
  const bool is_signaled = ((wr.send_flags | parts_.flags) & IBV_SEND_SIGNALED) != 0;
  reports_.post(is_signaled);
  if (!is_signaled)
    note_flags();
  traits_ |= traits;
  receives_ += traits / steering::trait_receives % 2;
}

int PassthroughSends::post(ibv_send_wr* list, ibv_send_wr** bad, bool brought_in) {
  if (list == nullptr)
    return not_passthrough;
  uint64_t wanted = 0;
  for (const ibv_send_wr* wr = list; wr != nullptr; wr = wr->next, ++wanted) {
    const uint32_t traits = steering::traits_of(wr->opcode);
    if (!is_passthrough(wr->wr_id))
      return not_passthrough;
    if (!key_stands(*wr, traits))
      return list->next == nullptr ? post_leased_lent(list, bad, traits, brought_in)
                                   : int{not_passthrough};
    if (elements_stand(*wr, traits))
      continue;
    if (list->next != nullptr || !may_be_lent(*list, traits))
      return not_passthrough;
    return brought_in ? post_lent(*list, bad) : int{pages_first};
  }
  reset_if_drained();
  if (!has_room_for(wanted)) [[unlikely]]
    return not_passthrough;  // those that fit go direct
  ibv_send_wr* first = list; // should the provider not say
  const int rc = post_to_device(list, &first);
  if (rc != 0) [[unlikely]]
    *bad = first;
  uint64_t posted = 0;
  for (const ibv_send_wr* wr = list; wr != nullptr && (rc == 0 || wr != first); wr = wr->next) {
    take(*wr, steering::traits_of(wr->opcode));
    ++posted;
  }
  parts_.world.counters.count(parts_.posted, posted);
  return rc;
}

// What is brought has to be delivered, and behind a fence the bytes may not be there yet. The
// provider does not see elements without bytes.
bool PassthroughSends::may_be_lent(const ibv_send_wr& wr, uint32_t traits) const noexcept {
  return (traits & steering::trait_brings) == 0 && (wr.send_flags & IBV_SEND_FENCE) == 0 &&
         static_cast<size_t>(wr.num_sge) <=
             std::min<size_t>(lent_elements_max, parts_.elements_most);
}

// No exception may leave: who posts holds the queue pair's lock by hand.
bool PassthroughSends::lend(const ibv_send_wr& wr, std::span<ibv_sge> elements,
                            size_t& lent) noexcept {
  const bool brings = steering::reads_remote(wr.opcode);
  try {
    for (const ibv_sge& own : std::span(wr.sg_list, static_cast<size_t>(wr.num_sge))) {
      if (own.length == 0)
        continue; // its key is not looked at; a reserved one might be
      ibv_sge& element = elements[lent] = own;
      Lent& one = lent_.push();
      ++lent;
      one.report = reports_.next_report();
      const int rc = brings ? parts_.elements.lend_in(element, one.hold)
                            : parts_.elements.lend_out(element, one.hold);
      if (rc == ENOMEM) [[unlikely]]
        return false;
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// `leases`: it goes by one of these.
int PassthroughSends::post_lent(ibv_send_wr& wr, ibv_send_wr** bad,
                                const std::shared_ptr<transfer::Leases>* leases) {
  reset_if_drained();
  if (!has_room_for(1)) [[unlikely]]
    return not_passthrough;
  std::array<ibv_sge, lent_elements_max> elements; // NOLINT: set one by one
  size_t lent = 0;
  if (!lend(wr, elements, lent)) [[unlikely]] {
    give_back_last(lent);
    return not_passthrough; // which tries again, and says why not
  }
  ibv_send_wr mine = wr;
  mine.sg_list = elements.data();
  mine.num_sge = static_cast<int>(lent);
  if (leases != nullptr && !use_lease(*leases, mine, wr.sg_list->length)) [[unlikely]] {
    give_back_last(lent);
    return not_passthrough;
  }
  if (lent != 0)
    open_.store(false, std::memory_order_relaxed); // the provider's doorbell comes after it
  ibv_send_wr* unused = nullptr;
  if (const int rc = post_to_device(&mine, &unused); rc != 0) [[unlikely]] {
    give_back_last(lent);
    if (leases != nullptr)
      end_last_lease();
    open_.store(is_open_ && none_in_use());
    *bad = &wr;
    return rc;
  }
  take(wr, steering::traits_of(wr.opcode));
  if (leases != nullptr)
    note_leased(wr, wr.sg_list->length);
  parts_.world.counters.count(leases == nullptr ? parts_.posted : observe::Counter::posts_leased);
  if (wr.num_sge == 1 && lent == 1 && lent_.back().hold)
    learn(wr, lent_.back().hold.window);
  return 0;
}

void PassthroughSends::learn(const ibv_send_wr& wr, registration::Window* window) noexcept {
  if (!steering::reads_remote(wr.opcode))
    sources_.learn(*wr.sg_list, window);
  else if (window != nullptr)
    destination_.learn(*wr.sg_list, *window);
}

// From a window that the queue pair keeps.
int PassthroughSends::post_borrowed(ibv_send_wr* wr, ibv_send_wr** bad, uint32_t traits) {
  ibv_sge element; // NOLINT: set by borrow()
  if (!sources_.borrow(*wr->sg_list, reports_.next_report(), element))
    return not_plain;
  const int rc = post_instead(wr, element, bad, traits);
  if (rc != 0) [[unlikely]]
    sources_.not_borrowed(reports_.last_report());
  return rc;
}

void PassthroughSends::give_back_last(size_t lent) noexcept {
  for (; lent != 0; --lent, lent_.unpush())
    if (lent_.back().hold)
      parts_.elements.give_back(lent_.back().hold);
}

void PassthroughSends::give_back_first() noexcept {
  if (lent_.front().hold)
    parts_.elements.give_back(lent_.front().hold);
  lent_.pop();
}

void PassthroughSends::give_back_reported() noexcept {
  while (!lent_.empty() && reports_.has_come(lent_.front().report))
    give_back_first();
  while (!leased_.empty() && reports_.has_come(leased_.front().report))
    end_first_lease();
  open_.store(is_open_ && none_in_use());
}

void PassthroughSends::give_back_all() noexcept {
  while (!lent_.empty())
    give_back_first();
  end_leases();
}

} // namespace adverb::queue
