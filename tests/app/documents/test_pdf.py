import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, NameObject, NumberObject, TextStringObject

from app.documents.convert import converted
from app.documents.pdf import whole_words
from app.documents.text_file import BoundedText
from app.program.refusals import Refusal
from tests.app.documents.test_read import pdf

ROOT = Path(__file__).resolve().parents[3]
READS = """
import io, sys
sys.modules["cryptography"] = None
from app.documents.convert import pdf_text
for line in sys.stdin:
    print(pdf_text(io.BytesIO(bytes.fromhex(line))))
"""


def encrypted_pdf(algorithm: str, password: str) -> io.BytesIO:
    writer = PdfWriter(clone_from=PdfReader(pdf("alpha")))
    file = io.BytesIO()
    writer.encrypt(password, "owner", algorithm=algorithm)
    writer.write(file)
    file.seek(0)
    return file


@pytest.mark.slow
def test_an_encrypted_pdf_without_a_password_is_read() -> None:
    documents = "\n".join(
        encrypted_pdf(algorithm, "").getvalue().hex()
        for algorithm in ("RC4-128", "AES-128", "AES-256")
    )
    process = subprocess.run(
        [sys.executable, "-c", READS], input=documents, capture_output=True, text=True, cwd=ROOT
    )
    assert process.stdout.count("alpha") == 3, process.stderr


def test_a_pdf_with_a_password_says_so() -> None:
    with pytest.raises(Refusal, match="locked by a password"):
        converted(".pdf", encrypted_pdf("RC4-128", "secret"))


def test_an_unknown_pdf_encryption_is_not_called_damage() -> None:
    raw = encrypted_pdf("RC4-128", "").getvalue().replace(b"/Standard", b"/PubSec00")
    with pytest.raises(Refusal, match="encrypted in an unknown way"):
        converted(".pdf", io.BytesIO(raw))


def text_after(change: Callable[[PdfWriter], None], *pages: str) -> tuple[str, list[str]]:
    """Return the text and the notes of a document after a change."""
    writer = PdfWriter(clone_from=PdfReader(pdf(*pages)))
    file = io.BytesIO()
    text = BoundedText()
    change(writer)
    writer.write(file)
    file.seek(0)
    return converted(".pdf", file, text), text.notes


def annotation(**values: str | int) -> DictionaryObject:
    dictionary = DictionaryObject({NameObject("/Type"): NameObject("/Annot")})
    for key, value in values.items():
        is_name = isinstance(value, str) and value.startswith("/")
        pdf_value = (
            NumberObject(value)
            if isinstance(value, int)
            else (NameObject if is_name else TextStringObject)(value)
        )
        dictionary[NameObject(f"/{key}")] = pdf_value
    return dictionary


def test_fields_comments_and_free_text_are_read() -> None:
    notes = [
        annotation(Subtype="/Widget", FT="/Tx", T="name", V="Maria Keller"),
        annotation(Subtype="/Widget", FT="/Btn", T="agree", V="/Yes"),
        annotation(Subtype="/Widget", FT="/Btn", T="other", V="/Off"),
        annotation(Subtype="/Widget", FT="/Tx", T="key", V="secret", Ff=1 << 13),
        annotation(Subtype="/Text", T="Ann", Contents="check this"),
        annotation(Subtype="/FreeText", Contents="typed on"),
        annotation(Subtype="/Link", Contents="no"),
        annotation(),
    ]

    def annotate(writer: PdfWriter) -> None:
        writer.pages[0][NameObject("/Annots")] = ArrayObject(notes)

    text, _ = text_after(annotate, "words")
    assert text.split("\n")[1:-1] == [
        "words", "[field name: Maria Keller]", "[field agree: Yes]", "[comment by Ann: check this]",
        "typed on",
    ]  # fmt: skip


def test_cyclic_and_odd_annotations_are_ignored() -> None:
    def annotate(writer: PdfWriter) -> None:
        odd = writer._add_object(annotation(Subtype="/Widget", T="a"))
        odd.get_object()[NameObject("/Parent")] = odd
        writer.pages[0][NameObject("/Annots")] = ArrayObject([odd, NumberObject(3), odd])

    assert "words" in text_after(annotate, "words")[0]


def test_pages_without_text_are_named() -> None:
    text, notes = text_after(lambda writer: None, "cover", "", "")
    assert text.count("(no text, perhaps a picture)") == 2
    assert notes == [
        "no text on 2 pages of 3 (2, 3), perhaps scans (they need text recognition first)"
    ]


def test_fonts_without_a_character_map_are_reported() -> None:
    def number(writer: PdfWriter) -> None:
        font = writer.pages[0]["/Resources"]["/Font"]["/F1"]
        font[NameObject("/Subtype")], font[NameObject("/Encoding")] = (
            NameObject("/Type0"),
            NameObject("/Identity-H"),
        )
        below = DictionaryObject(
            {
                NameObject("/Subtype"): NameObject("/CIDFontType2"),
                NameObject("/DW"): NumberObject(500),
            }
        )
        font[NameObject("/DescendantFonts")] = ArrayObject([below])

    with pytest.raises(Refusal, match="fonts with unknown letters"):
        text_after(number, "$%&!#$")


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("The instru-\nments were un-\nreliable.\nEnd", "The instruments\nwere unreliable.\nEnd"),
        ("a well-\nknown well, known to all", "a well-\nknown well, known to all"),
        ("well-known or well-\nknown", "well-known or well-\nknown"),
        ("Jean-\nPaul and 3-\nfold", "Jean-\nPaul and 3-\nfold"),
        ("instru\u00ad\nments, Elek\u00adtro", "instruments,\nElektro"),
    ],
)
def test_words_hyphenated_at_a_line_end_are_joined(text: str, joined: str) -> None:
    assert whole_words(text) == joined
