"""Compile processes side by side: each gives the cubin it was asked for, not its neighbour's."""

from concurrent.futures import ThreadPoolExecutor

from planfreeze.cache.digest import digest_of
from planfreeze.family import family_of
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.key import source_roots
from planfreeze.sources import read_sources
from planfreeze.target import target
from planfreeze.workers import Task, Worker

TARGET = target("sm_90a")
ROUNDS = 12


def task(hidden: int) -> Task:
    payload = TopkSumPayload(hidden=hidden, top_k=2)
    family = family_of(payload)
    return Task(family.reference, payload, TARGET, read_sources(source_roots(family, family.define(payload, TARGET))))


def compile_repeatedly(hidden: int, rounds: int) -> set[str]:
    """Compile one program again and again in one worker; return the digests it got."""
    with Worker(TARGET) as worker:
        return {digest_of(worker.compile(task(hidden)).cubin) for _ in range(rounds)}


def test_two_variants_of_a_kernel_compiled_at_once_keep_their_cubins() -> None:
    # The DSL writes cubins of all variants under one file name and reads them back from there.
    alone = [compile_repeatedly(hidden, 1) for hidden in (256, 512)]
    with ThreadPoolExecutor() as threads:
        together = list(threads.map(compile_repeatedly, (256, 512), (ROUNDS, ROUNDS)))
    assert together == alone
    assert alone[0] != alone[1]
