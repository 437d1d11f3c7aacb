// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Passthrough requests that name leased bytes of the peer's memory: READs, WRITEs and atomics, one
// at a time, that report. What is leased is looked up for each, under the lock of Leases; what they
// bring comes to the program's own memory, by a window, so that nothing is left to be done when
// they complete. All else that is leased goes by the ring (ways/leased.cpp).
#include "queue/passthrough.h"

#include <cerrno>
#include <new>

namespace adverb::queue {

using observe::Counter;
using transfer::Leases;

namespace {
// What a READ or atomic of few bytes brings is copied from staging rather than registered for. One
// in so many gets a window all the same: where the next ones go to the same place, it will stand.
constexpr uint32_t window_each = 64;

// Of one element.
bool is_covered(Leases& leases, const ibv_send_wr& wr) {
  return leases.covers(steering::remote_key(wr), steering::remote_address(wr),
                       steering::remote_bytes(wr.opcode, wr.sg_list->length),
                       steering::remote_right(wr.opcode));
}
} // namespace

const std::shared_ptr<Leases>* PassthroughSends::leases_for(const ibv_send_wr& wr,
                                                            uint32_t traits) {
  if ((traits & steering::trait_one_sided) == 0 || (wr.send_flags & IBV_SEND_FENCE) != 0 ||
      wr.num_sge != 1)
    return nullptr;
  const uint64_t length = wr.sg_list->length;
  // What the device rejects at post goes to it by the long way, which has the words for it.
  if ((traits & steering::trait_atomic) != 0 && (length < 8 || (wr.wr.atomic.remote_addr & 7) != 0))
    return nullptr;
  uint64_t longest = 0;
  const auto* const leases = parts_.keys.leases(longest);
  return leases != nullptr && (*leases)->any() && length - 1 < longest ? leases : nullptr;
}

bool PassthroughSends::use_lease(const std::shared_ptr<Leases>& leases, ibv_send_wr& mine,
                                 uint64_t length) noexcept {
  if (leases_ != leases) {
    if (!leased_.empty())
      return false;
    leases_ = leases;
  }
  try {
    Leased& use = leased_.push();
    use.lease = leases_->use(steering::remote_key(mine), steering::remote_address(mine),
                             steering::remote_bytes(mine.opcode, length),
                             steering::remote_right(mine.opcode));
    if (use.lease == nullptr) {
      leased_.unpush();
      return false;
    }
    use.report = reports_.next_report();
    if (steering::reads_remote(mine.opcode)) // the flag says nothing, and not all providers know
      mine.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
    (steering::is_atomic(mine.opcode) ? mine.wr.atomic.rkey : mine.wr.rdma.rkey) = use.lease->rkey;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void PassthroughSends::end_last_lease() noexcept {
  transfer::Lease* const lease = leased_.back().lease;
  leased_.unpush();
  leases_->done(*lease);
}

void PassthroughSends::end_first_lease() noexcept {
  transfer::Lease* const lease = leased_.front().lease;
  leased_.pop();
  leases_->done(*lease);
}

int PassthroughSends::post_leased(ibv_send_wr* wr, ibv_send_wr** bad,
                                  registration::SendSources::Copy& copy) {
  const uint32_t traits = steering::traits_of(wr->opcode);
  const auto* const leases = leases_for(*wr, traits);
  if (leases == nullptr)
    return not_plain;
  const ibv_sge& own = *wr->sg_list;
  const bool brings = (traits & steering::trait_brings) != 0;
  if ((!brings && (wr->send_flags & IBV_SEND_INLINE) != 0) ||
      !parts_.regions.may_be_virtual(own.lkey))
    return post_by_lease(wr, own, bad, traits, *leases);
  if (!brings && sources_.copies(own.length))
    return is_covered(**leases, *wr) && sources_.begin(own, copy) ? int{copied_first}
                                                                  : int{not_plain};
  ibv_sge element; // NOLINT: set by borrow()
  const bool borrowed = brings ? destination_.borrow(own, reports_.next_report(), element)
                               : sources_.borrow(own, reports_.next_report(), element);
  if (!borrowed)
    return not_plain;
  const int rc = post_by_lease(wr, element, bad, traits, *leases);
  if (rc != 0)
    brings ? destination_.not_borrowed(reports_.last_report())
           : sources_.not_borrowed(reports_.last_report());
  return rc;
}

int PassthroughSends::post_leased_copied(ibv_send_wr* wr, ibv_send_wr** bad,
                                         const registration::SendSources::Copy& copy, bool copied) {
  const uint32_t traits = steering::traits_of(wr->opcode);
  int rc = not_plain;
  if (copied && (flags_ & not_now) == 0)
    if (const auto* const leases = leases_for(*wr, traits))
      rc = post_by_lease(wr, sources_.element(copy), bad, traits, *leases);
  sources_.end(copy, reports_.last_report());
  return rc;
}

int PassthroughSends::post_by_lease(ibv_send_wr* wr, ibv_sge element, ibv_send_wr** bad,
                                    uint32_t traits, const std::shared_ptr<Leases>& leases) {
  ibv_send_wr mine = *wr;
  mine.sg_list = &element;
  if (!use_lease(leases, mine, element.length))
    return not_plain;
  open_.store(false, std::memory_order_relaxed); // the provider's doorbell comes after it
  ibv_send_wr* unused = nullptr;
  const int rc = post_reporting(&mine, &unused, traits, Counter::posts_leased);
  if (rc != 0) [[unlikely]] {
    end_last_lease();
    open_.store(is_open_ && none_in_use());
    if (rc != not_plain)
      *bad = wr;
    return rc;
  }
  note_leased(*wr, element.length);
  return rc;
}

// Where nothing that is kept would do: the element gets what it needs, which is learned for the
// next one.
int PassthroughSends::post_leased_lent(ibv_send_wr* wr, ibv_send_wr** bad, uint32_t traits,
                                       bool brought_in) {
  if (((wr->send_flags | parts_.flags) & IBV_SEND_SIGNALED) == 0)
    return not_passthrough;
  const auto* const leases = leases_for(*wr, traits);
  if (leases == nullptr)
    return not_passthrough;
  const ibv_sge& own = *wr->sg_list;
  if (!is_covered(**leases, *wr))
    return not_passthrough;
  if (steering::is_inline(*wr)) { // its element's key means nothing
    reset_if_drained();
    const int rc =
        (flags_ & not_now) == 0 ? post_by_lease(wr, own, bad, traits, *leases) : int{not_plain};
    return rc == not_plain ? int{not_passthrough} : rc;
  }
  if ((traits & steering::trait_brings) != 0 && own.length < parts_.copy_below && !brought_in &&
      parts_.regions.may_be_virtual(own.lkey) && ++staged_ % window_each != 0)
    return not_passthrough;
  return brought_in ? post_lent(*wr, bad, leases) : int{pages_first};
}

} // namespace adverb::queue
