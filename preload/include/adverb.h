/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * adverb.h: messages that arrive in parts, over links that lose.
 *
 * An endpoint is one end of a pair. It makes a queue pair of its own on a program's protection
 * domain, unreliable (UC or UD), and makes good what the network loses: by sending it again, or by
 * parity. A receive has a bitmap that the program may read at any time: bit i of word i / 64 is set
 * once chunk i of the message is final in the receive buffer. The n-th send of one end meets the
 * n-th receive of the other.
 *
 * Nothing is linked. The first call looks the library up: the one that `adverb run` has preloaded,
 * otherwise the installed libadverb.so. Without a library each call fails with ENOSYS.
 *
 * Errors. A function returns 0 or an errno value, never -1, and never ends the process: a handle
 * that names nothing gives EBADF, an argument outside its range EINVAL.
 *
 * Threads. Each function may be called from any thread. A thread of the library makes progress
 * while the program computes, unless the endpoint was made with ADVERB_MANUAL_PROGRESS.
 *
 * fork(2). In a child no handle of the parent names anything.
 *
 * Memory. A buffer need not be registered. A send reads its buffer until the send's event, a
 * receive writes its buffer until the receive's event, and never afterwards. Bytes of a chunk whose
 * bit is set are final for readers; the buffer is the program's to write after the event.
 */
#ifndef ADVERB_H
#define ADVERB_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_pd;

#define ADVERB_API_VERSION 1

/* Handles. No number is given twice; 0 names nothing. */
typedef uint64_t adverb_endpoint;
typedef uint64_t adverb_message; /* a send or a receive */

/* What one program tells the other as it tells a queue pair number: opaque, of fixed size, and the
 * same for every transport. */
struct adverb_address {
  uint8_t bytes[96];
};

enum adverb_transport {
  ADVERB_TRANSPORT_AUTO = 0, /* UC if the device has it, otherwise UD; both ends must agree */
  ADVERB_TRANSPORT_UC = 1,
  ADVERB_TRANSPORT_UD = 2,
};

enum adverb_endpoint_flags {
  ADVERB_MANUAL_PROGRESS = 1, /* no thread: adverb_progress() and the waits do the work */
  ADVERB_GID_INDEX = 2,       /* gid_index is meant; otherwise the first IPv4 address, or 0 */
};

/* Option structures begin with their size; what is 0 has its default. */
struct adverb_endpoint_options {
  size_t size;          /* sizeof(struct adverb_endpoint_options) */
  uint32_t flags;       /* enum adverb_endpoint_flags */
  uint32_t transport;   /* enum adverb_transport */
  uint32_t port;        /* of the device; default 1 */
  uint32_t gid_index;   /* with ADVERB_GID_INDEX */
  uint32_t chunk_bytes; /* of a bit of the bitmap; both ends the same; default 65536 */
  uint32_t receives;    /* packets that may wait to be taken; default 4096 */
  uint64_t rate;        /* bytes a second to send; default: as the path carries */
  double link_loss;     /* share of packets that the link is known to lose; default 0 */
  uint64_t silence_ns;  /* without a sign of the peer ends messages under way; default 10 s; below
                           2^62 */
};

/* How losses of a message are repaired. */
enum adverb_repair {
  ADVERB_REPAIR_AUTO = 0,    /* by loss, round trip and rate as measured */
  ADVERB_REPAIR_NACK = 1,    /* lost packets are sent again when the receiver misses them */
  ADVERB_REPAIR_TIMEOUT = 2, /* when no report came for three round trips */
  ADVERB_REPAIR_XOR = 3,     /* k chunks and m XOR sums of them; then as NACK */
  ADVERB_REPAIR_MDS = 4,     /* k chunks and m parity chunks, any k of them enough; then as NACK */
};

struct adverb_send_options {
  size_t size;        /* sizeof(struct adverb_send_options) */
  uint32_t repair;    /* enum adverb_repair */
  uint8_t k, m;       /* default 32 and 8; k + m at most 255, of XOR m at most k */
  uint8_t by_chunk;   /* 1: what is sent again is the whole chunk of a lost packet */
  uint8_t reserved;   /* 0 */
  uint32_t immediate; /* for the receiver, in the event and from the first packet on */
  uint32_t streaming; /* 1: no byte goes before adverb_send_ready() has named it */
  void* context;      /* returned in the event */
};

