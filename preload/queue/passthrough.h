// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Requests of which nothing is kept: the program's own list, under its own numbers, goes to the
// provider as it stands (**passthrough**), and their completions are the program's as they come.
// What is with the device is known by counting (report_counter.h). If a request's bytes go out from
// an unpinned region, it goes with elements that stand in for its own, **lent**; what stands in is
// given back when its report, or one behind it, has come. If a request names bytes that this
// process leases of its peer's memory, it goes with the lease's real key in the place of the
// virtual one, and that use of the lease ends the same way.
//
// While this way is **open** nothing else is under way in the queue and nobody waits, so the poller
// takes no lock for it. To do anything else, a caller closes it and then looks at the counts. A
// report that it does not find in them it is told of: the poller counts first, and only then looks
// whether the way is open. For the poller it is closed, too, while elements or leases are in use,
// so that they are given back at once.
//
// on_completion_polled() is for the holder of the poll lock of the send CQ, all else for the holder
// of the queue pair's lock. Every post and poll goes through here: what is inline is so for that.
#pragma once

#include "queue/fifo.h"
#include "queue/report_counter.h"
#include "registration/regions.h"
#include "registration/send_sources.h"
#include "registration/standing_window.h"
#include "steering/elements.h"
#include "steering/key_verdict.h"
#include "steering/opcode.h"
#include "steering/steer.h"
#include "transfer/leases.h"
#include "world/world.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

namespace adverb::queue {

// Queue pairs post under wr_ids of adverb's: the request's sequence number, which has number_bit,
// with marker_bit the last one that a marker stands behind; receives carry receive_bit. What has
// none of them is the program's own, of a passthrough request. (The opcode of a failed completion
// is undefined, so it cannot tell.)
inline constexpr uint64_t number_bit = uint64_t{1} << 61;
inline constexpr uint64_t marker_bit = uint64_t{1} << 62;
inline constexpr uint64_t receive_bit = uint64_t{1} << 63;
constexpr bool is_passthrough(uint64_t wr_id) noexcept {
  return (wr_id & (number_bit | marker_bit | receive_bit)) == 0;
}

// What is known of the peer's keys.
class RemoteKeys {
public:
  // Whether the remote key is known to be one that the peer's device judges. If it is known whether
  // it is, `answer` says so until the queue is stopped, cleared, or told that the link is gone.
  virtual bool is_real(uint32_t remote_key, steering::KeyAnswer& answer) = 0;
  // For the trace: requests under a key take the short way from here on; and a request that a lease
  // carries there, of another shape than the one before.
  virtual void on_real(uint32_t remote_key) noexcept = 0;
  virtual void on_leased(const ibv_send_wr& wr, uint64_t length) noexcept = 0;
  // What is leased of the peer's memory, if requests of at most `longest` bytes may go by it now;
  // else null.
  virtual const std::shared_ptr<transfer::Leases>* leases(uint64_t& longest) = 0;

protected:
  ~RemoteKeys() = default;
};

class PassthroughSends {
public:
  struct Parts {
    World& world;
    RemoteKeys& keys;
    registration::Regions& regions;
    steering::Elements& elements;
    registration::Staging& staging;
    const ibv_pd* pd;
    uint64_t copy_below; // bytes below which an element is staged rather than given a window
    decltype(ibv_context_ops::post_send) post_send; // the provider's
    ibv_qp* qp;
    unsigned flags; // that each request has, whether it says so or not: IBV_SEND_SIGNALED or 0
    observe::Counter posted; // how many were
    // May be outstanding, as the program was told: the marker's slot at the provider is not the
    // program's. UINT64_MAX: the provider judges.
    uint64_t most = UINT64_MAX;
    uint32_t elements_most = 1;  // of a request, as the program was told
    bool by_system_call = false; // the provider's post, where a thread may be cancelled
  };
  explicit PassthroughSends(const Parts& parts) noexcept
      : parts_(parts), sources_(parts.world, parts.regions, parts.staging, parts.pd,
                                parts.copy_below, reports_.polled()),
        destination_(parts.world, parts.regions, parts.pd, reports_.polled(), true) {}

  // Whether the device may have it as it stands. What this does not know to be so takes the long
  // way.
  bool stands(const ibv_send_wr& wr) { return stands(wr, steering::traits_of(wr.opcode)); }
  void forget_key() noexcept { real_ = virtual_ = {}; }
  // Of requests to real keys, who carries which; outlives this. Null: the device carries all.
  void steer_by(steering::Steer* steer) noexcept {
    steer_ = steer;
    forget_key();
  }
  // Whether what names no memory of the peer may be passthrough.
  void let_sends_pass(bool may) noexcept {
    named_less_ = may ? steering::trait_connected : steering::trait_atomic;
  }

