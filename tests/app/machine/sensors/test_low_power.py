import pytest

from app.machine.sensors import low_power
from app.machine.sensors.low_power import LOW_POWER_SWITCHES, prepare_environment


@pytest.mark.parametrize(
    ("setting", "is_weak", "expected"),
    [("on", False, True), ("off", True, False), ("auto", True, True), ("auto", False, False)],
)
def test_the_setting_decides_and_auto_checks_the_machine(monkeypatch, setting, is_weak, expected):
    monkeypatch.setattr(low_power, "is_weak_machine", lambda: is_weak)
    environ: dict[str, str] = {}
    assert prepare_environment(setting, environ) is expected
    assert environ == (LOW_POWER_SWITCHES if expected else {})


def test_environment_variables_of_the_user_are_kept():
    environ = {"TEXTUAL_FPS": "60"}
    prepare_environment("on", environ)
    assert environ["TEXTUAL_FPS"] == "60"
    assert environ["TEXTUAL_ANIMATIONS"] == "none"


def test_this_machine_can_be_checked():
    assert low_power.is_weak_machine() in (True, False)
