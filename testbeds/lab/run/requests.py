"""A spec of kind `requests`: the caches it names on its trace, as rows of the results.

Policies are evictions here, and there is nothing to prefetch: what decides a hit is what was
kept. No part is kept on disk, since a row takes a fraction of a second.
"""

import msgspec

from offstage.testbeds.lab.results.summary import RequestsRow
from offstage.testbeds.lab.run.source import trace_path
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.progress import Progress

__all__ = ["requests_of"]


def requests_of(spec: Spec, progress: Progress) -> list[RequestsRow]:
    """Every eviction at every capacity, admission and TTL of the spec."""
    from offstage.testbeds.lab.bounds.prefix import RequestsOptions, run_requests

    work = spec.workload
    options = RequestsOptions(
        traces=(trace_path(work.file),),
        time_unit=work.time_unit or None,
        evictions=tuple(dict.fromkeys(one.eviction or one.use for one in spec.policy)),
        admissions=work.admission,
        ttls_s=tuple(one or None for one in work.ttl_s),
        capacity_shares=work.capacity_share,
        seed=spec.seeds[0],
        warm_up_share=work.warm_up_share,
    )
    names = [one.name for one in msgspec.structs.fields(RequestsRow)]
    return [
        RequestsRow(**{name: getattr(row, name) for name in names})
        for row in run_requests(options, progress).rows
    ]
