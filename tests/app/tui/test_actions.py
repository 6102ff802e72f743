from importlib import import_module

import pytest

from app.tui.actions import (
    ACTIONS,
    CHAT,
    advice_on,
    commands,
    commands_starting,
    find_command,
    nearest_command,
    scopes_overlap,
    split_command,
)
from app.tui.app import JalopyApp
from app.tui.bindings import bindings, scope_of
from app.tui.other_commands import ADVICE
from app.tui.screens.answers import AnswersScreen
from app.tui.screens.conversations import ConversationsScreen
from app.tui.screens.doctor import DoctorScreen
from app.tui.screens.documents import DocumentsScreen
from app.tui.screens.download import DownloadScreen
from app.tui.screens.help import HelpScreen
from app.tui.screens.manual import ManualScreen
from app.tui.screens.models import InspectScreen, ModelsScreen
from app.tui.screens.offers import OffersScreen
from app.tui.screens.outline import OutlineScreen
from app.tui.screens.performance import PerformanceScreen
from app.tui.screens.place import PlaceScreen
from app.tui.screens.question import (
    DeleteBranchScreen,
    OpenConversationScreen,
    RunShellScreen,
    SendFilesScreen,
    SwitchModelScreen,
)
from app.tui.screens.settings import SettingsScreen
from app.tui.screens.theme_picker import ThemePicker
from app.tui.screens.threads import ThreadsScreen
from app.tui.widgets.call_question import CallQuestion
from app.tui.widgets.find_bar import FindBar
from app.tui.widgets.prompt import Prompt
from tests.app.chat_driver import chatting

CARRIERS = {
    "app": JalopyApp,
    "prompt": Prompt,
    "help": HelpScreen,
    "manual": ManualScreen,
    "theme": ThemePicker,
    "threads": ThreadsScreen,
    "inspect": InspectScreen,
    "conversations": ConversationsScreen,
    "models": ModelsScreen,
    "settings": SettingsScreen,
    "documents": DocumentsScreen,
    "outline": OutlineScreen,
    "place": PlaceScreen,
    "answers": AnswersScreen,
    "download": DownloadScreen,
    "offers": OffersScreen,
    "question": CallQuestion,
    "find": FindBar,
    "files": SendFilesScreen,
    "branch": DeleteBranchScreen,
    "shell": RunShellScreen,
    "switch": SwitchModelScreen,
    "writer": OpenConversationScreen,
    "performance": PerformanceScreen,
    "doctor": DoctorScreen,
}


async def test_every_action_has_a_method_in_its_scope():
    async with chatting(model=None) as driver:
        for action in ACTIONS.values():
            name = f"action_{action.name}"
            if action.scope == "chat":
                assert callable(driver.chat.method_of_part(name))
            elif action.scope != "message" and not action.shows:
                assert hasattr(CARRIERS[action.scope], name)


async def test_every_key_on_a_message_does_something():
    async with chatting(model=None) as driver:
        for action in ACTIONS.values():
            if action.scope == "message":
                assert callable(driver.chat.method_of_part(action.name))


async def test_no_two_parts_of_the_chat_share_an_action():
    async with chatting(model=None) as driver:
        names = [f"action_{a.name}" for a in ACTIONS.values() if a.scope == "chat"]
        names += [a.name for a in ACTIONS.values() if a.scope == "message"]
        for name in names:
            assert sum(hasattr(part, name) for part in driver.chat.parts) == 1


def test_every_screen_of_an_action_exists_and_has_its_keys():
    for action in ACTIONS.values():
        if action.shows != CHAT and action.shows:
            screen = getattr(
                import_module(f"app.tui.screens.{action.shows}"),
                f"{action.shows.capitalize()}Screen",
            )
            assert screen is CARRIERS[action.shows]
            assert scope_of(screen.BINDINGS) == action.shows
            assert f"{action.shows}.leave" in ACTIONS


def test_keys_and_commands_are_unambiguous():
    keys = [(key, action) for action in ACTIONS.values() for key in action.keys.split(",") if key]
    names = [word for action in commands() for word in action.words]
    clashes = [
        (key, one.name, other.name)
        for i, (key, one) in enumerate(keys)
        for other_key, other in keys[:i]
        if key == other_key and scopes_overlap(one.scope, other.scope)
    ]
    assert clashes == []
    assert len(names) == len(set(names))


