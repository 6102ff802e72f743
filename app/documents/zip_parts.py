"""Parts of documents that are ZIP files, such as those of Office programs and e-books."""

from __future__ import annotations

import posixpath
import re
import zipfile
from urllib.parse import unquote

from app.documents.text_file import MAX_SOURCE_BYTES
from app.documents.xml_part import Attributes, parse_part
from app.program.refusals import Refusal

_WEB_ADDRESS = re.compile(r"(?:https?://|mailto:)[^\s<>]{1,200}", re.I)


class ZipParts:
    """Parts of a document by name, with a limit on their unpacked size.

    Raises Refusal: the document is locked by a password.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        if any(info.flag_bits & 1 for info in archive.infolist()):
            raise Refusal("is locked by a password (save it without one)")
        self._archive = archive
        self._left_bytes = MAX_SOURCE_BYTES
        self._infos = {self._plain(info.filename): info for info in archive.infolist()}

    def __contains__(self, name: str) -> bool:
        return self._plain(name) in self._infos

    def read(self, name: str) -> bytes:
        """Return the bytes of a part. Raises Refusal: it is too large."""
        with self._archive.open(self._infos[self._plain(name)]) as file:
            raw = file.read(self._left_bytes + 1)
        self._left_bytes -= len(raw)
        if self._left_bytes < 0:
            raise Refusal(f"is larger when unpacked than {MAX_SOURCE_BYTES >> 20} MiB")
        return raw

    def related(self, name: str) -> list[tuple[str, str, str]]:
        """Return the parts related to a part ("" for the document): id, last word of the relation,
        name.
        """
        relations = []
        folder = posixpath.dirname(name)
        for attributes in self._relations(name):
            if attributes.get("TargetMode") != "External":
                target = unquote(attributes.get("Target", "")).replace("\\", "/")
                path = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
                relations.append(
                    (attributes.get("Id", ""), attributes.get("Type", "").rpartition("/")[2], path)
                )
        return [relation for relation in relations if relation[2] in self]

    def addresses(self, name: str) -> dict[str, str]:
        """Return the web addresses that a part refers to, by relation id."""
        return {
            attributes.get("Id", ""): attributes.get("Target", "")
            for attributes in self._relations(name)
            if attributes.get("TargetMode") == "External"
            and _WEB_ADDRESS.fullmatch(attributes.get("Target", ""))
        }

    def _relations(self, name: str) -> list[Attributes]:
        folder, base = posixpath.split(name)
        rels = posixpath.join(folder, "_rels", f"{base}.rels")
        relations: list[Attributes] = []

        def begin(element: str, attributes: Attributes) -> None:
            if element == "Relationship":
                relations.append(attributes)

        if rels in self:
            parse_part(self.read(rels), begin)
        return relations

    def named(self, pattern: str) -> list[str]:
        """Return the names of parts that match a pattern."""
        return sorted(name for name in self._infos if re.fullmatch(pattern, name))

    @staticmethod
    def _plain(name: str) -> str:
        return name.replace("\\", "/").lstrip("/").lower()
