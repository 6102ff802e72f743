"""``python -m tests.programs.engine.picture_speed FILE... [--python PATH --model FILE...]``: times
of encoders of pictures, and of llama.cpp's libmtmd by turns.

    ... picture_speed FILE... --model FILE... --first-token     from the last row to the first token

FILE is an mmproj file. PATH is the Python of an environment with llama-cpp-python 0.3.36; each
encoder needs a text model that is as wide as its rows, whose weights do not matter. Engines and
sizes take turns in random order. A line has the median of each, seconds on the clock and of the
processor, and how many times as long libmtmd takes.

With --text, the rate of the encoder is also compared with that at which our engine reads a
prompt of as many tokens with that model: multiplications with matrices and of attention per second.

With --first-token, the text model has read ``N_BEFORE`` tokens when the last row is there.
It reads the rows and ``N_AFTER`` tokens of a question, and writes a token. A line has the median
time of that, its parts, and the encoder's time. Each round has another picture.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import Crew, Model, PictureEncoder, Sampling
from engine.config import Attention
from engine.models import expected_tensors
from engine.vision.mmproj import read_mmproj
from engine.vision.rows import HIGH, USUAL, PreparedPicture

PEER = Path(__file__).with_name("picture_speed_peer.py")
SIZES = "512x512", "1024x1024"
OURS = "ours"
THEIRS = "libmtmd"
Times = tuple[int, float, float]
"""Rows, seconds on the clock, and seconds of the processor."""
N_CTX = 4096
N_BEFORE = 32
N_AFTER = 32


@dataclass(frozen=True)
class FirstTokenTimes:
    """Times of a picture and of the first token after it.

    Attributes:
        n_rows: Rows of the picture.
        n_read: Tokens and rows that the text model reads after the last row is there.
        encode_s: Seconds of the encoder.
        read_s: Seconds in which the text model reads.
        write_s: Seconds from then to the first token.
    """

    n_rows: int
    n_read: int
    encode_s: float
    read_s: float
    write_s: float


class Ours:
    """Encoder of this process, as the chat uses it."""

    def __init__(self, path: Path, n_threads: int) -> None:
        self._crew = Crew()
        self.encoder = PictureEncoder.open(path, self._crew, n_threads)
        self.time(64, 64)

    def prepare(self, width: int, height: int) -> PreparedPicture:
        """Return a picture of noise."""
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        return self.encoder.prepare(pixels, HIGH)

    def time(self, width: int, height: int) -> Times:
        """Resize and encode a picture."""
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        start = time.perf_counter()
        start_cpu = time.process_time()
        prepared = self.encoder.prepare(pixels, HIGH)
        self.encoder.encode(prepared)
        wall = time.perf_counter() - start
        return prepared.n_rows, wall, time.process_time() - start_cpu

    def close(self) -> None:
        """Close the encoder and its threads."""
        self.encoder.close()
        self._crew.close()


class Theirs:
    """libmtmd in a process of its own."""

    def __init__(self, python: str, mmproj: Path, model: Path, n_threads: int) -> None:
        self._process = subprocess.Popen(
            [python, str(PEER), str(mmproj), str(model), str(n_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._read() != "ready":
            raise SystemExit(f"libmtmd does not open {mmproj} with {model}")

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def time(self, width: int, height: int) -> Times:
        """Resize and encode a picture."""
        assert self._process.stdin
        print(width, height, file=self._process.stdin, flush=True)
        n_rows, wall, cpu = self._read().split()
        return int(n_rows), float(wall), float(cpu)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


@contextmanager
def _engines(
    options: argparse.Namespace, path: Path, model: Path | None
) -> Iterator[dict[str, Ours | Theirs]]:
    engines: dict[str, Ours | Theirs] = {OURS: Ours(path, options.threads)}
    if options.python and model is not None:
        engines[THEIRS] = Theirs(options.python, path, model, options.threads)
    try:
        yield engines
    finally:
        for engine in engines.values():
            engine.close()


def _measure(engines: dict[str, Ours | Theirs], sizes: list[str], n_rounds: int) -> None:
    """Time all engines and sizes by turns, and print a line for each size."""
    runs = [(name, size) for name in engines for size in sizes] * n_rounds
    random.shuffle(runs)
    results: dict[tuple[str, str], list[Times]] = {}
    for name, size in runs:
        width, height = map(int, size.split("x"))
        results.setdefault((name, size), []).append(engines[name].time(width, height))
    for size in sizes:
        words = [f"  {size:10}"]
        medians = {}
        for name in engines:
            times = results[name, size]
            medians[name] = [statistics.median(run[k] for run in times) for k in (1, 2)]
            wall, cpu = medians[name]
            words.append(f"{name} {times[0][0]} rows {wall:.2f} s, processor {cpu:.2f} s;")
        if THEIRS in medians:
            pairs = zip(medians[THEIRS], medians[OURS], strict=True)
            words.append("libmtmd takes {:.2f} and {:.2f} times as long".format(
                *(theirs / ours for theirs, ours in pairs)
            ))  # fmt: skip
        print(*words, flush=True)


def _text_rate(path: Path, n_tokens: int, n_threads: int, n_rounds: int) -> float:
    """Return multiplications per processor second of a prompt."""
    model = Model.open(path, threads=n_threads)
    config = model.config
    tensors = model.weights.tensors
    specs = expected_tensors(config)
    n_weights = sum(
        tensor.n_rows * tensor.n_cols
        for name, tensor in tensors.items()
        if name.startswith("blk.") and len(specs[name].shape) == 2 and tensor.n_rows > 1
    )
    pairs = sum(
        layer.mixer.n_heads * layer.mixer.key_dim * n_tokens**2
        for layer in config.layers
        if isinstance(layer.mixer, Attention)
    )
    session = model.session(n_ctx=n_tokens + 64)
    ids = [int(token) for token in np.random.default_rng(0).integers(100, 1000, n_tokens)]
    seconds = []
    for _ in range(n_rounds + 1):
        session.truncate(0)
        start = time.process_time()
        session.feed(ids)
        seconds.append(time.process_time() - start)
    model.close()
    return float(n_weights * n_tokens + pairs) / statistics.median(seconds[1:])


def _compare_with_text(options: argparse.Namespace, path: Path, model: Path) -> None:
    """Print the rates of the encoder and of its text model for 512 x 512."""
    ours = Ours(path, options.threads)
    prepared = ours.prepare(512, 512)
    seconds = [ours.time(512, 512)[2] for _ in range(options.rounds)]
    rate = ours.encoder.products(prepared) / statistics.median(seconds)
    n_patches = prepared.n_rows * ours.encoder.config.merge**2
    ours.close()
    text_rate = _text_rate(model, n_patches, options.threads, options.rounds)
    print(
        f"  {rate / 1e9:.0f} billion multiplications per processor second; {model.stem} with a "
        f"prompt of {n_patches} tokens {text_rate / 1e9:.0f}: {rate / text_rate:.2f} of it",
        flush=True,
    )


class FirstToken:
    """Times from the last row of a picture to the first token of a text model.

    Args:
        path: mmproj file.
    """

    def __init__(self, path: Path, model: Path, n_threads: int) -> None:
        self._model = Model.open(model, threads=n_threads, mmproj=path)
        encoder = self._model.pictures.encoder
        if encoder is None:
            raise SystemExit(f"{model} does not see with {path}")
        self._encoder: PictureEncoder = encoder
        self._session = self._model.session(n_ctx=N_CTX)
        vocab_size = self._model.tokenizer.vocab_size
        numbers = np.random.default_rng(0).integers(100, vocab_size // 2, N_BEFORE + N_AFTER)
        ids = [int(number) for number in numbers]
        self._before = ids[:N_BEFORE]
        self._after = ids[N_BEFORE:]

    def time(self, width: int, height: int, seed: int) -> FirstTokenTimes:
        """Show the model another picture of noise, and time its first token."""
        pictures = self._model.pictures
        session = self._session
        session.truncate(0)
        session.prefill(self._before)
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        prepared = self._encoder.prepare(pixels, USUAL)
        ids = [*self._before, *pictures.prompt_ids(prepared), *self._after]

        start_s = time.perf_counter()
        rows = self._encoder.encode(prepared)
        pictures.add_rows(rows)
        encoded_s = time.perf_counter()
        session.prefill(ids)
        read_s = time.perf_counter()
        next(session.generate(Sampling(temperature=0), max_tokens=1))
        end_s = time.perf_counter()
        n_read = len(ids) - N_BEFORE
        return FirstTokenTimes(
            prepared.n_rows, n_read, encoded_s - start_s, read_s - encoded_s, end_s - read_s
        )

    def close(self) -> None:
        """Close the model."""
        self._model.close()


def _print_first_tokens(options: argparse.Namespace, path: Path, model: Path) -> None:
    """Print a line for each size."""
    first_token = FirstToken(path, model, options.threads)
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes]
    for index, (width, height) in enumerate(sizes):
        first_token.time(width, height, seed=index)  # opens weights and links kernels
    runs = sizes * options.rounds
    random.shuffle(runs)
    results: dict[tuple[int, ...], list[FirstTokenTimes]] = {}
    for number, (width, height) in enumerate(runs, len(sizes)):
        times = first_token.time(width, height, seed=number)
        results.setdefault((width, height), []).append(times)
    first_token.close()
    for width, height in sizes:
        runs_of_size = results[width, height]
        wait_s = statistics.median(run.read_s + run.write_s for run in runs_of_size)
        read_s = statistics.median(run.read_s for run in runs_of_size)
        encode_s = statistics.median(run.encode_s for run in runs_of_size)
        print(
            f"  {width}x{height}: {runs_of_size[0].n_rows} rows in {encode_s:.2f} s; "
            f"last row to first token {wait_s:.2f} s "
            f"({runs_of_size[0].n_read} tokens read in {read_s:.2f} s), {model.stem}",
            flush=True,
        )


def main() -> int:
    """Print times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--python", help="Python with llama-cpp-python")
    parser.add_argument("--model", nargs="*", type=Path, default=[], help="text models")
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", action="store_true", help="compare with prompts, too")
    parser.add_argument("--first-token", action="store_true", help="time the first token instead")
    options = parser.parse_args()
    models = {}
    for path in options.model:
        model = Model.open(path, threads=1)
        models[model.config.dim] = path
        model.close()
    for path in options.files:
        file = read_mmproj(path)
        model_path = models.get(file.config.text_width)
        file.close()
        print(path.stem, flush=True)
        if options.first_token:
            if model_path is None:
                parser.error(f"no --model is {file.config.text_width} wide, as {path.name} needs")
            _print_first_tokens(options, path, model_path)
            continue
        with _engines(options, path, model_path) as engines:
            _measure(engines, list(options.sizes), options.rounds)
        if options.text and model_path is not None:
            _compare_with_text(options, path, model_path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
