// SPDX-License-Identifier: GPL-2.0
// Makes rxe call adverb_rxe.c. It goes by the names of functions; kernel/build looks whether each has found
// its place, by the names of ours and by the strings.

@@ @@
 #include "rxe.h"
+#include "adverb_rxe.h"

// Memory regions over dma-bufs.
@@ expression device; symbol rxe_dev_ops; @@
 ib_set_device_ops(device, &rxe_dev_ops);
+ib_set_device_ops(device, &adverb_rxe_ops);

@@ @@
 ib_unregister_driver(...);
+adverb_rxe_exit();

// Their bytes.
@@ identifier mr, iova, addr, length, dir; type T1, T2; statement earlier, first; @@
 rxe_mr_copy(struct rxe_mr *mr, T1 iova, void *addr, T2 length, enum rxe_mr_copy_dir dir)
 {
 ... when != earlier
+if (adverb_rxe_is(mr)) return adverb_rxe_copy(mr, iova, addr, length, dir);
 first
 ... when any
 }

// What they refuse: all that would look for their pages, and to become another memory region.
@@ identifier mr; statement earlier, first; @@
 rxe_mr_do_atomic_op(struct rxe_mr *mr, ...)
 {
 ... when != earlier
+if (adverb_rxe_refuses(mr, "an atomic")) return RESPST_ERR_RKEY_VIOLATION;
 first
 ... when any
 }

@@ identifier mr; statement earlier, first; @@
 rxe_mr_do_atomic_write(struct rxe_mr *mr, ...)
 {
 ... when != earlier
+if (adverb_rxe_refuses(mr, "an atomic write")) return RESPST_ERR_RKEY_VIOLATION;
 first
 ... when any
 }

@@ identifier qp; statement earlier, first; @@
 process_flush(struct rxe_qp *qp, ...)
 {
 ... when != earlier
+if (adverb_rxe_refuses(qp->resp.mr, "a flush")) return RESPST_ERR_RKEY_VIOLATION;
 first
 ... when any
 }

@@ identifier qp, wqe; statement earlier, first; @@
 rxe_reg_fast_mr(struct rxe_qp *qp, struct rxe_send_wqe *wqe)
 {
 ... when != earlier
+if (adverb_rxe_refuses(to_rmr(wqe->wr.wr.reg.mr), "fast registration")) return -EINVAL;
 first
 ... when any
 }

@@ identifier mr; statement earlier, first; @@
 rxe_rereg_user_mr(struct ib_mr *mr, ...)
 {
 ... when != earlier
+if (adverb_rxe_refuses(to_rmr(mr), "other rights")) return ERR_PTR(-EOPNOTSUPP);
 first
 ... when any
 }

// READs that pass others.
@@ identifier qp, attr, mask; statement earlier, first; @@
 rxe_qp_from_attr(struct rxe_qp *qp, struct ib_qp_attr *attr, int mask, ...)
 {
 ... when != earlier
+adverb_rxe_forget(qp, mask);
 first
 ... when any
 }

@@ identifier qp; statement earlier, first; @@
 get_req(struct rxe_qp *qp, ...)
 {
 ... when != earlier
+adverb_rxe_look_ahead(qp);
 first
 ... when any
 }

@@ identifier qp; expression mr, iova, addr, length; @@
 read_reply(struct rxe_qp *qp, ...)
 {
 <+...
-rxe_mr_copy(mr, iova, addr, length, RXE_FROM_MR_OBJ)
+adverb_rxe_read(qp, mr, iova, addr, length)
 ...+>
 }
