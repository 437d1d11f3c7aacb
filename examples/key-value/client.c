// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The client: GET is one RDMA READ, PUT one RDMA WRITE, both of a whole slot.
#include "key-value.h"
#include "table.h"
#include "times.h"
#include "zipf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum phase { loading, mixing, sweeping };
static const char* const names[] = {"load", "mix", "all"};

struct request {
  uint64_t key, begun;
  uint64_t least; // the version a GET has to meet, or a later one
  int get;
};

// A value may be torn for as long as its WRITE is under way: packets are lost, hosts are busy.
static const uint64_t torn_ns = 20000000000;

struct client {
  const struct options* o;
  struct welcome shape;
  struct where* where;
  // Of each key: of one's own the last version written, of others' the latest one seen.
  uint64_t* latest;
  uint32_t written; // versions made
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_mr* mr;
  char* buffers; // a slot for each request
  struct request* requests;
  unsigned *idle, idles; // requests not under way
  struct random random;
  struct zipf zipf;
  // Of this phase.
  uint64_t next, ends, verified, absent, again;
  struct times gets, puts;
};

static int mine(const struct client* c, uint64_t key) {
  return key % c->shape.writers == c->shape.writer;
}

static struct slot* buffer_of(const struct client* c, unsigned i) {
  return (struct slot*)(c->buffers + i * c->shape.slot_bytes);
}

static void post(struct client* c, unsigned i) {
  const struct request* r = &c->requests[i];
  const struct where* where = &c->where[r->key / c->shape.slots_per_region];
  struct ibv_sge sge = {(uintptr_t)buffer_of(c, i), (uint32_t)c->shape.slot_bytes, c->mr->lkey};
  struct ibv_send_wr wr = {
      .wr_id = i,
      .sg_list = &sge,
      .num_sge = 1,
      .opcode = r->get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
      .send_flags = IBV_SEND_SIGNALED,
      .wr.rdma = {where->address + r->key % c->shape.slots_per_region * c->shape.slot_bytes,
                  where->rkey}};
  struct ibv_send_wr* bad = NULL;
  const int error = ibv_post_send(c->qp, &wr, &bad);
  if (error)
    fail_for(error, "%s of key %llu cannot be posted", r->get ? "GET" : "PUT",
             (unsigned long long)r->key);
}

// Begins request `i`: a GET of `key`, or a PUT of its next version.
static void begin(struct client* c, unsigned i, uint64_t key, int get) {
  struct request* r = &c->requests[i];
  if (!get) {
    c->latest[key] = version_of(c->shape.session, ++c->written);
    make_slot(buffer_of(c, i), c->shape.slot_bytes, key, c->latest[key]);
  }
  // A READ meets what the WRITE posted before it on its queue pair has written.
  *r = (struct request){.key = key, .get = get, .least = c->latest[key], .begun = now_ns()};
  post(c, i);
}

static int more(const struct client* c) {
  return c->next < c->ends;
}

static void begin_next(struct client* c, enum phase phase, unsigned i) {
  const uint64_t n = c->next++;
  const uint32_t writers = c->shape.writers;
  if (phase == loading) {
    begin(c, i, n * writers + c->shape.writer, 0);
  } else if (phase == sweeping) {
    begin(c, i, n, 1);
  } else {
    uint64_t key = zipf_key(&c->zipf, &c->random);
    const int get = random_bits(&c->random) % 100 < c->o->gets;
    if (!get) { // the nearest of its own: as unevenly popular
      key = key - key % writers + c->shape.writer;
      if (key >= c->shape.slots)
        key -= writers;
    }
    begin(c, i, key, get);
  }
}

