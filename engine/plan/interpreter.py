"""Run of a plan's table by the threads of a crew, and their barriers. No Python between two
operations.

The threads share the state block. Its words are 128 bytes apart, so no two share a cache line.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import BARRIER, CREW, QUIT

ROW_BYTES = 24
ROW_KERNEL = 0
ROW_RECORD = 8
ROW_FLAGS = 16

SPIN_CYCLES = 200_000
"""Cycles to spin before sleeping, about 80 microseconds.

Longer than any imbalance, shorter than a time slice.
"""
LEAST_SPIN_CYCLES = 8_000
"""Lower limit of the spin, in cycles, while spinning does not help.

The awaited thread then has no core, and may need this one.
"""


@inner
def wait_at_barrier(state, n_threads, lead, spin):
    """Wait for all threads, spinning for ``spin`` cycles at first.

    Every wait that ends asleep halves the next spin, every other one doubles it. Only the lead
    reads the cancel flag; the last thread to arrive publishes the verdict with the epoch. If each
    thread read the flag, two could disagree, and the next barrier would never close.

    Returns:
        (1 if the run is cancelled, cycles of the next spin).
    """
    epoch = vec.atomic_load(state + CREW.epoch)
    arrival = 1
    if lead and vec.atomic_load(state + CREW.cancel) != 0:
        arrival = 1 + 256
    arrived = vec.atomic_add(state + CREW.arrived, arrival)
    if (arrived + arrival) & 255 == n_threads:
        vec.atomic_store(state + CREW.arrived, 0)
        verdict = 1 if arrived + arrival > 255 else 0
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
        # Asleep, not only yielding, so the system can move the awaited thread to this core.
        else:
            next_spin = max(spin >> 1, LEAST_SPIN_CYCLES)
            vec.atomic_add(state + CREW.waiters, 1)
            vec.sleep_while_equal(state + CREW.epoch, epoch & 0xFFFFFFFF)
            vec.atomic_add(state + CREW.waiters, -1)
        now = vec.atomic_load(state + CREW.epoch)
    return now & 1, next_spin


@inner
def run_table(table, n_operations, state, thread, n_threads):
    """Run the table's rows in order; return 1 if cancelled."""
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
def run_table_timed(table, n_operations, state, n_threads, times):
    """Run the table as the lead, and add the cycles of each row to ``times`` (n_operations int64).

    Barriers are included. Returns 1 if cancelled.
    """
    row_start = vec.cycles()
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
        vec.store_i64(times + 8 * i, vec.load_i64(times + 8 * i) + now - row_start)
        row_start = now
    return 0


@kernel
def lead(state, thread, n_threads):
    """Run the state's table with the crew, as its first thread, and store whether it was
    cancelled."""
    start_followers(state, n_threads)
    table = vec.load_i64(state + CREW.table)
    n_operations = vec.load_i64(state + CREW.n_operations)
    vec.store_i64(state + CREW.cancelled, run_table(table, n_operations, state, thread, n_threads))


@kernel
def lead_timed(state, thread, n_threads):
    """Run ``lead`` and measure the time of each row; ``lead`` itself has no code for it."""
    start_followers(state, n_threads)
    table = vec.load_i64(state + CREW.table)
    n_operations = vec.load_i64(state + CREW.n_operations)
    times = vec.load_i64(state + CREW.times)
    vec.store_i64(
        state + CREW.cancelled, run_table_timed(table, n_operations, state, n_threads, times)
    )


@inner
def start_followers(state, n_threads):
    """Start the job of the state if it needs followers."""
    if n_threads > 1:
        start_job(state, n_threads)


@inner
def start_job(state, n_threads):
    """Start a job for the first ``n_threads`` threads.

    Its number and the thread count are one word, so they are read together.
    """
    job = vec.atomic_load(state + CREW.job)
    vec.atomic_store(state + CREW.job, ((job >> 8) + 1) * 256 + n_threads)
    if vec.atomic_load(state + CREW.sleepers) != 0:
        vec.wake_all(state + CREW.job)


@kernel
def dismiss(state, thread, n_threads):
    """End all followers."""
    start_job(state, QUIT)


@kernel
def follow(state, thread, seen):
    """Work on every job that includes this thread until dismissed; sleep between jobs.

    Args:
        seen: Job word when the thread was started.
    """
    while True:
        job = next_job(state, seen)
        seen = job
        n_threads = job & 255
        if n_threads == QUIT:
            return
        if thread < n_threads:
            run_table(
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
