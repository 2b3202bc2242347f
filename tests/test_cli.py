import os
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from vitkit.cli import COMMANDS, main


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from vitkit.cli import main; main(['--help']); print(*{'torch', 'numpy', 'PIL'} & {*sys.modules})"
    )
    start = time.perf_counter()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == ""
    assert time.perf_counter() - start < 2  # 0.05 s on an idle machine, where torch takes 2


@pytest.mark.parametrize(
    ("option", "line"), [("--help", "usage: vitkit fit"), ("--epochs=3", "did you mean trainer.max_epochs?")]
)
def test_help_and_unknown_option_of_fit_import_no_torch(option: str, line: str) -> None:
    code = f"import sys, vitkit.cli\ntry: vitkit.cli.main(['fit', {option!r}])\n"
    code += "finally: print({'torch', 'lightning', 'numpy'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "set()" and line in ran.stdout + ran.stderr


def test_misspelt_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pedict"]) == 2
    assert capsys.readouterr() == ("", "error: there is no command pedict; did you mean predict?\n")
    assert main(["?"]) == 2
    assert "it is one of fit, " in capsys.readouterr().err


def test_invalid_input_is_one_line_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "nowhere", "picture.png"]) == 1
    assert capsys.readouterr() == ("", "error: source must be a model folder, got nowhere; no such folder\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_module_of_command_exists(command: str) -> None:
    assert find_spec(COMMANDS[command][0])


@pytest.mark.parametrize("command", COMMANDS)
def test_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main([command, "--help"])
    assert exit.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: vitkit {command}")


@pytest.mark.parametrize("buffered", ["", "1"])
def test_broken_pipe_is_silent(buffered: str) -> None:
    code = "import vitkit.cli as cli; cli.COMMANDS = {'it': ('it', '')}; sys.exit(cli.main(['it']))"
    module = "import sys, types; it = sys.modules['it'] = types.ModuleType('it'); it.main = lambda _: print('x') or 0"
    ran = subprocess.Popen(
        [sys.executable, "-c", f"{module}; input(); {code}"],
        env={**os.environ, "PYTHONUNBUFFERED": buffered},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ran.stdout
    ran.stdout.close()
    assert ran.communicate("\n")[1] == "" and ran.returncode == 141


WRITERS = ("evaluate", "predict", "features", "reconstruct", "attend", "heads", "explain", "learn", "zero-shot")


@pytest.mark.parametrize("command", [*WRITERS, "search", "import", "export", "unpack", "push", "bench"])
def test_command_that_writes_files_can_overwrite_on_request(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--overwrite" in capsys.readouterr().out