  bool open() const noexcept { return is_open_; }
  void set_open(bool open) noexcept {
    is_open_ = open;
    leased_like_ = UINT64_MAX; // by the ring requests like it may take another way
    note_flags();
    open_.store(open && none_in_use());
  }

  // What the functions below answer beside that: no errno, nor less one, which some providers say.
  static constexpr int none_of_providers = std::numeric_limits<int>::min();

  // The common case, while it is open: one request that reports, to a key that was just named,
  // where all with the device report and there is room; inline only where it may be, for whoever
  // posts then copies what may be slow to come. It goes to the provider, which answers.
  // `not_plain`: post() is to see to the list; `plain_but_unpinned`: post_unpinned() may,
  // `plain_but_for_key`: post_leased(). Nobody else is called, so that there is little to keep in
  // registers.
  static constexpr int not_plain = none_of_providers;
  static constexpr int plain_but_unpinned = none_of_providers + 1;
  static constexpr int plain_but_for_key = none_of_providers + 5;
  template <bool may_be_inline>
  [[gnu::always_inline]] int post_plain(ibv_send_wr* list, ibv_send_wr** bad) {
    constexpr unsigned looked_at =
        not_now | IBV_SEND_SIGNALED | (may_be_inline ? 0 : IBV_SEND_INLINE);
    if (list == nullptr || list->next != nullptr || !is_passthrough(list->wr_id) ||
        ((list->send_flags | flags_) & looked_at) != IBV_SEND_SIGNALED)
      return not_plain;
    const uint32_t traits = steering::traits_of(list->opcode);
    if (!key_is_known(*list, traits))
      return plain_but_for_key;
    if (list->num_sge != 1)
      return not_plain;
    if (parts_.regions.may_be_virtual(list->sg_list->lkey)) // of inline data it says nothing
      return plain_but_unpinned;
    return post_reporting(list, bad, traits, parts_.posted);
  }
  // The same of one whose element is of unpinned memory, if that takes little ado.
  // `copied_first`: nothing has been done; the caller has `copy` made, without the queue pair's
  // lock, for the page may be slow to come, and then calls post_copied().
  static constexpr int copied_first = none_of_providers + 4;
  [[gnu::always_inline]] int post_unpinned(ibv_send_wr* wr, ibv_send_wr** bad,
                                           registration::SendSources::Copy& copy) {
    const uint32_t traits = steering::traits[wr->opcode]; // which is one that posts
    if ((traits & steering::trait_brings) != 0 ||
        (wr->send_flags & (IBV_SEND_FENCE | IBV_SEND_INLINE)) != 0)
      return not_plain;
    if (!sources_.copies(wr->sg_list->length))
      return post_borrowed(wr, bad, traits);
    return sources_.begin(*wr->sg_list, copy) ? int{copied_first} : int{not_plain};
  }
  // `copied`: whether all of it could be read. While there was no lock anything may have been done
  // to the queue.
  [[gnu::always_inline]] int post_copied(ibv_send_wr* wr, ibv_send_wr** bad,
                                         const registration::SendSources::Copy& copy, bool copied) {
    const uint32_t traits = steering::traits[wr->opcode];
    int rc = not_plain;
    if (copied && (flags_ & not_now) == 0 && key_is_known(*wr, traits)) [[likely]] {
      ibv_sge element = sources_.element(copy);
      rc = post_instead(wr, element, bad, traits);
    }
    sources_.end(copy, reports_.last_report());
    return rc;
  }
  // The same of one whose remote key is not known to be real, if what it names is leased. And the
  // rest of it where `copied_first` was the answer.
  int post_leased(ibv_send_wr* wr, ibv_send_wr** bad, registration::SendSources::Copy& copy);
  int post_leased_copied(ibv_send_wr* wr, ibv_send_wr** bad,
                         const registration::SendSources::Copy& copy, bool copied);
  [[gnu::cold]] int not_taken(const ibv_send_wr& wr, int why) noexcept; // the last that was counted
  // Any list: it goes to the provider, which answers as ibv_post_send, and looks at `bad` only when
  // it fails; `not_passthrough`: it does not, for one in it needs more; `pages_first`: it would be
  // lent elements, and their pages, unless they have been `brought_in`, are to be looked at without
  // locks.
  static constexpr int not_passthrough = none_of_providers + 2;
  static constexpr int pages_first = none_of_providers + 3;
  int post(ibv_send_wr* list, ibv_send_wr** bad, bool brought_in);

