/*
 * feedback.c: sets how much a tenant's prefetch may guess, from how its guesses ended.
 *
 * Model: feedback-directed prefetching (Srinath, Mutlu, Kim, Patt, HPCA 2007), per tenant. After
 * every OFS_FEEDBACK_SAMPLE ended guesses, accuracy sets the degree (halved when poor, one more
 * when good) and lateness the margin by which a read must be ahead of its need to be worth issuing.
 */
#include "internal.h"

#define FEEDBACK_SAMPLE 64
#define MARGIN_FIRST_NS 50000
#define MARGIN_MAX_NS 10000000

void
ofs_feedback_reset(struct ofs_core *core, uint32_t tenant)
{
	struct ofs_tenant *t = &core->tenants[tenant];

	t->degree = core->policy.degree_max;
	t->margin_ns = 0;
	t->fate_used = t->fate_late = t->fate_unused = 0;
}

static void
adjust_degree(const struct ofs_policy *policy, struct ofs_tenant *t, uint32_t accuracy_permille)
{
	uint32_t low = policy->accuracy_permille_min;
	uint32_t high = low > 500 ? 1000 : 2 * low; /* accuracy cannot exceed 1000 */

	if (low == 0)
		return;
	if (accuracy_permille < low)
		t->degree = t->degree > 1 ? t->degree / 2 : t->degree;
	else if (accuracy_permille >= high && t->degree < policy->degree_max)
		t->degree++;
}

static void
adjust_margin(const struct ofs_policy *policy, struct ofs_tenant *t, uint32_t lateness_permille)
{
	uint32_t high = policy->lateness_permille_max;

	if (high == 0)
		return;
	if (lateness_permille > high) {
		t->margin_ns = t->margin_ns ? 2 * t->margin_ns : MARGIN_FIRST_NS;
		if (t->margin_ns > MARGIN_MAX_NS)
			t->margin_ns = MARGIN_MAX_NS;
	} else if (lateness_permille <= high / 2) {
		t->margin_ns /= 2;
	}
}

void
ofs_feedback_fate(struct ofs_core *core, uint32_t tenant, uint32_t fate)
{
	struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t useful;

	t->fate_used += fate == OFS_FATE_USED;
	t->fate_late += fate == OFS_FATE_LATE;
	t->fate_unused += fate == OFS_FATE_UNUSED;
	useful = t->fate_used + t->fate_late;
	if (useful + t->fate_unused < FEEDBACK_SAMPLE)
		return;
	adjust_degree(&core->policy, t, useful * 1000 / (useful + t->fate_unused));
	if (useful)
		adjust_margin(&core->policy, t, t->fate_late * 1000 / useful);
	t->fate_used = t->fate_late = t->fate_unused = 0;
}
