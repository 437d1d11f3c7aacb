// SPDX-License-Identifier: GPL-2.0
/*
 * What makes rxe an RNIC that adverb.ko serves: memory regions over its dma-bufs, whose bytes go through the
 * module's entry for NICs in software. Nothing else of rxe changes, and other memory regions see no difference.
 *
 * And a mode in which it is as hostile as the standards let a device be:
 *   - a READ is cut into pieces of some words, which are read in any order, with pauses between them;
 *   - the end of a READ, from any word on, is read once more, as if a part of the answer had been lost;
 *   - a READ may pass READs that were asked for before it, but never a WRITE;
 *   - a WRITE is cut in the same way, but stays in order.
 */
#include <linux/delay.h>
#include <linux/dma-buf.h>
#include <linux/module.h>
#include <linux/prandom.h>
#include <linux/sched.h>
#include <rdma/ib_umem.h>

#include "rxe.h"
#include "adverb_rxe.h"
#include "adverb_soft.h"
#include "compat.h"

/* All that a dma-buf's memory region can do. No atomics: the module moves bytes, and no more. */
#define ACCESS (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_RELAXED_ORDERING)

#define WORD 8
#define PIECES 12
#define AHEAD_LENGTH SZ_64K /* longer ones pass nobody */
#define AHEAD_COUNT 64

static bool hostile;
module_param(hostile, bool, 0644);
MODULE_PARM_DESC(hostile, "cut, delay, repeat and reorder what is read from adverb's dma-bufs");

/* How often each was done, for a test to see that it was. */
static atomic_long_t pieces, repeats, passed;

static int show_count(char *buffer, const struct kernel_param *parameter)
{
	return sysfs_emit(buffer, "%ld\n", atomic_long_read((atomic_long_t *)parameter->arg));
}

static const struct kernel_param_ops count_ops = {
	.get = show_count,
};

module_param_cb(pieces, &count_ops, &pieces, 0444);
module_param_cb(repeats, &count_ops, &repeats, 0444);
module_param_cb(passed, &count_ops, &passed, 0444);

/**
 * adverb_rxe_is - whether a memory region is one of these
 * @mr: or NULL
 *
 * Return: true if it is over a dma-buf: rxe has no others of that kind.
 */
bool adverb_rxe_is(const struct rxe_mr *mr)
{
	return mr && mr->umem && mr->umem->is_dmabuf;
}

/**
 * adverb_rxe_refuses - whether a memory region is one of these, which cannot do what is asked of it
 * @mr: or NULL
 * @what: in a word
 *
 * Return: true if it is.
 */
bool adverb_rxe_refuses(const struct rxe_mr *mr, const char *what)
{
	if (!adverb_rxe_is(mr))
		return false;
	ibdev_dbg(mr->ibmr.device, "%s on a dma-buf of adverb's\n", what);
	return true;
}

/* Lets others run: often not at all, sometimes for longer than a page needs to leave. */
static void pause_for_some(struct rnd_state *random)
{
	u32 n = prandom_u32_state(random) % 64;

	if (n == 0)
		usleep_range(20, 200);
	else if (n < 16)
		cond_resched();
}

/* Cuts length bytes from offset on at words of the memory, and sets starts[0] to starts[the result] to where. */
static unsigned int cut(struct rnd_state *random, u64 offset, unsigned int length, unsigned int *starts)
{
	unsigned int n = 0, mean = max(length / PIECES * 2, WORD * 2U);

	starts[0] = 0;
	while (n < PIECES - 1 && starts[n] < length) {
		u64 end = offset + starts[n] + WORD + prandom_u32_state(random) % mean;

		starts[++n] = min_t(u64, round_down(end, WORD) - offset, length);
	}
	if (starts[n] < length)
		starts[++n] = length;
	return n;
}

