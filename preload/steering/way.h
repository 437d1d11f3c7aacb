// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A way carries work requests: by the device, by the peer's CPU, by something borrowed from the
// peer. One object per queue pair and kind, made when first chosen. A new one is a file that
// implements Way and defines a WayRow, and a line in ways.def.
//
// Everything here happens under the queue pair's lock, and nothing waits.
#pragma once

#include "steering/facts.h"
#include "steering/lane.h"

#include "observe/counters.h"

#include <chrono>
#include <memory>

namespace adverb {
class World;
}
namespace adverb::transfer {
class MessageLane;
}

namespace adverb::steering {

class Elements;

// What a way may say back. The queue implements it, and the fakes of tests.
class QueueCallbacks {
public:
  // `r` is complete, r.result says how. It leaves when all before it have.
  virtual void done(Request& r) = 0;
  // The first half of `r` is through; its way is asked to issue() the rest when it is its turn.
  virtual void next(Request& r) = 0;
  // What `r` was chosen by no longer holds: it and all behind it are chosen anew.
  virtual void again(Request& r) = 0;
  // Said from landed(): a part of what `r` has brought is not what is there, and its way asks for
  // it when issue() is called next. READs behind it that the device has are executed again.
  virtual void missed(Request& r) = 0;
  // The device itself shall refuse `r`, so that program and peer see what stock would show them.
  // All behind it start anew.
  virtual void replay(Request& r, Fault fault) = 0;
  // The device is through with `r` and says nothing of it, but what it brought cannot go where it
  // is to: r.result says so, and the queue pair is in error.
  virtual void undelivered(Request& r) = 0;
  // For a way when it is made: a lane of its own, which lives as long as the way. From here on the
  // queue keeps the order between it and all others. May throw bad_alloc.
  virtual void open_lane(Lane& lane) = 0;
  // Way::due() is called after `delay`, unless the connection has ended.
  virtual void later(std::chrono::nanoseconds delay, Way& way) = 0;

protected:
  ~QueueCallbacks() = default;
};

// What a way of one queue pair works with.
struct WayContext {
  World& world;
  Ring& ring;
  QueueCallbacks& queue;
  Elements& elements;
  DeviceLane& device;
  transfer::MessageLane& messages; // to the peer's responder; only while the peer is linked
};

enum class Step : uint8_t {
  issued,  // it is on its way, the next one may be looked at
  passed,  // the same of what is to be issued once more, when its first half is through
  wait,    // something has to happen first
  refused, // it cannot be issued, `why` says so by an errno
  changed, // the carrier has been told something of it: look at it again
};

class Way : public LaneOwner {
public:
  Way() = default;
  virtual ~Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  // Which lane `r` takes next. All others must let it pass (lane.h) before issue() is called.
  virtual Lane& lane(const Request& r) = 0;
  virtual Step issue(Request& r, int& why) = 0;
  // Nothing is left in the queue.
  virtual void idle() {}
  virtual void due() {} // QueueCallbacks::later()
  // The requests from `from` on are chosen or carried anew.
  virtual void cut(uint64_t from) { (void)from; }
  // The link, or the connection itself, is gone, and with it all that the peer gave.
  virtual void gone() {}
};

// What the way's own file defines.
struct WayFunctions {
  Fit (*fits)(const Facts&) noexcept;
  std::unique_ptr<Way> (*make)(WayContext&);
};

// A line of ways.def.
struct WayRow {
  const char* name;         // in `adverb policy explain`, and in the counter posts_<name>
  const char* words;        // "requests ..."
  observe::Counter carried; // how many
  const WayFunctions& functions;
};

// In order of choice. The last one fits whatever the others do not.
using WayTable = std::span<const WayRow* const>;

// What the ways that need a virtual key say: the peer must be linked and have said so of the key.
Fit by_virtual_key(const Facts& facts) noexcept;
// No marker says that an atomic is done: one that does not say so itself would keep its lease.
inline bool can_be_leased(const Facts& facts) noexcept {
  return facts.leased && (facts.signaled || !is_atomic(facts.opcode));
}
// What the device rejects at post it shall reject at post: a misaligned or short operand. Longer
// elements are its to judge: many write the first 8 bytes.
inline bool is_sound_atomic(const Facts& facts) noexcept {
  return facts.length >= 8 && (facts.remote_address & 7) == 0;
}

// The device's part of a request: its elements are lent to the device and `wr` is posted with them.
Step post_with_elements(WayContext& context, Request& r, const ibv_send_wr& wr, LaneOwner& owner,
                        int& why);
// And its end: what came is delivered, what was lent given back.
void end_of_device_part(WayContext& context, Request& r);
// What came has no place to go to any more.
void cannot_deliver(WayContext& context, Request& r);

} // namespace adverb::steering
