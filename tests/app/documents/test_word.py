import io
import zipfile

import pytest

from app.documents.text_file import BoundedText
from app.documents.word import docx_text
from app.program.refusals import Refusal

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
STRICT = "http://purl.oclc.org/ooxml/officeDocument/relationships"
SPACES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "r": OFFICE,
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
}


def xml_part(element: str, body: str) -> str:
    spaces = " ".join(f'xmlns:{name}="{space}"' for name, space in SPACES.items())
    return f"<w:{element} {spaces}>{body}</w:{element}>"


def relations(targets: dict[str, str], space: str = OFFICE) -> str:
    rows = (
        f'<Relationship Id="r{n}" Type="{space}/{k}" Target="{t}"/>'
        for n, (k, t) in enumerate(targets.items())
    )
    return f'<Relationships xmlns="x">{"".join(rows)}</Relationships>'


def read(body: str, main: str = "word/document.xml", **members: str) -> str:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(main, xml_part("document", f"<w:body>{body}</w:body>"))
        for name, text in members.items():
            archive.writestr(name, text)
    file.seek(0)
    return docx_text(file)


def p(words: str) -> str:
    return f"<w:p>{r(words)}</w:p>"


def r(words: str) -> str:
    return f"<w:r><w:t>{words}</w:t></w:r>"


@pytest.mark.parametrize(
    ("target", "space"),
    [
        ("word/document2.xml", OFFICE),
        ("/word/document2.xml", STRICT),
        ("word\\Document2.xml", OFFICE),
    ],
)
def test_the_main_part_is_found_by_the_package_relations(target: str, space: str) -> None:
    rels = {"_rels/.rels": relations({"officeDocument": target}, space)}
    assert read(p("yes"), "word/document2.xml", **rels) == "yes\n"


@pytest.mark.parametrize(
    "content_type",
    [
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml",
        "application/vnd.ms-word.document.macroEnabled.main+xml",
        "application/vnd.ms-word.template.macroEnabledTemplate.main+xml",
    ],
)
def test_without_relations_the_main_part_is_found_by_type(content_type: str) -> None:
    override = f'<Override PartName="/odd/main.xml" ContentType="{content_type}"/>'
    types = f'<Types xmlns="x">{override}</Types>'
    assert read(p("yes"), "odd/main.xml", **{"[Content_Types].xml": types}) == "yes\n"


def test_one_of_several_alternatives_is_read() -> None:
    def boxed(*branches: str) -> str:
        content = f"<mc:AlternateContent>{''.join(branches)}</mc:AlternateContent>"
        return f"<w:p>{r('a')}{content}{r('z')}</w:p>"

    words = r("b")
    none = "<w:drawing/>"
    assert (
        read(boxed(f"<mc:Choice>{words}</mc:Choice>", f"<mc:Fallback>{words}</mc:Fallback>"))
        == "abz\n"
    )
    assert (
        read(boxed(f"<mc:Choice>{none}</mc:Choice>", f"<mc:Fallback>{words}</mc:Fallback>"))
        == "abz\n"
    )
    twice = f"<mc:Choice>{words}</mc:Choice>" * 2
    assert read(boxed(twice, f"<mc:Fallback>{words}</mc:Fallback>")) == "abz\n"


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ("<w:tab/>", "\t"),
        ("<w:ptab/>", "\t"),
        ("<w:br/>", "\n"),
        ("<w:cr/>", "\n"),
        ("<w:noBreakHyphen/>", "-"),
        ("<w:softHyphen/>", ""),
        ('<w:sym w:font="Symbol" w:char="F061"/>', "α"),
        ('<w:sym w:font="Wingdings" w:char="F0FC"/>', "✓"),
        ('<w:sym w:font="No one" w:char="F0FC"/>', "□"),
        ('<w:sym w:font="Arial" w:char="2014"/>', "—"),
    ],
)
def test_character_elements_become_characters(element: str, text: str) -> None:
    tabs = '<w:pPr><w:tabs><w:tab w:val="left"/></w:tabs></w:pPr>'
    assert read(f"<w:p>{tabs}{r('a')}<w:r>{element}</w:r>{r('z')}</w:p>") == f"a{text}z\n"


def test_changes_are_accepted() -> None:
    deleted = (
        "<w:del><w:r><w:delText>no</w:delText><w:t>no</w:t></w:r></w:del>"
        f"<w:moveFrom>{r('no')}</w:moveFrom>"
    )
    assert (
        read(f"<w:p>{deleted}<w:ins>{r('new')}</w:ins><w:moveTo>{r(' here')}</w:moveTo></w:p>")
        == "new here\n"
    )
    joined = "<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr>" + r("one ") + "</w:p>"
    assert read(joined + p("line")) == "one line\n"


