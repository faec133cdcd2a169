"""Wheel, source distribution and editable install all find the checks and remediations."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IN_THE_PACKAGE = {
    "pdguard/_bundle/checks/PDG101.yaml",
    "pdguard/py.typed",
    "pdguard/report/report.schema.json",
}
ASK = """
import json, pathlib, pdguard
from pdguard._bundle import bundled
print(json.dumps({
    "package": str(pathlib.Path(pdguard.__file__).parent),
    "checks": str(bundled("checks")),
    "count": len(list(bundled("checks").glob("*.yaml"))),
    "remediations": bundled("remediations").is_dir(),
}))
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel built straight, the sdist, and a wheel built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    backend = [sys.executable, "-m", "build", "--no-isolation"]
    run(*backend, "--wheel", "--outdir", out / "direct", ROOT)
    run(*backend, "--sdist", "--outdir", out / "sdist", ROOT)
    sdist = next((out / "sdist").glob("*.tar.gz"))
    unpacked = out / "unpacked"
    unpacked.mkdir()
    run("tar", "-xzf", sdist, "-C", unpacked)
    run(*backend, "--wheel", "--outdir", out / "again", next(unpacked.iterdir()))
    return {"direct": next((out / "direct").glob("*.whl")), "again": next((out / "again").glob("*.whl"))}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_catalogue_and_nothing_foreign(dist: dict[str, Path]) -> None:
    found = names(dist["direct"])
    assert found >= IN_THE_PACKAGE
    bundled = {n.rsplit("/", 1)[1] for n in found if n.startswith("pdguard/_bundle/checks/")}
    assert bundled == {p.name for p in (ROOT / "checks").glob("*.yaml")}
    top = {n.split("/", 1)[0] for n in found}
    assert {t for t in top if not t.endswith(".dist-info")} == {"pdguard"}


def test_a_wheel_from_the_source_distribution_is_the_same(dist: dict[str, Path]) -> None:
    assert names(dist["again"]) == names(dist["direct"])


def test_an_installed_wheel_finds_its_own_copy(dist: dict[str, Path], tmp_path: Path) -> None:
    # The dependencies come from this environment; only pdguard itself is installed anew.
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, dist["direct"])
    code = f"import sys; sys.path.insert(0, {str(target)!r})\n{ASK}"
    told = json.loads(run(sys.executable, "-P", "-c", code, cwd=tmp_path))
    assert told["package"] == str(target / "pdguard")
    assert told["checks"] == str(target / "pdguard" / "_bundle" / "checks")
    assert told["count"] == len(list((ROOT / "checks").glob("*.yaml")))
    assert told["remediations"]


def test_an_editable_install_finds_the_checkout(tmp_path: Path) -> None:
    home = tmp_path / "env"
    venv.create(home, with_pip=False, system_site_packages=False)
    python = home / "bin" / "python"
    # The build backend is lent by this environment, so that nothing is downloaded.
    here = next(p for p in sys.path if p.endswith("site-packages"))
    there = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (there / "lent.pth").write_text(here + "\n")
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    run(*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", ROOT)
    told = json.loads(run(python, "-c", ASK, cwd=tmp_path))
    assert told["package"] == str(ROOT / "pdguard")
    assert told["checks"] == str(ROOT / "checks")
    assert told["count"] > 0
