// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Registers its whole heap when it starts, and from then on sends and receives out of any object in
// it, without a thought of registration. A client sends objects, the server sends each back out of
// the block it has come in, and the client compares. See README.md.
#include "arena.h"
#include "end.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: heap [OPTION]...           sends back what it is sent\n"
    "       heap [OPTION]... SERVER    sends objects of its heap, and compares what comes back\n"
    "\n" PLACE_USAGE
    "  -m, --memory MIB       size of the heap, all registered at the start (512)\n"
    "  -e, --events           sleeps until a completion comes, instead of polling for it\n"
    "The client:\n"
    "  -n, --messages N       objects to send (2000)\n"
    "  -o, --objects N        objects that its heap holds (1000)\n"
    "  -s, --size BYTES       the largest of them (65536)\n"
    "  -t, --depth N          messages under way (8)\n"
    "  -S, --seed N           of the choice of objects and their bytes (1)\n";

struct options {
  struct place place;
  const char* server;
  size_t bytes;
  uint64_t messages;
  unsigned objects;
  int events;
  uint64_t seed;
};

// What the client tells the server, which makes room accordingly.
struct plan {
  uint32_t magic, depth;
  uint64_t messages, largest;
};
enum { plan_magic = 0x01504548 };

struct program {
  struct arena heap;
  struct device device;
  struct ibv_mr* mr;
  struct ibv_comp_channel* channel; // with --events
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct plan plan;
  char** blocks; // they are received into; the server sends them back
};

static void* take(struct program* p, size_t bytes) {
  void* block = arena_take(&p->heap, bytes);
  if (!block)
    fail("the heap of %zu MiB is full: give it more by -m", p->heap.bytes >> 20);
  return block;
}

static void tell_memory(const char* who, const char* when) {
  printf("%s: %s: pinned %llu MiB, locked %llu MiB, resident %llu MiB\n", who, when,
         (unsigned long long)status_kib("VmPin") >> 10,
         (unsigned long long)status_kib("VmLck") >> 10,
         (unsigned long long)status_kib("VmRSS") >> 10);
}

static void start_up(struct program* p, const struct options* o) {
  const char* who = o->server ? "client" : "server";
  open_device(&p->device, &o->place);
  const uint64_t begun = now_ns();
  if (!arena_start(&p->heap, map_memory(o->bytes, "the heap"), o->bytes))
    fail("-m: a heap has %d MiB at least", orders);
  p->mr = register_memory(&p->device, p->heap.memory, o->bytes, IBV_ACCESS_LOCAL_WRITE, "the heap");
  printf("%s: a heap of %zu MiB is mapped and registered in %.2f ms\n", who, o->bytes >> 20,
         (double)(now_ns() - begun) / 1e6);
  tell_memory(who, "at the start");
  if (o->events && !(p->channel = ibv_create_comp_channel(p->device.context)))
    fail_for(errno, "ibv_create_comp_channel");
}