static int read_hostile(struct dma_buf *dmabuf, u64 offset, void *addr, unsigned int length)
{
	unsigned int starts[PIECES + 1], order[PIECES], n, i, other;
	struct rnd_state random;
	int error = 0;

	prandom_seed_state(&random, get_random_u64());
	n = cut(&random, offset, length, starts);
	for (i = 0; i < n; i++) {
		other = prandom_u32_state(&random) % (i + 1);
		order[i] = order[other];
		order[other] = i;
	}
	for (i = 0; i < n && !error; i++) {
		unsigned int start = starts[order[i]];

		error = adverb_soft_copy(dmabuf, offset + start, addr + start, starts[order[i] + 1] - start, false);
		pause_for_some(&random);
	}
	atomic_long_add(n, &pieces);
	if (error || prandom_u32_state(&random) % 2)
		return error;
	i = prandom_u32_state(&random) % n;
	atomic_long_inc(&repeats);
	return adverb_soft_copy(dmabuf, offset + starts[i], addr + starts[i], length - starts[i], false);
}

static int write_hostile(struct dma_buf *dmabuf, u64 offset, void *addr, unsigned int length)
{
	unsigned int starts[PIECES + 1], n, i;
	struct rnd_state random;
	int error = 0;

	prandom_seed_state(&random, get_random_u64());
	n = cut(&random, offset, length, starts);
	for (i = 0; i < n && !error; i++) {
		error = adverb_soft_copy(dmabuf, offset + starts[i], addr + starts[i], starts[i + 1] - starts[i], true);
		pause_for_some(&random);
	}
	atomic_long_add(n, &pieces);
	return error;
}

/**
 * adverb_rxe_copy - rxe_mr_copy() for these memory regions
 * @mr: one of them
 * @iova: as its user has it
 * @addr: kernel memory
 * @length: bytes
 * @dir: from the memory region, or into it
 *
 * rxe's tasks run in a workqueue, and so may this: it sleeps in the hostile mode.
 *
 * Return: 0 or -errno.
 */
int adverb_rxe_copy(struct rxe_mr *mr, u64 iova, void *addr, unsigned int length, enum rxe_mr_copy_dir dir)
{
	struct dma_buf *dmabuf = to_ib_umem_dmabuf(mr->umem)->attach->dmabuf;
	u64 offset = mr->umem->address + (iova - mr->ibmr.iova);
	int error;

	if (!length)
		return 0;
	error = mr_check_range(mr, iova, length);
	if (error)
		return error;
	if (!READ_ONCE(hostile))
		return adverb_soft_copy(dmabuf, offset, addr, length, dir == RXE_TO_MR_OBJ);
	might_sleep();
	return dir == RXE_TO_MR_OBJ ? write_hostile(dmabuf, offset, addr, length)
				    : read_hostile(dmabuf, offset, addr, length);
}

/* What a READ will answer that has passed the ones before it. */
struct ahead {
	struct list_head node;
	const struct rxe_qp *qp;
	u64 iova;
	u32 psn; /* of its request */
	u32 rkey;
	u32 length;
	char data[];
};

/* The oldest first; those of a queue pair are made and used by its receiver task alone. */
static LIST_HEAD(aheads);
static unsigned int ahead_count;
static DEFINE_SPINLOCK(aheads_lock);

static void remove_ahead(struct ahead *ahead)
{
	lockdep_assert_held(&aheads_lock);
	list_del(&ahead->node);
	ahead_count--;
	kfree(ahead);
}

static struct ahead *find_ahead(const struct rxe_qp *qp, u32 psn)
{
	struct ahead *ahead;

	lockdep_assert_held(&aheads_lock);
	list_for_each_entry(ahead, &aheads, node)
		if (ahead->qp == qp && ahead->psn == psn)
			return ahead;
	return NULL;
}

static void add_ahead(struct ahead *ahead)
{
	spin_lock(&aheads_lock);
	if (ahead_count == AHEAD_COUNT)
		remove_ahead(list_first_entry(&aheads, struct ahead, node));
	list_add_tail(&ahead->node, &aheads);
	ahead_count++;
	spin_unlock(&aheads_lock);
}

/**
 * adverb_rxe_forget - a queue pair's first expected request may change
 * @qp: it
 * @mask: of ibv_modify_qp
 *
 * With it a number can stand for another request, and so can the address of a queue pair that is gone.
 */
