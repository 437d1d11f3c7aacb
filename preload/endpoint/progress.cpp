// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What an endpoint does under its lock, and its thread.
#include "endpoint/endpoint.h"
#include "world/world.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace adverb::endpoint {
namespace {

using reliability::word_bits;

constexpr int batches_most = 8;       // of arrived packets, before something is sent again
constexpr int packets_most = 128;     // sent before arrived packets are looked for again
constexpr uint32_t count_every = 256; // rounds of progress
constexpr Time spins = std::chrono::microseconds(20); // without work before the thread sleeps
constexpr Time longest_sleep = std::chrono::seconds(60);

static_assert(static_cast<uint32_t>(End::open) == ADVERB_OPEN);
static_assert(static_cast<uint32_t>(End::complete) == ADVERB_COMPLETE);
static_assert(static_cast<uint32_t>(End::partial) == ADVERB_PARTIAL);
static_assert(static_cast<uint32_t>(End::cancelled) == ADVERB_CANCELLED);
static_assert(static_cast<uint32_t>(End::truncated) == ADVERB_TRUNCATED);
static_assert(static_cast<uint32_t>(End::silent) == ADVERB_SILENT);

} // namespace

// Whether there was anything to do.
bool Endpoint::make_progress() {
  if (!connected_ || broken_ || closed_)
    return false;
  bool any = false;
  for (int i = 0; i < batches_most; ++i) {
    const Time at = now();
    if (queue_->poll([&](std::span<const std::byte> packet) { party_->take_packet(packet, at); }) ==
        0)
      break;
    any = true;
  }
  if (queue_->ran_dry())
    party_->receiver().starved(queue_->receives());
  any = send_packets() || any;
  if (queue_->failed() != 0)
    fail(fmt::format("completion status {}", queue_->failed()));
  take_events();
  if (++uncounted_ == count_every)
    count();
  return any;
}

// As much as pace and credit permit, while buffers are free.
bool Endpoint::send_packets() {
  const Time at = now();
  const size_t room = sizeof(reliability::wire::Header) + cut_.packet_bytes;
  bool any = false;
  blocked_ = false;
  for (int i = 0; i < packets_most; ++i) {
    std::byte* const buffer = queue_->buffer();
    if (buffer == nullptr) {
      blocked_ = true;
      break;
    }
    const size_t bytes = party_->next_packet({buffer, room}, at);
    if (bytes == 0)
      break;
    queue_->post(static_cast<uint32_t>(bytes));
    any = true;
  }
  queue_->flush();
  return any;
}

void Endpoint::count() {
  using observe::Counter;
  const auto& sent = party_->sender().stats();
  const auto& received = party_->receiver().stats();
  auto& to = world_.counters;
  const auto add = [&to](Counter counter, uint64_t now, uint64_t before) {
    if (now != before)
      to.count(counter, now - before);
  };
  add(Counter::endpoint_packets_sent, sent.packets, counted_sent_.packets);
  add(Counter::endpoint_packets_again, sent.repairs, counted_sent_.repairs);
  add(Counter::endpoint_packets_parity, sent.parity, counted_sent_.parity);
  add(Counter::endpoint_packets_lost, sent.lost, counted_sent_.lost);
  add(Counter::endpoint_packets_received, received.packets, counted_received_.packets);
  add(Counter::endpoint_packets_duplicate, received.duplicates, counted_received_.duplicates);
  add(Counter::endpoint_packets_late, received.late, counted_received_.late);
  add(Counter::endpoint_packets_early, received.early, counted_received_.early);
  add(Counter::endpoint_packets_starved, received.starved, counted_received_.starved);
  add(Counter::endpoint_packets_decoded, received.decoded, counted_received_.decoded);
  counted_sent_ = sent;
  counted_received_ = received;
  uncounted_ = 0;
}

void Endpoint::tell(const Event& event) {
  events_.push_back(event);
  if (events_signaled_)
    return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t unused = write(events_fd_, &one, sizeof one);
  events_signaled_ = true;
}