// A wr_id is twice the number of a block, or of an object, and 1 more for what is sent.
static void post_receive(struct program* p, unsigned i) {
  p->blocks[i] = take(p, p->plan.largest);
  struct ibv_sge sge = {(uintptr_t)p->blocks[i], (uint32_t)p->plan.largest, p->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = (uint64_t)i << 1, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
  const int error = ibv_post_recv(p->qp, &wr, &bad);
  if (error)
    fail_for(error, "a receive into the heap cannot be posted");
}

// Every receive is posted before the other end may send.
static void connect_to_peer(struct program* p, int tcp, unsigned receives) {
  p->cq = ibv_create_cq(p->device.context, (int)receives * 2, NULL, p->channel, 0);
  if (!p->cq)
    fail_for(errno, "no completion queue of %u entries", receives * 2);
  p->qp = make_qp(&p->device, p->cq, receives, receives, 0);
  p->blocks = calloc(receives, sizeof *p->blocks);
  if (!p->blocks)
    fail("no memory for %u blocks", receives);
  for (unsigned i = 0; i < receives; i++)
    post_receive(p, i);
  if (!connect_qp(&p->device, p->qp, tcp))
    fail("the other end has gone before it was connected");
}

static void post_send(struct program* p, unsigned i, const char* at, uint32_t bytes) {
  struct ibv_sge sge = {(uintptr_t)at, bytes, p->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = (uint64_t)i << 1 | 1,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad = NULL;
  const int error = ibv_post_send(p->qp, &wr, &bad);
  if (error)
    fail_for(error, "a message of %u bytes cannot be sent out of the heap", bytes);
}

static int take_completion(struct program* p, struct ibv_wc* wc) {
  const int n = take_completions(p->cq, p->channel, wc, 1);
  if (n && wc->status != IBV_WC_SUCCESS)
    fail("a %s fails: %s", wc->wr_id & 1 ? "message sent" : "receive",
         ibv_wc_status_str(wc->status));
  return n;
}

static void serve(struct program* p, const struct options* o) {
  const int listener = tcp_listen(o->place.tcp_port), tcp = tcp_accept(listener);
  if (!hear(tcp, &p->plan, sizeof p->plan) || p->plan.magic != plan_magic)
    fail("who has connected is no heap, or one of another version");
  // A block is received into anew when its way back is acknowledged, and the client may have sent
  // the next message by then: with twice as many that one finds another.
  connect_to_peer(p, tcp, p->plan.depth * 2);
  uint64_t sent = 0;
  struct ibv_wc wc;
  while (sent < p->plan.messages) {
    if (!take_completion(p, &wc))
      continue;
    const unsigned i = (unsigned)(wc.wr_id >> 1);
    if (wc.wr_id & 1) {
      arena_free(&p->heap, p->blocks[i]);
      sent++;
      post_receive(p, i);
    } else {
      post_send(p, i, p->blocks[i], wc.byte_len);
    }
  }
  char over = 1;
  (void)hear(tcp, &over, 1); // the last message has come only when the client says so
  tell_memory("server", "at the end");
}

static uint64_t random_state;

static uint64_t random_bits(void) { // splitmix64
  uint64_t x = random_state += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

struct object {
  char* at;
  uint32_t bytes;
};

// Sizes are as often small as large: each power of two has the same share.
static struct object new_object(struct program* p) {
  int orders_up = 0;
  while (p->plan.largest >> orders_up > 1 << 4)
    orders_up++;
  const uint64_t most = p->plan.largest >> random_bits() % (unsigned)(orders_up + 1);
  struct object object = {.bytes = (uint32_t)(most / 2 + random_bits() % (most - most / 2) + 1)};
  object.at = take(p, object.bytes);
  for (uint32_t i = 0; i < object.bytes; i++)
    object.at[i] = (char)(random_bits() >> 56);
  return object;
}

static void ask(struct program* p, const struct options* o) {
  const int tcp = tcp_connect(o->server, o->place.tcp_port);
  random_state = o->seed;
  tell(tcp, &p->plan, sizeof p->plan);
  struct object* objects = calloc(o->objects, sizeof *objects);
  unsigned* under_way = calloc(p->plan.depth, sizeof *under_way); // whose echo is due, in a ring
  if (!objects || !under_way)
    fail("no memory for %u objects", o->objects);
  for (unsigned i = 0; i < o->objects; i++)
    objects[i] = new_object(p);
  connect_to_peer(p, tcp, p->plan.depth);

  const uint64_t begun = now_ns(), messages = p->plan.messages;
  uint64_t posted = 0, sends = 0, echoes = 0, bytes = 0;
  struct ibv_wc wc;
  while (sends < messages || echoes < messages) {
    // Neither a place in the send queue nor a receive for the echo may be missing.
    while (posted < messages && posted - sends < p->plan.depth && posted - echoes < p->plan.depth) {
      const unsigned which = (unsigned)(random_bits() % o->objects);
      under_way[posted % p->plan.depth] = which;
      post_send(p, which, objects[which].at, objects[which].bytes);
      posted++;
    }
    if (!take_completion(p, &wc))
      continue;
    if (wc.wr_id & 1) {
      sends++;
      continue;
    }
    // Messages of a queue pair come back in the order in which they were sent.
    const unsigned which = under_way[echoes % p->plan.depth], i = (unsigned)(wc.wr_id >> 1);
    const struct object* object = &objects[which];
    if (wc.byte_len != object->bytes || memcmp(p->blocks[i], object->at, object->bytes) != 0)
      fail("message %llu of %u bytes is WRONG when it comes back, with %u bytes",
           (unsigned long long)echoes, object->bytes, wc.byte_len);
    bytes += object->bytes;
    echoes++;
    arena_free(&p->heap, p->blocks[i]);
    post_receive(p, i);
  }
  printf("client: %llu objects, %.1f MiB, out and back in %.2f s, every byte right\n",
         (unsigned long long)messages, (double)bytes / 1048576, (double)(now_ns() - begun) / 1e9);
  char over = 1;
  tell(tcp, &over, 1);
  tell_memory("client", "at the end");
  free(objects);
  free(under_way);
}

static struct options read_options(int argc, char** argv, struct plan* plan) {
  struct options o = {.place = PLACE_DEFAULT,
                      .bytes = (size_t)512 << 20,
                      .messages = 2000,
                      .objects = 1000,
                      .seed = 1};
  static const struct option known[] = {PLACE_OPTIONS,
                                        {"memory", required_argument, NULL, 'm'},
                                        {"messages", required_argument, NULL, 'n'},
                                        {"objects", required_argument, NULL, 'o'},
                                        {"size", required_argument, NULL, 's'},
                                        {"depth", required_argument, NULL, 't'},
                                        {"events", no_argument, NULL, 'e'},
                                        {"seed", required_argument, NULL, 'S'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  *plan = (struct plan){.magic = plan_magic, .depth = 8, .messages = 2000, .largest = 65536};
  int letter = 0;
  while ((letter = getopt_long(argc, argv, PLACE_LETTERS "m:n:o:s:t:eS:h", known, NULL)) != -1) {
    if (place_option(&o.place, letter, optarg))
      continue;
    switch (letter) {
    case 'm':
      o.bytes = number('m', optarg, 1, 1 << 30) << 20;
      break;
    case 'n':
      plan->messages = number('n', optarg, 1, UINT64_MAX);
      break;
    case 'o':
      o.objects = (unsigned)number('o', optarg, 1, 1 << 30);
      break;
    case 's':
      plan->largest = number('s', optarg, 64, 1 << most_order);
      break;
    case 't':
      plan->depth = (uint32_t)number('t', optarg, 1, 4096);
      break;
    case 'e':
      o.events = 1;
      break;
    case 'S':
      o.seed = number('S', optarg, 0, UINT64_MAX);
      break;
    case 'h':
      fputs(usage, stdout);
      exit(0);
    default:
      fail("see heap --help");
    }
  }
  if (argc - optind > 1)
    fail("one server, and not '%s' besides (see heap --help)", argv[optind + 1]);
  o.server = argv[optind];
  return o;
}

int main(int argc, char** argv) {
  static struct program program;
  const struct options options = read_options(argc, argv, &program.plan);
  setvbuf(stdout, NULL, _IOLBF, 0); // what is told is there for who waits for it, also in a file
  start_up(&program, &options);
  (options.server ? ask : serve)(&program, &options);
  ibv_destroy_qp(program.qp);
  ibv_destroy_cq(program.cq);
  if (program.channel)
    ibv_destroy_comp_channel(program.channel);
  ibv_dereg_mr(program.mr);
  ibv_dealloc_pd(program.device.pd);
  ibv_close_device(program.device.context);
  free(program.blocks);
  return 0;
}