void adverb_rxe_forget(struct rxe_qp *qp, int mask)
{
	struct ahead *ahead, *next;

	if (!(mask & IB_QP_RQ_PSN))
		return;
	spin_lock(&aheads_lock);
	list_for_each_entry_safe(ahead, next, &aheads, node)
		if (ahead->qp == qp)
			remove_ahead(ahead);
	spin_unlock(&aheads_lock);
}

/**
 * adverb_rxe_exit - the last queue pair is gone
 */
void adverb_rxe_exit(void)
{
	struct ahead *ahead, *next;

	spin_lock(&aheads_lock);
	list_for_each_entry_safe(ahead, next, &aheads, node)
		remove_ahead(ahead);
	spin_unlock(&aheads_lock);
}

/*
 * A READ that waits in the queue pair behind READs only, all of which are here: had a request between them been
 * lost, it could be a WRITE. Found with one chance in two, or NULL.
 */
static struct ahead *choose_ahead(struct rxe_qp *qp)
{
	struct ahead *ahead = NULL;
	struct rxe_pkt_info *pkt;
	u32 next = qp->resp.res ? qp->resp.res->first_psn : qp->resp.psn;
	unsigned long flags;
	struct sk_buff *skb;
	bool first = true;

	spin_lock_irqsave(&qp->req_pkts.lock, flags);
	skb_queue_walk(&qp->req_pkts, skb) {
		pkt = SKB_TO_PKT(skb);
		if (!(pkt->mask & RXE_READ_MASK) || pkt->psn != next || reth_len(pkt) > AHEAD_LENGTH)
			break;
		next = (next + max_t(u32, DIV_ROUND_UP(reth_len(pkt), qp->mtu), 1)) & BTH_PSN_MASK;
		if (!first && reth_len(pkt) && get_random_u32_below(2)) {
			ahead = kmalloc(struct_size(ahead, data, reth_len(pkt)), GFP_ATOMIC);
			if (!ahead)
				break;
			*ahead = (struct ahead){ .qp = qp, .iova = reth_va(pkt), .psn = pkt->psn,
						 .rkey = reth_rkey(pkt), .length = reth_len(pkt) };
			break;
		}
		first = false;
	}
	spin_unlock_irqrestore(&qp->req_pkts.lock, flags);
	return ahead;
}

/* Reads for it, if it is one of ours and would be answered now. */
static bool read_ahead(struct rxe_qp *qp, struct ahead *ahead)
{
	bool there, good = false;
	struct rxe_mr *mr;

	spin_lock(&aheads_lock);
	there = find_ahead(qp, ahead->psn);
	spin_unlock(&aheads_lock);
	if (there || rkey_is_mw(ahead->rkey) || !(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_READ))
		return false;
	mr = lookup_mr(qp->pd, IB_ACCESS_REMOTE_READ, ahead->rkey, RXE_LOOKUP_REMOTE);
	if (!mr)
		return false;
	if (adverb_rxe_is(mr))
		good = !adverb_rxe_copy(mr, ahead->iova, ahead->data, ahead->length, RXE_FROM_MR_OBJ);
	rxe_put(mr);
	return good;
}

/**
 * adverb_rxe_look_ahead - the receiver task of a queue pair is about to look at its next request
 * @qp: it
 *
 * In the hostile mode one of the READs behind it may be served first.
 */
void adverb_rxe_look_ahead(struct rxe_qp *qp)
{
	struct ahead *ahead;

	if (!READ_ONCE(hostile) || qp_type(qp) != IB_QPT_RC)
		return;
	ahead = choose_ahead(qp);
	if (ahead && read_ahead(qp, ahead))
		add_ahead(ahead);
	else
		kfree(ahead);
}

/**
 * adverb_rxe_read - rxe_mr_copy() for a packet of a READ's answer
 * @qp: whose resp.res is the READ
 * @mr: any
 * @iova: of the packet's first byte
 * @addr: into the packet
 * @length: of this packet
 *
 * Return: 0 or -errno.
 */
