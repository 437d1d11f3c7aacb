// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whatever the model throws inside a patched verb ends at the edge: the program sees the verb's own
// error. The model here is this file: every one of its functions throws.
#include "catch.h"
#include "interpose/dispatch.h"
#include "interpose/extended.h"
#include "interpose/process_world.h"
#include "model/verbs.h"

#include <cerrno>
#include <new>
#include <stdexcept>
#include <type_traits>

#pragma GCC diagnostic ignored "-Wunused-parameter"

using namespace adverb;

namespace {

enum class Thrown { no_memory, mistake, something } thrown;
int built_wrong = 0;   // what wr_failed() was told
bool in_child = false; // nothing is managed

[[noreturn]] void raise() {
  switch (thrown) {
  case Thrown::no_memory:
    throw std::bad_alloc();
  case Thrown::mistake:
    throw std::runtime_error("a mistake of the test's");
  default:
    throw 7;
  }
}

} // namespace

namespace adverb::model {

#define HOOK(ret, name, node, need, params, args, fail)                                            \
  ret Verbs::name params {                                                                         \
    raise();                                                                                       \
  }
#include "provider/verbs.def"
ibv_qp* Verbs::create_qp_ex(ibv_context*, ibv_qp_init_attr_ex*) {
  raise();
}
ibv_cq_ex* Verbs::create_cq_ex(ibv_context*, ibv_cq_init_attr_ex*) {
  raise();
}
ibv_srq* Verbs::create_srq_ex(ibv_context*, ibv_srq_init_attr_ex*) {
  raise();
}
int Verbs::advise_mr(ibv_pd*, ibv_advise_mr_advice, uint32_t, ibv_sge*, uint32_t) {
  raise();
}
int Verbs::make_unmanaged(ibv_context*, std::string_view) {
  raise();
}
Qp* Verbs::managed(ibv_qp*) {
  if (in_child)
    return nullptr;
  raise();
}
Cq* Verbs::managed(ibv_cq*) {
  if (in_child)
    return nullptr;
  raise();
}
Srq* Verbs::managed(ibv_srq*) {
  raise();
}
int post_send(Qp&, ibv_send_wr*, ibv_send_wr**) {
  raise();
}
int post_recv(Qp&, ibv_recv_wr*, ibv_recv_wr**) {
  raise();
}
int bind_mw(Qp&, ibv_mw*, ibv_mw_bind*) {
  raise();
}
int post_srq_recv(Srq&, ibv_recv_wr*, ibv_recv_wr**) {
  raise();
}
int poll_cq(Cq&, int, ibv_wc*) {
  raise();
}
int req_notify_cq(Cq&, int) {
  raise();
}
#define WR(name, params, args)                                                                     \
  void name(Qp&, ADVERB_UNPACK params) {                                                           \
    raise();                                                                                       \
  }
#define POST(name, params, args)                                                                   \
  int name(Qp&, ADVERB_UNPACK params) {                                                            \
    raise();                                                                                       \
  }
#define CQ(ret, name, params, args, fail)                                                          \
  ret cq_ex_##name(Cq&, ADVERB_UNPACK params) {                                                    \
    raise();                                                                                       \
  }
#include "provider/extended.def"
void wr_failed(Qp&, int error) noexcept {
  built_wrong = error;
}

} // namespace adverb::model

namespace {

// Calls with an object and nothing else.
template <typename R, typename Object, typename... Rest>
R call(R (*verb)(Object*, Rest...) noexcept, Object* object) {
  return verb(object, Rest{}...);
}

// And its answer is what `fail` is once errno is set.
template <typename R, typename Object, typename... Rest, typename Fail>
void check_answer(R (*verb)(Object*, Rest...) noexcept, Object* object, int error, Fail fail) {
  if constexpr (std::is_void_v<R>) {
    call(verb, object);
  } else {
    const R got = call(verb, object);
    errno = error;
    CHECK(got == fail());
  }
}

uint64_t caught() {
  return interpose::process_world().counters.value(observe::Counter::exceptions_caught);
}

// Each kind of exception, and the error a program sees of it.
template <typename Body> void for_each_throw(Body&& body) {
  for (const auto& [what, error] :
       {std::pair{Thrown::no_memory, ENOMEM}, {Thrown::mistake, EIO}, {Thrown::something, EIO}}) {
    thrown = what;
    body(error);
  }
}

// Objects the edge takes for managed ones; the model behind them is never looked at.
struct Objects {
  Objects() {
    interpose::add_qp(&qp.qp_base, reinterpret_cast<model::Qp*>(this));
    interpose::add_cq(ibv_cq_ex_to_cq(&cq), reinterpret_cast<model::Cq*>(this));
    interpose::add_srq(&srq, reinterpret_cast<model::Srq*>(this));
  }
  ~Objects() {
    interpose::remove_qp(&qp.qp_base);
    interpose::remove_cq(ibv_cq_ex_to_cq(&cq));
    interpose::remove_srq(&srq);
  }
  ibv_qp_ex qp{};
  ibv_cq_ex cq{};
  ibv_srq srq{};
};

} // namespace

