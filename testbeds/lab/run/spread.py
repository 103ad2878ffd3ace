"""Compute independent pieces of work in this process, on the cores of this machine or on a dask
cluster, and yield them in order of completion.

The death of a process ends the run. Use `execute.py` for pieces that may need too much memory: it
splits them and continues.
"""

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from offstage.bindings.errors import NoAnswer, OffstageError, RunFailed
from offstage.testbeds.lab.run.cluster import open_cluster

__all__ = ["spread"]

P = TypeVar("P")
R = TypeVar("R")
Results = Generator[tuple[P, R], None, None]


def spread(
    pieces: Sequence[P],
    work: Callable[[P], R],
    *,
    jobs: int,
    cluster: str,
    there: Callable[[P], R],
    command: str,
    fix: str,
) -> Results[P, R]:
    """Run `work` in `jobs` processes of this machine, or `there` on the workers of `cluster` ("":
    none); both are pickled. RunFailed, with `fix`: a process died, or the cluster is gone."""
    if cluster:
        return _on_cluster(pieces, there, cluster, fix)
    if jobs == 1 or len(pieces) <= 1:
        return ((piece, work(piece)) for piece in pieces)
    return _on_machine(pieces, work, jobs, command, fix)


def _on_machine(
    pieces: Sequence[P], work: Callable[[P], R], jobs: int, command: str, fix: str
) -> Results[P, R]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(jobs, len(pieces)), context) as pool:
        futures = {pool.submit(work, piece): piece for piece in pieces}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise RunFailed(
                "a worker process died", command, f"give it more memory; {fix}"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _on_cluster(
    pieces: Sequence[P], work: Callable[[P], R], address: str, fix: str
) -> Results[P, R]:
    """Workers must have the same Offstage, and traces and runs under the same paths."""
    distributed, opened = open_cluster(address)
    where = f"--cluster {address}"
    with opened as client, client.as_current():
        futures = {client.submit(work, piece, pure=False): piece for piece in pieces}
        try:
            for future in distributed.as_completed(list(futures)):
                yield futures[future], future.result()
        except OffstageError:
            raise
        except (concurrent.futures.CancelledError, OSError) as error:
            raise NoAnswer(
                f"the connection to the cluster was lost ({error})", where, fix
            ) from None
        except Exception as error:  # any error of the worker
            raise RunFailed(
                f"no worker could run the work ({type(error).__name__})",
                where,
                f"see the workers' logs; {fix}",
            ) from None
