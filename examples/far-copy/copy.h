// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One end of a copy, and what every way to copy needs: messages, a clock, bounded waits, and the
// account of what arrived. One thread.
#pragma once

#include "end.h"

#include <poll.h>
#include <stdint.h>

enum { chunk_bytes = 65536, most_pairs = 64, most_depth = 128, most_ways = 8 };

enum way { way_none, way_nack, way_timeout, way_xor, way_mds, way_auto, way_rc, way_raw, ways };
extern const char* const way_names[ways];

// What the sender tells the receiver first. Both ends are of one byte order.
struct plan {
  uint32_t magic, transport; // an adverb_transport
  uint32_t pairs, depth;     // depth: messages under way, of each pair
  uint32_t seconds;          // of each way at most
  uint8_t ways[most_ways];   // way_none ends them
  uint64_t bytes, message;   // message: of whole chunks
  uint64_t rate;             // bytes a second, of all pairs; 0: as the path carries
  double link_loss;          // as adverb_endpoint_options has it
};

// How it went, told to the other end.
struct outcome {
  uint32_t good, counted;       // counted: the three counts are known
  uint64_t hash;                // of all bytes; raw has none
  uint64_t again, parity, lost; // packets
  uint64_t packets;             // raw: sent or arrived
  char why[128];                // not good
};

struct copy {
  struct device device;
  int tcp, sends;
  struct plan plan;
  char* buffer;
  enum way way;
  uint64_t messages;
  uint8_t* there;                      // receiver: of each chunk, 1 if it has arrived
  uint64_t begun, ended, until, drawn; // ns
  uint64_t bytes_done, messages_done;
  struct outcome outcome, theirs;
};

// The ways. Both ends call the same one at once; afterwards both have both outcomes.
void copy_by_adverb(struct copy* c);
void copy_by_rc(struct copy* c);
void send_raw(struct copy* c);

// A byte to the other end and one from it.
void meet_peer(struct copy* c);
// The clock starts, and the bound of all waits.
void start_clock(struct copy* c);
// When this end is over: tells the other how it went, and hears how it went there. A receiver
// prints what has not arrived.
void exchange_outcomes(struct copy* c);
uint64_t message_bytes(const struct copy* c, uint64_t message);
// A bar on stderr if it is a terminal, ten times a second.
void draw_progress(struct copy* c);
// Message `message` has ended well at this end.
void message_done(struct copy* c, uint64_t message);
// The copy is not good. The first reason stays.
__attribute__((format(printf, 2, 3))) void give_up(struct copy* c, const char* format, ...);
// Sleeps until one of fds[1 .. n) has something; fds[0] is filled in, for the other end. 0: given
// up, as the time is over, or the other end has ended.
int await_event(struct copy* c, struct pollfd* fds, nfds_t n);
// Completions, for which it sleeps. -1: given up.
int await_completions(struct copy* c, struct ibv_cq* cq, struct ibv_comp_channel* channel,
                      struct ibv_wc* wc, int most);
