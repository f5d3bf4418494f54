"""Ship a whole environment to executors, as docs/deploy.md says under "Pack the environment"; print sizes and times.

To be run by hand (`python tools/packed_environment.py`), in an environment with the extra dev: it downloads TensorFlow into a new
environment, and needs about 12 GB of disk for some minutes. It can be given an archive that is packed already. The cluster is Spark's standalone one, with two workers on this machine.
tests/integration/test_packed.py does the same with a small archive.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration"), str(ROOT)]

from packing import DRIVERS_OWN  # noqa: E402
from scripts import Script  # noqa: E402
from standalone import standalone  # noqa: E402

MEBI = 2**20


def run(*command: str | Path) -> float:
    """Run a command; return the seconds it took."""
    begun = time.monotonic()
    subprocess.run([str(part) for part in command], check=True)
    return time.monotonic() - begun


def pack(folder: Path, name: str) -> None:
    """Make an environment, and its archive of that name."""
    training, archive, source = folder / "training", folder / name, folder / "source"
    shutil.copytree(ROOT / "elephas_like", source / "elephas_like")  # pip would build in the working tree
    for each in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / each, source)
    run(sys.executable, "-m", "venv", training)
    seconds = run(training / "bin" / "pip", "install", "--quiet", f"{source}[tensorflow,search]", "venv-pack")
    size = sum(path.lstat().st_size for path in training.rglob("*"))
    print(f"environment: {size / MEBI:,.0f} MiB, installed in {seconds:.0f} s", flush=True)
    seconds = run(training / "bin" / "venv-pack", "--quiet", "--prefix", training, "--output", archive)
    print(f"archive: {archive.stat().st_size / MEBI:,.0f} MiB, packed in {seconds:.0f} s", flush=True)


def main(*given: str) -> None:
    """Pack, unless an archive is given; start the cluster, and train there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = "environment.tar.gz"
        if given:
            (folder / archive).symlink_to(Path(given[0]).resolve())
        else:
            pack(folder, archive)
        with standalone(folder, without=DRIVERS_OWN) as url:
            with Script("run_packed.py", archive, url, scratch=folder, plain=True) as script:
                print(f"executors have fetched and unpacked it in {script.answer(600)['unpacked']} s")
                for executor in script.answer(600)["executors"]:
                    outside = [name for name, file in executor.items() if not file.startswith(executor["folder"])]
                    print(f"from outside the archive, in {executor['folder']}: {', '.join(outside) or 'nothing'}")
                print(f"first import of TensorFlow: {script.answer()['imported']} s")
                for _ in range(3):
                    print("fit: engine {engine}, {seconds} s, weights {weights}".format(**script.answer(600)))
                print(f"rows predicted: {script.answer()['predicted']}", flush=True)
                assert script.ended(600) == 0  # Spark deletes what it has unpacked


if __name__ == "__main__":
    main(*sys.argv[1:])
