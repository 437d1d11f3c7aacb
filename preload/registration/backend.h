// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The one door by which a way to make memory reachable comes in. A backend is a row of
// policy/backends.def and a file that defines registration::make_<name>(); whoever asks for memory
// to be registered, posts an element of it or serves a peer goes through Regions and knows none.
//
// Every Regions has a set of backends of its own. Functions are called from any thread. Those of
// one region never meet its end(), nor a change() that holds the lock of Regions.
#pragma once

#include "policy/backends.h"
#include "registration/region.h"

#include <memory>
#include <mutex>
#include <span>
#include <string_view>

#include <infiniband/verbs.h>

namespace adverb::provider {
struct Real;
}

namespace adverb::registration {

class Copied;
class Grants;
class Views;
class Windows;

// A verb that registers memory, with its arguments.
struct Wanted {
  enum class Verb : uint8_t { reg_mr, reg_mr_iova, reg_mr_iova2 };
  ibv_pd* pd = nullptr;
  void* start = nullptr;
  size_t length = 0; // bytes
  uint64_t iova = 0; // `start` where the verb has none
  unsigned access = 0;
  Verb verb = Verb::reg_mr;
};

// ibv_rereg_mr's arguments.
struct Change {
  int what = 0; // IBV_REREG_MR_*
  ibv_pd* pd = nullptr;
  void* start = nullptr;
  size_t length = 0;
  unsigned access = 0;

  bool moves() const noexcept { return (what & IBV_REREG_MR_CHANGE_TRANSLATION) != 0; }
  bool other_pd() const noexcept { return (what & IBV_REREG_MR_CHANGE_PD) != 0; }
  bool other_rights() const noexcept { return (what & IBV_REREG_MR_CHANGE_ACCESS) != 0; }
};

// Arguments that adverb understands and the device would take.
bool is_plain(const Change& change) noexcept;
// What the region is to be by it.
Wanted changed(const Region& region, const Change& change) noexcept;

// Why something cannot be done, for a program and for people. No error: it can.
struct Refusal {
  int error = 0;
  std::string_view why;
  explicit operator bool() const noexcept { return error != 0; }
};

// A message in staging comes to its place when the program polls. What of a receive that was posted
// after it, for the same bytes, and is not to come first?
enum class Behind : uint8_t {
  ask,    // EBUSY, where it might: whoever asks finds out (model/behind_staged.h)
  nobody, // no such message is there
  staged, // it stands in staging itself, whatever its size
};

// An element to be made usable by the device.
struct Use {
  const ibv_pd* pd;
  Staging& staging;
  uint64_t copy_below; // bytes: less is copied, what there is more of may be; 0: nothing is
  unsigned rights;     // that the region must give: 0 or LOCAL_WRITE
  bool copy_in;        // the bytes go out: they are read now
  bool receive;        // of a posted receive
  Behind behind = Behind::nobody;
  uint32_t queue = 0; // of a posted receive: PlacedReceives::number()
};

class Backend {
public:
  explicit Backend(const policy::BackendTraits& traits) : traits_(traits) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const policy::BackendTraits& traits() const noexcept { return traits_; }

  // Whether such a region may be of this backend; is_plain(wanted). EOPNOTSUPP: another may take
  // it; else nobody may, and the verb fails with the errno that stock's would.
  virtual Refusal fits(const Wanted& wanted) const = 0;
  // Makes it; Regions then lists it under mr->lkey. With a virtual `key` it is this backend that
  // makes the region's elements usable and serves peers; without, the device does.
  virtual Refusal add(const Wanted& wanted, std::unique_ptr<Region>& made) = 0;

