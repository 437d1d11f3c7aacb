// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What both ends of the larger examples do alike: options, a device, memory regions, a TCP
// connection, and an RC queue pair that is connected by it. What goes wrong ends the program with
// a line that says what, and what to do.
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

// Where, as perftest's options of the same names say it; the initialiser holds the defaults.
struct place {
  const char* device; // -d: NULL is the first one
  int port;           // -i
  int gid_index;      // -x: -1 looks for an IPv4 address
  int tcp_port;       // -p
};
#define PLACE_DEFAULT {NULL, 1, -1, 18515}
#define PLACE_LETTERS "d:i:p:x:"
#define PLACE_OPTIONS                                                                              \
  {"ib-dev", required_argument, NULL, 'd'}, {"ib-port", required_argument, NULL, 'i'},             \
      {"port", required_argument, NULL, 'p'}, {"gid-index", required_argument, NULL, 'x'}
#define PLACE_USAGE                                                                                \
  "  -d, --ib-dev NAME      RDMA device (the first)\n"                                             \
  "  -i, --ib-port N        its port (1)\n"                                                        \
  "  -x, --gid-index N      its GID (on Ethernet the first that is an IPv4 address)\n"             \
  "  -p, --port N           TCP port of the server (18515)\n"

// True when `letter` is one of PLACE_OPTIONS.
int place_option(struct place* place, int letter, const char* value);

// DEVICE or DEVICE:GID_INDEX, which is cut at the colon. False when it is neither.
int place_device(struct place* place, char* name);

// False when `value` is no whole number, or out of its range.
int read_number(const char* value, uint64_t least, uint64_t most, uint64_t* number);

// What option -`letter` was given, or the end of the program.
uint64_t number(int letter, const char* value, uint64_t least, uint64_t most);
double fraction(int letter, const char* value, double least, double most);

__attribute__((noreturn, format(printf, 1, 2))) void fail(const char* format, ...);
// The same with the text of `error` behind it.
__attribute__((noreturn, format(printf, 2, 3))) void fail_for(int error, const char* format, ...);

uint64_t now_ns(void);

// A line of /proc/self/status such as "VmPin" or "VmRSS", in KiB; 0 where the kernel has none.
uint64_t status_kib(const char* name);

struct device {
  struct ibv_context* context;
  struct ibv_pd* pd;
  union ibv_gid gid;
  uint16_t lid;
  int gid_index, port, ethernet;
  enum ibv_mtu mtu;
  int reads; // outstanding READs that a queue pair may have, either way
};

void open_device(struct device* device, const struct place* place);

// `what` names the memory where it cannot be registered.
struct ibv_mr* register_memory(struct device* device, void* at, size_t bytes, int access,
                               const char* what);

// Fresh zeroed pages.
void* map_memory(size_t bytes, const char* what);

// Sockets. The server's `name` may be anything getaddrinfo takes.
int tcp_listen(int port);
int tcp_accept(int listener);
int tcp_connect(const char* name, int port);
// No tell() and no hear() takes longer from here on.
void tcp_bound(int tcp, unsigned seconds);
// Connects to `server`, or is the server if NULL, for one client. Each wait is bounded: for the
// client, and on the connection.
int tcp_meet(const char* server, int port, unsigned seconds);
void tell(int tcp, const void* message, size_t bytes);
// False when the peer has gone, or says nothing for as long as tcp_bound() permits.
int hear(int tcp, void* message, size_t bytes);

// In INIT, where receives can be posted. `access` is what the other end may do with memory.
struct ibv_qp* make_qp(struct device* device, struct ibv_cq* cq, unsigned sends, unsigned receives,
                       int access);
// Exchanges addresses with the other end over `tcp` and takes `qp` to RTS; both have then. False
// when the peer has gone, or is none of ours.
int connect_qp(struct device* device, struct ibv_qp* qp, int tcp);

// Up to `most` completions, or none; with the queue's `channel` at least one, for which the thread
// sleeps.
int take_completions(struct ibv_cq* cq, struct ibv_comp_channel* channel, struct ibv_wc* wc,
                     int most);