struct adverb_receive_options {
  size_t size;          /* sizeof(struct adverb_receive_options) */
  uint64_t deadline_ns; /* after the call: the message ends as partial; default: none; below 2^62 */
  void* context;        /* returned in the event */
};

/* How a message ended. */
enum adverb_status {
  ADVERB_OPEN = 0, /* it has not */
  ADVERB_COMPLETE = 1,
  ADVERB_PARTIAL = 2,   /* the receiver finished it early, or its deadline passed */
  ADVERB_CANCELLED = 3, /* one of the two sides cancelled it */
  ADVERB_TRUNCATED = 4, /* the receive is shorter than the message */
  ADVERB_SILENT = 5,    /* the other side gave no sign for silence_ns */
  ADVERB_BROKEN = 6,    /* the queue pair failed; nothing more goes over the endpoint */
};

enum adverb_event_type {
  ADVERB_EVENT_SEND = 1,    /* a send is over: its buffer is the program's */
  ADVERB_EVENT_RECEIVE = 2, /* a receive is over: its buffer is the program's */
  ADVERB_EVENT_CHUNKS = 3,  /* the number that adverb_notify() named is there */
};

struct adverb_event {
  uint32_t type;   /* enum adverb_event_type */
  uint32_t status; /* enum adverb_status */
  adverb_message message;
  void* context;
  uint64_t bytes;  /* of the message as sent; of a receive 0 if no packet of it arrived */
  uint64_t placed; /* of a receive: bytes of the chunks that are final */
  uint32_t immediate;
  uint32_t reserved;
};

/* What is known of a receive so far. */
struct adverb_receive_state {
  size_t size;            /* sizeof(struct adverb_receive_state) */
  const uint64_t* bitmap; /* 64-byte aligned; valid until adverb_release() */
  uint32_t chunks;        /* bits of it that count: of the message, of the buffer before a packet */
  uint32_t chunks_set;
  uint32_t chunk_bytes;
  uint32_t status; /* enum adverb_status */
  uint32_t begun;  /* 1: a packet has arrived; then the following hold */
  uint32_t immediate;
  uint64_t bytes;       /* of the message */
  uint32_t packets;     /* of the message */
  uint32_t packets_set; /* of them final */
};

/* What an endpoint has done. */
struct adverb_statistics {
  size_t size;   /* sizeof(struct adverb_statistics) */
  uint64_t sent; /* packets, and of them: */
  uint64_t sent_again;
  uint64_t sent_parity;
  uint64_t lost;     /* packets taken for lost */
  uint64_t received; /* packets, and of them: */
  uint64_t duplicates;
  uint64_t late;    /* of messages that were over */
  uint64_t early;   /* of messages without a receive */
  uint64_t starved; /* packets that may have met no receive buffer: at most so many */
  uint64_t decoded; /* packets that did not arrive and were made from parity */
  uint64_t round_trip_ns;
  double loss; /* share, as measured */
  double rate; /* bytes a second */
};

/* The functions, found by one look-up. Later versions add at the end. */
struct adverb_functions {
  size_t size;
  uint32_t version;
  int (*endpoint_create)(struct ibv_pd*, const struct adverb_endpoint_options*, adverb_endpoint*);
  int (*endpoint_address)(adverb_endpoint, struct adverb_address*);
  int (*endpoint_connect)(adverb_endpoint, const struct adverb_address*);
  int (*endpoint_destroy)(adverb_endpoint);
  int (*endpoint_fd)(adverb_endpoint, int*);
  int (*send)(adverb_endpoint, const void*, size_t, const struct adverb_send_options*,
              adverb_message*);
  int (*send_ready)(adverb_message, size_t, size_t);
  int (*receive)(adverb_endpoint, void*, size_t, const struct adverb_receive_options*,
                 adverb_message*);
  int (*state)(adverb_message, struct adverb_receive_state*);
  int (*packets)(adverb_message, uint64_t*, size_t);
  int (*wait_chunks)(adverb_message, uint32_t, int64_t);
  int (*wait_range)(adverb_message, size_t, size_t, int64_t);
  int (*wait_end)(adverb_message, int64_t);
  int (*notify)(adverb_message, uint32_t);
  int (*poll_event)(adverb_endpoint, struct adverb_event*);
  int (*finish)(adverb_message);
  int (*cancel)(adverb_message);
  int (*release)(adverb_message);
  int (*progress)(adverb_endpoint);
  int (*statistics)(adverb_endpoint, struct adverb_statistics*);
};