  // Makes an element that names the region usable by the device: rewrites `sge` and says in `hold`
  // what to give back; hold.backend = this, or release() is not called. Under the shared lock of
  // Regions. Checks the element; one that is wrong it leaves as it is, for the device to judge.
  // errno: 0, EFAULT (bytes could not be read), ENOMEM, EBUSY (Behind). Asked only of a region with
  // a virtual key.
  [[nodiscard]] virtual int localize(Region& region, const Use& use, ibv_sge& sge, Hold& hold);
  // Whether elements that name one of its regions, short enough and with bytes that go out, may be
  // copied from the region's memory as it is.
  virtual bool copies_out() const noexcept { return false; }
  // The region may be gone. The block is given back by the caller.
  virtual void release(Hold& hold) noexcept;
  // Copies the block's first bytes to the program, where they may go by what the region is now.
  // Under the shared lock of Regions. False: the memory is gone.
  virtual bool deliver(const Region& region, const Hold& hold, size_t bytes) const noexcept;

  // Lends [address, +length), which lies in the region, with the given rights. Under the shared
  // lock of Regions; asked only of a backend that lends. errno.
  [[nodiscard]] virtual int lend(Region& region, uint64_t address, uint64_t length, unsigned access,
                                 std::shared_ptr<Grant>& grant);
  // The same for as long as the peer uses it, with all rights that peers have: what is lent lies
  // around those bytes. Asked only of a backend that leases. EAGAIN: not now.
  [[nodiscard]] virtual int lease(Region& region, uint64_t address, uint64_t length,
                                  std::shared_ptr<Grant>& grant);

  // A view of it that has [address, +length), which lies in the region. Under the shared lock of
  // Regions; asked only of a backend that has views. errno: EAGAIN not now, else never.
  [[nodiscard]] virtual int view(Region& region, uint64_t address, uint64_t length,
                                 std::shared_ptr<Grant>& grant);
  // The CPU has served a peer's READ of it, so that its pages are there. The same.
  virtual void served(const Region& region, uint64_t address, uint64_t length) noexcept;

  // ibv_dereg_mr: no look-up finds the region any more, elements and grants of it may be out. What
  // it had registered ends now; the object goes when no copy can be in progress. With an errno the
  // region lives on.
  [[nodiscard]] virtual int end(Region& region) = 0;
  // ibv_rereg_mr, with its return value and errno. `regions` is the lock of Regions, free: it is
  // held from where the region is written, and left held. Of a region with a virtual key the change
  // is plain, and the region fits() as it is to be.
  virtual int change(Region& region, const Change& change,
                     std::unique_lock<SharedMutex>& regions) = 0;
  // The program is about to make a queue pair of that type, by which any region of the context may
  // be used.
  virtual void meet(ibv_context* context, ibv_qp_type type);
  // ibv_rereg_mr has made `now`, another backend's, of the region, or changed that again. Under the
  // lock of Regions. What is in use and still allowed goes on until it is given back, or end().
  virtual void leave(Region& region, const Region& now) noexcept;

private:
  const policy::BackendTraits& traits_;
};

// What backends of one program context share. All of it outlives them.
struct Means {
  World& world;
  KeyPool& keys;
  Windows& windows;
  Copied& copied;
  Grants& grants;
  Views& views;
};

struct Maker {
  std::string_view name;
  std::unique_ptr<Backend> (*make)(const policy::BackendTraits& traits, const Means& means);
};

// Row by row that of policy::backends. Defined in backend_list.cpp, linked by itself as that is.
extern const std::span<const Maker> makers;

// Arguments that adverb understands and the device would take. Others are the provider's to judge:
// rights that only its own MR can carry (windows bound to it, on-demand paging asked for by the
// program, persistence, zero-based addresses), rights it refuses, and empty regions.
bool is_plain(const Wanted& wanted) noexcept;
bool are_plain_rights(unsigned access) noexcept;

// Whether the region's memory is there, and is such as may be reached without having been pinned:
// none of a device, no shared file.
Refusal follows_addresses(const Wanted& wanted);

// The verb as the program called it; null and errno as the provider says.
ibv_mr* register_as_asked(const provider::Real& real, const Wanted& wanted);

} // namespace adverb::registration