// True when request `i`, a GET that has completed, has got a value; false when it has to try again.
static int verified(struct client* c, unsigned i) {
  const struct request* r = &c->requests[i];
  const uint64_t latest = c->latest[r->key];
  // Nobody else writes my keys, and what I wrote is the last there is; others go on as they like.
  const int my_own = mine(c, r->key);
  const uint64_t most = !my_own ? UINT64_MAX : latest ? latest : version_of(c->shape.session, 0);
  const int being_written = !my_own || latest != r->least;
  const struct slot* slot = buffer_of(c, i);
  const enum verdict verdict = judge_slot(slot, c->shape.slot_bytes, r->key, r->least, most);
  if (verdict == torn && being_written && now_ns() - r->begun < torn_ns) {
    c->again++;
    return 0;
  }
  if (verdict != whole)
    fail("GET of key %llu is WRONG: %s (key %llu, version %#llx, wanted %#llx to %#llx)",
         (unsigned long long)r->key,
         verdict == torn ? "it is neither one version nor another" : "it cannot be there",
         (unsigned long long)slot->key, (unsigned long long)slot->version,
         (unsigned long long)r->least, (unsigned long long)most);
  if (!my_own && slot->version > latest)
    c->latest[r->key] = slot->version;
  c->absent += slot->version == 0;
  c->verified++;
  return 1;
}

static void complete(struct client* c, const struct ibv_wc* wc) {
  const unsigned i = (unsigned)wc->wr_id;
  const struct request* r = &c->requests[i];
  if (wc->status != IBV_WC_SUCCESS)
    fail("%s of key %llu, in region %llu of the table: %s", r->get ? "GET" : "PUT",
         (unsigned long long)r->key, (unsigned long long)(r->key / c->shape.slots_per_region),
         ibv_wc_status_str(wc->status));
  const uint64_t now = now_ns();
  if (r->get && !verified(c, i)) {
    post(c, i);
    return;
  }
  times_add(r->get ? &c->gets : &c->puts, now - r->begun);
  c->idle[c->idles++] = i;
}

static void take(struct client* c) {
  struct ibv_wc wc[32];
  const int n = take_completions(c->cq, c->channel, wc, 32);
  for (int i = 0; i < n; i++)
    complete(c, &wc[i]);
}

static void show_times(const char* name, const struct times* times) {
  if (times->count)
    printf("client:   %s: %llu, mean %.1f us, p50 %.1f us, p99 %.1f us\n", name,
           (unsigned long long)times->count, times_mean_us(times), times_us_at(times, 0.5),
           times_us_at(times, 0.99));
}

static void json_times(const char* name, const struct times* times) {
  printf(", \"%s\": {\"count\": %llu, \"mean_us\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f}", name,
         (unsigned long long)times->count, times_mean_us(times), times_us_at(times, 0.5),
         times_us_at(times, 0.99));
}

static void show(const struct client* c, enum phase phase, double seconds) {
  struct times both = c->gets;
  both.count += c->puts.count;
  both.sum += c->puts.sum;
  for (size_t i = 0; i < sizeof both.of / sizeof *both.of; i++)
    both.of[i] += c->puts.of[i];
  const double rate = (double)both.count / (seconds > 0 ? seconds : 1);
  if (c->o->json) {
    printf("{\"phase\": \"%s\", \"seconds\": %.3f, \"operations_per_second\": %.1f, "
           "\"verified\": %llu, \"never_written\": %llu, \"read_again\": %llu",
           names[phase], seconds, rate, (unsigned long long)c->verified,
           (unsigned long long)c->absent, (unsigned long long)c->again);
    json_times("all", &both);
    json_times("get", &c->gets);
    json_times("put", &c->puts);
    printf("}\n");
    return;
  }
  printf("client: %s: %llu operations in %.1f s, %.0f/s; mean %.1f us, p50 %.1f us, p99 %.1f us; "
         "%llu values verified, %llu never written, %llu read again\n",
         names[phase], (unsigned long long)both.count, seconds, rate, times_mean_us(&both),
         times_us_at(&both, 0.5), times_us_at(&both, 0.99), (unsigned long long)c->verified,
         (unsigned long long)c->absent, (unsigned long long)c->again);
  if (c->gets.count && c->puts.count) {
    show_times("GET", &c->gets);
    show_times("PUT", &c->puts);
  }
}

