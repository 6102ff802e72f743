import io
import subprocess
import sys
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from app.documents.convert import converted
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


def locked(algorithm: str, password: str) -> io.BytesIO:
    writer, file = PdfWriter(clone_from=PdfReader(pdf("alpha"))), io.BytesIO()
    writer.encrypt(password, "owner", algorithm=algorithm)
    writer.write(file)
    file.seek(0)
    return file


@pytest.mark.slow
def test_a_pdf_without_a_password_is_read_by_what_is_installed() -> None:
    given = "\n".join(locked(one, "").getvalue().hex() for one in ("RC4-128", "AES-128", "AES-256"))
    done = subprocess.run([sys.executable, "-c", READS], input=given, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.count("alpha") == 3, done.stderr


def test_a_pdf_with_a_password_says_so() -> None:
    with pytest.raises(Refusal, match="locked by a password"):
        converted(".pdf", locked("RC4-128", "secret"))


def test_a_pdf_locked_in_an_unknown_way_is_not_called_damaged() -> None:
    raw = locked("RC4-128", "").getvalue().replace(b"/Standard", b"/PubSec00")
    with pytest.raises(Refusal, match="locked in a way"):
        converted(".pdf", io.BytesIO(raw))
