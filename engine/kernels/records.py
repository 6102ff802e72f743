"""Argument records of kernels: names of their 8-byte words, as byte offsets.

Python writes a record through these names and kernels read it through the same ones. Every word is an int64; floats
travel as the bits of a float64. Knows no numba.
"""

from typing import NamedTuple

BARRIER = 1
"""Flag of a plan's row: all threads wait for each other after it."""
COUNTER_BYTES = 64
"""From one thread's claim counter to the next: a cache line each."""
ATTENTION_CHUNK = 256
"""Positions that attention works off at once."""
PARTIAL_HEADER = 8
"""f32 words before a partial result of attention: maximum, sum, and six unused ones that keep it aligned."""
SCORES = "softmax", "sigmoid", "softmax of chosen"
"""How experts are scored, see ``engine.config.Router``; files number them so, from 1 on."""
EXPERT_BYTES = 64
"""Of an entry in the table of experts in use."""
EACH_BYTES = 256
"""Room of a thread for the record of one expert."""
STRIP = 32
"""Columns of a recurrent layer's matrix that are worked off at once."""
LOOK_PAGES, LOOK_NEAR, LOOK_APART = 1, 2, 4
"""Flags of how decode reads ahead: also the first lines of each page; into the first level of the cache, not the
second; four rows at a time that are a quarter of a claim apart, so that memory is read in four places."""
LOOK_FLAGS = LOOK_PAGES | LOOK_NEAR | LOOK_APART
MOST_COLUMNS_AT_ONCE = 16
"""Prefill kernels multiply four columns at once, or sixteen, so every buffer has room for 15 that do not exist."""
MATMUL_SCRATCH_BYTES = 128 << 10
"""Limit on the tiles and sums of one thread, for any prefill kernel."""


class Step(NamedTuple):
    """Values that change from one walk of the plan to the next; rows may have a record of their own.

    ``slot`` is which of its two slots a recurrent state is read from; the other one is written.
    """

    n_tokens: int = 0
    start_pos: int = 8
    tokens: int = 16
    column: int = 24
    slot: int = 32


class Embed(NamedTuple):
    """Rows of the token embedding, dequantised: out[(token), dim] f32."""

    step: int = 0
    weights: int = 8
    row_bytes: int = 16
    n_blocks: int = 24
    out: int = 32
    dim: int = 40


class RmsNorm(NamedTuple):
    """out[(token), dim] = x / rms(x) * weight, f32; of ``layernorm`` x - mean for x, and + bias unless that is 0.

    ``biased rmsnorm`` has a bias, too.
    """

    step: int = 0
    x: int = 8
    weight: int = 16
    out: int = 24
    dim: int = 32
    eps: int = 40
    bias: int = 48


class Quantize(NamedTuple):
    """int8 activations: q[(token), n], scales d f32, sums of groups."""

    step: int = 0
    x: int = 8
    n: int = 16
    q: int = 24
    d: int = 32
    sums: int = 40


class Matmul(NamedTuple):
    """out[(token), n_rows] = weights @ x (+ add). ``add`` is 0, a bias, or the residual itself.

    ``n_rows`` may be a part of the matrix; then ``weights``, ``out`` and ``add`` point at its first row, and
    ``out_stride`` still counts the rows of the whole. ``ahead``: how decode asks for lines ahead, a choice of
    ``engine.plan.lookahead``.
    """

    step: int = 0
    weights: int = 8
    row_bytes: int = 16
    n_rows: int = 24
    n_cols: int = 32
    q: int = 40
    d: int = 48
    sums: int = 56
    out: int = 64
    out_stride: int = 72
    add: int = 80
    add_stride: int = 88
    scratch: int = 96
    scratch_bytes: int = 104
    claims: int = 112
    ahead: int = 120


class Claims(NamedTuple):
    """The counters of all operations of a plan whose rows are claimed: ``n_bytes``, a multiple of 64."""

    address: int = 0
    n_bytes: int = 8
    step: int = 16


class Angles(NamedTuple):
    """cos and sin of every rotated pair: out[(token), 2, n_pairs] f32. ``frequencies`` are f64.

    ``scaled angles`` multiplies both by ``magnitude * (1 + growth * ln(1 + floor(position / span)))``.
    """

    step: int = 0
    frequencies: int = 8
    n_pairs: int = 16
    out: int = 24
    magnitude: int = 32
    growth: int = 40
    span: int = 48


class ApplyRope(NamedTuple):
    """Rotate x[(token), n_heads, head_dim] into out; ``weight`` is of a norm of each head before, or 0, in place."""

    step: int = 0
    x: int = 8
    n_heads: int = 16
    head_dim: int = 24
    n_pairs: int = 32
    angles: int = 40
    pair_step: int = 48
    pair_distance: int = 56
    weight: int = 64
    eps: int = 72
    out: int = 80


