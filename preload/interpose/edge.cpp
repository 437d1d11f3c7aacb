// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the model tells the edge (model/edge.h), carried out on the process's contexts and objects.
#include "interpose/dispatch.h"
#include "interpose/patch.h"
#include "interpose/process_world.h"

namespace adverb::interpose {
namespace {

class Edge final : public model::Edge {
public:
  bool patch(ibv_context* context) override { return interpose::patch(context); }
  void unpatch(ibv_context* context) override { interpose::unpatch(context); }
  void patch_qp_ex(ibv_qp_ex* qp) override { interpose::patch_qp_ex(qp); }
  provider::CqExOps patch_cq_ex(ibv_cq_ex* cq) override { return interpose::patch_cq_ex(cq); }
  void add(ibv_qp* qp, model::Qp* managed) override { add_qp(qp, managed); }
  void add(ibv_cq* cq, model::Cq* managed) override { add_cq(cq, managed); }
  void add(ibv_srq* srq, model::Srq* managed) override { add_srq(srq, managed); }
  void remove(ibv_qp* qp) override { remove_qp(qp); }
  void remove(ibv_cq* cq) override { remove_cq(cq); }
  void remove(ibv_srq* srq) override { remove_srq(srq); }
  void in_child() override { forget_all(); }
};

} // namespace

model::Edge& process_edge() noexcept {
  static Edge edge;
  return edge;
}

} // namespace adverb::interpose
