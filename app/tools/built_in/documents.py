"""Search in the documents of saved conversations, those that F6 lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.conversations.document_list import list_documents, load_document
from app.conversations.locks import StoreError
from app.conversations.store import Store
from app.documents.passages import bm25, fitting, words_of
from app.documents.read import Document, ReadingProgress, read_documents
from app.tools.built_in.tool import BuiltInTool, Stopped, ToolFailure, text_parameters
from app.tools.mcp.served_tools import ServedTool
from app.tools.mcp.transport import StoppedError

MAX_DOCUMENTS = 200
"""Limit on the documents that are searched, the last used first."""
MAX_FILES = 10
"""Limit on documents whose file is read again, since they were sent in passages."""
MAX_CHARS = 8 << 20
_RESULT_CHARS = 6000
_MAX_QUERY_CHARS = 500


def search_documents(store: Store, query: str, is_stopped: Stopped) -> str:
    """Return the passages that match a question best, with the names of their documents.

    Raises:
        ToolFailure: Nothing matches.
        StoppedError: The user stops it.
    """
    question = words_of(query[:_MAX_QUERY_CHARS])
    if not question:
        raise ToolFailure("The search needs words.")
    documents = _documents(store, is_stopped)
    if not documents:
        raise ToolFailure("There are no documents yet. The user adds them with /read or @file.")
    scores = bm25(question, (words_of(document.text) for document in documents))
    matches = [document for document, score in zip(documents, scores, strict=True) if score > 0]
    if not matches:
        raise ToolFailure("No document has these words. Try other words.")
    limits = _RESULT_CHARS, _RESULT_CHARS
    passages = fitting(matches, query[:_MAX_QUERY_CHARS], limits)
    return "\n\n".join(passage.in_message.strip() for passage in passages)


def _documents(store: Store, is_stopped: Stopped) -> list[Document]:
    documents: list[Document] = []
    names: list[str] = []
    n_chars = 0
    try:
        for entry in list_documents(store)[:MAX_DOCUMENTS]:
            if is_stopped():
                raise StoppedError
            if entry.path:
                names.append(entry.path)
                continue
            document = load_document(store, entry)
            n_chars += len(document.text)
            if n_chars > MAX_CHARS:
                break
            documents.append(document)
    except StoreError as error:
        raise ToolFailure(f"The documents cannot be read: {error}") from None

    def follow(progress: ReadingProgress) -> bool:
        return not is_stopped()

    if names:
        reading = read_documents(names[:MAX_FILES], only_existing=True, follow=follow)
        if reading.is_stopped:
            raise StoppedError
        documents += reading.documents
    return [document for document in documents if not document.is_picture]


def document_tools(is_stopped: Stopped) -> list[BuiltInTool]:
    """Return the search in documents."""

    def run(arguments: Mapping[str, Any]) -> str:
        return search_documents(Store(), str(arguments["query"]), is_stopped)

    tool = ServedTool(
        "search_documents",
        "Searches the user's documents (files of earlier messages) and returns passages.",
        text_parameters({"query": "Words to search for"}),
    )
    return [BuiltInTool(tool, run)]
