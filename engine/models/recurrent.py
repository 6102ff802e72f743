"""Recurrent mixers: their keys and tensors, and the steps that write them into a plan."""

from engine.config import DeltaNet, Mamba2, Recurrent, ShortConvolution
from engine.gguf.hyperparameters import Hyperparameters
from engine.kernels.records import STRIP
from engine.models import reading
from engine.models.decoder import Decoder
from engine.plan.buffers import Activations
from engine.plan.recurrent_rows import ConvolutionState, HeadLengths, ScanState
from engine.weights.weights import Tensor, TensorSpec

MAX_TAPS = 64


def taps(read: Hyperparameters, name: str) -> int:
    """Read the number of inputs of an output of a convolution."""
    return read.integer(name, 2, MAX_TAPS)


def delta_net_of(read: Hyperparameters, is_grouped: bool = False) -> DeltaNet:
    """Read a gated delta net.

    Raises:
        EngineError: The heads contradict each other, or kernels do not support their width.
    """
    head_dim = read.integer("ssm.state_size", 1, reading.MAX_HEAD_DIM)
    if head_dim % STRIP:
        raise read.fail(
            f"{read.key('ssm.state_size')} is {head_dim}: must be a multiple of {STRIP}"
        )
    n_keys = _heads(read, "ssm.group_count")
    n_values = _heads(read, "ssm.time_step_rank")
    if n_values % n_keys:
        groups = read.key("ssm.group_count")
        raise read.fail(
            f"{groups} is {n_keys}, which does not divide {read.key('ssm.time_step_rank')} "
            f"{n_values}"
        )
    inner = read.integer("ssm.inner_size", 1, reading.MAX_DIM)
    if inner != n_values * head_dim:
        raise read.fail(
            f"{read.key('ssm.inner_size')} is {inner}: must be "
            f"{read.key('ssm.time_step_rank')} {n_values} "
            f"times {read.key('ssm.state_size')} {head_dim}"
        )
    return DeltaNet(n_keys, n_values, head_dim, taps(read, "ssm.conv_kernel"), is_grouped)


def _rate_widths(mixer: DeltaNet) -> dict[str, int]:
    """Return the tensors of decay and learning rate; one tensor if neighbours share a key head."""
    n_heads = mixer.n_value_heads
    if mixer.is_grouped:
        return {"ssm_ba.weight": 2 * n_heads}
    return {"ssm_beta.weight": n_heads, "ssm_alpha.weight": n_heads}


