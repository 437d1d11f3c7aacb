// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Messages between two parties over a bad link: right bytes, one event each, nothing written
// afterwards.
#include "reliability_link.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

using namespace reliability_test;

namespace {

// A message of a case, with all that is to be compared in the end.
struct Message {
  std::unique_ptr<Buffer> source;
  std::unique_ptr<Buffer> target;
  uint64_t number = 0;
  Scheme scheme;
  std::optional<End> sent;
  std::optional<ReceiveEvent> received;
  std::vector<std::byte> at_end; // the target at the receive's event
};

Scheme scheme_of(uint64_t choice) {
  constexpr std::array<Scheme, 9> schemes{{
      {Detection::nack, Unit::packet, Parity::none, 0, 0},
      {Detection::nack, Unit::chunk, Parity::none, 0, 0},
      {Detection::timeout, Unit::packet, Parity::none, 0, 0},
      {Detection::timeout, Unit::chunk, Parity::none, 0, 0},
      {Detection::nack, Unit::packet, Parity::xor_parity, 8, 2},
      {Detection::nack, Unit::packet, Parity::mds, 8, 3},
      {Detection::nack, Unit::packet, Parity::mds, 32, 8},
      {Detection::nack, Unit::chunk, Parity::mds, 5, 1},
      {Detection::timeout, Unit::packet, Parity::mds, 4, 4},
  }};
  return schemes[choice % schemes.size()];
}

class Trial {
public:
  explicit Trial(uint64_t seed) : seed_(seed), random_(seed) {
    options_.cut = {static_cast<uint32_t>(512 + random_() % 3000),
                    static_cast<uint32_t>(wire::payload_least + random_() % 400)};
    // Without a fixed rate the controller sets the pace.
    options_.rate.bytes_per_second =
        random_() % 3 == 0 ? 0 : 1e6 * static_cast<double>(1 + random_() % 50);
    options_.receives = 128 << random_() % 4;
    options_.silence = 1000s;
    Faults faults;
    faults.loss = std::array{0.0, 0.001, 0.02, 0.2}[random_() % 4];
    faults.burst = random_() % 2 == 0 ? 1 : 4;
    faults.duplicate = random_() % 2 == 0 ? 0 : 0.05;
    faults.reorder = random_() % 2 == 0 ? 0 : 0.1;
    faults.late = random_() % 2 == 0 ? 0 : 0.02;
    pair_ = std::make_unique<Pair>(options_, faults, Time(1us) * (5 + random_() % 50'000), seed);
  }

  Message& post(uint64_t bytes, uint64_t capacity) {
    Message& m = messages_.emplace_back();
    m.source = std::make_unique<Buffer>(bytes);
    m.source->fill(seed_ + messages_.size());
    m.target = std::make_unique<Buffer>(capacity);
    m.scheme = scheme_of(random_());
    m.number = pair_->left->send(m.source->data(), bytes, m.scheme,
                                 static_cast<uint32_t>(messages_.size()));
    REQUIRE(pair_->right->receive(m.target->data(), capacity) == m.number);
    return m;
  }

  void take_events() {
    while (const auto event = pair_->left->take_send_event()) {
      REQUIRE_FALSE(messages_.at(event->message).sent.has_value());
      messages_.at(event->message).sent = event->end;
      pair_->sends_over.insert(event->message);
      // The buffer is the program's again.
      messages_.at(event->message).source->fill(~seed_);
    }
    while (const auto event = pair_->right->take_receive_event()) {
      Message& m = messages_.at(event->message);
      REQUIRE_FALSE(m.received.has_value());
      m.received = *event;
      m.at_end.assign(m.target->data(), m.target->data() + m.target->size());
    }
  }
  bool all_over() const {
    for (const Message& m : messages_)
      if (!m.sent || !m.received)
        return false;
    return true;
  }
  // To the end of all messages, and on until nothing is under way any more.
  void finish() {
    for (int steps = 0; !all_over(); ++steps) {
      REQUIRE(steps < 2'000'000);
      if (!pair_->step()) {
        for (const Message& m : messages_)
          UNSCOPED_INFO("message " << m.number << ": sent " << (m.sent ? int(*m.sent) : -1)
                                   << ", received " << (m.received ? int(m.received->end) : -1));
        FAIL("messages are neither over nor under way");
      }
      take_events();
    }
    for (int steps = 0; steps < 10'000 && pair_->step(); ++steps)
      take_events();
  }
  // Whole chunks, at any time: a bit that is set stays so, and its bytes are the source's.
  void check_chunks(const Message& m, std::vector<bool>& known) {
    const auto* const bitmap = pair_->right->receiver().bitmap(m.number);
    const Layout layout{options_.cut, m.source->size()};
    known.resize(layout.chunks());
    Buffer expected(m.source->size());
    expected.fill(seed_ + m.number + 1);
    for (uint32_t c = 0; c < layout.chunks(); ++c) {
      const bool set = (bitmap[c / word_bits].load() >> (c % word_bits) & 1) != 0;
      if (known[c])
        REQUIRE(set);
      if (!set || known[c])
        continue;
      known[c] = true;
      const uint64_t at = uint64_t{c} * options_.cut.chunk_bytes;
      REQUIRE(memcmp(m.target->data() + at, expected.data() + at, layout.chunk_length(c)) == 0);
    }
  }
  // A message that arrived whole.
  void check_complete(const Message& m) {
    CHECK(m.sent == End::complete);
    REQUIRE(m.received);
    CHECK(m.received->end == End::complete);
    CHECK(m.received->bytes == m.source->size());
    CHECK(m.received->placed == m.source->size());
    Buffer expected(m.source->size());
    expected.fill(seed_ + m.number + 1);
    size_t wrong = 0;
    while (wrong < expected.size() && m.target->data()[wrong] == expected.data()[wrong])
      ++wrong;
    INFO("the first wrong byte is " << wrong << " of " << expected.size() << ", chunk "
                                    << options_.cut.chunk_bytes << ", packet "
                                    << options_.cut.packet_bytes);
    CHECK(wrong == expected.size());
    check_untouched(m, expected.size());
  }
  // Nothing behind the message, around the buffer or after the event.
  void check_untouched(const Message& m, size_t bytes) {
    CHECK(m.target->guards_stand());
    for (size_t i = bytes; i < m.target->size(); ++i)
      if (m.target->data()[i] != Buffer::poison)
        FAIL("byte " << i << " behind the message was written");
    CHECK(memcmp(m.target->data(), m.at_end.data(), m.at_end.size()) == 0);
  }

  uint64_t seed_;
  std::mt19937_64 random_;
  PartyOptions options_;
  std::unique_ptr<Pair> pair_;
  std::vector<Message> messages_;
};

uint64_t some_size(std::mt19937_64& random) {
  constexpr std::array<uint64_t, 8> sizes{0, 1, 63, 1000, 4096, 20'000, 100'000, 400'000};
  return sizes[random() % sizes.size()] + random() % 100;
}

} // namespace

// Of the first case; `scripts/test --all` takes more.
uint64_t seeds() {
  const char* const wanted = getenv("RELIABILITY_SEEDS");
  return wanted == nullptr ? 100 : strtoull(wanted, nullptr, 10);
}

TEST_CASE("messages of every scheme are byte-exact over a link with every fault") {
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    const size_t count = 1 + run.random_() % 6;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bytes = some_size(run.random_);
      run.post(bytes, bytes + run.random_() % 300);
    }
    run.finish();
    for (const Message& m : run.messages_)
      run.check_complete(m);
  }
}

TEST_CASE("over a link that loses nothing nothing is sent again, or before its receive is posted") {
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    run.options_.rate.bytes_per_second = 20e6;
    run.options_.receives = 4096;
    run.pair_ = std::make_unique<Pair>(run.options_, Faults{}, 2ms, seed);
    for (int i = 0; i < 3; ++i) { // long enough for several reports' worth of bitmap words
      Message& m = run.messages_.emplace_back();
      m.source = std::make_unique<Buffer>(300'000);
      m.source->fill(seed + run.messages_.size());
      m.target = std::make_unique<Buffer>(300'000);
      m.number = run.pair_->left->send(m.source->data(), m.source->size(), scheme_of(seed), 0);
    }
    for (int i = 0; i < 3; ++i) {
      const Time until = run.pair_->now + 1s;
      while (run.pair_->step(until))
        run.take_events();
      run.pair_->right->receive(run.messages_[static_cast<size_t>(i)].target->data(), 300'000);
    }
    run.finish();
    for (const Message& m : run.messages_)
      run.check_complete(m);
    CHECK(run.pair_->left->sender().stats().repairs == 0);
    CHECK(run.pair_->left->sender().stats().lost == 0);
    CHECK(run.pair_->right->receiver().stats().early == 0);
  }
}

TEST_CASE("a chunk whose bit is set is final, and no bit is ever cleared") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    Message& m = run.post(30'000 + run.random_() % 1000, 31'000);
    std::vector<bool> known;
    for (int steps = 0; !run.all_over(); ++steps) {
      REQUIRE(steps < 1'000'000);
      REQUIRE(run.pair_->step());
      run.check_chunks(m, known);
      run.take_events();
    }
    run.finish();
    run.check_chunks(m, known);
    CHECK(std::count(known.begin(), known.end(), true) == static_cast<long>(known.size()));
    run.check_complete(m);
  }
}

TEST_CASE("a receive that is finished early keeps what is there and is written no more") {
  int partial = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    const bool cancels = seed % 2 == 0;
    const size_t count = 1 + run.random_() % 3;
    for (size_t i = 0; i < count; ++i)
      run.post(100'000 + run.random_() % 100, 101'000);
    Message& m = run.messages_[run.random_() % count];
    const uint64_t after = run.random_() % 400;
    for (uint64_t steps = 0; steps < after && run.pair_->step(); ++steps)
      run.take_events();
    const bool open = !m.received;
    run.pair_->right->finish(m.number, cancels ? End::cancelled : End::partial);
    run.take_events();
    REQUIRE(m.received); // at once
    run.finish();
    for (const Message& each : run.messages_)
      if (&each != &m)
        run.check_complete(each);
    run.check_untouched(m, m.source->size());
    if (!open)
      continue;
    ++partial;
    CHECK(m.received->end == (cancels ? End::cancelled : End::partial));
    CHECK(m.sent == m.received->end);
    std::vector<bool> known;
    run.check_chunks(m, known);
  }
  CHECK(partial > 50);
}

TEST_CASE("a send that is cancelled ends at both sides, once") {
  int cancelled = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    run.post(100'000, 100'000);
    run.post(50'000, 50'000);
    const uint64_t after = run.random_() % 300;
    for (uint64_t steps = 0; steps < after && run.pair_->step(); ++steps)
      run.take_events();
    run.pair_->left->cancel(0);
    run.finish();
    const Message& m = run.messages_[0];
    CHECK(m.sent == m.received->end);
    cancelled += m.sent == End::cancelled ? 1 : 0;
    run.check_untouched(m, m.source->size());
    run.check_complete(run.messages_[1]);
  }
  CHECK(cancelled > 50);
}

