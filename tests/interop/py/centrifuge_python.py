"""The tests of centrifuge-python itself that talk to a server, from its source package: unmodified but for the server's port."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from dunlin import main, scenario

SOURCE = pathlib.Path(__file__).resolve().parents[3] / ".cache" / "interop" / "centrifuge-python"
# Its tests have deadlines of seconds, which a busy machine may miss: those that fail are run again.
RUNS = 3


def failures(cwd, names):
    """The tests among `names` that fail, and what they said."""
    command = [sys.executable, "-m", "unittest", *names]
    run = subprocess.run(command, cwd=cwd, env={**os.environ, "PYTHONPATH": str(cwd)}, capture_output=True, text=True, timeout=50)
    assert re.search(r"^Ran [1-9]\d* tests?", run.stderr, re.MULTILINE), run.stderr[-4000:]
    failed = re.findall(r"^(?:ERROR|FAIL): \S+ \(([\w.]+)\)", run.stderr, re.MULTILINE)
    assert (run.returncode == 0) == (not failed), run.stderr[-4000:]
    return failed, run.stderr


@scenario("centrifuge-python's own tests pass", config="centrifuge_python.toml")
def suite(server):
    with tempfile.TemporaryDirectory() as directory:
        tests = pathlib.Path(directory) / "tests"
        shutil.copytree(SOURCE / "tests", tests)
        for path in tests.glob("*.py"):
            path.write_text(path.read_text().replace("localhost:8000", f"localhost:{server.client_port}"))
        failed = ["tests.test_client"]
        for _ in range(RUNS):
            failed, said = failures(pathlib.Path(directory), failed)
            if not failed:
                return
        raise AssertionError(f"{failed}\n{said[-6000:]}")


if __name__ == "__main__":
    main()