TEST_CASE("what a plain post or poll throws is the verb's own error", "[boundary]") {
  Objects o;
  ibv_qp* qp = &o.qp.qp_base;
  ibv_cq* cq = ibv_cq_ex_to_cq(&o.cq);
  for_each_throw([&](int error) {
    const uint64_t before = caught();
    ibv_send_wr send{};
    ibv_send_wr* bad_send = nullptr;
    CHECK(interpose::dispatch_post_send(qp, &send, &bad_send) == error);
    CHECK(bad_send == &send);
    ibv_recv_wr receive{};
    ibv_recv_wr* bad_receive = nullptr;
    CHECK(interpose::dispatch_post_recv(qp, &receive, &bad_receive) == error);
    CHECK(bad_receive == &receive);
    bad_receive = nullptr;
    CHECK(interpose::dispatch_post_srq_recv(&o.srq, &receive, &bad_receive) == error);
    CHECK(bad_receive == &receive);
    ibv_wc wc{};
    CHECK(interpose::dispatch_poll_cq(cq, 1, &wc) == -1);
    CHECK(interpose::dispatch_req_notify_cq(cq, 0) == error);
    ibv_mw_bind bind{};
    CHECK(interpose::dispatch_bind_mw(qp, nullptr, &bind) == error);
    CHECK(caught() == before + 6);
  });
}

TEST_CASE("so is what the look-up of an object throws whose slot another has", "[boundary]") {
  thrown = Thrown::mistake;
  ibv_qp unknown{};
  ibv_send_wr send{};
  ibv_send_wr* bad = nullptr;
  CHECK(interpose::dispatch_post_send(&unknown, &send, &bad) == EIO);
  CHECK(bad == &send);
}

TEST_CASE("what an extended post throws is wr_complete's error", "[boundary]") {
  Objects o;
  for_each_throw([&](int error) {
#define WR(name, params, args)                                                                     \
  {                                                                                                \
    INFO(#name);                                                                                   \
    built_wrong = 0;                                                                               \
    call(interpose::extended::name, &o.qp);                                                        \
    CHECK(built_wrong == error);                                                                   \
  }
#define POST(name, params, args) CHECK(call(interpose::extended::name, &o.qp) == error);
#include "provider/extended.def"
  });
}

TEST_CASE("behind a parent's extended objects a fork child finds nothing", "[boundary]") {
  Objects o;
  interpose::forget_all();
  in_child = true;
  const uint64_t before = caught();
  built_wrong = 0;
#define WR(name, params, args) call(interpose::extended::name, &o.qp);
#define POST(name, params, args) CHECK(call(interpose::extended::name, &o.qp) == EINVAL);
#define CQ(ret, name, params, args, fail)                                                          \
  check_answer(interpose::extended::name, &o.cq, ENOENT, [] { return fail; });
#include "provider/extended.def"
  CHECK(built_wrong == 0);
  CHECK(caught() == before);
  in_child = false;
}

TEST_CASE("what an extended poll throws is its own error", "[boundary]") {
  Objects o;
  for_each_throw([&](int error) {
    const uint64_t before = caught();
    uint64_t calls = 0;
#define CQ(ret, name, params, args, fail)                                                          \
  ++calls;                                                                                         \
  check_answer(interpose::extended::name, &o.cq, error, []() -> ret { return fail; });
#include "provider/extended.def"
    CHECK(caught() == before + calls);
  });
}