/* The library's functions; NULL and errno ENOSYS if there is no library, or an older one. */
static inline const struct adverb_functions* adverb_library(void) {
  typedef const struct adverb_functions* (*lookup)(uint32_t version);
  static const struct adverb_functions* found;
  const struct adverb_functions* f = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
  union {
    void* symbol;
    lookup call;
  } at;
  if (f)
    return f;
  at.symbol = dlsym(RTLD_DEFAULT, "adverb_api");
  if (!at.symbol) {
    void* library = dlopen("libadverb.so", RTLD_NOW | RTLD_LOCAL);
    if (library)
      at.symbol = dlsym(library, "adverb_api");
  }
  if (at.symbol)
    f = at.call(ADVERB_API_VERSION);
  if (!f)
    errno = ENOSYS;
  else
    __atomic_store_n(&found, f, __ATOMIC_RELEASE);
  return f;
}

#define ADVERB_CALL_(name, ...)                                                                    \
  do {                                                                                             \
    const struct adverb_functions* f_ = adverb_library();                                          \
    return f_ ? f_->name(__VA_ARGS__) : ENOSYS;                                                    \
  } while (0)

/* Makes an endpoint on the device and port of `pd`, which must outlive it. `options` may be NULL.
 * ENOTSUP: the device has no queue pairs of the transport. The endpoint pins (receives + 256) x MTU
 * bytes, a little more under UD. ENETDOWN: the port is down. */
static inline int adverb_endpoint_create(struct ibv_pd* pd,
                                         const struct adverb_endpoint_options* options,
                                         adverb_endpoint* endpoint) {
  ADVERB_CALL_(endpoint_create, pd, options, endpoint);
}

/* This end's address, for the other end's adverb_endpoint_connect(). */
static inline int adverb_endpoint_address(adverb_endpoint endpoint,
                                          struct adverb_address* address) {
  ADVERB_CALL_(endpoint_address, endpoint, address);
}

/* Once. EISCONN: the second time. EPROTO: not an address, or of an adverb that speaks otherwise.
 * EPROTOTYPE: of another transport or chunk size. */
static inline int adverb_endpoint_connect(adverb_endpoint endpoint,
                                          const struct adverb_address* peer) {
  ADVERB_CALL_(endpoint_connect, endpoint, peer);
}

/* Ends all messages without events; no buffer is touched once it has returned. */
static inline int adverb_endpoint_destroy(adverb_endpoint endpoint) {
  ADVERB_CALL_(endpoint_destroy, endpoint);
}

/* A descriptor for poll(2) and its like: readable while adverb_poll_event() has something. It is
 * the endpoint's; do not read or close it. */
static inline int adverb_endpoint_fd(adverb_endpoint endpoint, int* fd) {
  ADVERB_CALL_(endpoint_fd, endpoint, fd);
}

/* Sends bytes; `options` may be NULL. ENOTCONN before adverb_endpoint_connect(). Its event says
 * that the receiver has the message, or how it ended. EMSGSIZE: too long for the chunk size;
 * ENOBUFS: 65536 sends are not released; EPIPE: the endpoint is broken. */
static inline int adverb_send(adverb_endpoint endpoint, const void* buffer, size_t bytes,
                              const struct adverb_send_options* options, adverb_message* message) {
  ADVERB_CALL_(send, endpoint, buffer, bytes, options, message);
}

/* Of a streaming send: the program has written these bytes and changes them no more. In any order;
 * packets go when all their bytes are there. */
