"""Argument records of kernels: names of their 8-byte words, as byte offsets.

Python writes a record and kernels read it by the same names. Every word is an int64; floats are the
bits of a float64. A word that is an address says what is there. Imports no numba.
"""

from collections import namedtuple
from typing import Any


def record(words: str, first: int = 0, step: int = 8) -> Any:
    """Return the byte offsets of a record's words, by name.

    If there is a step record, its address is the first word.
    """
    names = words.split()
    return namedtuple("Record", names)(*range(first, first + step * len(names), step))


BARRIER = 1
"""Flag of a plan's row: all threads wait for each other after it."""
COUNTER_BYTES = 64
"""Bytes from one thread's claim counter to the next: a cache line."""
ATTENTION_CHUNK = 256
"""Positions in a chunk of attention."""
PARTIAL_HEADER = 8
"""f32 words before a partial result of attention.

They are the maximum, the sum, and six unused ones for alignment.
"""
SCORES = "softmax", "sigmoid", "softmax of chosen"
"""Scores of experts, see ``engine.config.Router``; files number them in this order, from 1 on."""
EXPERT_BYTES = 64
"""Bytes of an entry in the table of experts in use."""
EACH_BYTES = 256
"""Bytes of a thread's record of one expert."""
STRIP = 32
"""Columns of a recurrent layer's matrix that are computed at once."""
LOOK_PAGES = 1
LOOK_NEAR = 2
LOOK_APART = 4
"""Flags of decode's prefetching.

``LOOK_PAGES``: prefetch the first lines of each page, too. ``LOOK_NEAR``: into the first level of
the cache instead of the second. ``LOOK_APART``: compute four rows at a time that are a quarter of a
claim apart, so that memory is read in four places.
"""
LOOK_FLAGS = LOOK_PAGES | LOOK_NEAR | LOOK_APART
WIDEST_TILE_TOKENS = 16
"""Limit on the tokens that prefill kernels multiply at once.

They multiply four or sixteen, so every buffer has 15 tokens of padding.
"""
MATMUL_SCRATCH_BYTES = 128 << 10
"""Limit on the tiles and sums of one thread, for any prefill kernel."""
STEP = record("n_tokens start_pos tokens index slot")
"""Values that change from one run of the plan to the next; rows may have a record of their own.

``index`` is the token of the block that ``take token`` copies. ``slot`` is the slot that a
recurrent state is read from, 0 or 1; the other one is written.
"""
EMBED = record("step weights row_bytes n_blocks out dim")
"""Rows of the token embedding, dequantised: out [tokens, dim] f32."""
RMSNORM = record("step x weight out dim eps bias")
"""out [tokens, dim] = x / rms(x) * weight + bias, f32; ``layernorm`` uses x - mean for x.

``bias`` is 0 if there is none.
"""
QUANTIZE = record("step x n q d sums")
"""int8 activations: q [tokens, n], scales d f32, and sums of groups."""
SUMS_K_BYTES = 48
SUMS_OF_32 = 32
"""Bytes of the int16 sums of 256 activations in q8_k form, and where in them those of 32 begin.

The sums of 16 come first.
"""
MATMUL = record(
    "step weights row_bytes n_rows n_cols q d sums out out_stride add add_stride scratch "
    "scratch_bytes claims ahead"
)
"""out [tokens, n_rows] = weights @ x (+ add), f32. ``add`` is 0, a bias, or the residual itself.

``n_rows`` may be a part of the matrix. Then ``weights``, ``out`` and ``add`` are the addresses of
its first row, and ``out_stride`` is still that of all rows. ``ahead`` is a choice of
``engine.plan.lookahead``: how decode prefetches.
"""
CLAIMS = record("address n_bytes step")
"""Claim counters of all operations of a plan; ``n_bytes`` is a multiple of 64."""
ANGLES = record("step frequencies n_pairs out magnitude growth span")
"""cos and sin of every rotated pair: out [tokens, 2, n_pairs] f32; ``frequencies`` are f64.

Both are multiplied by ``magnitude * (1 + growth * ln(1 + floor(position / span)))``.
"""
ROPE = record("step x n_heads head_dim n_pairs angles pair_step pair_distance weight eps out")
"""Rotation of x [tokens, n_heads, head_dim] into out.

``weight`` is that of a norm of each head before, or 0; then the rotation is in place.
"""
CACHE = record(
    "step x v n_heads n_kv_heads head_dim k_cache v_cache k_scales v_scales out scratch "
    "scratch_bytes scale "
    "max_chunks first_kv_head end_kv_head window soft_cap n_slots sinks slopes n_after"
)
"""KV cache of one layer, and the k, v or queries that meet it.

``window`` is the number of positions that a query sees, or 0 for all. ``soft_cap`` caps scores; all
its bits are 0 if there is no cap. Position p is in slot ``p % n_slots``: all of the context, or a
ring of full chunks of attention. ``sinks`` is 0 or the address of one more score for each head,
f32. ``slopes`` is 0 or the address of the slope of each head's scores, f32 per position of
distance. ``n_after`` is the number of positions after its own that a query sees, if the step has
them.
"""
HADAMARD = record("step x n_heads head_dim block factor")
"""x [tokens, n_heads, head_dim] f32, each ``block`` of it times a Hadamard matrix.

``factor`` is block ** -0.5.
"""
CHOOSE = record(
    "step logits bias n_experts n_used score renormalised scale n_groups n_groups_used ids "
    "weights scratch "
    "scratch_bytes factors"
)
"""Experts of each token: ids [tokens, n_used] i32 and weights f32, given logits [tokens, n_experts]
f32.

``bias`` is 0 or the address of numbers that are added to the scores for the choice alone. ``score``
is an index in ``SCORES``. ``factors`` is 0 or the address of factors of each expert's weight.
"""
GROUP = record(
    "step ids n_experts n_used slots table pad scratch claims claims_bytes n_claims "
    "row_claims_bytes"
)
"""Groups of tokens by expert: a table of the experts in use, and slots [tokens, n_used] i32.

The table's first word is its number of entries (``EXPERT``), which begin ``EXPERT_BYTES`` after it.
A slot is the place of a token among those of its expert; the first slot of an expert is a multiple
of ``pad``. An expert's claim counters, ``claims_bytes`` in each of ``n_claims`` rows, are set to
zero. ``scratch`` holds an int64 for each expert.
"""
EXPERT = record("n_tokens start_pos tokens index number first")
"""Expert in use. It begins as a step record whose tokens are those that chose the expert."""
EACH = record("kernel table patches n_patches scratch", first=128)
"""Words after a kernel's record that run the kernel once for each expert in use.

A patch is four words: the offset of a word in the record, and what is added to it times the
expert's number, its first slot, and its index in the table. ``scratch`` holds ``EACH_BYTES`` for
each thread.
"""
PREFETCH = record("step table slabs n_slabs")
"""Requests for the weights of the experts in use.

``slabs`` are ``n_slabs`` pairs of an address and the bytes of one expert.
"""
STREAM = record("step next next_bytes last last_bytes")
"""Requests for the pages of one matrix, while those of another are dropped.

Bytes are 0 if there is no such matrix.
"""
SPREAD = record("step x slots n_used out dim")
"""out[slots] = x [tokens, dim], once for each of a token's experts."""
SUM_EXPERTS = record("step results slots weights n_used n shared shared_gate out add add_stride")
"""out [tokens, n] = sum of weights times results[slots] (+ shared) (+ add), f32.

``shared`` is 0 or [tokens, n]. It is multiplied by the sigmoid of shared_gate [tokens], unless that
is 0.
"""
CONVOLUTION = record(
    "step x stride n_channels taps weights bias state slot_bytes values gate out head_dim "
    "n_normed n_scaled scale eps"
)
"""Causal convolution of each channel of x [tokens, stride] by itself, f32, in place.

``weights`` are [taps][n_channels], ``bias`` is 0 or [n_channels]. ``state`` holds the last taps - 1
inputs, [taps - 1][n_channels], in each of two slots that are ``slot_bytes`` apart. ``gate`` and
``values`` are factors of a short convolution, laid out as x; ``out`` is its result, [tokens,
n_channels]. Of heads of ``head_dim`` the first ``n_normed`` are scaled to unit length, and the
first ``n_scaled`` of these to the length ``scale``.
"""
SCAN = record(
    "step q k v stride n_rows head_dim n_heads n_key_heads is_grouped decay rate skip state "
    "slot_bytes out"
)
"""Recurrence of a matrix n_rows x head_dim for each head, see ``scan.py``.

``q``, ``k``, ``v`` are in rows of ``stride`` floats; key heads are ``n_rows`` wide. ``decay`` and
``rate`` are [tokens, n_heads], ``skip`` is [n_heads], out is [tokens, n_heads, head_dim]. If
``is_grouped``, a key head belongs to neighbouring heads, else to every ``n_key_heads``-th.
"""
RATES = record("step time stride bias factor raw n_heads decay rate n_together pitch")
"""decay [tokens, n_heads] = exp(softplus(time + bias) * factor), and rate.

``raw`` is 0, or the address of the inputs whose sigmoid is the rate. ``time`` and ``raw`` are in
rows of ``stride`` floats; those of each ``n_together`` heads are ``pitch`` floats after those of
the heads before.
"""
GATED_NORM = record("step x gate gate_stride n_heads head_dim weight weight_step eps gate_first")
"""x [tokens, n_heads, head_dim] = norm(x) * silu(gate), or norm(x * silu(gate)) if ``gate_first``
is 1.

``gate`` is in rows of ``gate_stride`` floats. ``weight`` is 0 if there is no norm. ``weight_step``
is in bytes from one head's weights to the next.
"""
GATE = record("step gate up n up_stride")
"""gate [tokens, n] = f(gate) * up, f32, in place; f is that of the kernel.

If a layer has no gate, both addresses are those of ``up``, and the kernel computes f(up) alone.
``up_stride`` is in elements from one token's ``up`` to the next.
"""
XIELU = record("step up n above below slope bound")
"""up [tokens, n] = f(up), f32, in place; the other words are parameters of f, see
``engine.config.Xielu``."""
ADD = record("step x branch n weight eps")
"""x [tokens, n] += branch, or rmsnorm(branch) if ``weight`` is not 0."""
SCALE = record("step x n factor by")
"""x [tokens, n] *= factor, in place; also soft cap and clamp.

The soft cap is x = factor * tanh(x / factor); the clamp limits x to +-factor. ``by`` is 0 or the
address of an f32 that a factor is multiplied by.
"""
COPY = record("step x x_stride x_step out out_stride out_step n n_heads")
"""out = n f32 of each head of x.

Strides are from token to token, steps from head to head, in elements.
"""
ADD_POSITIONS = record("step x dim table n_rows")
"""x [tokens, dim] += the row of each position in a table of ``n_rows``.

Positions beyond the last row get the last row.
"""
TAKE_TOKEN = record("step x out dim")
"""out = x[index] of x [tokens, dim]."""
PROBE = record("address n_bytes out n_streams")
"""Read of ``n_bytes`` (a multiple of 4096), with a result per thread in ``out`` that depends on all
of them.

``n_streams`` is the number of places, 1 or 4, that a thread reads in turn.
"""
CREW = record(
    "arrived epoch cancel job sleepers waiters table n_operations times cancelled", step=128
)
"""State that the threads of a crew share. Words are 128 bytes apart, so no two share a cache line.

Barrier counter, barrier epoch, cancel flag, job word, threads asleep between jobs and at a barrier;
the job itself, and the address of the first thread's times; and whether the job was cancelled.
"""
CREW_BYTES = 128 * len(CREW)
QUIT = 255
"""Thread count of a job that ends all followers."""
LOGITS = record("logits n out result")
"""Index of the largest of ``n`` f32 logits; or a copy of them in ``out``, and 1 if all are
finite."""
DRAW = record(
    "logits n temperature top_k top_p min_p top_n_sigma typical_p xtc_probability "
    "xtc_threshold state floats ints "
    "mass result"
)
"""Token drawn from ``n`` f32 logits, -1 if one is NaN or infinite; see
``sampling_kernels.draw``."""
PENALISE = record("logits recent n counts n_vocab repeat frequency presence")
"""Penalties of ``n`` i32 tokens, see ``repetition_kernels.penalise``."""
REPEATS = record("recent n limit min_length lengths longest n_vocab repeats result")
"""Number of tokens that would continue a repetition, see ``repetition_kernels.find_repeats``."""
