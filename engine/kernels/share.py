"""How the rows, columns or heads of one operation are dealt to the threads."""

from engine.jit import inner


@inner
def share(n, step, thread, n_threads):
    """Contiguous range of ``n`` items for one thread, borders at multiples of ``step``.

    Returns:
        (first, last): the thread's items are first <= i < last; empty ranges are possible.
    """
    groups = (n + step - 1) // step
    first = groups * thread // n_threads * step
    last = groups * (thread + 1) // n_threads * step
    return first, min(last, n)
