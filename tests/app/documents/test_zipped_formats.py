"""E-books, OpenDocument files and spreadsheets as text; hostile ones end in one line."""

from __future__ import annotations

import io
import zipfile
from datetime import datetime
from pathlib import Path

import pytest

from app.documents.convert import CONVERTERS, converted
from app.documents.ebook import epub_text
from app.documents.file_types import ZIPPED, KindRefusal, refuse_unsupported
from app.documents.open_document import open_document_text
from app.documents.read import KINDS, read_documents
from app.documents.spreadsheet import column_of, date_text, xlsx_text
from app.documents.text_file import MAX_SOURCE_BYTES
from app.program.refusals import Refusal

ODF = 'xmlns:office="o" xmlns:text="t" xmlns:table="b" xmlns:manifest="m"'


def zipped(**parts: str) -> io.BytesIO:
    """Return a ZIP file; "/" and "." are written as "__" and "_" in names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            *folders, base = name.split("__")
            how = zipfile.ZIP_STORED if base == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr("/".join([*folders, base.replace("_", ".")]), content, how)
    file.seek(0)
    return file


def book(**others: str) -> io.BytesIO:
    chapter = "<html><body><h1>%s</h1><p>Once upon  a time.</p></body></html>"
    return zipped(
        mimetype="application/epub+zip",
        **{
            "META-INF__container_xml": '<c><rootfile full-path="OPS/book.opf"/></c>',
            "OPS__book_opf": (
                "<package><manifest>"
                '<item id="two" href="second%20one.xhtml" media-type="application/xhtml+xml"/>'
                '<item id="one" href="first.xhtml" media-type="application/xhtml+xml"/>'
                '<item id="css" href="style.css" media-type="text/css"/>'
                '</manifest><spine><itemref idref="one"/><itemref idref="two"/>'
                '<itemref idref="gone"/></spine></package>'
            ),
            "OPS__first_xhtml": chapter % "One",
            "OPS__second one_xhtml": chapter % "Two",
            **others,
        },
    )


def test_a_book_is_its_chapters_in_reading_order():
    text = epub_text(book())
    assert text.split() == [
        "One",
        "Once",
        "upon",
        "a",
        "time.",
        "Two",
        "Once",
        "upon",
        "a",
        "time.",
    ]
    assert text.index("One") < text.index("Two")


def test_a_protected_book_says_so():
    method = "<e><EncryptionMethod Algorithm='http://www.w3.org/2001/04/xmlenc#aes128-cbc'/></e>"
    with pytest.raises(Refusal, match="protected against copying"):
        epub_text(book(**{"META-INF__encryption_xml": method}))
    fonts = "<e><EncryptionMethod Algorithm='http://www.idpf.org/2008/embedding'/></e>"
    assert "One" in epub_text(book(**{"META-INF__encryption_xml": fonts}))


def test_an_archive_that_is_no_book_says_so():
    with pytest.raises(Refusal, match="has no chapters"):
        epub_text(zipped(one_txt="text"))


def document(body: str, **others: str) -> io.BytesIO:
    content = f"<office:document-content {ODF}><office:body>{body}</office:body>"
    return zipped(content_xml=f"{content}</office:document-content>", **others)


def test_a_text_document_has_a_line_for_each_paragraph():
    body = (
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        "<text:h>Title</text:h>\n  <text:p>One<text:s text:c='2'/>two<text:tab/>three"
        "<text:line-break/>four</text:p>"
        "<table:table table:name='Prices'><table:table-row><table:table-cell><text:p>nails</text:p>"
        "<text:p>long</text:p></table:table-cell><table:table-cell/><table:table-cell>"
        "<text:p>3</text:p></table:table-cell></table:table-row></table:table>"
    )
    text = open_document_text(document(body))
    assert text == "Title\nOne  two\tthree\nfour\n\nPrices:\nnails long\t\t3\n"


def test_empty_ends_of_a_sheet_cost_nothing():
    cell = "<table:table-cell><text:p>1</text:p></table:table-cell>"
    empty = "<table:table-cell table:number-columns-repeated='1048576'/>"
    row = f"<table:table-row>{cell}{empty}</table:table-row>"
    text = open_document_text(document(f"<table:table>{row * 3}</table:table>"))
    assert text == "1\n1\n1\n"


def test_a_locked_document_says_so():
    manifest = f"<manifest:manifest {ODF}><manifest:encryption-data/></manifest:manifest>"
    with pytest.raises(Refusal, match="locked by a password"):
        open_document_text(document("", **{"META-INF__manifest_xml": manifest}))


RELATIONSHIPS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
STYLES = """\
<s><numFmts><numFmt numFmtId="164" formatCode="dd/mm/yyyy"/>
<numFmt numFmtId="165" formatCode="0.0&quot;days&quot;"/></numFmts>
<cellStyleXfs><xf numFmtId="14"/></cellStyleXfs>
<cellXfs><xf numFmtId="0"/><xf numFmtId="164"/><xf numFmtId="165"/></cellXfs></s>"""


def relation(name: str, kind: str, target: str) -> str:
    return f'<Relationship Id="{name}" Type="{RELATIONSHIPS}/{kind}" Target="{target}"/>'


def spreadsheet(rows: str, strings: str = "") -> io.BytesIO:
    book = (
        f'<workbook xmlns:r="{RELATIONSHIPS}"><sheets>'
        '<sheet name="Prices" sheetId="7" r:id="r1"/></sheets></workbook>'
    )
    relations = (
        relation("r1", "worksheet", "sheet1.xml"),
        relation("r2", "sharedStrings", "strings.xml"),
        relation("r3", "styles", "styles.xml"),
    )
    parts = {
        "_rels___rels": f"<R>{relation('a', 'officeDocument', 'xl/workbook.xml')}</R>",
        "xl__workbook_xml": book,
        "xl___rels__workbook_xml_rels": f"<R>{''.join(relations)}</R>",
        "xl__sheet1_xml": f"<worksheet><sheetData>{rows}</sheetData></worksheet>",
        "xl__strings_xml": f"<sst>{strings}</sst>",
        "xl__styles_xml": STYLES,
    }
    return zipped(**parts)


def test_a_sheet_is_lines_of_cells():
    rows = (
        '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1"><v>3.5</v></c></row>'
        '<row r="2"><c r="A2" t="s"><v>1</v></c><c r="B2" t="b"><v>1</v></c>'
        '<c t="inlineStr"><is><t>in line</t></is></c></row>'
        '<row r="4"><c r="B4" s="1"><v>45992</v></c><c r="C4" s="2"><v>45992</v></c></row>'
        '<row r="5"><c r="A5" t="s"><v>99</v></c></row>'
    )
    strings = "<si><t>nails</t></si><si><r><t>blue </t></r><r><t>paint</t></r></si>"
    text = xlsx_text(spreadsheet(rows, strings))
    assert text.splitlines() == [
        "Prices:", "nails\t\t3.5", "blue paint\tTRUE\tin line", "\t2025-12-01\t45992", "", ""
    ]  # fmt: skip


def test_places_and_dates_are_read_as_shown():
    assert [column_of(place) for place in ("A1", "Z9", "AA1", "XFD1", "7", "")] == [
        0, 25, 26, 16383, None, None
    ]  # fmt: skip
    first_day = datetime(1899, 12, 30)
    assert date_text("0.5", first_day) == "12:00:00"
    assert date_text("45992.25", first_day) == "2025-12-01 06:00"
    for value in ("-1", "1e300", "nan", "inf", "x"):
        assert date_text(value, first_day) == value
    assert date_text("2958000", datetime(1904, 1, 1)) == "2958000", "after the year 9999"
    assert date_text("2958465.9999999", first_day) == "2958465.9999999"


def test_what_is_no_spreadsheet_says_so():
    with pytest.raises(Refusal, match="old Excel file or locked"):
        xlsx_text(io.BytesIO(b"\xd0\xcf\x11\xe0" + bytes(100)))
    with pytest.raises(Refusal, match="is not a spreadsheet"):
        xlsx_text(zipped(one_txt="text"))


@pytest.mark.parametrize("suffix", [".epub", ".odt", ".xlsx"])
def test_bombs_and_entities_end_in_one_line(suffix: str):
    bomb = " " * (MAX_SOURCE_BYTES + 1)
    names = {
        ".epub": "META-INF__container_xml", ".odt": "content_xml", ".xlsx": "xl__workbook_xml"
    }  # fmt: skip
    with pytest.raises(Refusal, match="larger when unpacked"):
        converted(suffix, zipped(**{names[suffix]: bomb}))
    entity = '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
    with pytest.raises(Refusal, match="declares XML entities"):
        converted(suffix, zipped(**{names[suffix]: entity}))
    with pytest.raises(Refusal, match=r"not a sound .* file"):
        converted(suffix, io.BytesIO(b"PK\x03\x04 no archive"))


def test_every_type_that_is_read_has_a_converter():
    for suffixes in ZIPPED.values():
        for suffix in suffixes:
            assert suffix in KINDS
            assert suffix in CONVERTERS
    head = book().read()
    refuse_unsupported(".epub", head)
    with pytest.raises(KindRefusal, match="e-book of another kind"):
        refuse_unsupported(".odt", head)


def test_a_book_is_read_from_a_file(tmp_path: Path):
    path = tmp_path / "book.epub"
    path.write_bytes(book().read())
    [document] = read_documents([str(path)]).documents
    assert "Once upon a time." in document.text
