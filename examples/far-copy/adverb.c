// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The copy by adverb.h: message i goes over pair i % pairs.
#include "adverb.h"
#include "copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void need(int error, const char* what) {
  if (error == ENOSYS)
    fail("there is no adverb here: install libadverb.so, or start by adverb run");
  if (error)
    fail_for(error, "%s", what);
}

struct pair {
  adverb_endpoint endpoint;
  uint64_t next; // message to post
  unsigned under_way;
};

static const char* status_name(uint32_t status) {
  static const char* const names[] = {"open",      "complete", "partial", "cancelled",
                                      "truncated", "silent",   "broken"};
  return status < sizeof names / sizeof *names ? names[status] : "strange";
}

static void connect_pairs(struct copy* c, struct pair* pairs) {
  const struct adverb_endpoint_options options = {
      .size = sizeof options,
      .flags = c->device.ethernet ? ADVERB_GID_INDEX : 0,
      .transport = c->plan.transport,
      .port = (uint32_t)c->device.port,
      .gid_index = (uint32_t)c->device.gid_index,
      .chunk_bytes = chunk_bytes,
      .rate = (c->plan.rate + c->plan.pairs - 1) / c->plan.pairs,
      .link_loss = c->plan.link_loss,
  };
  struct adverb_address address;
  for (uint32_t i = 0; i < c->plan.pairs; i++) {
    pairs[i] = (struct pair){.next = i};
    need(adverb_endpoint_create(c->device.pd, &options, &pairs[i].endpoint),
         "no endpoint can be made");
    need(adverb_endpoint_address(pairs[i].endpoint, &address), "an endpoint has no address");
    tell(c->tcp, &address, sizeof address);
  }
  for (uint32_t i = 0; i < c->plan.pairs; i++) {
    if (!hear(c->tcp, &address, sizeof address))
      fail("the other end has gone before its endpoints were connected");
    need(adverb_endpoint_connect(pairs[i].endpoint, &address), "no connection of endpoints");
  }
}

static int send_message(struct copy* c, struct pair* pair, adverb_message* message) {
  static const uint32_t repairs[ways] = {
      [way_nack] = ADVERB_REPAIR_NACK, [way_timeout] = ADVERB_REPAIR_TIMEOUT,
      [way_xor] = ADVERB_REPAIR_XOR,   [way_mds] = ADVERB_REPAIR_MDS,
      [way_auto] = ADVERB_REPAIR_AUTO,
  };
  const struct adverb_send_options options = {
      .size = sizeof options, .repair = repairs[c->way], .context = (void*)(uintptr_t)pair->next};
  return adverb_send(pair->endpoint, c->buffer + pair->next * c->plan.message,
                     message_bytes(c, pair->next), &options, message);
}

static int post_receive(struct copy* c, struct pair* pair, adverb_message* message) {
  const struct adverb_receive_options options = {.size = sizeof options,
                                                 .context = (void*)(uintptr_t)pair->next};
  return adverb_receive(pair->endpoint, c->buffer + pair->next * c->plan.message,
                        message_bytes(c, pair->next), &options, message);
}

// Posts as many as may be under way; a receiver is ahead of its sender. 0: the endpoint refuses.
static int fill(struct copy* c, struct pair* pair, adverb_message* posted) {
  const unsigned most = c->plan.depth * (c->sends ? 1 : 4);
  for (; pair->next < c->messages && pair->under_way < most; pair->next += c->plan.pairs) {
    const int error = (c->sends ? send_message : post_receive)(c, pair, &posted[pair->next]);
    if (error) {
      give_up(c, "message %llu cannot be posted: %s", (unsigned long long)pair->next,
              strerror(error));
      return 0;
    }
    pair->under_way++;
  }
  return 1;
}

// 0: a message has ended otherwise than complete.
static int take_events(struct copy* c, struct pair* pair, adverb_message* posted) {
  struct adverb_event event;
  while (adverb_poll_event(pair->endpoint, &event) == 0) {
    const uint64_t message = (uintptr_t)event.context;
    if (event.status != ADVERB_COMPLETE) {
      give_up(c, "message %llu has ended %s", (unsigned long long)message,
              status_name(event.status));
      return 0;
    }
    need(adverb_release(event.message), "a message that is over cannot be released");
    posted[message] = 0;
    pair->under_way--;
    message_done(c, message);
  }
  return fill(c, pair, posted);
}

static int take_all_events(struct copy* c, struct pair* pairs, adverb_message* posted) {
  for (uint32_t i = 0; i < c->plan.pairs; i++)
    if (!take_events(c, &pairs[i], posted))
      return 0;
  return 1;
}

// Chunks of messages that are not over.
static void note_chunks(struct copy* c, const adverb_message* posted) {
  for (uint64_t m = 0; m < c->messages; m++) {
    struct adverb_receive_state state = {.size = sizeof state};
    if (!posted[m] || adverb_receive_query(posted[m], &state))
      continue;
    for (uint32_t i = 0; i < state.chunks; i++)
      if (adverb_chunk_is_set(state.bitmap, i))
        c->there[m * (c->plan.message / chunk_bytes) + i] = 1;
  }
}

static void count(struct copy* c, const struct pair* pair) {
  struct adverb_statistics statistics = {.size = sizeof statistics};
  need(adverb_query_statistics(pair->endpoint, &statistics), "an endpoint has no statistics");
  c->outcome.counted = 1;
  c->outcome.again += statistics.sent_again;
  c->outcome.parity += statistics.sent_parity;
  c->outcome.lost += statistics.lost;
}

void copy_by_adverb(struct copy* c) {
  struct pair pairs[most_pairs];
  struct pollfd fds[1 + most_pairs];
  adverb_message* posted = calloc(c->messages + 1, sizeof *posted); // 0: over, or not yet
  if (!posted)
    fail("no memory for %llu messages", (unsigned long long)c->messages);
  connect_pairs(c, pairs);
  for (uint32_t i = 0; i < c->plan.pairs; i++) {
    fds[1 + i].events = POLLIN;
    need(adverb_endpoint_fd(pairs[i].endpoint, &fds[1 + i].fd), "an endpoint has no descriptor");
    if (!c->sends)
      (void)fill(c, &pairs[i], posted); // a refusal stays one in the loop
  }
  meet_peer(c); // the receives are posted
  start_clock(c);
  int going = 1;
  while (take_all_events(c, pairs, posted) && c->messages_done < c->messages && going)
    going = await_event(c, fds, 1 + c->plan.pairs); // the events before the end are taken, too
  for (uint32_t i = 0; i < c->plan.pairs; i++)
    count(c, &pairs[i]);
  if (!c->sends)
    note_chunks(c, posted);
  exchange_outcomes(c); // until both have ended, either needs the other's endpoints
  for (uint32_t i = 0; i < c->plan.pairs; i++)
    need(adverb_endpoint_destroy(pairs[i].endpoint), "an endpoint cannot be destroyed");
  free(posted);
}