TEST_CASE(
    "a message that is longer than its receive is truncated at both sides, and none of it lands") {
  Trial run(3);
  run.post(5000, 4999);
  run.post(5000, 5000);
  run.finish();
  const Message& m = run.messages_[0];
  CHECK(m.sent == End::truncated);
  CHECK(m.received->end == End::truncated);
  CHECK(m.received->bytes == 5000);
  run.check_untouched(m, 0);
  run.check_complete(run.messages_[1]);
}

TEST_CASE("a receive ends at its deadline") {
  Trial run(5);
  Message& m = run.messages_.emplace_back();
  m.source = std::make_unique<Buffer>(1'000'000);
  m.source->fill(1);
  m.target = std::make_unique<Buffer>(1'000'000);
  m.number = run.pair_->left->send(m.source->data(), m.source->size(), {}, 0);
  run.pair_->there.cut = true; // nothing of it arrives
  run.pair_->right->receive(m.target->data(), m.target->size(), run.pair_->now + 3s);
  while (!m.received && run.pair_->step())
    run.take_events();
  REQUIRE(m.received);
  CHECK(m.received->end == End::partial);
  CHECK(run.pair_->now >= 4s);
  CHECK(run.pair_->now < 5s);
  run.pair_->there.cut = false;
  run.finish();
  CHECK(m.sent == End::partial);
}

