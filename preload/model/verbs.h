// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The verbs adverb manages, each with the signature and the errors of its man page. interpose/
// calls them; nothing else does.
#pragma once

#include "world/world.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <infiniband/verbs.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace adverb::model {

class Cq;
class Qp;
class Srq;

struct Verbs {
  World& world;

  // Exported functions, from the table.
#define HOOK(ret, name, node, need, params, args, fail) ret name params;
#include "provider/verbs.def"

  // Context functions that create objects.
  ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
  ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
  ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr);
  int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
                uint32_t count);

  // Asked before an object is made that is not managed and takes local keys. errno.
  int make_unmanaged(ibv_context* context, std::string_view what);

  // What is managed behind an object; null: nothing.
  Qp* managed(ibv_qp* qp);
  Cq* managed(ibv_cq* cq);
  Srq* managed(ibv_srq* srq);
};

// The data path of a managed object.
int post_send(Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(Qp& qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int bind_mw(Qp& qp, ibv_mw* mw, ibv_mw_bind* bind);
int post_srq_recv(Srq& srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
int poll_cq(Cq& cq, int entries, ibv_wc* wc);
int req_notify_cq(Cq& cq, int solicited_only);

// Of extended objects, from the table: `mine` stands behind the program's first argument.
#define ADVERB_UNPACK(...) __VA_ARGS__
#define WR(name, params, args) void name(Qp& mine, ADVERB_UNPACK params);
#define POST(name, params, args) int name(Qp& mine, ADVERB_UNPACK params);
#define CQ(ret, name, params, args, fail) ret cq_ex_##name(Cq& mine, ADVERB_UNPACK params);
#include "provider/extended.def"
// Something went wrong while a request was put together: wr_complete() will answer `error`, an
// errno value.
void wr_failed(Qp& mine, int error) noexcept;

} // namespace adverb::model
