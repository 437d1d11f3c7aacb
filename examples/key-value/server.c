// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The server: registers the table, and tells each client where it is. The table is read and written
// without it.
#include "key-value.h"
#include "table.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct table {
  struct welcome shape;
  char* memory[most_regions];
  struct where where[most_regions];
  struct ibv_mr* regions[most_regions];
};

struct client {
  int tcp; // -1: nobody
  struct ibv_qp* qp;
};

static void register_table(struct table* table, struct device* device, const struct options* o) {
  struct welcome* shape = &table->shape;
  const uint64_t begun = now_ns();
  *shape = (struct welcome){.magic = table_magic,
                            .slot_bytes = o->slot_bytes,
                            .slots_per_region = o->region_bytes / o->slot_bytes,
                            .writers = o->writers,
                            .filled = (uint32_t)o->fill};
  for (uint64_t left = o->table_bytes; left >= o->slot_bytes;) {
    const uint64_t bytes = left < o->region_bytes ? left : o->region_bytes;
    const uint32_t i = shape->regions++;
    char what[64];
    snprintf(what, sizeof what, "region %u of the %llu MiB table", i,
             (unsigned long long)o->table_bytes >> 20);
    table->memory[i] = map_memory(bytes, what);
    table->regions[i] = register_memory(
        device, table->memory[i], bytes,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, what);
    table->where[i] = (struct where){(uintptr_t)table->memory[i], table->regions[i]->rkey, 0};
    shape->slots += bytes / o->slot_bytes;
    left -= bytes;
  }
  printf("server: %llu MiB for %llu keys in %u regions, registered in %.1f ms; "
         "pinned %llu MiB, resident %llu MiB\n",
         (unsigned long long)o->table_bytes >> 20, (unsigned long long)shape->slots, shape->regions,
         (double)(now_ns() - begun) / 1e6, (unsigned long long)status_kib("VmPin") >> 10,
         (unsigned long long)status_kib("VmRSS") >> 10);
}

static void fill(struct table* table) {
  const struct welcome* shape = &table->shape;
  for (uint64_t key = 0; key < shape->slots; key++)
    make_slot((struct slot*)(table->memory[key / shape->slots_per_region] +
                             key % shape->slots_per_region * shape->slot_bytes),
              shape->slot_bytes, key, version_of(0, 1));
}

static void greet(struct client* client, struct table* table, struct device* device,
                  struct ibv_cq* cq) {
  tell(client->tcp, &table->shape, sizeof table->shape);
  tell(client->tcp, table->where, table->shape.regions * sizeof *table->where);
  client->qp = make_qp(device, cq, 1, 1, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  if (connect_qp(device, client->qp, client->tcp))
    return;
  fprintf(stderr, "server: a client went away before it was connected\n");
  ibv_destroy_qp(client->qp);
  close(client->tcp);
  client->tcp = -1;
}

// True when `client` has said good-bye, or died.
static int gone(const struct client* client, short events) {
  char any;
  return events && recv(client->tcp, &any, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN;
}

int serve(const struct options* o) {
  struct device device;
  static struct table table;
  open_device(&device, &o->place);
  register_table(&table, &device, o);
  if (o->fill)
    fill(&table);
  struct ibv_cq* cq = ibv_create_cq(device.context, 1, NULL, NULL, 0);
  struct client* clients = calloc(o->writers, sizeof *clients);
  struct pollfd* polled = calloc(o->writers + 1, sizeof *polled);
  if (!cq || !clients || !polled)
    fail_for(errno, "no completion queue, or no memory");
  for (unsigned i = 0; i < o->writers; i++)
    clients[i].tcp = -1;
  const int listener = tcp_listen(o->place.tcp_port);
  printf("server: serves on TCP port %d\n", o->place.tcp_port);

  unsigned here = 0, served = 0;
  uint32_t sessions = 0; // each has its own, also of those who go away at once
  while (o->keep || here || served < o->writers) {
    for (unsigned i = 0; i < o->writers; i++)
      polled[i] = (struct pollfd){.fd = clients[i].tcp, .events = POLLIN};
    // A negative descriptor is not looked at: with everybody's place taken the next one waits.
    polled[o->writers] = (struct pollfd){.fd = here < o->writers ? listener : -1, .events = POLLIN};
    if (poll(polled, o->writers + 1, -1) < 0 && errno != EINTR)
      fail_for(errno, "poll");
    for (unsigned i = 0; i < o->writers; i++) {
      errno = 0;
      if (clients[i].tcp < 0 || !gone(&clients[i], polled[i].revents))
        continue;
      // With its queue pair gone no WRITE of it lands any more, and its keys can be another's.
      ibv_destroy_qp(clients[i].qp);
      close(clients[i].tcp);
      clients[i].tcp = -1;
      here--;
    }
    if (here == o->writers || !polled[o->writers].revents)
      continue;
    unsigned place = 0;
    while (clients[place].tcp >= 0)
      place++;
    clients[place].tcp = tcp_accept(listener);
    tcp_bound(clients[place].tcp, 30); // others want to be served
    table.shape.writer = place;
    table.shape.session = ++sessions;
    greet(&clients[place], &table, &device, cq);
    here += clients[place].tcp >= 0;
    served += clients[place].tcp >= 0;
  }
  printf("server: %u clients served; pinned %llu MiB, resident %llu MiB, in swap %llu MiB\n",
         served, (unsigned long long)status_kib("VmPin") >> 10,
         (unsigned long long)status_kib("VmRSS") >> 10,
         (unsigned long long)status_kib("VmSwap") >> 10);
  for (uint32_t i = 0; i < table.shape.regions; i++)
    ibv_dereg_mr(table.regions[i]);
  ibv_destroy_cq(cq);
  ibv_dealloc_pd(device.pd);
  ibv_close_device(device.context);
  free(clients);
  free(polled);
  close(listener);
  return 0;
}