class Cache(NamedTuple):
    """One layer's KV cache, wherever k, v or a query meet it.

    ``window`` is how many positions a query sees, or 0 for all; ``soft_cap`` caps scores, or is 0.0 (all bits zero).
    Position p is in slot ``p % n_slots``: all of the context, or a ring of whole chunks of attention. ``sinks`` is 0
    or holds one more score for each head, f32. ``slopes`` is 0 or holds what each head's scores lose for every
    position of distance, f32. ``after`` is how many positions after its own a query sees, if the step has them.
    """

    step: int = 0
    x: int = 8
    v: int = 16
    n_heads: int = 24
    n_kv_heads: int = 32
    head_dim: int = 40
    k_cache: int = 48
    v_cache: int = 56
    k_scales: int = 64
    v_scales: int = 72
    out: int = 80
    scratch: int = 88
    scratch_bytes: int = 96
    scale: int = 104
    max_chunks: int = 112
    first_kv_head: int = 120
    end_kv_head: int = 128
    window: int = 136
    soft_cap: int = 144
    n_slots: int = 152
    sinks: int = 160
    slopes: int = 168
    after: int = 176


class Hadamard(NamedTuple):
    """x[(token), n_heads, head_dim] f32, each ``block`` of it times a Hadamard matrix; ``factor`` is block ** -0.5."""

    step: int = 0
    x: int = 8
    n_heads: int = 16
    head_dim: int = 24
    block: int = 32
    factor: int = 40


class Choose(NamedTuple):
    """Each token's experts: ids[(token), n_used] i32 and weights f32, of logits[(token), n_experts] f32.

    ``bias`` is 0 or is added to the scores for the choice alone; ``score`` is a place in ``SCORES``. ``factors`` is 0
    or what each expert's weight is multiplied by at last.
    """

    step: int = 0
    logits: int = 8
    bias: int = 16
    n_experts: int = 24
    n_used: int = 32
    score: int = 40
    renormalised: int = 48
    scale: int = 56
    n_groups: int = 64
    n_groups_used: int = 72
    ids: int = 80
    weights: int = 88
    scratch: int = 96
    scratch_bytes: int = 104
    factors: int = 112


class Group(NamedTuple):
    """Tokens by expert: a table of the experts in use, and columns[(token), n_used] i32, each token's among them.

    The table's first word is the number of its entries (``Expert``), which begin ``EXPERT_BYTES`` after it. An
    expert's first column is a multiple of ``pad``. Its counters of claims, ``claims_bytes`` in each of ``n_claims``
    rows, are set to zero. ``room`` holds an int64 for each expert.
    """

    step: int = 0
    ids: int = 8
    n_experts: int = 16
    n_used: int = 24
    columns: int = 32
    table: int = 40
    pad: int = 48
    room: int = 56
    claims: int = 64
    claims_bytes: int = 72
    n_claims: int = 80
    row_claims_bytes: int = 88


class Expert(NamedTuple):
    """An expert in use; begins as a step record, whose tokens are those that chose it."""

    n_tokens: int = 0
    number: int = 32
    first: int = 40


class Each(NamedTuple):
    """Run a kernel once for each expert in use, with its own record, which these words come after.

    A patch is four words: a word's offset in the record, and what is added to it times the expert's number, its first
    column, and its place in the table. ``room`` holds ``EACH_BYTES`` for each thread.
    """

    kernel: int = 128
    table: int = 136
    patches: int = 144
    n_patches: int = 152
    room: int = 160


class AskSlabs(NamedTuple):
    """Ask for the weights of the experts in use: ``slabs`` are n_slabs times (address, bytes of one expert)."""

    step: int = 0
    table: int = 8
    slabs: int = 16
    n_slabs: int = 24


class Stream(NamedTuple):
    """Ask for the pages of one matrix and drop those of another; bytes are 0 where there is none."""

    step: int = 0
    next: int = 8
    next_bytes: int = 16
    last: int = 24
    last_bytes: int = 32


class Spread(NamedTuple):
    """out[columns] = x[(token), dim], once for each of a token's experts."""

    step: int = 0
    x: int = 8
    columns: int = 16
    n_used: int = 24
    out: int = 32
    dim: int = 40