static void run(struct client* c, enum phase phase, uint64_t operations, double seconds) {
  const uint64_t begun = now_ns(), end = begun + (uint64_t)(seconds * 1e9);
  c->next = c->verified = c->absent = c->again = 0;
  c->ends = seconds > 0 ? UINT64_MAX : operations;
  memset(&c->gets, 0, sizeof c->gets);
  memset(&c->puts, 0, sizeof c->puts);
  while (more(c) || c->idles < c->o->depth) {
    if (seconds > 0 && now_ns() >= end)
      c->ends = c->next;
    while (more(c) && c->idles)
      begin_next(c, phase, c->idle[--c->idles]);
    if (c->idles < c->o->depth) // none is begun once the time is over
      take(c);
  }
  show(c, phase, (double)(now_ns() - begun) / 1e9);
}

// Hears where the table is.
static void meet(struct client* c, int tcp) {
  if (!hear(tcp, &c->shape, sizeof c->shape))
    fail("the server has gone without a word");
  if (c->shape.magic != table_magic || c->shape.regions > most_regions)
    fail("who serves there is no key-value, or one of another version");
  c->where = calloc(c->shape.regions, sizeof *c->where);
  c->latest = calloc(c->shape.slots, sizeof *c->latest);
  if (!c->where || !c->latest)
    fail("no memory to keep the versions of %llu keys", (unsigned long long)c->shape.slots);
  if (!hear(tcp, c->where, c->shape.regions * sizeof *c->where))
    fail("the server has gone without naming its regions");
  if (c->shape.slots < c->shape.writers)
    fail("there are fewer keys than clients");
  for (uint64_t key = 0; c->shape.filled && key < c->shape.slots; key++)
    c->latest[key] = version_of(0, 1);
}

int ask(const struct options* o) {
  struct client c = {.o = o, .random = {o->seed}};
  struct device device;
  open_device(&device, &o->place);
  const int tcp = tcp_connect(o->server, o->place.tcp_port);
  meet(&c, tcp);
  c.random.state += (uint64_t)c.shape.session << 32;
  zipf_start(&c.zipf, c.shape.slots, o->theta);

  const size_t bytes = o->depth * c.shape.slot_bytes;
  c.buffers = map_memory(bytes, "the client's buffers");
  c.mr = register_memory(&device, c.buffers, bytes, IBV_ACCESS_LOCAL_WRITE, "the client's buffers");
  c.requests = calloc(o->depth, sizeof *c.requests);
  c.idle = calloc(o->depth, sizeof *c.idle);
  if (!c.requests || !c.idle)
    fail("no memory for %u requests", o->depth);
  for (unsigned i = 0; i < o->depth; i++)
    c.idle[c.idles++] = i;
  if (o->events && !(c.channel = ibv_create_comp_channel(device.context)))
    fail_for(errno, "ibv_create_comp_channel");
  c.cq = ibv_create_cq(device.context, (int)o->depth, NULL, c.channel, 0);
  if (!c.cq)
    fail_for(errno, "no completion queue of %u entries", o->depth);
  c.qp = make_qp(&device, c.cq, o->depth, 1, 0);
  if (!connect_qp(&device, c.qp, tcp))
    fail("the server has gone before it was connected");
  printf("%s%u of %u; %llu keys, slots of %llu bytes in %u regions%s\n",
         o->json ? "{\"client\": \"" : "client: ", c.shape.writer, c.shape.writers,
         (unsigned long long)c.shape.slots, (unsigned long long)c.shape.slot_bytes, c.shape.regions,
         o->json ? "\"}" : "");

  // Of the last round of keys some are beyond the table's end.
  const uint64_t own = (c.shape.slots - c.shape.writer + c.shape.writers - 1) / c.shape.writers;
  if (o->load)
    run(&c, loading, own, 0);
  if (o->operations || o->seconds > 0)
    run(&c, mixing, o->operations, o->seconds);
  if (o->sweep)
    run(&c, sweeping, c.shape.slots, 0);

  close(tcp); // the server's sign that this is all
  ibv_destroy_qp(c.qp);
  ibv_destroy_cq(c.cq);
  if (c.channel)
    ibv_destroy_comp_channel(c.channel);
  ibv_dereg_mr(c.mr);
  ibv_dealloc_pd(device.pd);
  ibv_close_device(device.context);
  free(c.where);
  free(c.latest);
  free(c.requests);
  free(c.idle);
  return 0;
}