// Ends of messages become events, and so do counts of chunks that a program waits for.
void Endpoint::take_events() {
  if (!connected_)
    return;
  if (notifies_ != 0)
    for (auto& [number, m] : incoming_) {
      if (m.notify_at == 0 || party_->receiver().counts(number).chunks_set < m.notify_at)
        continue;
      m.notify_at = 0;
      --notifies_;
      Event event{{}, {false, number}};
      event.event.type = ADVERB_EVENT_CHUNKS;
      event.event.context = m.context;
      tell(event);
    }
  bool over = false;
  while (const auto ended = party_->take_send_event()) {
    over = true;
    Outgoing& m = outgoing_.at(ended->message);
    m.status = static_cast<uint32_t>(ended->end);
    Event event{{}, {true, ended->message}};
    event.event.type = ADVERB_EVENT_SEND;
    event.event.status = m.status;
    event.event.context = m.context;
    event.event.bytes = m.bytes;
    event.event.immediate = m.immediate;
    tell(event);
  }
  while (const auto ended = party_->take_receive_event()) {
    over = true;
    Incoming& m = incoming_.at(ended->message);
    m.status = static_cast<uint32_t>(ended->end);
    notifies_ -= m.notify_at != 0 ? 1 : 0;
    m.notify_at = 0;
    Event event{{}, {false, ended->message}};
    event.event.type = ADVERB_EVENT_RECEIVE;
    event.event.status = m.status;
    event.event.context = m.context;
    event.event.bytes = ended->bytes;
    event.event.placed = ended->placed;
    event.event.immediate = ended->immediate;
    tell(event);
  }
  if (over)
    count();
  if (waiting_ != 0)
    changed_.notify_all();
}

// The queue pair has failed, or memory is short. Each message that is open ends so.
void Endpoint::fail(const std::string& why) {
  if (broken_)
    return;
  broken_ = true;
  world_.log.error(
      "endpoint {:x}: its queue pair {} is given up ({}); its messages end; make another "
      "endpoint",
      identity_, queue_->address().qpn, why);
  take_events();
  for (auto& [number, m] : outgoing_) {
    if (m.status != ADVERB_OPEN)
      continue;
    m.status = ADVERB_BROKEN;
    Event event{{}, {true, number}};
    event.event.type = ADVERB_EVENT_SEND;
    event.event.bytes = m.bytes;
    event.event.immediate = m.immediate;
    event.event.status = m.status;
    event.event.context = m.context;
    tell(event);
  }
  for (auto& [number, m] : incoming_) {
    if (m.status != ADVERB_OPEN)
      continue;
    m.status = ADVERB_BROKEN;
    Event event{{}, {false, number}};
    event.event.type = ADVERB_EVENT_RECEIVE;
    if (const auto head = party_->receiver().head(number)) {
      event.event.bytes = head->bytes;
      event.event.immediate = head->immediate;
      event.event.placed = party_->receiver().counts(number).placed;
    }
    event.event.status = m.status;
    event.event.context = m.context;
    tell(event);
  }
  changed_.notify_all();
}

Time Endpoint::wake(Time at) const {
  return !connected_ || broken_ || blocked_ ? Time::max() : party_->wake(at);
}

// `ready`: 0 once what is waited for is there, EAGAIN before, anything else ends the wait.
int Endpoint::wait(const std::function<int()>& ready, int64_t timeout) {
  std::unique_lock hold(lock_);
  const Time begun = now();
  const Time until =
      timeout < 0 ? Time::max() : begun + std::min(Time(timeout), Time::max() / 2 - begun);
  ++waiting_;
  int rc = EAGAIN;
  for (;;) {
    if (closed_) {
      rc = EBADF;
      break;
    }
    rc = ready();
    if (rc != EAGAIN)
      break;
    const Time at = now();
    if (at >= until) {
      rc = ETIMEDOUT;
      break;
    }
    if (thread_.joinable()) {
      if (until == Time::max())
        changed_.wait(hold);
      else
        changed_.wait_for(hold, until - at);
      continue;
    }
    if (make_progress())
      continue;
    // Nobody else makes progress: sleeps until something comes or is due, with the lock free.
    queue_->arm(blocked_);
    if (make_progress())
      continue;
    const Time due = std::min({wake(at), until, at + longest_sleep});
    sleep(hold, due > at ? due - at : Time{0});
  }
  --waiting_;
  return rc;
}