class Join(NamedTuple):
    """out[(token), n] = sum of weights times parts[columns] (+ shared) (+ add), f32.

    ``shared`` is 0 or [(token), n]; it is multiplied by the sigmoid of shared_gate[(token)] unless that is 0.
    """

    step: int = 0
    parts: int = 8
    columns: int = 16
    weights: int = 24
    n_used: int = 32
    n: int = 40
    shared: int = 48
    shared_gate: int = 56
    out: int = 64
    add: int = 72
    add_stride: int = 80


class Convolution(NamedTuple):
    """Causal convolution of each channel of x[(token), stride] by itself, f32, in place; then what the kernel adds.

    ``weights`` are [taps][n_channels], ``bias`` is 0 or [n_channels]. ``state`` holds the last taps - 1 inputs,
    [taps - 1][n_channels], in each of two slots that are ``slot_bytes`` apart. ``gate`` and ``values`` are what a short
    convolution multiplies with, laid out as x; ``out`` is its result, [(token), n_channels]. Of heads of ``head_dim``
    the first ``n_normed`` get unit length, and the first ``n_scaled`` of these the length ``scale``.
    """

    step: int = 0
    x: int = 8
    stride: int = 16
    n_channels: int = 24
    taps: int = 32
    weights: int = 40
    bias: int = 48
    state: int = 56
    slot_bytes: int = 64
    values: int = 72
    gate: int = 80
    out: int = 88
    head_dim: int = 96
    n_normed: int = 104
    n_scaled: int = 112
    scale: int = 120
    eps: int = 128


class ScanState(NamedTuple):
    """A matrix of n_rows x head_dim for each head that takes in keys and values and answers queries, see ``scan.py``.

    ``q``, ``k``, ``v`` are in rows of ``stride`` floats, those of the key heads ``n_rows`` wide. ``decay`` and ``rate``
    are [(token), n_heads], ``skip`` is [n_heads], out [(token), n_heads, head_dim]. ``is_grouped``: a key head goes
    with neighbouring heads, else with every ``n_key_heads``-th.
    """

    step: int = 0
    q: int = 8
    k: int = 16
    v: int = 24
    stride: int = 32
    n_rows: int = 40
    head_dim: int = 48
    n_heads: int = 56
    n_key_heads: int = 64
    is_grouped: int = 72
    decay: int = 80
    rate: int = 88
    skip: int = 96
    state: int = 104
    slot_bytes: int = 112
    out: int = 120


class Rates(NamedTuple):
    """decay[(token), n_heads] = exp(softplus(time + bias) * factor), and rate.

    ``raw`` is 0, or what the rate is the sigmoid of. ``time`` and ``raw`` are in rows of ``stride`` floats, those of
    every ``n_together`` heads ``pitch`` floats after those of the heads before.
    """

    step: int = 0
    time: int = 8
    stride: int = 16
    bias: int = 24
    factor: int = 32
    raw: int = 40
    n_heads: int = 48
    decay: int = 56
    rate: int = 64
    n_together: int = 72
    pitch: int = 80


class GatedNorm(NamedTuple):
    """x[(token), n_heads, head_dim] = norm(x) * silu(gate), or norm(x * silu(gate)) where ``gate_first`` is 1.

    ``gate`` is in rows of ``gate_stride`` floats; ``weight`` is 0 for no norm; ``weight_step`` is in bytes from one
    head's weights to the next one's.
    """

    step: int = 0
    x: int = 8
    gate: int = 16
    gate_stride: int = 24
    n_heads: int = 32
    head_dim: int = 40
    weight: int = 48
    weight_step: int = 56
    eps: int = 64
    gate_first: int = 72


class SplitProjection(NamedTuple):
    """left, right [(token), n_heads, head_dim] = the halves of every head of x[(token), n_heads, 2 head_dim]."""

    step: int = 0
    x: int = 8
    left: int = 16
    right: int = 24
    n_heads: int = 32
    head_dim: int = 40


class Gate(NamedTuple):
    """gate[(token), n] = f(gate) * up, f32, in place; or, where there is no gate, up = f(up). f is the kernel's.

    ``up_stride``: from one token's ``up`` of a gate to the next, in elements.
    """

    step: int = 0
    gate: int = 8
    up: int = 16
    n: int = 24
    up_stride: int = 32


class ApplyXielu(NamedTuple):
    """up[(token), n] = f(up), f32, in place; the rest are f's parameters, see ``engine.config.Xielu``."""

    step: int = 0
    up: int = 16
    n: int = 24
    above: int = 32
    below: int = 40
    slope: int = 48
    bound: int = 56


class Add(NamedTuple):
    """x[(token), n] += branch, or rmsnorm(branch) where ``weight`` is not 0."""

    step: int = 0
    x: int = 8
    branch: int = 16
    n: int = 24
    weight: int = 32
    eps: int = 40


