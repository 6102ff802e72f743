"""Argument records of kernels: names of their 8-byte words, as byte offsets.

Python writes a record through these names and kernels read it through the same ones. Every word is
an int64; floats travel as the bits of a float64. Knows no numba.
"""

from collections import namedtuple
from typing import Any


def record(words: str, first: int = 0, apart: int = 8) -> Any:
    """Byte offsets of a record's words, by name.

    Where there is a step, kernels find it in the first word.
    """
    names = words.split()
    return namedtuple("Record", names)(*range(first, first + apart * len(names), apart))


BARRIER = 1
"""Flag of a plan's row: all threads wait for each other after it."""
COUNTER_BYTES = 64
"""From one thread's claim counter to the next: a cache line each."""
ATTENTION_CHUNK = 256
"""Positions that attention works off at once."""
PARTIAL_HEADER = 8
"""f32 words before a partial result of attention: maximum, sum, and six unused ones that keep it
aligned."""
SCORES = "softmax", "sigmoid", "softmax of chosen"
"""How experts are scored, see ``engine.config.Router``; files number them so, from 1 on."""
EXPERT_BYTES = 64
"""Of an entry in the table of experts in use."""
EACH_BYTES = 256
"""Room of a thread for the record of one expert."""
STRIP = 32
"""Columns of a recurrent layer's matrix that are worked off at once."""
LOOK_PAGES = 1
LOOK_NEAR = 2
LOOK_APART = 4
"""Flags of how decode reads ahead: also the first lines of each page; into the first level of the
cache, not the second; four rows at a time that are a quarter of a claim apart, so that memory is
read in four places."""
LOOK_FLAGS = LOOK_PAGES | LOOK_NEAR | LOOK_APART
WIDEST_TILE_TOKENS = 16
"""Prefill kernels multiply four columns at once, or sixteen, so every buffer has room for 15 that
do not exist."""
MATMUL_SCRATCH_BYTES = 128 << 10
"""Limit on the tiles and sums of one thread, for any prefill kernel."""
STEP = record("n_tokens start_pos tokens column slot")
"""Values that change from one walk of the plan to the next; rows may have a record of their own.

``slot`` is which of its two slots a recurrent state is read from; the other one is written.
"""
EMBED = record("step weights row_bytes n_blocks out dim")
"""Rows of the token embedding, dequantised: out[(token), dim] f32."""
RMSNORM = record("step x weight out dim eps bias")
"""out[(token), dim] = x / rms(x) * weight, + bias unless that is 0, f32; of ``layernorm`` x - mean
for x."""
QUANTIZE = record("step x n q d sums")
"""int8 activations: q[(token), n], scales d f32, sums of groups."""
SUMS_K_BYTES = 48
SUMS_OF_32 = 32
"""Of 256 activations in q8_k form: bytes of their int16 sums; those of 16 come first, and those of
32 begin here."""
MATMUL = record(
    "step weights row_bytes n_rows n_cols q d sums out out_stride add add_stride scratch "
    "scratch_bytes claims ahead"
)
"""out[(token), n_rows] = weights @ x (+ add). ``add`` is 0, a bias, or the residual itself.

``n_rows`` may be a part of the matrix; then ``weights``, ``out`` and ``add`` point at its first
row, and ``out_stride`` still counts the rows of the whole. ``ahead``: how decode asks for lines
ahead, a choice of ``engine.plan.lookahead``.
"""
CLAIMS = record("address n_bytes step")
"""The counters of all operations of a plan whose rows are claimed: ``n_bytes``, a multiple of
64."""
ANGLES = record("step frequencies n_pairs out magnitude growth span")
"""cos and sin of every rotated pair: out[(token), 2, n_pairs] f32. ``frequencies`` are f64.

Both are multiplied by ``magnitude * (1 + growth * ln(1 + floor(position / span)))``.
"""
ROPE = record("step x n_heads head_dim n_pairs angles pair_step pair_distance weight eps out")
"""Rotate x[(token), n_heads, head_dim] into out; ``weight`` is of a norm of each head before, or 0,
in place."""
CACHE = record(
    "step x v n_heads n_kv_heads head_dim k_cache v_cache k_scales v_scales out scratch "
    "scratch_bytes scale "
    "max_chunks first_kv_head end_kv_head window soft_cap n_slots sinks slopes after"
)
"""One layer's KV cache, wherever k, v or a query meet it.

``window`` is how many positions a query sees, or 0 for all; ``soft_cap`` caps scores, or is 0.0
(all bits zero). Position p is in slot ``p % n_slots``: all of the context, or a ring of whole
chunks of attention. ``sinks`` is 0 or holds one more score for each head, f32. ``slopes`` is 0 or
holds what each head's scores lose for every position of distance, f32. ``after`` is how many
positions after its own a query sees, if the step has them.
"""
HADAMARD = record("step x n_heads head_dim block factor")
"""x[(token), n_heads, head_dim] f32, each ``block`` of it times a Hadamard matrix; ``factor`` is
block ** -0.5."""
CHOOSE = record(
    "step logits bias n_experts n_used score renormalised scale n_groups n_groups_used ids "
    "weights scratch "
    "scratch_bytes factors"
)
"""Each token's experts: ids[(token), n_used] i32 and weights f32, of logits[(token), n_experts]
f32.

``bias`` is 0 or is added to the scores for the choice alone; ``score`` is a place in ``SCORES``.
``factors`` is 0 or what each expert's weight is multiplied by at last.
"""
GROUP = record(
    "step ids n_experts n_used columns table pad room claims claims_bytes n_claims row_claims_bytes"
)
"""Tokens by expert: a table of the experts in use, and columns[(token), n_used] i32, each token's
among them.

The table's first word is the number of its entries (``EXPERT``), which begin ``EXPERT_BYTES`` after
it. An expert's first column is a multiple of ``pad``. Its counters of claims, ``claims_bytes`` in
each of ``n_claims`` rows, are set to zero. ``room`` holds an int64 for each expert.
"""
EXPERT = record("n_tokens start_pos tokens column number first")
"""An expert in use; begins as a step record, whose tokens are those that chose it."""
EACH = record("kernel table patches n_patches room", first=128)
"""Run a kernel once for each expert in use, with its own record, which these words come after.

A patch is four words: a word's offset in the record, and what is added to it times the expert's
number, its first column, and its place in the table. ``room`` holds ``EACH_BYTES`` for each thread.
"""
ASK = record("step table slabs n_slabs")
"""Ask for the weights of the experts in use: ``slabs`` are n_slabs times (address, bytes of one
expert)."""
STREAM = record("step next next_bytes last last_bytes")
"""Ask for the pages of one matrix and drop those of another; bytes are 0 where there is none."""
SPREAD = record("step x columns n_used out dim")
"""out[columns] = x[(token), dim], once for each of a token's experts."""
JOIN = record("step parts columns weights n_used n shared shared_gate out add add_stride")
"""out[(token), n] = sum of weights times parts[columns] (+ shared) (+ add), f32.

``shared`` is 0 or [(token), n]; it is multiplied by the sigmoid of shared_gate[(token)] unless that
is 0.
"""
CONVOLUTION = record(
    "step x stride n_channels taps weights bias state slot_bytes values gate out head_dim "
    "n_normed n_scaled scale eps"
)
"""Causal convolution of each channel of x[(token), stride] by itself, f32, in place; then what the
kernel adds.

``weights`` are [taps][n_channels], ``bias`` is 0 or [n_channels]. ``state`` holds the last taps - 1
inputs, [taps - 1][n_channels], in each of two slots that are ``slot_bytes`` apart. ``gate`` and
``values`` are what a short convolution multiplies with, laid out as x; ``out`` is its result,
[(token), n_channels]. Of heads of ``head_dim`` the first ``n_normed`` get unit length, and the
first ``n_scaled`` of these the length ``scale``.
"""
SCAN = record(
    "step q k v stride n_rows head_dim n_heads n_key_heads is_grouped decay rate skip state "
    "slot_bytes out"
)
"""A matrix of n_rows x head_dim for each head that takes in keys and values and answers queries,
see ``scan.py``.

``q``, ``k``, ``v`` are in rows of ``stride`` floats, those of the key heads ``n_rows`` wide.
``decay`` and ``rate`` are [(token), n_heads], ``skip`` is [n_heads], out [(token), n_heads,
head_dim]. ``is_grouped``: a key head goes with neighbouring heads, else with every
``n_key_heads``-th.
"""
RATES = record("step time stride bias factor raw n_heads decay rate n_together pitch")
"""decay[(token), n_heads] = exp(softplus(time + bias) * factor), and rate.

``raw`` is 0, or what the rate is the sigmoid of. ``time`` and ``raw`` are in rows of ``stride``
floats, those of every ``n_together`` heads ``pitch`` floats after those of the heads before.
"""
GATED_NORM = record("step x gate gate_stride n_heads head_dim weight weight_step eps gate_first")
"""x[(token), n_heads, head_dim] = norm(x) * silu(gate), or norm(x * silu(gate)) where
``gate_first`` is 1.

``gate`` is in rows of ``gate_stride`` floats; ``weight`` is 0 for no norm; ``weight_step`` is in
bytes from one head's weights to the next one's.
"""
GATE = record("step gate up n up_stride")
"""gate[(token), n] = f(gate) * up, f32, in place; f is the kernel's.

Where a layer has no gate, both addresses are those of ``up``, and the kernel computes f(up) alone.
``up_stride``: from one token's ``up`` to the next, in elements.
"""
XIELU = record("step up n above below slope bound")
"""up[(token), n] = f(up), f32, in place; the rest are f's parameters, see
``engine.config.Xielu``."""
ADD = record("step x branch n weight eps")
"""x[(token), n] += branch, or rmsnorm(branch) where ``weight`` is not 0."""
SCALE = record("step x n factor by")
"""x[(token), n] *= factor, in place; as a soft cap, x = factor * tanh(x / factor); as a clamp, x
within +-factor.

``by`` is 0 or the address of a float32 that a factor is multiplied by.
"""
COPY = record("step x x_stride x_step out out_stride out_step n n_heads")
"""out = n f32 of each head of x; strides are from token to token, steps from head to head, in
elements."""
ADD_POSITIONS = record("step x dim table n_rows")
"""x[(token), dim] += the row of its position in a table of ``n_rows``; those after the last have
the last."""
TAKE_TOKEN = record("step x out dim")
"""Copy the step's column of x[(token), dim] to out."""
PROBE = record("address n_bytes out n_places")
"""Read ``n_bytes`` (a multiple of 4096) and leave something that depends on all of them, per
thread, in ``out``.

``n_places``, 1 or 4, that a thread reads in turn.
"""
CREW = record(
    "arrived epoch cancel job sleepers waiters table n_operations times cancelled", apart=128
)
"""What the threads of a crew share; its words are 128 bytes apart, so that no two share a cache
line.

Barrier counter, barrier epoch, cancel flag, job word, those asleep between jobs and at a barrier;
the job itself, and for the first thread where its times go; and whether it was cancelled.
"""
CREW_BYTES = 128 * len(CREW)
QUIT = 255
"""The thread count of a job that sends every follower home."""
LOGITS = record("logits n out result")
"""The place of the largest of ``n`` f32 logits; or a copy of them in ``out``, and 1 if all are
finite."""
DRAW = record(
    "logits n temperature top_k top_p min_p top_n_sigma typical_p xtc_probability "
    "xtc_threshold state floats ints "
    "mass result"
)
"""A token drawn of ``n`` f32 logits, -1 where one is NaN or infinite: see
``sampling_kernels.draw``."""
PENALISE = record("logits recent n counts n_vocab repeat frequency presence")
"""Make ``n`` i32 tokens less likely: see ``repetition_kernels.penalise``."""
REPEATS = record("recent n limit least lengths longest n_vocab found result")
"""How many tokens would go on with a repetition: see ``repetition_kernels.find_repeats``."""