TEST_CASE("a peer that is gone ends messages as silent, and one that was stopped does not") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    const bool sender_stops = run.random_() % 2 == 0;
    const bool for_ever = run.random_() % 2 == 0;
    run.post(200'000, 200'000);
    run.post(1000, 1000);
    const uint64_t after = 1 + run.random_() % 200;
    for (uint64_t steps = 0; steps < after && run.pair_->step(); ++steps)
      run.take_events();
    auto& sleeps = sender_stops ? run.pair_->left_sleeps : run.pair_->right_sleeps;
    sleeps = true;
    const Time since = run.pair_->now;
    const Time silence = run.options_.silence;
    while (run.pair_->step(since + silence / 2))
      run.take_events();
    for (const Message& m : run.messages_) // nobody has given up
      CHECK((!m.sent || m.sent == End::complete));
    if (!for_ever) {
      run.pair_->now = std::max(run.pair_->now, since + silence / 2);
      sleeps = false;
      run.finish();
      for (const Message& m : run.messages_)
        run.check_complete(m);
      continue;
    }
    while (run.pair_->step(since + 2 * silence))
      run.take_events();
    run.take_events();
    for (const Message& m : run.messages_) {
      if (sender_stops && m.received)
        CHECK((m.received->end == End::complete || m.received->end == End::silent));
      if (!sender_stops) {
        REQUIRE(m.sent);
        CHECK((m.sent == End::complete || m.sent == End::silent));
      }
      if (m.received)
        run.check_untouched(m, m.source->size());
    }
  }
}

