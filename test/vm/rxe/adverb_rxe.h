/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the semantic patch (rxe.cocci) makes rxe call. Included behind rxe.h, by rxe's own files; each
 * function is described where it is defined.
 */
#ifndef ADVERB_RXE_H
#define ADVERB_RXE_H

extern const struct ib_device_ops adverb_rxe_ops;
void adverb_rxe_exit(void);

bool adverb_rxe_is(const struct rxe_mr *mr);
bool adverb_rxe_refuses(const struct rxe_mr *mr, const char *what);
int adverb_rxe_copy(struct rxe_mr *mr, u64 iova, void *addr, unsigned int length, enum rxe_mr_copy_dir dir);

void adverb_rxe_forget(struct rxe_qp *qp, int mask);
void adverb_rxe_look_ahead(struct rxe_qp *qp);
int adverb_rxe_read(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova, void *addr, unsigned int length);

#endif
