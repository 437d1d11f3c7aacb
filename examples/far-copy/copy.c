// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "copy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char* const way_names[ways] = {"", "nack", "timeout", "xor", "mds", "auto", "rc", "raw"};

void meet_peer(struct copy* c) {
  char now = 1;
  tell(c->tcp, &now, sizeof now);
  if (!hear(c->tcp, &now, sizeof now))
    fail("the other end has gone before %s began", way_names[c->way]);
}

void start_clock(struct copy* c) {
  c->begun = now_ns();
  c->until = c->begun + (uint64_t)c->plan.seconds * 1000000000;
}

// FNV-1a: a byte that differs makes another hash.
static uint64_t hash_of(const char* at, uint64_t bytes) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (uint64_t i = 0; i < bytes; i++)
    hash = (hash ^ (uint8_t)at[i]) * UINT64_C(0x100000001b3);
  return hash;
}

// A line for each range that has not arrived, up to a few.
static void tell_missing(const struct copy* c) {
  enum { most_lines = 8 };
  const uint64_t chunks = (c->plan.bytes + chunk_bytes - 1) / chunk_bytes;
  uint64_t ranges = 0;
  for (uint64_t i = 0, first = 0; i < chunks; i++) {
    if (c->there[i]) {
      first = i + 1;
      continue;
    }
    if (i + 1 < chunks && !c->there[i + 1])
      continue;
    const uint64_t end = i + 1 < chunks ? (i + 1) * chunk_bytes : c->plan.bytes;
    if (ranges++ < most_lines)
      printf("receiver: %s: bytes %llu to %llu did not arrive\n", way_names[c->way],
             (unsigned long long)first * chunk_bytes, (unsigned long long)end - 1);
  }
  if (ranges > most_lines)
    printf("receiver: %s: and %llu more ranges\n", way_names[c->way],
           (unsigned long long)ranges - most_lines);
}

void exchange_outcomes(struct copy* c) {
  if (c->drawn)
    fputs("\r\033[K", stderr);
  if (c->way != way_raw) {
    c->outcome.good = c->messages_done == c->messages;
    c->outcome.hash = c->outcome.good ? hash_of(c->buffer, c->plan.bytes) : 0;
  }
  // At once, as the sender may have gone.
  if (!c->sends && !c->outcome.good) {
    printf("receiver: %s: %s\n", way_names[c->way], c->outcome.why);
    if (c->way != way_raw)
      tell_missing(c);
  }
  tell(c->tcp, &c->outcome, sizeof c->outcome);
  if (!hear(c->tcp, &c->theirs, sizeof c->theirs))
    fail("the other end has gone and has not said how %s went", way_names[c->way]);
  c->theirs.why[sizeof c->theirs.why - 1] = 0;
}

uint64_t message_bytes(const struct copy* c, uint64_t message) {
  const uint64_t left = c->plan.bytes - message * c->plan.message;
  return left < c->plan.message ? left : c->plan.message;
}

void draw_progress(struct copy* c) {
  enum { width = 40 };
  const uint64_t now = now_ns();
  if (now - c->drawn < 100000000 || !isatty(STDERR_FILENO))
    return;
  c->drawn = now;
  const double share = (double)c->bytes_done / (double)c->plan.bytes;
  const int full = share < 1 ? (int)(share * width) : width;
  fprintf(stderr, "\r%-7s [%.*s%*s] %3d %% %8.1f MB/s ", way_names[c->way], full,
          "########################################", width - full, "", (int)(share * 100),
          (double)c->bytes_done * 1e3 / (double)(now - c->begun));
}

void message_done(struct copy* c, uint64_t message) {
  const uint64_t chunks = (message_bytes(c, message) + chunk_bytes - 1) / chunk_bytes;
  if (!c->sends)
    memset(c->there + message * (c->plan.message / chunk_bytes), 1, chunks);
  c->bytes_done += message_bytes(c, message);
  c->messages_done++;
  c->ended = now_ns();
  draw_progress(c);
}

void give_up(struct copy* c, const char* format, ...) {
  va_list arguments;
  if (c->outcome.why[0])
    return;
  va_start(arguments, format);
  vsnprintf(c->outcome.why, sizeof c->outcome.why, format, arguments);
  va_end(arguments);
}

int await_event(struct copy* c, struct pollfd* fds, nfds_t n) {
  enum { step_ms = 200 }; // between two looks at the clock
  // The receiver tells its outcome when it has everything: no reason for the sender to end.
  fds[0] = (struct pollfd){.fd = c->tcp, .events = c->sends ? POLLRDHUP : POLLIN | POLLRDHUP};
  draw_progress(c);
  if (now_ns() >= c->until) {
    give_up(c, "%llu of %llu messages have ended within %u s", (unsigned long long)c->messages_done,
            (unsigned long long)c->messages, c->plan.seconds);
    return 0;
  }
  if (poll(fds, n, step_ms) < 0 && errno != EINTR)
    fail_for(errno, "poll");
  if (!fds[0].revents)
    return 1;
  give_up(c, c->sends ? "the receiver has gone" : "the sender has ended, and not all has arrived");
  return 0;
}

int await_completions(struct copy* c, struct ibv_cq* cq, struct ibv_comp_channel* channel,
                      struct ibv_wc* wc, int most) {
  int n = take_completions(cq, NULL, wc, most);
  while (n == 0) {
    struct pollfd fds[2] = {[1] = {.fd = channel->fd, .events = POLLIN}};
    const int error = ibv_req_notify_cq(cq, 0);
    if (error)
      fail_for(error, "ibv_req_notify_cq");
    n = take_completions(cq, NULL, wc, most); // those before it was armed wake nobody
    if (n)
      break;
    const int more = await_event(c, fds, 2);
    if (fds[1].revents) {
      struct ibv_cq* told = NULL;
      void* context = NULL;
      if (ibv_get_cq_event(channel, &told, &context))
        fail_for(errno, "ibv_get_cq_event");
      ibv_ack_cq_events(told, 1);
    }
    n = take_completions(cq, NULL, wc, most);
    if (n == 0 && !more)
      return -1;
  }
  return n;
}