  // One has succeeded. False: the queue is to be told, by landed().
  bool on_completion_polled() noexcept {
    reports_.on_completion_polled();
    return open_.load();
  }
  void landed() noexcept {
    if (!none_in_use() && !reports_.is_uncounted())
      give_back_reported();
  }
  // The link is lost, and what was leased over it.
  void end_leases() noexcept {
    while (!leased_.empty())
      end_first_lease();
  }
  // Whether leases are in use; then the number of the report after which none of these is, and
  // whether one still is of those up to that report.
  bool uses_leases() const noexcept { return !leased_.empty(); }
  bool is_uncounted() const noexcept { return reports_.is_uncounted(); }
  uint32_t last_use() noexcept { return leased_.back().report; }
  bool used_until(uint32_t report) noexcept {
    return uses_leases() && static_cast<int32_t>(report - leased_.front().report) >= 0;
  }
  void on_failed() noexcept {
    reports_.on_failed();
    note_flags();
  }
  // None is with the device.
  void forget() noexcept {
    reports_.reset();
    note_drained();
    give_back_all();
    sources_.free_all(reports_.last_report());
    destination_.free_all(reports_.last_report());
  }
  // RESET or destroy.
  void reset() noexcept {
    set_open(false);
    forget();
    sources_.give_back();
    destination_.give_back();
    receives_ = 0;
  }

  const ReportCounter& reports() const noexcept { return reports_; }
  // Of the queue pair's slots these are theirs (ReportCounter::outstanding()).
  uint64_t outstanding() noexcept {
    const uint64_t slots = reports_.outstanding();
    note_flags();
    return slots;
  }
  // steering::Trait, of those; 0: none was posted since forget().
  uint32_t traits() const noexcept { return traits_; }
  uint64_t receives() const noexcept { return receives_; } // that they take at the peer, so far

private:
  [[gnu::always_inline]] int post_to_device(ibv_send_wr* wr, ibv_send_wr** bad) {
    return parts_.by_system_call ? post_uncancelled(wr, bad) : parts_.post_send(parts_.qp, wr, bad);
  }
  int post_uncancelled(ibv_send_wr* wr, ibv_send_wr** bad);

  // The rest of post_plain().
  [[gnu::always_inline]] int post_reporting(ibv_send_wr* wr, ibv_send_wr** bad, uint32_t traits,
                                            observe::Counter posted) {
    const uint32_t polled = reports_.polled().load(std::memory_order_acquire);
    if (reports_.is_drained(polled))
      traits_ = traits;
    else if (reports_.unreported(polled) < parts_.most)
      traits_ |= traits;
    else
      return not_plain;
    reports_.post_signaled(); // before it can report
    receives_ += traits / steering::trait_receives % 2;
    if (const int rc = post_to_device(wr, bad); rc != 0) [[unlikely]]
      return not_taken(*wr, rc);
    parts_.world.counters.count(posted);
    return 0;
  }
  // The same with another element in the place of its own.
  [[gnu::always_inline]] int post_instead(ibv_send_wr* wr, ibv_sge& element, ibv_send_wr** bad,
                                          uint32_t traits) {
    ibv_send_wr mine; // NOLINT: a SEND and a WRITE have nothing behind that
    memcpy(&mine, wr, offsetof(ibv_send_wr, wr) + sizeof wr->wr.rdma);
    static_assert(sizeof wr->wr.ud <= sizeof wr->wr.rdma);
    mine.sg_list = &element;
    ibv_send_wr* unused = nullptr;
    const int rc = post_reporting(&mine, &unused, traits, parts_.posted);
    if (rc != 0 && rc != not_plain) [[unlikely]]
      *bad = wr;
    return rc;
  }
  int post_borrowed(ibv_send_wr* wr, ibv_send_wr** bad, uint32_t traits);

  // A use of what is leased, until the report of that number has come.
  struct Leased {
    transfer::Lease* lease = nullptr;
    uint32_t report = 0;
  };
  // Whether a lease may be looked for, of those that there are.
  const std::shared_ptr<transfer::Leases>* leases_for(const ibv_send_wr& wr, uint32_t traits);
  // Notes the use, whose report will be the next that is asked for, and gives `mine`, a copy of the
  // request, the lease's key. False: nothing is leased, and nothing was done.
  bool use_lease(const std::shared_ptr<transfer::Leases>& leases, ibv_send_wr& mine,
                 uint64_t length) noexcept;
  void end_last_lease() noexcept;
  void end_first_lease() noexcept;
  int post_by_lease(ibv_send_wr* wr, ibv_sge element, ibv_send_wr** bad, uint32_t traits,
                    const std::shared_ptr<transfer::Leases>& leases);
  // That one has gone by a lease: told of if it is not like the one before.
  void note_leased(const ibv_send_wr& wr, uint64_t length) noexcept {
    const uint64_t like = uint64_t{steering::remote_key(wr)} << 16 |
                          static_cast<uint64_t>(std::bit_width(length)) << 8 | wr.opcode;
    if (like != leased_like_) [[unlikely]] {
      leased_like_ = like;
      parts_.keys.on_leased(wr, length);
    }
  }
  int post_leased_lent(ibv_send_wr* wr, ibv_send_wr** bad, uint32_t traits, bool brought_in);