def test_bindings_have_the_ids_of_a_key_map():
    ids = {binding.id for binding in bindings("app")}
    assert ids == {action_id for action_id, action in ACTIONS.items() if action.scope == "app"}
    assert {"app.help", "app.quit"} <= ids


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("hlep", "help"),
        ("sav", "save"),
        ("claer", "new"),
        ("xyzzy", ""),
        ("quantize", ""),
        ("q", "quit"),
        ("exp", "save"),
        ("exprot", "save"),
        ("temperatur", "set"),
        ("", ""),
    ],
)
def test_a_mistyped_command_has_a_nearest_command(typed, nearest):
    assert nearest_command(typed) == nearest


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("/save notes.md", ("save", "notes.md")),
        ("/system  You are\na pirate ", ("system", "You are\na pirate")),
        ("/HELP", ("HELP", "")),
        ("/usr/bin/env is a path", None),
        ("/temperature 0.3", ("set", "temperature 0.3")),
        ("/temp", ("set", "temperature")),
        ("/* a comment */", None),
        ("/", None),
        ("hello /help", None),
    ],
)
def test_only_a_word_after_a_slash_is_a_command(text, split):
    assert split_command(text) == split


def test_suggestions_narrow_while_typing_and_stop_at_arguments():
    assert len(commands_starting("/")) == len(list(commands()))
    assert [action.command for action in commands_starting("/sy")] == ["system"]
    assert {"system", "save"} <= {action.command for action in commands_starting("/s")}
    assert [action.command for action in commands_starting("/cl")] == ["new"]
    assert commands_starting("/save x") == []
    assert commands_starting("hello") == []


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("export", "save"),
        ("attach", "read"),
        ("pdf", "read"),
        ("tokens", "context"),
        ("preset", "persona"),
        ("search", "conversations"),
        ("summary", "compact"),
        ("favourite", "pin"),
        ("fork", "fork"),
        ("delete", "delete"),
    ],
)
def test_words_of_other_programs_are_commands(word, command):
    assert find_command(word).command == command


WORDS_OF_OTHER_PROGRAMS = """
? add agents approve attach audio bash bench benchmark browse bug bye cancel cd
character chat clear commands commit compact config context continue copy cost ctx
ctx_size delete diff docs doctor edit editor effort exit export feedback file find fork
format fetch git gpu grammar h help history hooks image info init json keys lang
language license lint list load login logout ls max_tokens mcp memory min_p model
modelfile models multiline new nohistory nothink num_ctx num_predict options paste perf
permissions persona plan pr preset ps pull q quit raw read redo regen rename reset
restart resume retry review rewind rm role run save seed session sessions set settings
sh share shortcuts show stats status stop summarize swipe switch system temp temperature
test theme themes think threads title tokens tools top_k top_p undo unload unsend update
upload usage verbose version vim voice web
"""
"""Commands of LM Studio, Ollama, llama.cpp, Claude Code, opencode and aider."""


def test_what_people_type_elsewhere_is_answered():
    for word in WORDS_OF_OTHER_PROGRAMS.split():
        parts = split_command(f"/{word}")
        assert parts is not None, word
        assert find_command(parts[0]) or advice_on(parts[0]), word


def test_advice_is_only_for_words_that_are_no_commands():
    assert not [word for word in ADVICE if find_command(word)]
    assert all(len(advice) <= 110 and "\n" not in advice for advice in ADVICE.values())


def test_parameters_are_commands_and_switches_of_models_are_text():
    assert split_command("/top_k 20") == ("set", "top_k 20")
    assert split_command("/num_predict 100") == ("set", "max_tokens 100")
    assert split_command("/?") == ("help", "")
    assert split_command("/no_think What is 2+2?") is None


@pytest.mark.parametrize("word", ["undo", "image", "login"])
def test_other_commands_have_advice(word):
    assert find_command(word) is None
    assert advice_on(word)


def test_suggestions_know_other_words_where_no_name_begins_so():
    assert [action.command for action in commands_starting("/exp")] == ["save"]
    assert [action.command for action in commands_starting("/tok")] == ["context"]


def test_commands_are_found_by_alias_in_any_case():
    assert find_command("Clear").name == "new"
    assert find_command("shelf").name == "documents"
    assert find_command("nothing") is None
