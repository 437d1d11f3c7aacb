// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The private side of every verbs object. Each starts with the public struct, so that a pointer
// to one is a pointer to the other. Objects are made and destroyed by the program's calls only;
// the progress thread reaches them through the tables of Process.
#pragma once
#include "link.h"
#include "process.h"

#include <deque>
#include <memory>
#include <optional>

namespace adverb::loopback {

// A queue whose readable end is an eventfd in semaphore mode: a descriptor that polls readable
// while entries wait, and honours O_NONBLOCK as the kernel's do. Its number is where verbs.h shows
// it and nowhere else, as in rdma-core: who moves the descriptor changes it there.
template <typename T> class EventQueue {
public:
  explicit EventQueue(int& shown);
  ~EventQueue();
  void push(const T& entry);
  // Blocks unless O_NONBLOCK; false with errno. `mark` is called on the entry under the lock.
  template <typename Mark> bool pop_marked(T& entry, Mark mark);
  template <typename Match> void purge(Match match);

private:
  int& fd_;
  std::mutex mutex_;
  std::deque<T> entries_;
};

struct Device {
  ibv_device device;
  const void* ops; // where driver libraries look to recognise their own devices
  char padding[1024];
  uint32_t number;
};

struct AsyncEvent {
  ibv_async_event event;
  const void* element;
};

struct Context {
  // A verbs_context, its growing front part first: verbs.h finds it by going back from
  // ibv_context.
  verbs_context verbs;
  Process* process;
  Device* device;
  EventQueue<AsyncEvent> async{verbs.context.async_fd};
  std::atomic<uint32_t> objects{0};
  std::unique_ptr<const LinkSetting> link; // nullptr: the link is good
  std::atomic<uint32_t> lanes{0};          // the UC and UD queue pairs made with the link
  std::optional<TranslationSetting> translation_setting;
  uint64_t translations = 0; // arena offset of the TranslationCache, 0 without a setting
};

inline Context* context_of(ibv_context* context) {
  return reinterpret_cast<Context*>(reinterpret_cast<char*>(context) -
                                    offsetof(verbs_context, context));
}

struct Pd {
  ibv_pd pd;
  uint32_t number;
  std::atomic<uint32_t> users{0};
};

struct Mr {
  ibv_mr mr;
  KeySlot* slot;
  uint64_t locked;
  std::atomic<uint32_t> windows{0};
};

struct Mw {
  ibv_mw mw;
  KeySlot* slot;
  Mr* region;
};

struct Ah {
  ibv_ah ah;
  ibv_ah_attr attr;
};

struct Channel {
  ibv_comp_channel channel;
  EventQueue<Cq*> events{channel.fd};
  std::atomic<uint32_t> users{0};
};

struct Cq {
  ibv_cq_ex ex;
  CqShared* shared;
  uint64_t offset;
  Process* process;
  uint32_t entries_allocated;
  std::mutex poll_mutex;
  std::atomic<uint32_t> users{0};
  std::atomic<uint32_t> comp_events_delivered{0};
  std::atomic<uint32_t> async_events_delivered{0};
  Completion current; // between start_poll and end_poll
  uint64_t cursor;
  ibv_cq* base() { return reinterpret_cast<ibv_cq*>(&ex); }
};

struct Srq {
  ibv_srq srq;
  RecvQueue* queue;
  uint64_t offset;
  Process* process;
  uint32_t number;
  uint32_t max_sge;
  ibv_srq_type type;
  std::mutex post_mutex;
  std::atomic<uint32_t> users{0};
  std::atomic<uint32_t> events_delivered{0};
};

struct SendWqe {
  uint64_t wr_id;
  uint32_t opcode; // ibv_wr_opcode
  uint32_t flags;
  uint32_t imm_data;
  uint32_t rkey;
  uint64_t remote_addr;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t remote_qpn;
  uint32_t remote_qkey;
  union ibv_gid dgid;
  Mw* window;
  ibv_mw_bind_info bind;
  uint32_t bind_key;
  uint32_t length; // of all SGEs, or of the inline data
  uint32_t num_sge;
  bool is_inline;
  bool faulted; // fault injection has had its say
  bool moved;   // a READ whose data came early
  ibv_sge sge[kMaxSge];
};

struct Qp;

// complete.cpp. Takes the completions of a QP out of its CQs, if ADVERB_LOOPBACK_CLEAN says so: the
// QP makes none any more.
void clean_cqs_of(Qp& qp);

struct Qp {
  ibv_qp_ex ex;
  bool extended;
  Process* process;
  QpSlot* slot;
  RecvQueue* queue; // own, or the SRQ's
  uint64_t queue_offset;
  ibv_qp_cap cap;
  bool signal_all;
  uint64_t send_ops;

  std::mutex post_mutex; // appends to the send queue
  std::mutex recv_mutex; // appends to the receive queue
  std::mutex exec_mutex; // takes from the send queue, changes state
  std::unique_ptr<SendWqe[]> ring;
  std::unique_ptr<char[]> inline_data;
  std::atomic<uint64_t> head{0}, tail{0};
  uint64_t staged = 0; // wr_start .. wr_complete, counted from tail
  int staged_error = 0;

  // Guarded by exec_mutex.
  ibv_qp_attr attr;
  uint32_t next_psn = 0;
  uint64_t blocked_until = 0;
  uint64_t give_up_at = 0;
  uint32_t rnr_left = 0;
  bool rnr_counting = false;
  bool in_error = false;
  std::unique_ptr<Lane> lane; // of UC and UD over a bad link

  bool in_run_list = false; // guarded by Process::run_mutex_
  std::atomic<uint32_t> events_delivered{0};

  ibv_qp* base() { return &ex.qp_base; }
  SendWqe& wqe(uint64_t position) { return ring[position % cap.max_send_wr]; }
  char* inline_of(uint64_t position) {
    return inline_data.get() + (position % cap.max_send_wr) * cap.max_inline_data;
  }
};

template <typename Private, typename Public> Private* as(Public* object) {
  return reinterpret_cast<Private*>(object);
}

// device.cpp
union ibv_gid gid_of(uint32_t device, int index);
bool gid_matches(uint32_t device, const ibv_gid& gid);
// context.cpp
void raise_async(ibv_context* context, ibv_event_type type, const void* element);
void purge_async(ibv_context* context, const void* element);
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t size);
int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t size);
// mr.cpp
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
int dealloc_mw(ibv_mw* mw);
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count);
// cq.cpp, cq_poll.cpp
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init);
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr);
void install_extended_poll(Cq& cq);
void deliver_cq_event(Cq& cq);
// srq.cpp
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init);
int get_srq_num(ibv_srq* srq, uint32_t* number);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
// Makes a receive queue in the process's arena; 0 when out of memory.
uint64_t make_recv_queue(Process& process, uint32_t max_wr, uint32_t srq);
void free_recv_queue(Process& process, uint64_t offset);
int append_recv(Process& process, RecvQueue& queue, uint32_t max_sge, const ibv_recv_wr& wr);
// qp.cpp, qp_state.cpp
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init);
void flush_qp(Qp& qp);    // exec_mutex held, state ERR
void enter_error(Qp& qp); // exec_mutex held
// post.cpp, wr.cpp
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);
void install_extended_send(Qp& qp);
void kick(Qp& qp, uint64_t budget); // after an append: run here, or hand to the progress thread

} // namespace adverb::loopback