def mamba2_of(read: Hyperparameters) -> Mamba2:
    """Read a Mamba-2 mixer.

    Raises:
        EngineError: The heads contradict each other, or kernels do not support their width.
    """
    n_heads = _heads(read, "ssm.time_step_rank")
    n_groups = _heads(read, "ssm.group_count")
    inner = read.integer("ssm.inner_size", 1, reading.MAX_DIM)
    if n_heads % n_groups:
        heads = read.key("ssm.time_step_rank")
        raise read.fail(
            f"{read.key('ssm.group_count')} is {n_groups}, which does not divide {heads} {n_heads}"
        )
    if inner % n_heads or inner // n_heads % reading.DIM_MULTIPLE:
        heads = read.key("ssm.time_step_rank")
        raise read.fail(
            f"{read.key('ssm.inner_size')} is {inner}: must be {heads} {n_heads} times a "
            f"multiple of "
            f"{reading.DIM_MULTIPLE}"
        )
    key_dim = read.integer("ssm.state_size", 1, reading.MAX_HEAD_DIM)
    if key_dim % reading.DIM_MULTIPLE:
        raise read.fail(
            f"{read.key('ssm.state_size')} is {key_dim}: must be a multiple of "
            f"{reading.DIM_MULTIPLE}"
        )
    return Mamba2(n_heads, inner // n_heads, n_groups, key_dim, taps(read, "ssm.conv_kernel"))


def mamba_tensors(block: str, mixer: Mamba2, dim: int) -> dict[str, TensorSpec]:
    """Return the tensors of a layer's Mamba-2."""
    n_heads = mixer.n_heads
    channels = mixer.n_channels
    groups = mixer.n_groups
    specs = {
        "ssm_in.weight": TensorSpec((mixer.in_dim, dim)),
        "ssm_conv1d.weight": TensorSpec((channels, mixer.taps), is_vectors=True),
        "ssm_conv1d.bias": TensorSpec((channels,), required=False),
        "ssm_dt.bias": TensorSpec((n_heads,)),
        "ssm_a": TensorSpec((n_heads, 1), is_vectors=True),
        "ssm_d": TensorSpec((n_heads, 1), is_vectors=True),
        "ssm_norm.weight": TensorSpec(
            (groups, mixer.out_dim // groups), required=False, is_vectors=True
        ),
        "ssm_out.weight": TensorSpec((dim, mixer.out_dim)),
    }
    return {block + name: spec for name, spec in specs.items()}


def _heads(read: Hyperparameters, name: str) -> int:
    return read.integer(name, 1, reading.MAX_HEADS)


def delta_tensors(block: str, mixer: DeltaNet, dim: int) -> dict[str, TensorSpec]:
    """Return the tensors of a layer's gated delta net."""
    n_heads = mixer.n_value_heads
    shapes: dict[str, tuple[int, ...]] = {
        "attn_qkv.weight": (mixer.n_channels, dim),
        "attn_gate.weight": (mixer.out_dim, dim),
        **{name: (n, dim) for name, n in _rate_widths(mixer).items()},
        "ssm_dt.bias": (n_heads,),
        "ssm_a": (n_heads,),
        "ssm_norm.weight": (mixer.head_dim,),
        "ssm_out.weight": (dim, mixer.out_dim),
    }
    specs = {block + name: TensorSpec(shape) for name, shape in shapes.items()}
    specs[block + "ssm_conv1d.weight"] = TensorSpec((mixer.n_channels, mixer.taps), is_vectors=True)
    return specs


def tensors(block: str, mixer: Recurrent, dim: int) -> dict[str, TensorSpec]:
    """Return the tensors of a layer's mixer."""
    if isinstance(mixer, DeltaNet):
        return delta_tensors(block, mixer, dim)
    if isinstance(mixer, Mamba2):
        return mamba_tensors(block, mixer, dim)
    return {
        block + "shortconv.conv.weight": TensorSpec(
            (mixer.n_channels, mixer.taps), is_vectors=True
        ),
        block + "shortconv.in_proj.weight": TensorSpec((3 * mixer.n_channels, dim)),
        block + "shortconv.out_proj.weight": TensorSpec((dim, mixer.n_channels)),
    }


def mix(d: Decoder, layer: int, mixer: Recurrent, x: Activations) -> tuple[Tensor, Activations]:
    """Apply a recurrent mixer to x; return its output projection and the input of that
    projection."""
    if isinstance(mixer, DeltaNet):
        return delta_net(d, layer, mixer, x)
    if isinstance(mixer, Mamba2):
        return mamba2(d, layer, mixer, x)
    return short_convolution(d, layer, mixer, x)


def short_convolution(
    d: Decoder, layer: int, mixer: ShortConvolution, x: Activations
) -> tuple[Tensor, Activations]:
    """Compute c * convolution(b * y); b, c and y are projections of x."""
    plan = d.plan
    n = mixer.n_channels
    w_in = d.weight(layer, "shortconv.in_proj.weight")
    projected = d.buffers.vector("projected", 3 * n)
    convolved = d.buffers.vector("convolved", n)
    plan.quantize(x, w_in)
    plan.barrier()
    plan.phase = "convolution"
    plan.matmul(w_in, x, projected)
    plan.barrier()
    plan.recurrence.short_convolution(
        _convolution_state(d, layer, "shortconv.conv", mixer.taps), projected, convolved
    )
    plan.barrier()
    return d.weight(layer, "shortconv.out_proj.weight"), convolved


def delta_net(
    d: Decoder, layer: int, mixer: DeltaNet, x: Activations
) -> tuple[Tensor, Activations]:
    """Query the state matrix of each value head; norm and gate the results."""
    plan = d.plan
    heads = mixer.n_value_heads
    width = mixer.head_dim
    sizes = {
        "attn_qkv.weight": mixer.n_channels,
        "attn_gate.weight": mixer.out_dim,
        **_rate_widths(mixer),
    }
    projections = {name: d.buffers.vector(name, n) for name, n in sizes.items()}
    weights = {name: d.weight(layer, name) for name in sizes}
    (qkv, gate, *raw) = projections.values()
    decay = d.buffers.vector("decay", heads)
    rate = d.buffers.vector("rate", heads)
    answers = d.buffers.vector("answers", mixer.out_dim)
    plan.quantize(x, *weights.values())
    plan.barrier()
    plan.phase = "delta net projections"
    for name, weight in weights.items():
        plan.matmul(weight, x, projections[name])
    plan.barrier()
    plan.phase = "delta net"
    keys = mixer.n_key_heads
    lengths = HeadLengths(width, 2 * keys, keys, width**-0.5, d.config.norm_eps)
    plan.recurrence.convolution(
        _convolution_state(d, layer, "ssm_conv1d", mixer.taps), qkv, (0, qkv.n), heads=lengths
    )
    bias = d.weight(layer, "ssm_dt.bias")
    factor = d.weight(layer, "ssm_a")
    heads_per_key = heads // keys
    if mixer.is_grouped:  # for each key head, the rates of its value heads, then their times
        plan.recurrence.rates(
            (raw[0], heads_per_key),
            bias,
            factor,
            (raw[0], 0),
            decay,
            rate,
            (heads_per_key, 2 * heads_per_key),
        )
    else:
        plan.recurrence.rates((raw[1], 0), bias, factor, (raw[0], 0), decay, rate)
    plan.barrier()
    state = ScanState(layer, mixer.window_floats, width, keys, mixer.is_grouped)
    starts = 0, keys * width, 2 * keys * width
    plan.recurrence.scan("delta net", state, (qkv, *starts), decay, rate, answers)
    plan.barrier()
    norm = d.weight(layer, "ssm_norm.weight")
    plan.recurrence.gated_norm(answers, (gate, 0), norm, heads, d.config.norm_eps, gate_first=False)
    plan.barrier()
    return d.weight(layer, "ssm_out.weight"), answers


def mamba2(d: Decoder, layer: int, mixer: Mamba2, x: Activations) -> tuple[Tensor, Activations]:
    """Query the state matrix of each head; gate the results, and norm them if the file has a
    norm."""
    plan = d.plan
    heads = mixer.n_heads
    inner = mixer.out_dim
    keys = mixer.n_groups * mixer.key_dim
    w_in = d.weight(layer, "ssm_in.weight")
    projected = d.buffers.vector("ssm_in", mixer.in_dim)
    decay = d.buffers.vector("decay", heads)
    rate = d.buffers.vector("rate", heads)
    answers = d.buffers.vector("answers", inner)
    plan.quantize(x, w_in)
    plan.barrier()
    plan.phase = "mamba projection"
    plan.matmul(w_in, x, projected)
    plan.barrier()
    plan.phase = "mamba"
    mixed = inner, mixer.n_channels
    state = _convolution_state(d, layer, "ssm_conv1d", mixer.taps)
    plan.recurrence.convolution(state, projected, mixed, d.optional(layer, "ssm_conv1d.bias"))
    bias = d.weight(layer, "ssm_dt.bias")
    factor = d.weight(layer, "ssm_a")
    plan.recurrence.rates((projected, sum(mixed)), bias, factor, None, decay, rate)
    plan.barrier()
    matrices = ScanState(layer, mixer.window_floats, mixer.key_dim, mixer.n_groups, is_grouped=True)
    qkv = projected, 2 * inner + keys, 2 * inner, inner
    plan.recurrence.scan(
        "selective scan", matrices, qkv, decay, rate, answers, d.weight(layer, "ssm_d")
    )
    plan.barrier()
    norm = d.optional(layer, "ssm_norm.weight")
    plan.recurrence.gated_norm(
        answers, (projected, 0), norm, mixer.n_groups, d.config.norm_eps, gate_first=True
    )
    plan.barrier()
    return d.weight(layer, "ssm_out.weight"), answers


def _convolution_state(d: Decoder, layer: int, name: str, n_taps: int) -> ConvolutionState:
    """Return the state of a convolution with its weights, transposed so that channels are
    adjacent."""
    name = f"blk.{layer}.{name}.weight"
    address = d.buffers.constant(name, d.weights.float32(name).T)
    return ConvolutionState(address, n_taps, layer)
