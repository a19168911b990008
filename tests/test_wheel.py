import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    # Built from a copy: setuptools leaves a build folder behind, and takes stale files from one.
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for room in ("mechheads", "tasks", "circuits"):
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The Python of a fresh environment with the wheel in it, outside of the checkout.

    What the wheel depends on is borrowed from this environment, which took minutes to install;
    only its path is added, so this environment's editable install is not seen.
    """
    env = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    python = env / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    # With a PYTHONPATH that leads here, pip would find mechheads installed already.
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, env=clean)
    site = next(env.glob("lib/*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


def run(python: Path, *words: str) -> str:
    out = subprocess.run(
        [str(python), "-I", *words], cwd=python.parent, capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    rooms = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert rooms == {"mechheads", "tasks", "circuits"}
    assert {f"{room}/py.typed" for room in rooms} <= set(names)


def test_all_three_packages_import_from_the_installed_wheel(installed):
    program = (
        "import mechheads as m, tasks as t, circuits as c\nfor x in (m, t, c): print(x.__file__)"
    )
    for file in run(installed, "-c", program).split():
        assert Path(file).is_relative_to(installed.parents[1])


@pytest.mark.parametrize("name", ["mini", "mini-sparse"])
def test_the_embedded_models_run_from_the_installed_wheel(name, installed):
    assert "ioi_long" in run(installed, "-m", "mechheads.show", "--help")
    shown = run(installed, "-m", "mechheads.show", "--task", "math", "--model", name, "--test", "4")
    assert "against all tokens" in shown
