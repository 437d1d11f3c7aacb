// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two messages that are used before they are whole. Of the first, the receiver sums each chunk as
// soon as the chunk is final. The second is a gradient: the receiver goes on when 99 % of its
// chunks are final, or a deadline has passed. See README.md.
#include "adverb.h"
#include "end.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: partial DEVICE[:GID_INDEX] [--port N] [--deadline MS] [--straggle CHUNKS] [SERVER]\n";

enum { chunk = 65536, chunks = 256, size = chunk * chunks, enough = (chunks * 99 + 99) / 100 };
enum { words = chunk / sizeof(uint64_t), floats = chunk / sizeof(float) }; // of a chunk
enum { patience_s = 600 };
static const int64_t patience = patience_s * INT64_C(1000000000); // of each wait

struct program {
  struct place place;
  const char* server;
  uint64_t deadline_ms; // of the gradient, at its receiver
  uint64_t straggle;    // chunks of the gradient that its sender never has
  int tcp;
  adverb_endpoint endpoint;
  void* buffer;
};

static void need(int error, const char* what) {
  if (error == ENOSYS)
    fail("there is no adverb here: install libadverb.so, or start by adverb run");
  if (error)
    fail_for(error, "%s", what);
}

// An endpoint at each end, and the address of either told to the other.
static void connect_endpoint(struct program* p, struct device* device) {
  const struct adverb_endpoint_options options = {
      .size = sizeof options,
      .flags = device->ethernet ? ADVERB_GID_INDEX : 0,
      .port = (uint32_t)device->port,
      .gid_index = (uint32_t)device->gid_index,
      .chunk_bytes = chunk,
  };
  struct adverb_address mine, theirs;
  need(adverb_endpoint_create(device->pd, &options, &p->endpoint), "no endpoint can be made");
  need(adverb_endpoint_address(p->endpoint, &mine), "the endpoint has no address");
  tell(p->tcp, &mine, sizeof mine);
  if (!hear(p->tcp, &theirs, sizeof theirs))
    fail("the other end has gone");
  need(adverb_endpoint_connect(p->endpoint, &theirs), "the endpoints cannot be connected");
}

static void tell_now(const struct program* p) {
  const char now = 1;
  tell(p->tcp, &now, sizeof now);
}

static void await_peer(const struct program* p, const char* what) {
  char now;
  if (!hear(p->tcp, &now, sizeof now))
    fail("the other end has gone, or %s did not come within %d s", what, patience_s);
}

// Until the message is over: how it ended. Its buffer is ours again.
static uint32_t await_end(const struct program* p, const char* what, adverb_message message) {
  static const char* const names[] = {"open",      "complete", "partial", "cancelled",
                                      "truncated", "silent",   "broken"};
  struct adverb_event event;
  const int error = adverb_wait_end(message, patience);
  if (error == ETIMEDOUT)
    fail("the %s has not ended within %d s", what, patience_s);
  need(error, what);
  need(adverb_poll_event(p->endpoint, &event), "a message that has ended has an event");
  printf("%s: the %s ended: %s\n", p->server ? "client" : "server", what, names[event.status]);
  return event.status;
}

static uint64_t sum_of(const uint64_t* from) {
  uint64_t sum = 0;
  for (int i = 0; i < words; i++)
    sum += from[i];
  return sum;
}

// The work on a chunk is done while others are still on their way, in whatever order they come.
static int sum_chunks(const struct program* p) {
  struct adverb_receive_state state = {.size = sizeof state};
  adverb_message message;
  uint64_t sum = 0, theirs;
  char summed[chunks] = {0};
  need(adverb_receive(p->endpoint, p->buffer, size, NULL, &message), "no receive can be posted");
  need(adverb_receive_query(message, &state), "a receive has a state");
  tell_now(p);
  for (uint32_t done = 0; done < chunks;) {
    const int error = adverb_wait_chunks(message, done + 1, patience);
    if (error)
      fail_for(error, "of %d chunks to sum, only %u arrived", chunks, done);
    for (uint32_t i = 0; i < chunks; i++) {
      if (summed[i] || !adverb_chunk_is_set(state.bitmap, i))
        continue;
      sum += sum_of((const uint64_t*)p->buffer + (size_t)i * words);
      summed[i] = 1;
      if (++done % (chunks / 4) == 0)
        printf("server: %u of %d chunks summed, of them the last is chunk %u\n", done, chunks, i);
    }
  }
  const int whole = await_end(p, "message of words", message) == ADVERB_COMPLETE;
  if (!hear(p->tcp, &theirs, sizeof theirs))
    fail("the other end has gone before it told its sum");
  printf("server: the sum is %016llx, %s\n", (unsigned long long)sum,
         sum == theirs ? "as the client says" : "WRONG");
  return whole && sum == theirs;
}

