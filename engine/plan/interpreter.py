"""The walk over the plan, and how the crew's threads wait for each other. No Python between two
operations.

The state block is shared by all threads of a crew; its words are 128 bytes apart, so that no two
share a cache line.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import BARRIER, CREW, QUIT

ROW_BYTES = 24
ROW_KERNEL = 0
ROW_RECORD = 8
ROW_FLAGS = 16

SPIN_CYCLES = 200_000
"""About 80 microseconds: longer than any imbalance, shorter than a time slice."""
LEAST_SPIN_CYCLES = 8_000
"""Least spin, in cycles, while spinning does not help: the awaited thread has no core, perhaps
needs this one."""


@inner
def wait_at_barrier(state, n_threads, lead, spin):
    """Wait for all threads, spinning for ``spin`` cycles; returns whether the walk is cancelled,
    and the next spin.

    Every wait that ends asleep halves the next spin, every other doubles it.

    Only the lead looks at the cancel flag, and the last to arrive publishes its verdict with the
    epoch: were each to look for itself, two could disagree and the next barrier would never close.
    """
    epoch = vec.atomic_load(state + CREW.epoch)
    arrival = 1
    if lead and vec.atomic_load(state + CREW.cancel) != 0:
        arrival = 1 + 256
    before = vec.atomic_add(state + CREW.arrived, arrival)
    if (before + arrival) & 255 == n_threads:
        vec.atomic_store(state + CREW.arrived, 0)
        verdict = 1 if before + arrival > 255 else 0
        vec.atomic_store(state + CREW.epoch, ((epoch >> 1) + 1) * 2 + verdict)
        if vec.atomic_load(state + CREW.waiters) != 0:
            vec.wake_all(state + CREW.epoch)
        return verdict, spin
    begin = vec.cycles()
    next_spin = min(2 * spin, SPIN_CYCLES)
    now = vec.atomic_load(state + CREW.epoch)
    while now == epoch:
        if vec.cycles() - begin < spin:
            vec.pause()
        # asleep, not only yielding: the system can then move the thread it waits for to this core
        else:
            next_spin = max(spin >> 1, LEAST_SPIN_CYCLES)
            vec.atomic_add(state + CREW.waiters, 1)
            vec.sleep_while_equal(state + CREW.epoch, epoch & 0xFFFFFFFF)
            vec.atomic_add(state + CREW.waiters, -1)
        now = vec.atomic_load(state + CREW.epoch)
    return now & 1, next_spin


@inner
def walk(table, n_operations, state, thread, n_threads):
    """Run the table's rows in order; returns 1 if cancelled."""
    spin = SPIN_CYCLES
    for i in range(n_operations):
        row = table + i * ROW_BYTES
        vec.call_kernel(
            vec.load_i64(row + ROW_KERNEL), vec.load_i64(row + ROW_RECORD), thread, n_threads
        )
        if vec.load_i64(row + ROW_FLAGS) & BARRIER:
            cancelled, spin = wait_at_barrier(state, n_threads, thread == 0, spin)
            if cancelled:
                return 1
    return 0


@inner
def walk_timed(table, n_operations, state, n_threads, times):
    """``walk`` for the lead, adding each row's cycles, barrier included, to ``times`` (n_operations
    int64)."""
    before = vec.cycles()
    spin = SPIN_CYCLES
    for i in range(n_operations):
        row = table + i * ROW_BYTES
        vec.call_kernel(
            vec.load_i64(row + ROW_KERNEL), vec.load_i64(row + ROW_RECORD), 0, n_threads
        )
        if vec.load_i64(row + ROW_FLAGS) & BARRIER:
            cancelled, spin = wait_at_barrier(state, n_threads, True, spin)
            if cancelled:
                return 1
        now = vec.cycles()
        vec.store_i64(times + 8 * i, vec.load_i64(times + 8 * i) + now - before)
        before = now
    return 0


@kernel
def lead(state, thread, n_threads):
    """Run one walk of the state's table with the crew, as its first thread, and note whether it was
    cancelled."""
    call_followers(state, n_threads)
    table = vec.load_i64(state + CREW.table)
    n_operations = vec.load_i64(state + CREW.n_operations)
    vec.store_i64(state + CREW.cancelled, walk(table, n_operations, state, thread, n_threads))


@kernel
def lead_timed(state, thread, n_threads):
    """``lead`` that also notes where the time goes; the plain variant carries no trace of it."""
    call_followers(state, n_threads)
    table = vec.load_i64(state + CREW.table)
    n_operations = vec.load_i64(state + CREW.n_operations)
    times = vec.load_i64(state + CREW.times)
    vec.store_i64(state + CREW.cancelled, walk_timed(table, n_operations, state, n_threads, times))


@inner
def call_followers(state, n_threads):
    """Start the job that the state names, if any follower is wanted."""
    if n_threads > 1:
        call_crew(state, n_threads)


@inner
def call_crew(state, n_threads):
    """Start a job for the first ``n_threads`` threads: its number and their count are one word,
    read in one go."""
    job = vec.atomic_load(state + CREW.job)
    vec.atomic_store(state + CREW.job, ((job >> 8) + 1) * 256 + n_threads)
    if vec.atomic_load(state + CREW.sleepers) != 0:
        vec.wake_all(state + CREW.job)


@kernel
def dismiss(state, thread, n_threads):
    """Send every follower home."""
    call_crew(state, QUIT)


@kernel
def follow(state, thread, seen):
    """Work on every job that wants this thread until dismissed; sleeps between jobs.

    Args:
        seen: the job word when the thread was hired.
    """
    while True:
        job = next_job(state, seen)
        seen = job
        n_threads = job & 255
        if n_threads == QUIT:
            return
        if thread < n_threads:
            walk(
                vec.load_i64(state + CREW.table),
                vec.load_i64(state + CREW.n_operations),
                state,
                thread,
                n_threads,
            )


@inner
def next_job(state, seen):
    """Wait until the job word changes: spin, then sleep."""
    begin = vec.cycles()
    job = vec.atomic_load(state + CREW.job)
    while job == seen:
        if vec.cycles() - begin < SPIN_CYCLES:
            vec.pause()
        else:
            vec.atomic_add(state + CREW.sleepers, 1)
            vec.sleep_while_equal(state + CREW.job, seen & 0xFFFFFFFF)
            vec.atomic_add(state + CREW.sleepers, -1)
        job = vec.atomic_load(state + CREW.job)
    return job
