"""Many runs in interpreters that have loaded none of our code, for the price of one start."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORKS = """
import contextlib, io, json, os, sys, traceback
import click, msgspec

body, answers = compile(sys.argv[1], "<body>", "exec"), {}
for name in json.loads(sys.argv[2]):
    end, other_end = os.pipe()
    if os.fork() == 0:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(body, {"name": name})
            except BaseException:
                print(traceback.format_exc())
        os.write(other_end, printed.getvalue().encode())
        os._exit(0)
    os.close(other_end)
    with open(end, encoding="utf-8") as answer:
        answers[name] = answer.read()
    os.wait()
print(json.dumps(answers))
"""


def printed_in_forks(body: str, names: Sequence[str]) -> dict[str, str]:
    """What `body` prints with each of `names` as its `name`, its traceback included if it raises. Each runs in a fork of one
    interpreter that has loaded click and msgspec, and nothing of ours."""
    command = [sys.executable, "-c", FORKS, body, json.dumps(names)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
    answers: dict[str, str] = json.loads(result.stdout)
    return answers
