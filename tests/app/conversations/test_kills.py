import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

N_KILLS = 15


def test_a_kill_at_any_moment_loses_no_message_and_no_piece():
    command = [sys.executable, "-m", "tests.app.conversations.killed_writer", str(N_KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.match(
        rf"{N_KILLS} kills, (\d+) messages and pieces reported as saved, 0 lost", done.stdout
    )
    assert match is not None
    assert int(match[1]) > N_KILLS


@pytest.mark.smoke
def test_a_lost_piece_is_detected():
    code = (
        "import sys\nfrom app.conversations import store\nfrom "
        "tests.app.conversations.killed_writer import main\n"
        "store._interrupted = lambda *_: None\nsys.exit(main(400, stops=True))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1
