"""The tests of centrifuge-go itself, from its module: unmodified but for the server's port."""

import pathlib
import re
import shutil
import subprocess
import tempfile

from dunlin import main, scenario

MODULE = pathlib.Path(__file__).resolve().parents[1] / "go"
# Its tests have deadlines of seconds, which a busy machine may miss: those that fail are run again.
RUNS = 3


def failures(cwd, pattern):
    """The tests that match, and of these those that failed; and what they said."""
    command = ["go", "test", "-v", "-count=1", "-timeout=100s", "-run", pattern, "."]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=150)
    said = run.stdout + run.stderr
    passed = re.findall(r"^--- PASS: (\w+)", said, re.MULTILINE)
    failed = re.findall(r"^--- FAIL: (\w+)", said, re.MULTILINE)
    assert (run.returncode == 0) == (not failed), said[-4000:]
    assert passed or failed, said[-4000:]
    return failed, said


@scenario("centrifuge-go's own tests pass", config="centrifuge_go.toml")
def suite(server):
    find = ["go", "list", "-m", "-f", "{{.Dir}}", "github.com/centrifugal/centrifuge-go"]
    source = subprocess.run(find, cwd=MODULE, check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        tests = pathlib.Path(directory) / "centrifuge-go"
        # What the module cache holds is read-only.
        shutil.copytree(source, tests, copy_function=shutil.copyfile)
        tests.chmod(0o755)
        path = tests / "client_test.go"
        path.write_text(path.read_text().replace("localhost:8000", f"localhost:{server.client_port}"))
        pattern = "."
        for _ in range(RUNS):
            failed, said = failures(tests, pattern)
            if not failed:
                return
            pattern = f"^({'|'.join(failed)})$"
        raise AssertionError(f"{failed}\n{said[-6000:]}")


if __name__ == "__main__":
    main()
