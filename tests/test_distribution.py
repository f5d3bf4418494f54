"""What is uploaded to a package index: it is whole, and works in an environment that has never seen this directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = ("elephas_like", "pyproject.toml", "README.md", "LICENSE")


def built(kind: str, source: Path, into: Path) -> Path:
    """The file of a wheel or an sdist, made from the files of a directory."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(into)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    """(the sdist, the wheel that is made from it)."""
    folder = tmp_path_factory.mktemp("distribution")
    source = folder / "source"
    source.mkdir()
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    sdist = built("sdist", source, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist, built("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)


@pytest.mark.slow
def test_the_wheel_of_the_sdist_has_every_file_of_the_package(files) -> None:
    with zipfile.ZipFile(files[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    kept = {path for path in (ROOT / "elephas_like").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert names == {str(path.relative_to(ROOT)) for path in kept}


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(files, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    place = Path(subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip())
    # The packages that it depends on are those of this environment; a .pth file brings them without its editable installs.
    (place / "others.pth").write_text(sysconfig.get_path("purelib"))
    with zipfile.ZipFile(files[1]) as wheel:
        wheel.extractall(place)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # pytest's settings

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return subprocess.run(
            [python, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    found = run("-c", "import elephas_like; print(elephas_like.__file__, elephas_like.__version__)")
    assert found.stdout.startswith(f"{place}/elephas_like/__init__.py"), found.stderr
    version = run("-m", "elephas_like", "version")
    assert version.returncode == 0, version.stderr
    quick = ["core/test_averaging.py", "core/test_report.py", "exchange/test_wire.py", "engine/test_in_process.py"]
    done = run("-m", "pytest", "-q", "-p", "no:xdist", *(f"tests/{name}" for name in quick))
    assert done.returncode == 0, done.stdout[-3000:]