  bool stands(const ibv_send_wr& wr, uint32_t traits) {
    return key_stands(wr, traits) && elements_stand(wr, traits);
  }
  bool key_stands(const ibv_send_wr& wr, uint32_t traits) {
    return key_is_known(wr, traits) || ask(wr, traits);
  }
  // That its remote key is one the peer's device judges, or it needs none.
  [[gnu::always_inline]] bool key_is_known(const ibv_send_wr& wr, uint32_t traits) const noexcept {
    using namespace steering;
    if ((traits & (trait_one_sided | trait_atomic)) == trait_one_sided) [[likely]]
      return real_.is(wr.wr.rdma.rkey) && (!real_.steered || is_by_device(wr));
    return (traits & named_less_) != 0 &&
           ((traits & trait_atomic) == 0 || real_.is(wr.wr.atomic.rkey));
  }
  [[gnu::always_inline]] bool elements_stand(const ibv_send_wr& wr,
                                             uint32_t traits) const noexcept {
    if ((wr.send_flags & IBV_SEND_INLINE) != 0 && (traits & steering::trait_brings) == 0)
      return true;
    if (wr.num_sge == 1) [[likely]]
      return !parts_.regions.may_be_virtual(wr.sg_list->lkey);
    if (has_wrong_count(wr))
      return false;
    for (int i = 0; i < wr.num_sge; ++i)
      if (parts_.regions.may_be_virtual(wr.sg_list[i].lkey))
        return false;
    return true;
  }
  // There need not be so many elements to look at: the ring refuses what there are too many of.
  bool has_wrong_count(const ibv_send_wr& wr) const noexcept {
    return wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > parts_.elements_most;
  }
  bool is_by_device(const ibv_send_wr& wr) const noexcept;
  // Asks the peer about its remote key, if it has one.
  bool ask(const ibv_send_wr& wr, uint32_t traits);

  // Before more are posted: of what has succeeded nothing is kept.
  void reset_if_drained() noexcept {
    if (reports_.reset_if_drained())
      note_drained();
  }
  void note_drained() noexcept {
    traits_ = 0;
    note_flags();
  }
  // It is with the device.
  void take(const ibv_send_wr& wr, uint32_t traits) noexcept;

  bool has_room_for(uint64_t wanted) noexcept {
    return wanted <= parts_.most && outstanding() <= parts_.most - wanted;
  }

  // None may be plain: with unsignaled ones about, or not open.
  static constexpr unsigned not_now = 1U << 31; // IBV_SEND_* has no such
  void note_flags() noexcept {
    flags_ = parts_.flags | (is_open_ && !reports_.has_unsignaled() ? 0 : not_now);
  }

  // What stands in for an element until the report of that number has come.
  struct Lent {
    registration::Hold hold; // none: the element stands as it is
    uint32_t report = 0;
  };
  static constexpr size_t lent_elements_max = 4; // of one request
  bool may_be_lent(const ibv_send_wr& wr, uint32_t traits) const noexcept;
  void learn(const ibv_send_wr& wr, registration::Window* window) noexcept; // of its element
  int post_lent(ibv_send_wr& wr, ibv_send_wr** bad,
                const std::shared_ptr<transfer::Leases>* leases = nullptr);
  bool none_in_use() const noexcept { return lent_.empty() && leased_.empty(); }
  // Copies the elements with bytes to `elements`, of which `lent` are then used, each with a Lent.
  // False: not all could be made usable; those that were are still lent.
  bool lend(const ibv_send_wr& wr, std::span<ibv_sge> elements, size_t& lent) noexcept;
  void give_back_last(size_t lent) noexcept;
  void give_back_first() noexcept;
  void give_back_reported() noexcept;
  void give_back_all() noexcept;

  const Parts parts_;
  unsigned flags_ = parts_.flags | not_now; // beside those that a request says
  ReportCounter reports_;
  uint32_t traits_ = 0;
  bool is_open_ = false;
  uint64_t receives_ = 0;
  Fifo<Lent> lent_;
  Fifo<Leased> leased_;
  std::shared_ptr<transfer::Leases> leases_; // of which those are
  uint64_t leased_like_ = UINT64_MAX;
  uint32_t staged_ = 0; // READs and atomics in leases that what they brought was to be copied for
  steering::KeyAnswer real_;    // the last key that was found to be real
  steering::KeyAnswer virtual_; // and the last that was not
  steering::Steer* steer_ = nullptr;
  uint32_t named_less_ = steering::trait_connected; // of those, one must be a request's
  Atomic<bool> open_{false}; // and nothing is lent: for on_completion_polled()
  registration::SendSources sources_;
  registration::StandingWindow destination_; // of what READs and atomics bring
};

} // namespace adverb::queue
