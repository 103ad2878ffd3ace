/* The simulation's hosts that send arbitrary data; see support_weather.h. */
#include "support_weather.h"

void
simulate_raw_collect(struct simulation *s, uint32_t h)
{
	struct ofs_fabric *fabric = s->hosts[h].fabric;
	struct ofs_cqe cqe;

	fabric->ops->pause(fabric, 1 + weather_below(&s->weather, 20000));
	while (fabric->ops->poll(fabric, &cqe, 1) == 1) {
		simulate_mix(s, (uint64_t)(int64_t)cqe.rc);
		CHECK(s->host_mad[h] || s->raw_flying[h] > 0);
		s->raw_flying[h]--;
	}
}

/* Commands of a malicious or broken host: each is answered and harms no one else. */
void
simulate_raw(struct simulation *s)
{
	uint32_t h = weather_below(&s->weather, HOSTS_MAX);
	static const uint16_t verbs[] = {0, OFS_VALUE_EXIST, OFS_VALUE_RETRIEVE, OFS_VALUE_LIST};
	struct weather *w = &s->weather;
	struct ofs_fabric *fabric;
	struct ofs_sqe sqe = {.user = s->step};
	uint32_t *words;

	if (!s->host_used[h] || !s->host_raw[h])
		return;
	fabric = s->hosts[h].fabric;
	sqe.op = (uint16_t)weather_below(w, 6);
	sqe.flags =
		sqe.op == OFS_OP_VALUES ? verbs[weather_below(w, 4)] : (uint16_t)weather_below(w, 3);
	sqe.layer = (uint16_t)weather_below(w, 5);
	sqe.payload_index = (uint16_t)weather_below(w, fabric->port.entry_count + 1);
	sqe.session = weather_below(w, SESSIONS_MAX + 2);
	sqe.demand_count = weather_below(w, s->world.config.core.demand_max + 2);
	sqe.score_count = weather_below(w, 8) ? weather_below(w, 8) : weather_below(w, UINT32_MAX);
	sqe.ordinal = weather_below(w, 8);
	sqe.put_slot = weather_below(w, fabric->port.put_slot_count + 1);
	sqe.length = weather_below(w, s->world.config.store.payload_size_bytes + 600);
	sqe.checksum = s->step;
	if (sqe.payload_index < fabric->port.entry_count) {
		words = fabric->ops->payload(fabric, sqe.payload_index);
		for (uint32_t i = 0; i < 64; i++)
			words[i] = weather_below(w, 3) == 0 ? weather_below(w, UINT32_MAX) : i % 9;
	}
	if (fabric->ops->submit(fabric, &sqe) == 0) {
		s->raw_flying[h]++;
		s->result.raw++;
	}
	if (weather_below(w, 40) == 0) { /* a tail that says nonsense */
		struct ofs_port *port = s->world.device->ports.entries[s->hosts[h].port].port;

		port->rings.words->submission_tail = weather_below(w, UINT32_MAX);
		s->host_mad[h] = true;
	}
	simulate_raw_collect(s, h);
}