def test_fields_show_their_results_and_hidden_words_nothing() -> None:
    mark = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'.format
    inner = (
        f"{mark('begin')}<w:r><w:instrText>X</w:instrText></w:r>"
        f"{mark('separate')}{r('no')}{mark('end')}"
    )
    field = f"{mark('begin')}{inner}{mark('separate')}{r('result')}{mark('end')}"
    simple = (
        f'<w:fldSimple w:instr="PAGE">{r("3")}</w:fldSimple><w:hyperlink>{r(" link")}</w:hyperlink>'
    )
    hidden = (
        "<w:r><w:rPr><w:vanish/></w:rPr><w:t>no</w:t></w:r>"
        "<w:r><w:rPr><w:vanish w:val='0'/></w:rPr><w:t>!</w:t></w:r>"
    )
    assert read(f"<w:p>{field} {simple}{hidden}</w:p>") == "result3 link!\n"


def test_a_table_is_a_line_for_each_row() -> None:
    def row(*cells: str) -> str:
        return f"<w:tr>{''.join(f'<w:tc>{cell}</w:tc>' for cell in cells)}</w:tr>"

    table = f"<w:tbl>{row(p('a') + p('b'), p(''), p('c'))}{row(p('d'), p('e'), p('f'))}</w:tbl>"
    assert read(table + p("z")) == "a b\t\tc\nd\te\tf\nz\n"


def test_notes_headers_and_comments_are_read_where_they_belong() -> None:
    marks = (
        '<w:r><w:endnoteReference w:id="5"/></w:r>'
        '<w:del><w:r><w:footnoteReference w:id="3"/></w:r></w:del>'
    )
    body = f'<w:p>{r("text")}<w:r><w:footnoteReference w:id="2"/></w:r>{marks}</w:p>'
    notes = (
        f'<w:footnote w:id="0" w:type="separator">{p("no")}</w:footnote>'
        f'<w:footnote w:id="2">{p("foot")}</w:footnote>'
    )
    deleted_note = f'<w:footnote w:id="3">{p("no")}</w:footnote>'
    text = read(
        body,
        **{
            "word/footnotes.xml": xml_part("footnotes", notes + deleted_note),
            "word/endnotes.xml": xml_part(
                "endnotes", f'<w:endnote w:id="5">{p("end")}</w:endnote>'
            ),
            "word/comments.xml": xml_part(
                "comments", f'<w:comment w:id="0" w:author="A. B.">{p("why?")}</w:comment>'
            ),
            "word/header1.xml": xml_part("hdr", p("Letterhead")),
            "word/header2.xml": xml_part("hdr", p("Letterhead")),
            "word/footer1.xml": xml_part("ftr", p("17")),
        },
    )
    assert text == "Letterhead\ntext[1][2]\n[1] foot\n[2] end\n[comment by A. B.] why?\n"


def test_formulas_keep_their_signs() -> None:
    def t(words: str) -> str:
        return f"<m:r><m:t>{words}</m:t></m:r>"

    fraction = f"<m:f><m:num>{t('a')}</m:num><m:den>{t('b')}</m:den></m:f>"
    fence = (
        f'<m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val="]"/></m:dPr><m:e>{t("c")}</m:e></m:d>'
    )
    power = (
        f"<m:sSup><m:e>{t('x')}</m:e><m:sup>{t('2')}</m:sup></m:sSup>"
        f"<m:rad><m:e>{t('y')}</m:e></m:rad>"
    )
    assert (
        read(f"<w:p><m:oMath>{fraction}{fence}{power}</m:oMath></w:p>") == "(a)/(b)[c]x^(2)√(y)\n"
    )


def test_an_embedded_web_page_is_read() -> None:
    rels = relations({"aFChunk": "chunk.mht"})
    mht = "MIME-Version: 1.0\nContent-Type: text/html; charset=utf-8\n\n<p>chunk</p>"
    members = {"word/_rels/document.xml.rels": rels, "word/chunk.mht": mht}
    assert "chunk" in read('<w:altChunk r:id="r0"/>', **members)


def test_locked_and_foreign_files_are_named() -> None:
    old = b"\xd0\xcf\x11\xe0" + b"\0" * 99
    with pytest.raises(Refusal, match="old Word file"):
        docx_text(io.BytesIO(old))
    with pytest.raises(Refusal, match="password"):
        docx_text(io.BytesIO(old + "EncryptedPackage".encode("utf-16-le")))
    with pytest.raises(Refusal, match="not a Word document"):
        read("", "xl/workbook.xml")


@pytest.mark.parametrize(
    "body", ["</w:tbl>", "<w:tr/>", "<w:tc/>", "<mc:Choice/><mc:Fallback/>", "<m:endChr/>"]
)
def test_misplaced_elements_are_harmless(body: str) -> None:
    body = body if not body.startswith("</") else '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    assert read(body + p("yes")).strip() == "yes"