static inline int adverb_send_ready(adverb_message send, size_t offset, size_t bytes) {
  ADVERB_CALL_(send_ready, send, offset, bytes);
}

/* Posts a receive of at most so many bytes. `options` may be NULL. Without a deadline a receive
 * that no packet has reached waits for ever. Errors as of adverb_send(). */
static inline int adverb_receive(adverb_endpoint endpoint, void* buffer, size_t bytes,
                                 const struct adverb_receive_options* options,
                                 adverb_message* message) {
  ADVERB_CALL_(receive, endpoint, buffer, bytes, options, message);
}

/* What is known of a receive; the bitmap in it may be read at any time, see adverb_chunk_is_set().
 */
static inline int adverb_receive_query(adverb_message receive, struct adverb_receive_state* state) {
  ADVERB_CALL_(state, receive, state);
}

/* Whether a chunk is final. Its bytes may be read if so. No call, no lock. */
static inline int adverb_chunk_is_set(const uint64_t* bitmap, uint32_t chunk) {
  return (int)(__atomic_load_n(&bitmap[chunk / 64], __ATOMIC_ACQUIRE) >> (chunk % 64) & 1);
}

/* Copies the bitmap of packets, bit i of word i / 64 for packet i, at most `words` words. EAGAIN
 * before a packet has arrived. Packet p is packet p % n of chunk p / n, where n is the number of
 * packets of a whole chunk. */
static inline int adverb_receive_packets(adverb_message receive, uint64_t* words, size_t count) {
  ADVERB_CALL_(packets, receive, words, count);
}

/* Wait until so many chunks, all chunks of a range of bytes, or the end of the message.
 * Nanoseconds, negative: for ever. 0: it is there; ETIMEDOUT; ECANCELED: the message has ended
 * without it. */
static inline int adverb_wait_chunks(adverb_message receive, uint32_t chunks, int64_t timeout_ns) {
  ADVERB_CALL_(wait_chunks, receive, chunks, timeout_ns);
}
static inline int adverb_wait_range(adverb_message receive, size_t offset, size_t bytes,
                                    int64_t timeout_ns) {
  ADVERB_CALL_(wait_range, receive, offset, bytes, timeout_ns);
}
static inline int adverb_wait_end(adverb_message message, int64_t timeout_ns) {
  ADVERB_CALL_(wait_end, message, timeout_ns);
}

/* Has an ADVERB_EVENT_CHUNKS come once when so many chunks are final; at once if they are. A second
 * call replaces the first. ECANCELED: the receive has ended. */
static inline int adverb_notify(adverb_message receive, uint32_t chunks) {
  ADVERB_CALL_(notify, receive, chunks);
}

/* The next event. EAGAIN: none. Each send and each receive has exactly one of its own type. */
static inline int adverb_poll_event(adverb_endpoint endpoint, struct adverb_event* event) {
  ADVERB_CALL_(poll_event, endpoint, event);
}

/* Ends a receive as partial: what is final stays, nothing more is written. The event follows. */
static inline int adverb_finish(adverb_message receive) {
  ADVERB_CALL_(finish, receive);
}

/* Ends a send or a receive as cancelled. The event of a send follows when the other side has ended
 * the message, for which its receive must be posted, or is silent. */
static inline int adverb_cancel(adverb_message message) {
  ADVERB_CALL_(cancel, message);
}

/* Forgets a message that is over and its bitmap; EBUSY before. Messages that are never released go
 * with their endpoint. */
static inline int adverb_release(adverb_message message) {
  ADVERB_CALL_(release, message);
}

/* Does what there is to do now, for endpoints without a thread. EAGAIN: there was nothing. */
static inline int adverb_progress(adverb_endpoint endpoint) {
  ADVERB_CALL_(progress, endpoint);
}

static inline int adverb_query_statistics(adverb_endpoint endpoint,
                                          struct adverb_statistics* statistics) {
  ADVERB_CALL_(statistics, endpoint, statistics);
}

#undef ADVERB_CALL_

#ifdef __cplusplus
}
#endif

#endif /* ADVERB_H */