TEST_CASE("bytes of a streaming send go when they are named, in any order") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    Message& m = run.messages_.emplace_back();
    const uint64_t bytes = 1 + run.random_() % 60'000;
    m.source = std::make_unique<Buffer>(bytes); // poison until it is named
    m.target = std::make_unique<Buffer>(bytes);
    Buffer whole(bytes);
    whole.fill(seed + 1);
    m.number = run.pair_->left->send(m.source->data(), bytes, scheme_of(run.random_()), 0, true);
    run.pair_->right->receive(m.target->data(), bytes);
    std::vector<std::pair<uint64_t, uint64_t>> pieces;
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t length = std::min(bytes - at, 1 + run.random_() % 5000);
      pieces.emplace_back(at, length);
      at += length;
    }
    std::shuffle(pieces.begin(), pieces.end(), run.random_);
    for (const auto& [at, length] : pieces) {
      CHECK_FALSE(m.sent);
      memcpy(m.source->data() + at, whole.data() + at, length);
      run.pair_->left->ready(m.number, at, length);
      for (int steps = 0; steps < 20 && run.pair_->step(); ++steps)
        run.take_events();
    }
    run.finish();
    run.check_complete(m);
  }
}

// Parity comes when its block is whole, which a stream that has stalled may never be.
TEST_CASE("all that a streaming send has named comes, whatever is never named") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    Message& m = run.messages_.emplace_back();
    const Cut cut = run.options_.cut;
    const auto chunks = static_cast<uint32_t>(2 + run.random_() % 60);
    const uint64_t bytes = uint64_t{chunks} * cut.chunk_bytes;
    m.source = std::make_unique<Buffer>(bytes);
    m.source->fill(seed + 1);
    m.target = std::make_unique<Buffer>(bytes);
    m.number = run.pair_->left->send(m.source->data(), bytes, scheme_of(seed), 0, true);
    run.pair_->right->receive(m.target->data(), bytes);
    std::vector<bool> is_named(chunks);
    std::vector<bool> known;
    const auto comes = [&] {
      const auto* const bitmap = run.pair_->right->receiver().bitmap(m.number);
      for (uint32_t c = 0; c < chunks; ++c)
        if (is_named[c] && (bitmap[c / word_bits].load() >> (c % word_bits) & 1) == 0)
          return false;
      return true;
    };
    // Some at once, then nothing for long, then more, but never all.
    const auto never = static_cast<uint32_t>(run.random_() % chunks);
    for (int part = 0; part < 4; ++part) {
      for (uint32_t c = 0; c < chunks; ++c)
        if (c != never && run.random_() % 3 == 0) {
          is_named[c] = true;
          run.pair_->left->ready(m.number, uint64_t{c} * cut.chunk_bytes, cut.chunk_bytes);
        }
      for (int steps = 0; !comes(); ++steps) {
        REQUIRE(steps < 200'000);
        REQUIRE(run.pair_->step());
        run.take_events();
      }
      run.check_chunks(m, known);
    }
    CHECK_FALSE(m.sent);
    is_named.assign(chunks, true);
    run.pair_->left->ready(m.number, 0, bytes);
    run.finish();
    run.check_complete(m);
  }
}