static int send_words(const struct program* p) {
  adverb_message message;
  uint64_t* const at = p->buffer;
  uint64_t sum = 0;
  for (size_t i = 0; i < size / sizeof *at; i++)
    at[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
  for (size_t i = 0; i < chunks; i++)
    sum += sum_of(at + i * words);
  await_peer(p, "its receive");
  need(adverb_send(p->endpoint, at, size, NULL, &message), "no send can be posted");
  const uint32_t status = await_end(p, "message of words", message);
  tell(p->tcp, &sum, sizeof sum);
  return status == ADVERB_COMPLETE;
}

static float gradient(size_t i) {
  return (float)(i % 1021) / 1021 - 0.5F;
}

// What never came counts as zero, and is named. Returns whether all the rest is right.
static int use_gradient(const struct program* p, const struct adverb_receive_state* state) {
  float* const at = p->buffer;
  double sum = 0;
  int right = 1;
  for (uint32_t i = 0, first = 0; i < chunks; i++) {
    float* const from = at + (size_t)i * floats;
    if (adverb_chunk_is_set(state->bitmap, i)) {
      for (size_t j = 0; j < floats; j++) {
        right &= from[j] == gradient((size_t)i * floats + j);
        sum += from[j];
      }
      first = i + 1;
      continue;
    }
    memset(from, 0, chunk); // a part of it may be there
    if (i + 1 == chunks || adverb_chunk_is_set(state->bitmap, i + 1))
      printf("server: bytes %u to %u are missing\n", first * chunk, (i + 1) * chunk - 1);
  }
  printf("server: the gradient has %u of %d chunks and the mean %.9f: %s\n", state->chunks_set,
         chunks, state->chunks_set ? sum / state->chunks_set / floats : 0,
         right ? "every value that came is right" : "WRONG");
  return right;
}

static int receive_gradient(const struct program* p) {
  struct adverb_receive_state state = {.size = sizeof state};
  adverb_message message;
  need(adverb_receive(p->endpoint, p->buffer, size, NULL, &message), "no receive can be posted");
  tell_now(p);
  const int error = adverb_wait_chunks(message, enough, (int64_t)p->deadline_ms * 1000000);
  if (error != ETIMEDOUT)
    need(error, "the gradient has ended");
  printf("server: %s\n", error ? "the deadline has passed" : "99 % of the gradient is there");
  need(adverb_finish(message), "the gradient cannot be finished");
  const uint32_t status = await_end(p, "gradient", message);
  need(adverb_receive_query(message, &state), "a receive has a state");
  const int right = use_gradient(p, &state);
  await_peer(p, "the end of its send"); // it hears of it from our endpoint
  return right && (status == ADVERB_COMPLETE || status == ADVERB_PARTIAL);
}

// The gradient goes as it is computed, so the send is a streaming one.
static int send_gradient(const struct program* p) {
  const struct adverb_send_options options = {.size = sizeof options, .streaming = 1};
  adverb_message message;
  float* const at = p->buffer;
  await_peer(p, "its receive");
  need(adverb_send(p->endpoint, at, size, &options, &message), "no send can be posted");
  for (size_t i = 0; i < chunks - p->straggle; i++) {
    for (size_t j = i * floats; j < (i + 1) * floats; j++)
      at[j] = gradient(j);
    // The receiver may have gone on without the rest; then the end says so.
    need(adverb_send_ready(message, i * chunk, chunk), "a chunk cannot be sent");
  }
  const uint32_t status = await_end(p, "gradient", message);
  tell_now(p);
  return status == ADVERB_COMPLETE || status == ADVERB_PARTIAL;
}

static int read_options(struct program* p, int argc, char** argv) {
  static const struct option known[] = {{"deadline", required_argument, NULL, 'd'},
                                        {"port", required_argument, NULL, 'p'},
                                        {"straggle", required_argument, NULL, 's'},
                                        {NULL, 0, NULL, 0}};
  uint64_t port = 18515;
  int letter = 0, good = 1;
  while ((letter = getopt_long(argc, argv, "", known, NULL)) != -1)
    good &= letter == 'd'   ? read_number(optarg, 1, patience_s * 1000, &p->deadline_ms)
            : letter == 'p' ? read_number(optarg, 1, 65535, &port)
            : letter == 's' ? read_number(optarg, 0, chunks, &p->straggle)
                            : 0;
  p->place.tcp_port = (int)port;
  p->server = argc - optind == 2 ? argv[optind + 1] : NULL;
  return good && argc - optind >= 1 && argc - optind <= 2 && place_device(&p->place, argv[optind]);
}

int main(int argc, char** argv) {
  struct program p = {.place = PLACE_DEFAULT, .deadline_ms = 5000};
  struct device device;
  if (!read_options(&p, argc, argv)) {
    fputs(usage, stderr);
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  open_device(&device, &p.place);
  p.buffer = map_memory(size, "a message"); // not registered
  p.tcp = tcp_meet(p.server, p.place.tcp_port, patience_s);
  connect_endpoint(&p, &device);
  int good = p.server ? send_words(&p) : sum_chunks(&p);
  good &= p.server ? send_gradient(&p) : receive_gradient(&p);
  need(adverb_endpoint_destroy(p.endpoint), "the endpoint cannot be destroyed");
  ibv_dealloc_pd(device.pd);
  ibv_close_device(device.context);
  return !good;
}
