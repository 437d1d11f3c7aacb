// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A program of adverb.h: pairs of endpoints on one device, messages of many sizes and schemes both
// ways at once, compared byte by byte. usage: endpoint uc|ud SEED [ROUNDS]
#include "adverb.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

namespace {

[[noreturn]] void fail(const std::string& what, int rc = 0) {
  printf("not ok - %s%s%s\n", what.c_str(), rc != 0 ? ": " : "", rc != 0 ? strerror(rc) : "");
  exit(1);
}

void need(int rc, const char* what) {
  if (rc != 0)
    fail(what, rc);
}

constexpr size_t guard = 4096;
constexpr unsigned char poison = 0xA5;
constexpr int64_t minute = 60'000'000'000;

struct Message {
  std::vector<unsigned char> source;
  std::vector<unsigned char> target; // between guards
  adverb_message send = 0;
  adverb_message receive = 0;
  uint32_t immediate = 0;
};

struct Side {
  adverb_endpoint endpoint = 0;
};

void post(Side& from, Side& to, Message& m, size_t bytes, size_t capacity, std::mt19937& random) {
  m.source.resize(bytes);
  for (auto& b : m.source)
    b = static_cast<unsigned char>(random());
  m.target.assign(capacity + 2 * guard, poison);
  m.immediate = random();
  need(adverb_receive(to.endpoint, m.target.data() + guard, capacity, nullptr, &m.receive),
       "a receive is posted");
  adverb_send_options options{};
  options.size = sizeof options;
  options.repair = random() % 5;
  if (options.repair >= ADVERB_REPAIR_XOR) {
    options.k = static_cast<uint8_t>(1 + random() % 40);
    options.m = static_cast<uint8_t>(1 + random() % std::min<unsigned>(options.k, 12));
  }
  options.by_chunk = random() % 4 == 0;
  options.immediate = m.immediate;
  options.context = &m;
  need(adverb_send(from.endpoint, m.source.data(), bytes, &options, &m.send), "a send is posted");
}

void check(const Message& m) {
  need(adverb_wait_end(m.receive, minute), "a receive ends");
  need(adverb_wait_end(m.send, minute), "a send ends");
  adverb_receive_state state{};
  state.size = sizeof state;
  need(adverb_receive_query(m.receive, &state), "a receive is queried");
  if (state.status != ADVERB_COMPLETE || state.bytes != m.source.size() ||
      state.immediate != m.immediate || state.chunks_set != state.chunks)
    fail("a receive is complete: status " + std::to_string(state.status) + ", " +
         std::to_string(state.bytes) + " bytes, " + std::to_string(state.chunks_set) + " of " +
         std::to_string(state.chunks) + " chunks");
  for (uint32_t c = 0; c < state.chunks; ++c)
    if (!adverb_chunk_is_set(state.bitmap, c))
      fail("all bits are set");
  if (memcmp(m.target.data() + guard, m.source.data(), m.source.size()) != 0)
    fail("a message of " + std::to_string(m.source.size()) + " bytes is byte-exact");
  for (size_t i = 0; i < m.target.size(); ++i)
    if ((i < guard || i >= guard + m.source.size()) && m.target[i] != poison)
      fail("nothing is written beside a message");
}

ibv_pd* open_device() {
  ibv_device** list = ibv_get_device_list(nullptr);
  if (list == nullptr || list[0] == nullptr)
    fail("there is a device");
  const char* wanted = getenv("ENDPOINT_DEVICE");
  for (int i = 0; list[i] != nullptr; ++i)
    if (wanted == nullptr || strcmp(ibv_get_device_name(list[i]), wanted) == 0) {
      ibv_context* const context = ibv_open_device(list[i]);
      return context == nullptr ? nullptr : ibv_alloc_pd(context);
    }
  fail("there is the device wanted");
}

} // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 3)
    fail("usage: endpoint uc|ud SEED [ROUNDS]");
  const unsigned seed = static_cast<unsigned>(atoi(argv[2]));
  const int rounds = argc > 3 ? atoi(argv[3]) : 4;
  std::mt19937 random(seed);
  ibv_pd* const pd = open_device();
  if (pd == nullptr)
    fail("a protection domain");
  Side left;
  Side right;
  for (Side* side : {&left, &right}) {
    adverb_endpoint_options options{};
    options.size = sizeof options;
    options.transport = strcmp(argv[1], "ud") == 0 ? ADVERB_TRANSPORT_UD : ADVERB_TRANSPORT_UC;
    options.chunk_bytes = 4096U << random() % 5;
    if (side == &right) {
      adverb_endpoint_destroy(right.endpoint);
    }
    options.chunk_bytes = 16384;
    options.receives = 1024;
    need(adverb_endpoint_create(pd, &options, &side->endpoint), "an endpoint is made");
  }
  adverb_address a;
  adverb_address b;
  need(adverb_endpoint_address(left.endpoint, &a), "its address");
  need(adverb_endpoint_address(right.endpoint, &b), "its address");
  need(adverb_endpoint_connect(left.endpoint, &b), "an endpoint is connected");
  need(adverb_endpoint_connect(right.endpoint, &a), "an endpoint is connected");
  size_t bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Message> messages(1 + random() % 8);
    for (Message& m : messages) {
      const size_t sizes[] = {0, 1, 100, 5000, 70'000, 1'000'000};
      const size_t size = sizes[random() % 6] + random() % 100;
      const bool back = random() % 2 == 0;
      post(back ? right : left, back ? left : right, m, size, size + random() % 50, random);
      bytes += size;
    }
    for (const Message& m : messages)
      check(m);
    for (const Side* side : {&left, &right}) {
      adverb_event event;
      while (adverb_poll_event(side->endpoint, &event) == 0)
        if (event.status != ADVERB_COMPLETE)
          fail("an event says that its message is complete");
    }
    for (const Message& m : messages) {
      need(adverb_release(m.send), "a send is released");
      need(adverb_release(m.receive), "a receive is released");
    }
  }
  adverb_statistics s{};
  s.size = sizeof s;
  need(adverb_query_statistics(left.endpoint, &s), "statistics");
  printf(
      "# %zu bytes; left: sent %lu again %lu parity %lu lost %lu received %lu duplicates %lu late "
      "%lu decoded %lu, round trip %lu us, loss %.4f, rate %.1f MB/s\n",
      bytes, s.sent, s.sent_again, s.sent_parity, s.lost, s.received, s.duplicates, s.late,
      s.decoded, s.round_trip_ns / 1000, s.loss, s.rate / 1e6);
  need(adverb_endpoint_destroy(left.endpoint), "an endpoint is destroyed");
  need(adverb_endpoint_destroy(right.endpoint), "an endpoint is destroyed");
  if (adverb_endpoint_destroy(right.endpoint) != EBADF)
    fail("a handle names nothing afterwards");
  printf("ok - messages over %s are byte-exact, seed %u\n", argv[1], seed);
  return 0;
}
