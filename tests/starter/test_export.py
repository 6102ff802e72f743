"""A toy model is exported and opened by the engine; nothing is trained."""

import json

import numpy as np
import pytest

pytest.importorskip("gguf", reason="writing GGUF files needs the gguf package")

from app.program.makers import advice_of
from app.program.settings import Source
from engine import Model
from engine.prompt.chat_prompt import ChatPrompt
from engine.prompt.thinking import ThinkingMode
from engine.tokenizer.bpe import BYTE_TO_CHAR
from engine.tokenizer.pretokenize import PRE_TOKENIZERS
from starter.export import export
from starter.format import END, END_OF_TEXT, START, Shape, render


@pytest.fixture
def toy(tmp_path):
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    texts = [END_OF_TEXT, START, END, *sorted(BYTE_TO_CHAR.values()), *(a + b for a, b in merges)]
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(
        json.dumps(
            {"model": {"vocab": {text: i for i, text in enumerate(texts)}, "merges": merges}}
        ),
        encoding="utf-8",
    )
    shape = Shape(vocabulary=len(texts), width=64, layers=1, heads=2, kv_heads=1, feed_forward=64)
    return tmp_path, tokenizer, shape


def weights_of(shape: Shape) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    kv_width = shape.kv_heads * shape.head_width
    sizes = {
        "attn_q": (shape.width, shape.width),
        "attn_k": (kv_width, shape.width),
        "attn_v": (kv_width, shape.width),
        "attn_output": (shape.width, shape.width),
        "ffn_gate": (shape.feed_forward, shape.width),
        "ffn_up": (shape.feed_forward, shape.width),
        "ffn_down": (shape.width, shape.feed_forward),
    }
    matrices = {
        f"blk.0.{name}.weight": rng.standard_normal(size).astype(np.float32) / 8
        for name, size in sizes.items()
    }
    norms = {
        name: np.ones(shape.width, np.float32)
        for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
    }
    return {
        "token_embd": rng.standard_normal((shape.vocabulary, shape.width)).astype(np.float32),
        **matrices,
        **norms,
    }


@pytest.mark.parametrize("matrix_type", ["F32", "Q8_0"])
def test_the_engine_opens_what_was_exported(toy, matrix_type):
    folder, tokenizer, shape = toy
    export(shape, weights_of(shape), tokenizer, folder / "toy.gguf", matrix_type)
    model = Model.open(folder / "toy.gguf", threads=1)
    assert model.name == "starter"
    assert model.config.context_length == 1024
    assert model.quantization == matrix_type
    assert advice_of(model.metadata, ThinkingMode()) == {"temperature": (0.2, Source.MODEL)}
    assert model.tokenizer.encode("hello")[-1] == shape.vocabulary - 1
    assert not (folder / "toy.gguf.new").exists()
    model.close()


def test_the_files_template_writes_what_the_training_text_has(toy):
    folder, tokenizer, shape = toy
    export(shape, weights_of(shape), tokenizer, folder / "toy.gguf", "Q8_0")
    model = Model.open(folder / "toy.gguf", threads=1)
    chat = ChatPrompt(model.tokenizer, model.chat_template)
    chat.start("Be kind.")
    ids = chat.add_user("hello")
    assert not model.notices
    text = "".join(
        model.tokenizer.token_text(i) if i < 3 else model.tokenizer.decode([i]) for i in ids
    )
    assert text == render("Be kind.", [("hello", "")]).removesuffix(f"{END}\n")
    model.close()


def test_a_checkpoint_of_torch_goes_through_the_export(toy):
    torch = pytest.importorskip(
        "torch", reason="training needs PyTorch, which is not a dependency of the product"
    )
    from starter.model import Starter

    folder, tokenizer, shape = toy
    torch.manual_seed(1)
    twin = Starter(shape)
    export(
        shape,
        {name: w.detach().numpy() for name, w in twin.state_dict().items()},
        tokenizer,
        folder / "toy.gguf",
        "F32",
    )
    model = Model.open(folder / "toy.gguf", threads=1)
    session = model.session(64, "f32")
    ids = [5, 9, 200, 77, 13]
    with torch.no_grad():
        expected = twin(torch.tensor([ids]))[0, -1].numpy()
    np.testing.assert_allclose(session.feed(ids), expected, atol=1e-4)
    model.close()


def test_the_vocabulary_cuts_words_as_the_engine_does():
    pytest.importorskip("tokenizers", reason="learning the vocabulary needs the tokenizers package")
    from starter.tokens import WORDS

    assert PRE_TOKENIZERS["qwen2"].expressions == (WORDS,)