// A time without reports has all of a block taken for lost. Some of it goes again, in vain; of the
// rest a late report says that it had come. Then nothing is left to judge, and one packet to send.
TEST_CASE("what was named goes again though a late report has spared the rest") {
  SenderOptions options;
  options.cut = {1024, 1024};
  options.rate.bytes_per_second = 1e9;
  options.credit = options.granted = 1000;
  options.round_trip = 1ms;
  options.silence = 1000s;
  Sender sender(options);
  const uint64_t message =
      sender.post(200 * 1024, {Detection::nack, Unit::packet, Parity::mds, 200, 20}, false);
  sender.make_ready(message, 0, 64);
  Time now = 1s;
  const auto is_data = [](const std::optional<Run>& run) { return run && run->kind == Kind::data; };
  uint64_t sent = 0;
  for (; sent != ~uint64_t{0}; now += 100us)
    if (const auto run = sender.next(now); is_data(run))
      sent |= run->packets;
  now += 4ms; // nothing has been heard of any
  const auto again = sender.next(now);
  REQUIRE(is_data(again));
  REQUIRE((again->packets & 1) != 0);
  REQUIRE(again->packets != ~uint64_t{0});
  now += 1s;
  for (int i = 0; i < 10; ++i, now += 1s) // it asks, and sends no more
    REQUIRE_FALSE(is_data(sender.next(now)));
  Feedback feedback;
  feedback.highest = again->sequence + 16;
  feedback.arrived = 63;
  feedback.credit = feedback.granted = 1000;
  Section section;
  section.message = message;
  section.packets = {~uint64_t{1}};
  section.rest_missing = true;
  feedback.sections = {section};
  sender.hear(feedback, now);
  bool comes = false;
  for (int i = 0; i < 100 && !comes; ++i, now += 100us)
    if (const auto run = sender.next(now); is_data(run))
      comes = run->packets == 1;
  CHECK(comes);
}