int adverb_rxe_read(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova, void *addr, unsigned int length)
{
	const struct resp_res *res = qp->resp.res;
	struct ahead *ahead;
	u64 at;

	if (!adverb_rxe_is(mr) || res->replay)
		return rxe_mr_copy(mr, iova, addr, length, RXE_FROM_MR_OBJ);
	spin_lock(&aheads_lock);
	ahead = find_ahead(qp, res->first_psn);
	if (ahead && (ahead->iova != res->read.va_org || ahead->rkey != res->read.rkey ||
		      ahead->length != res->read.length)) {
		remove_ahead(ahead);
		ahead = NULL;
	}
	if (ahead) {
		at = iova - ahead->iova;
		memcpy(addr, ahead->data + at, length);
		if (at + length == ahead->length) {
			atomic_long_inc(&passed);
			remove_ahead(ahead);
		}
	}
	spin_unlock(&aheads_lock);
	return ahead ? 0 : rxe_mr_copy(mr, iova, addr, length, RXE_FROM_MR_OBJ);
}

/* A dma-buf of adverb's, or ERR_PTR(): what others would make of a device that is none is not asked. */
static struct dma_buf *get_dmabuf(int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);

	if (!IS_ERR(dmabuf) && adverb_soft_copy(dmabuf, 0, NULL, 0, false) == -EINVAL) {
		dma_buf_put(dmabuf);
		return ERR_PTR(-EINVAL);
	}
	return dmabuf;
}

static int import(struct rxe_mr *mr, u64 offset, u64 length, u64 iova, int fd, int access)
{
	struct dma_buf *dmabuf = get_dmabuf(fd);
	struct ib_umem_dmabuf *umem;
	int error = 0;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	/*
	 * Said to be pinned, which is what RDMA drivers do that cannot follow moves: adverb pins nothing for that, and
	 * its ranges never move. It has the attachment that adverb wants, one of an importer that could be told.
	 */
	umem = ib_umem_dmabuf_get_pinned_with_dma_device(mr->ibmr.device, adverb_soft_device(), offset, length, fd,
							 access);
	if (IS_ERR(umem)) {
		error = PTR_ERR(umem);
		goto put;
	}
	/* Another thread may have put another into the descriptor's place. */
	if (umem->attach->dmabuf != dmabuf) {
		ib_umem_release(&umem->umem);
		error = -EINVAL;
		goto put;
	}
	mr->umem = &umem->umem;
	mr->access = access;
	mr->ibmr.iova = iova;
	mr->ibmr.length = length;
	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->state = RXE_MR_STATE_VALID;
put:
	dma_buf_put(dmabuf);
	return error;
}

static struct ib_mr *reg_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length, u64 iova, int fd, int access)
{
	struct rxe_dev *rxe = to_rdev(ibpd->device);
	struct rxe_pd *pd = to_rpd(ibpd);
	struct rxe_mr *mr;
	int error;

	if (access & ~ACCESS)
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	error = rxe_add_to_pool(&rxe->mr_pool, mr);
	if (error)
		goto free;
	rxe_get(pd);
	mr->ibmr.pd = ibpd;
	mr->ibmr.device = ibpd->device;
	/* The only kind that rxe makes for others to fill in; it gets another below. */
	error = rxe_mr_init_fast(1, mr);
	if (error)
		goto cleanup;
	error = import(mr, offset, length, iova, fd, access);
	if (error)
		goto cleanup;
	rxe_finalize(mr);
	return &mr->ibmr;

cleanup:
	WARN_ON(rxe_cleanup(mr));
free:
	kfree(mr);
	return ERR_PTR(error);
}

/* There are hints for caches among the arguments in newer kernels. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
static struct ib_mr *reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 iova, int fd, int access,
					struct uverbs_attr_bundle *attrs)
{
	return reg_dmabuf(pd, offset, length, iova, fd, access);
}
#else
static struct ib_mr *reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 iova, int fd, int access,
					struct ib_dmah *dmah, struct uverbs_attr_bundle *attrs)
{
	return dmah ? ERR_PTR(-EOPNOTSUPP) : reg_dmabuf(pd, offset, length, iova, fd, access);
}
#endif

/* Beside rxe's own. */
const struct ib_device_ops adverb_rxe_ops = {
	.reg_user_mr_dmabuf = reg_user_mr_dmabuf,
};

ADVERB_IMPORT_DMA_BUF();
