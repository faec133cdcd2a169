"""Gets what the lab needs into its cache: packages, engines, the tiny model, one system library.

Every step is skipped when its result is there, and publishes its result only when it is whole.
Run it before entering the network namespace: in there is nothing to download from.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from .cache import Cache
from .errors import ProvisionError
from .process import terminate_with_parent
from .progress import Progress, to_stderr
from .spec import LabSpec

HERE = Path(__file__).resolve().parent
STUBS = HERE / "stubs"

TORCH = "torch==2.13.0"
REQUIREMENTS = HERE / "requirements.txt"
EXTRA_SITES = {
    "nixl": ("nixl-cu13==1.5.1", "nixl==1.5.1"),
    "smg": ("smg==1.13.0", "grpcio==1.85.3", "grpcio-health-checking==1.85.1", "protobuf==7.36.2"),
}
_PYTHON = (3, 11)
_STAMP = "pdguard-lab-stamp"
# Another package manager at work is waited for.
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=120")


class Provision:
    """Fills a cache so that given specs can run."""

    def __init__(self, cache: Cache, progress: Progress = to_stderr) -> None:
        self.cache = cache
        self.progress = progress

    def ensure(self, specs: Iterable[LabSpec]) -> None:
        """Make everything that `specs` need. Safe to call again, and from several processes."""
        specs = list(specs)
        with self.cache.locked("setup", self.progress):
            self.cache.clear_scratch()
            self._libibverbs()
            self._venv()
            self._model()
            for version in sorted({s.version for s in specs if s.engine_root is None}):
                self._engine(version)
            for name in sorted({site for s in specs for site in s.extra_sites}):
                self._site(name, EXTRA_SITES[name])

    def missing(self, spec: LabSpec) -> list[str]:
        """Names of what `spec` needs and the cache lacks; empty when it can run."""
        wanted = {"the lab's virtual environment": self._venv_stamp(), "the model": self.model}
        if spec.engine_root is None:
            wanted[f"sglang {spec.version}"] = self.cache.engine(spec.version)
        wanted.update({f"site {name}": self.cache.site(name) for name in spec.extra_sites})
        return [name for name, path in wanted.items() if not path.exists()]

    @property
    def model(self) -> Path:
        """The tiny random model; its folder changes name when its recipe changes."""
        return self.cache.root / f"model-{_digest((HERE / 'make_model.py').read_text('utf-8'))}"

    def _venv_stamp(self) -> Path:
        pins = [line for line in REQUIREMENTS.read_text("utf-8").splitlines(True) if line[0] != "#"]
        return self.cache.root / "venv" / f"{_STAMP}-{_digest(''.join(pins), TORCH)}"

    def _venv(self) -> None:
        stamp = self._venv_stamp()
        if stamp.exists():
            return
        # A virtual environment cannot be moved, so it is built under another name and published by a link.
        folder = Path(tempfile.mkdtemp(prefix="venv-", dir=self.cache.root))
        python = folder / "bin" / "python"
        self._run("creating the lab's virtual environment", [_base_python(), "-m", "venv", str(folder)])
        self._pip(f"installing {TORCH}", "install", TORCH, python=python)
        pins = ("--no-deps", "-r", str(REQUIREMENTS))
        self._pip("installing the pinned packages", "install", *pins, python=python)
        (folder / stamp.name).touch()
        link = folder / "link"
        link.symlink_to(folder.name)
        link.replace(stamp.parent)
        for other in self.cache.root.glob("venv-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def _engine(self, version: str) -> None:
        target = self.cache.engine(version)
        if target.exists():
            return
        wheel = self._wheel(version)
        self.progress(f"unpacking {wheel.name}")
        with self.cache.building(target) as folder, zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
            # As an installer does; otherwise every process of an engine compiles its files when it starts.
            compiler = (str(self.cache.python), "-m", "compileall", "-q", "-j", "0")
            self._run(f"compiling {wheel.name}", [*compiler, str(folder / "sglang" / "srt")])

    def _wheel(self, version: str) -> Path:
        what, target = f"sglang=={version}", self.cache.wheel_dir(version)
        if not target.exists():
            with self.cache.building(target) as folder:
                self._pip(f"downloading {what}", "download", "--no-deps", "--dest", str(folder), what)
        if wheel := next(target.glob(f"sglang-{version}-*.whl"), None):
            return wheel
        raise ProvisionError(f"no wheel of {what} in {target}")

    def _site(self, name: str, packages: Sequence[str]) -> None:
        target = self.cache.site(name)
        if target.exists():
            return
        with self.cache.building(target) as folder:
            where = ("--target", str(folder))
            self._pip(f"installing {', '.join(packages)}", "install", "--no-deps", *where, *packages)

    def _model(self) -> None:
        if self.model.exists():
            return
        with self.cache.building(self.model) as folder:
            script = str(HERE / "make_model.py")
            self._run("making the tiny model", [str(self.cache.python), script, str(folder)])

    def _libibverbs(self) -> None:
        """Mooncake's extension module is linked against libibverbs, also when it only speaks TCP."""
        if _loads("libibverbs.so.1"):
            return
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise ProvisionError("libibverbs.so.1 is missing: install the system package libibverbs1")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        self._run("refreshing the package lists", [*_APT, "update", "-q"], env)
        self._run("installing libibverbs1", [*_APT, "install", "-y", "-q", "libibverbs1"], env)
        if not _loads("libibverbs.so.1"):
            raise ProvisionError("libibverbs1 was installed, but libibverbs.so.1 still does not load")

    def _pip(self, what: str, *args: str, python: Path | None = None) -> None:
        command = [
            str(python or self.cache.python),
            "-m",
            "pip",
            "--disable-pip-version-check",
            args[0],
            "-q",
        ]
        self._run(what, [*command, *args[1:]])

    def _run(self, what: str, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self.progress(what)
        done = subprocess.run(
            command,
            check=False,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=terminate_with_parent,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-15:])
            raise ProvisionError(f"{what} failed with exit code {done.returncode}\n{tail}")


def _base_python() -> str:
    """A Python of the version that the engines' wheels are built for."""
    if sys.version_info[:2] == _PYTHON:
        return sys.executable
    name = ".".join(map(str, _PYTHON))
    if other := shutil.which(f"python{name}"):
        return other
    raise ProvisionError(f"the lab needs Python {name}: run it with one, or put python{name} on PATH")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _digest(*parts: str) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:12]