class ScaleAll(NamedTuple):
    """x[(token), n] *= factor, in place; as a soft cap, x = factor * tanh(x / factor); as a clamp, x within +-factor.

    ``by`` is 0 or the address of a float32 that a factor is multiplied by.
    """

    step: int = 0
    x: int = 8
    n: int = 16
    factor: int = 24
    by: int = 32


class Copy(NamedTuple):
    """out = n f32 of each head of x; strides are from token to token, steps from head to head, in elements."""

    step: int = 0
    x: int = 8
    x_stride: int = 16
    x_step: int = 24
    out: int = 32
    out_stride: int = 40
    out_step: int = 48
    n: int = 56
    n_heads: int = 64


class AddPositions(NamedTuple):
    """x[(token), dim] += the row of its position in a table of ``n_rows``; those after the last have the last."""

    step: int = 0
    x: int = 8
    dim: int = 16
    table: int = 24
    n_rows: int = 32


class TakeColumn(NamedTuple):
    """Copy the step's column of x[(token), dim] to out."""

    step: int = 0
    x: int = 8
    out: int = 16
    dim: int = 24


class Probe(NamedTuple):
    """Read ``n_bytes`` (a multiple of 4096) and leave something that depends on all of them, per thread, in ``out``.

    ``n_places``, 1 or 4, that a thread reads in turn.
    """

    address: int = 0
    n_bytes: int = 8
    out: int = 16
    n_places: int = 24


class CrewWords(NamedTuple):
    """What the threads of a crew share; its words are 128 bytes apart, so that no two share a cache line.

    Barrier counter, barrier epoch, cancel flag, job word, those asleep between jobs and at a barrier; the job itself,
    and for the first thread where its times go; and whether it was cancelled.
    """

    arrived: int = 0
    epoch: int = 128
    cancel: int = 256
    job: int = 384
    sleepers: int = 512
    waiters: int = 640
    table: int = 768
    n_operations: int = 896
    times: int = 1024
    cancelled: int = 1152


CREW_BYTES = 128 * len(CrewWords())
QUIT = 255
"""The thread count of a job that sends every follower home."""


class LogitWords(NamedTuple):
    """The place of the largest of ``n`` f32 logits; or a copy of them in ``out``, and 1 if all are finite."""

    logits: int = 0
    n: int = 8
    out: int = 16
    result: int = 24


class Draw(NamedTuple):
    """A token drawn of ``n`` f32 logits, -1 where one is NaN or infinite: see ``sampling_kernels.draw``."""

    logits: int = 0
    n: int = 8
    temperature: int = 16
    top_k: int = 24
    top_p: int = 32
    min_p: int = 40
    top_n_sigma: int = 48
    typical_p: int = 56
    xtc_probability: int = 64
    xtc_threshold: int = 72
    state: int = 80
    floats: int = 88
    ints: int = 96
    mass: int = 104
    result: int = 112


class Penalise(NamedTuple):
    """Make ``n`` i32 tokens less likely: see ``repetition_kernels.penalise``."""

    logits: int = 0
    recent: int = 8
    n: int = 16
    counts: int = 24
    n_vocab: int = 32
    repeat: int = 40
    frequency: int = 48
    presence: int = 56


class Repeats(NamedTuple):
    """How many tokens would go on with a repetition: see ``repetition_kernels.find_repeats``."""

    recent: int = 0
    n: int = 8
    limit: int = 16
    least: int = 24
    lengths: int = 32
    longest: int = 40
    n_vocab: int = 48
    found: int = 56
    result: int = 64


STEP, EMBED, RMSNORM, QUANTIZE, MATMUL = Step(), Embed(), RmsNorm(), Quantize(), Matmul()
ANGLES, ROPE, CACHE, GATE, TAKE_COLUMN, PROBE = Angles(), ApplyRope(), Cache(), Gate(), TakeColumn(), Probe()
CLAIMS, ADD, SCALE, XIELU, COPY = Claims(), Add(), ScaleAll(), ApplyXielu(), Copy()
CHOOSE, GROUP, EXPERT, EACH, ASK, SPREAD, JOIN = Choose(), Group(), Expert(), Each(), AskSlabs(), Spread(), Join()
CONVOLUTION, SCAN, RATES, GATED_NORM, SPLIT = Convolution(), ScanState(), Rates(), GatedNorm(), SplitProjection()
STREAM, ADD_POSITIONS, HADAMARD = Stream(), AddPositions(), Hadamard()
CREW, LOGITS, DRAW, PENALISE, REPEATS = CrewWords(), LogitWords(), Draw(), Penalise(), Repeats()
