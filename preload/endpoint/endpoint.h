// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One end of a pair, as adverb.h describes it: a party of room reliability, the queue pair that
// carries its packets, and the events that come of them. Messages are known by their direction and
// number; interpose/api.cpp makes handles of them.
//
// One lock guards everything. Under it a call of the program or the endpoint's thread makes
// progress: takes the packets that arrived, sends those that are due.
#pragma once

#include "endpoint/packet_queue.h"
#include "include/adverb.h"
#include "memory/own_thread.h"
#include "reliability/model.h"
#include "reliability/party.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace adverb {
class World;
}

namespace adverb::endpoint {

using reliability::End;
using reliability::Time;

struct MessageName {
  bool sends = false;
  uint64_t number = 0;
};

class Endpoint {
public:
  // What a chunk is: options.chunk_bytes, or the payload of one packet, for an endpoint of which
  // nobody reads bitmaps. Whole packets waste none: 4096 bytes over an MTU of 4096 take two.
  enum class Chunks : uint8_t { of_bytes, of_a_packet };
  // Null and an errno value in `why`.
  static std::shared_ptr<Endpoint> make(World& world, ibv_pd* pd,
                                        const adverb_endpoint_options& options, int& why,
                                        Chunks chunks = Chunks::of_bytes);
  ~Endpoint();

  void address(adverb_address& out) const noexcept;
  uint32_t qpn() const noexcept { return queue_->address().qpn; } // before close()
  // Whether an address is at the other end of that path: of the same GID, or without one LID.
  static bool leads_along(const adverb_address& address, const ibv_ah_attr& path) noexcept;
  int connect(const adverb_address& peer);
  // No thread and no call touches a buffer of the program's when it has returned.
  void close();
  int descriptor() const noexcept { return events_fd_; }

  // As the functions of adverb.h; a message's name instead of its handle.
  int send(const void* buffer, size_t bytes, const adverb_send_options& options, uint64_t& number);
  int send_ready(uint64_t number, size_t offset, size_t bytes);
  int receive(void* buffer, size_t bytes, const adverb_receive_options& options, uint64_t& number);
  int query(uint64_t number, adverb_receive_state& out);
  int packets(uint64_t number, uint64_t* words, size_t count);
  int wait_chunks(uint64_t number, uint32_t chunks, int64_t timeout);
  int wait_range(uint64_t number, size_t offset, size_t bytes, int64_t timeout);
  int wait_end(MessageName name, int64_t timeout);
  int notify(uint64_t number, uint32_t chunks);
  // `message` of the event is not set; the name is.
  int poll_event(adverb_event& out, MessageName& name);
  int finish(uint64_t number, End how);
  int cancel(MessageName name);
  int release(MessageName name);
  int progress();
  void statistics(adverb_statistics& out);

  // What is known of the way to the peer and back: its round trip of late, 0 before one was seen,
  // and the share of packets that it loses, there or back, whichever is more.
  struct Path {
    Time round_trip{0};
    double loss = 0;
  };
  Path path();
  // Sends so many packets without payload, unless messages are under way, which tell as much.
  void sound(uint32_t packets);

private:
  // In addresses. Both ends need the same.
  uint32_t chunk_told() const noexcept {
    return chunks_ == Chunks::of_a_packet ? 0 : options_.chunk_bytes;
  }
  struct Outgoing {
    uint64_t bytes = 0;
    uint32_t immediate = 0;
    void* context = nullptr;
    uint32_t status = ADVERB_OPEN;
  };
  struct Incoming {
    size_t capacity = 0;
    void* context = nullptr;
    uint32_t status = ADVERB_OPEN;
    uint32_t notify_at = 0; // chunks; 0: nobody asks
  };
  struct Event {
    adverb_event event;
    MessageName name;
  };

  Endpoint(World& world, ibv_pd* pd, const adverb_endpoint_options& options, Chunks chunks);
  int set_up();
  Time now() const noexcept;
  Incoming* incoming(uint64_t number) noexcept;
  Outgoing* outgoing(uint64_t number) noexcept;
  int wait(const std::function<int()>& ready, int64_t timeout);

  reliability::Scheme auto_scheme(uint64_t bytes);

  // progress.cpp; all under the lock.
  bool make_progress();
  bool send_packets();
  void take_events();
  void tell(const Event& event);
  void count(); // what happened since the last call, in the World's counters
  void fail(const std::string& why);
  Time wake(Time at) const;
  void rouse() noexcept;
  void run(); // the thread
  void sleep(std::unique_lock<std::mutex>& hold, Time longest);

  World& world_;
  ibv_pd* pd_;
  adverb_endpoint_options options_;
  const Chunks chunks_;
  std::mutex lock_;
  std::condition_variable changed_; // something that a waiting thread may wait for
  std::unique_ptr<PacketQueue> queue_;
  uint64_t identity_ = 0;
  uint64_t epoch_out_ = 0;
  uint64_t epoch_in_ = 0;
  bool connected_ = false;
  bool closed_ = false;
  bool broken_ = false;
  reliability::Cut cut_;
  std::optional<reliability::Party> party_;         // once connected
  std::unordered_map<uint64_t, Outgoing> outgoing_; // not released
  std::unordered_map<uint64_t, Incoming> incoming_;
  // What auto_scheme() chose last, and for what.
  reliability::Transfer chosen_for_;
  reliability::Scheme chosen_;
  uint32_t notifies_ = 0; // receives of which a count of chunks is waited for by an event
  reliability::SenderStats counted_sent_;
  reliability::ReceiverStats counted_received_;
  uint32_t uncounted_ = 0; // rounds of progress since
  std::deque<Event> events_;
  int events_fd_ = -1;
  bool events_signaled_ = false;
  uint32_t waiting_ = 0; // threads in wait()
  bool blocked_ = false; // no send buffer was free
  // The thread.
  memory::OwnThread thread_;
  int kick_fd_ = -1;
  std::atomic<bool> asleep_{false};
};

} // namespace adverb::endpoint