TEST_CASE("what was never sent is counted until it has gone, or its message") {
  PartyOptions options;
  options.cut = {4096, 1024};
  Pair pair(options, {}, 1ms, 1);
  Buffer bytes(20'000);
  CHECK(pair.left->sender().unsent() == 0);
  pair.left->send(bytes.data(), 10 * 1024, {}, 0);
  const uint64_t streamed = pair.left->send(bytes.data(), 3 * 1024, {}, 0, true);
  CHECK(pair.left->sender().unsent() == 10);
  pair.left->ready(streamed, 0, 2 * 1024);
  CHECK(pair.left->sender().unsent() == 12);
  for (int i = 0; i < 2; ++i)
    pair.right->receive(bytes.data(), bytes.size());
  while (pair.left->sender().unsent() != 0)
    REQUIRE(pair.step());
  CHECK(pair.left->sender().stats().packets == 12);
}

TEST_CASE("bytes that are no packet of the pair change nothing") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Trial run(seed);
    run.post(20'000, 20'000);
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(600);
    while (!run.all_over()) {
      REQUIRE(run.pair_->step());
      run.take_events();
      for (std::byte& b : bytes)
        b = static_cast<std::byte>(random());
      wire::Header header;
      memcpy(&header, bytes.data(), sizeof header);
      header.epoch =
          random() % 2 == 0 ? seed + 1000 : header.epoch; // to the right it is the pair's
      header.kind = static_cast<Kind>(random() % 8);
      header.message = random() % 3 + 1; // never the one that is compared
      header.length =
          random() % 2 == 0 ? static_cast<uint16_t>(bytes.size() - sizeof header) : header.length;
      header.sequence = 0;
      memcpy(bytes.data(), &header, sizeof header);
      run.pair_->right->take_packet(bytes, run.pair_->now);
      header.epoch = random() % 2 == 0 ? seed + 2000 : header.epoch;
      memcpy(bytes.data(), &header, sizeof header);
      if (header.kind != Kind::feedback)
        run.pair_->left->take_packet(bytes, run.pair_->now);
    }
    run.finish();
    run.check_complete(run.messages_[0]);
  }
}

TEST_CASE("packets of an earlier pair are dropped") {
  Trial old(7);
  old.post(5000, 5000);
  std::vector<std::vector<std::byte>> kept;
  std::vector<std::byte> packet(sizeof(wire::Header) + old.options_.cut.packet_bytes);
  for (int steps = 0; steps < 500 && old.pair_->step(); ++steps) {
    old.take_events();
    old.pair_->now += 1ms;
    while (const size_t bytes = old.pair_->left->next_packet(packet, old.pair_->now)) {
      kept.emplace_back(packet.begin(), packet.begin() + static_cast<long>(bytes));
      old.pair_->there.send(kept.back(), old.pair_->now);
    }
  }
  REQUIRE(kept.size() > 5);
  Trial fresh(8);
  fresh.options_ = old.options_;
  fresh.pair_ = std::make_unique<Pair>(old.options_, Faults{}, 1ms, 8);
  fresh.seed_ = 8;
  fresh.post(5000, 5000);
  for (const auto& each : kept)
    fresh.pair_->right->take_packet(each, fresh.pair_->now);
  CHECK(fresh.pair_->right->receiver().stats().packets == 0);
  fresh.finish();
  fresh.check_complete(fresh.messages_[0]);
}

TEST_CASE("credit bounds what is under way to a receiver that takes nothing") {
  Trial run(11);
  run.options_.receives = 128;
  run.pair_ = std::make_unique<Pair>(run.options_, Faults{}, 10ms, 11);
  run.post(1'000'000, 1'000'000);
  while (run.pair_->right->receiver().stats().packets < 10)
    REQUIRE(run.pair_->step());
  run.pair_->right_sleeps = true;
  const uint64_t taken = run.pair_->right->receiver().stats().packets;
  const uint64_t before = run.pair_->there.sent;
  const Time since = run.pair_->now;
  while (run.pair_->now < since + 100s)
    REQUIRE(run.pair_->step());
  // 128 buffers, of which half are kept for what goes without credit; probes are few.
  CHECK(run.pair_->there.sent - before <= 128);
  run.pair_->right_sleeps = false;
  run.finish();
  CHECK(taken >= 10);
  run.check_complete(run.messages_[0]);
}