// Until a packet has come, or a call rouses, or so long.
void Endpoint::sleep(std::unique_lock<std::mutex>& hold, Time longest) {
  std::array<pollfd, 2> fds{};
  fds[0] = {queue_->descriptor(), POLLIN, 0};
  fds[1] = {kick_fd_, POLLIN, 0};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec time{seconds.count(), (longest - seconds).count()};
  asleep_.store(true);
  hold.unlock();
  ppoll(fds.data(), fds.size(), &time, nullptr);
  hold.lock();
  asleep_.store(false);
  if ((fds[1].revents & POLLIN) != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t unused = read(kick_fd_, &count, sizeof count);
  }
  if ((fds[0].revents & POLLIN) != 0 && queue_ != nullptr)
    queue_->woken();
}

int Endpoint::wait_chunks(uint64_t number, uint32_t chunks, int64_t timeout) {
  return wait(
      [&] {
        const Incoming* const m = incoming(number);
        if (m == nullptr)
          return EBADF;
        if (party_->receiver().counts(number).chunks_set >= chunks)
          return 0;
        return m->status == ADVERB_OPEN ? EAGAIN : ECANCELED;
      },
      timeout);
}

int Endpoint::wait_range(uint64_t number, size_t offset, size_t bytes, int64_t timeout) {
  return wait(
      [&] {
        const Incoming* const m = incoming(number);
        if (m == nullptr)
          return EBADF;
        if (offset > m->capacity || bytes > m->capacity - offset)
          return EINVAL;
        if (bytes == 0)
          return 0;
        const auto* const bitmap = party_->receiver().bitmap(number);
        for (size_t c = offset / cut_.chunk_bytes; c <= (offset + bytes - 1) / cut_.chunk_bytes;
             ++c)
          if ((bitmap[c / word_bits].load(std::memory_order_acquire) >> (c % word_bits) & 1) == 0)
            return m->status == ADVERB_OPEN ? EAGAIN : ECANCELED;
        return 0;
      },
      timeout);
}

int Endpoint::wait_end(MessageName name, int64_t timeout) {
  return wait(
      [&] {
        if (name.sends) {
          const Outgoing* const m = outgoing(name.number);
          return m == nullptr ? EBADF : m->status == ADVERB_OPEN ? EAGAIN : 0;
        }
        const Incoming* const m = incoming(name.number);
        return m == nullptr ? EBADF : m->status == ADVERB_OPEN ? EAGAIN : 0;
      },
      timeout);
}

void Endpoint::rouse() noexcept {
  if (!asleep_.load())
    return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t unused = write(kick_fd_, &one, sizeof one);
}

void Endpoint::run() {
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); // the pace is kept by sleeps
  std::unique_lock hold(lock_);
  Time idle_since = now();
  while (!closed_) {
    try {
      if (make_progress()) {
        hold.unlock(); // calls of the program come in between
        hold.lock();
        idle_since = now();
        continue;
      }
      const Time at = now();
      const Time due = wake(at);
      if (at - idle_since < spins || due <= at) {
        hold.unlock();
        hold.lock();
        continue;
      }
      if (queue_->arm(blocked_) != 0)
        fail("its completion queue cannot be armed");
      if (make_progress())
        continue;
      sleep(hold, std::min(due, at + longest_sleep) - at);
      idle_since = now();
    } catch (const std::bad_alloc&) {
      fail("no memory");
    }
  }
}

} // namespace adverb::endpoint