NUMBERING = """<w:numbering xmlns:w="x">
<w:abstractNum w:abstractNumId="0">
 <w:lvl w:ilvl="0"><w:start w:val="3"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>
 <w:lvl w:ilvl="1"><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="(%2)"/></w:lvl>
 <w:lvl w:ilvl="2"><w:numFmt w:val="upperRoman"/><w:lvlText w:val="%1.%2.%3"/><w:isLgl/></w:lvl>
</w:abstractNum>
<w:abstractNum w:abstractNumId="1">
 <w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="upperRoman"/><w:lvlText w:val="Article %1"/>
  <w:pStyle w:val="Heading1"/></w:lvl>
 <w:lvl w:ilvl="1"><w:numFmt w:val="bullet"/><w:lvlText w:val="o"/>\
<w:pStyle w:val="Heading2"/></w:lvl>
</w:abstractNum>
<w:abstractNum w:abstractNumId="2"><w:styleLink w:val="Legal"/>
 <w:lvl w:ilvl="0"><w:numFmt w:val="ordinal"/><w:lvlText w:val="%1"/></w:lvl></w:abstractNum>
<w:abstractNum w:abstractNumId="3"><w:numStyleLink w:val="Legal"/></w:abstractNum>
<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>
<w:num w:numId="2"><w:abstractNumId w:val="0"/>
 <w:lvlOverride w:ilvl="0"><w:startOverride w:val="10"/></w:lvlOverride></w:num>
<w:num w:numId="3"><w:abstractNumId w:val="1"/></w:num>
<w:num w:numId="4"><w:abstractNumId w:val="3"/></w:num>
</w:numbering>"""
STYLES = """<w:styles xmlns:w="x">
<w:style w:type="paragraph" w:styleId="Heading1">\
<w:pPr><w:numPr><w:numId w:val="3"/></w:numPr></w:pPr></w:style>
<w:style w:type="paragraph" w:styleId="Heading2"><w:basedOn w:val="Heading1"/></w:style>
<w:style w:type="paragraph" w:styleId="Clause"><w:basedOn w:val="Heading1"/></w:style>
<w:style w:type="paragraph" w:styleId="Plain"><w:basedOn w:val="Plain"/></w:style>
</w:styles>"""


def item(words: str, list_id: int | None = None, level: int | None = None, style: str = "") -> str:
    properties = f'<w:pStyle w:val="{style}"/>' if style else ""
    if list_id is not None:
        level_element = f'<w:ilvl w:val="{level}"/>' if level is not None else ""
        properties += f'<w:numPr>{level_element}<w:numId w:val="{list_id}"/></w:numPr>'
    return f"<w:p><w:pPr>{properties}</w:pPr>{r(words) if words else ''}</w:p>"


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (
            [item("a", 1), item("b", 1, 0), item("c", 1, 1), item("d", 1, 1), item("e", 1)],
            "3. a|4. b|(a) c|(b) d|5. e",
        ),
        ([item("a", 1, 2), item("b", 1, 1), item("c", 1, 2)], "3.1.1 a|(b) b|3.2.1 c"),
        ([item("a", 1), item("b", 2), item("c", 2), item("d", 1)], "3. a|10. b|11. c|12. d"),
        (
            [item("a", style="Heading1"), item("b", style="Clause"), item("c", style="Heading2")],
            "Article I a|Article II b|c",
        ),
        (
            [item("a", style="Heading1"), item("b", 0, style="Heading1"), item("c", style="Plain")],
            "Article I a|b|c",
        ),
        ([item("a", 4), item("b", 4)], "1st a|2nd b"),
        ([item("a", 1), item("", 1), item("c", 1)], "3. a||5. c"),
        ([item("a", 9), item("b", 1, 7), item("c", 1, 99)], "a|b|3. c"),
    ],
)
def test_paragraphs_of_lists_have_their_numbers(body: list[str], lines: str) -> None:
    rels = relations({"numbering": "numbering.xml", "styles": "styles.xml"})
    members = {
        "word/numbering.xml": NUMBERING,
        "word/styles.xml": STYLES,
        "word/_rels/document.xml.rels": rels,
    }
    assert read("".join(body), **members).split("\n")[:-1] == lines.split("|")


def test_damaged_numbering_loses_only_the_numbers() -> None:
    assert read(item("a", 1), **{"word/numbering.xml": "<w:num"}) == "a\n"


def test_links_pictures_and_diagrams_are_read() -> None:
    rels = relations(
        {"hyperlink": "https://docs.example/x", "diagramData": "d.xml", "image": "a.png"}
    )
    rels = rels.replace('Target="https', 'TargetMode="External" Target="https')
    diagram = '<d xmlns:a="y"><a:p><a:r><a:t>Plan</a:t></a:r></a:p></d>'
    body = (
        f'<w:p><w:hyperlink r:id="r0">{r("it")}</w:hyperlink><w:docPr descr="a red bicycle"/></w:p>'
    )
    members = {"word/_rels/document.xml.rels": rels, "word/d.xml": diagram, "word/a.png": "x"}
    assert read(body, **members) == "it (https://docs.example/x)[image: a red bicycle]\nPlan\n"


def test_pictures_of_a_document_are_counted() -> None:
    text = BoundedText()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", xml_part("document", p("a")))
        archive.writestr(
            "word/_rels/document.xml.rels", relations({"image": "a.png", "chart": "c.xml"})
        )
        archive.writestr("word/a.png", "x")
        archive.writestr("word/c.xml", "x")
    file.seek(0)
    docx_text(file, text)
    assert text.notes == ["not read: 1 picture and 1 chart or other object"]
