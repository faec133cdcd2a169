"""Entry point of the lab: `python -m tests.lab.run [test|up|setup]`, from the repository's root.

Sets up what is missing, then starts itself again in a network namespace and works there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from . import netns
from .cache import ENV as CACHE_ENV
from .cache import Cache
from .errors import LabError
from .lab import running
from .process import Server, adopt_orphans, end_descendants, terminate_with_parent
from .progress import to_stderr
from .provision import Provision
from .session import ALWAYS_SET_UP, VERSIONS_ENV, versions_from_env
from .spec import VERSIONS, LabSpec, RoleSpec, pair

ROOT = Path(__file__).resolve().parents[2]
_INSIDE = "--inside-namespace"
_NOTHING_SELECTED = 5
"""Pytest's exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one action; the exit code is pytest's for `test`, and 1 for an error of the lab."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(_with_default_action(arguments))
    for signum in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(signum, _interrupt)
    try:
        if options.cache:
            os.environ[CACHE_ENV] = str(Path(options.cache).absolute())
        if not options.inside_namespace:
            Provision(Cache.default()).ensure(_needed(options))
            if options.action == "setup":
                return 0
            os.chdir(ROOT)
            netns.reexec([sys.executable, "-m", "tests.lab.run", _INSIDE, *arguments])
        adopt_orphans()
        try:
            return _up(options) if options.action == "up" else _test(options)
        finally:
            end_descendants()
    except LabError as error:
        to_stderr(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        to_stderr("interrupted")
        return 130


def _test(options: argparse.Namespace) -> int:
    netns.prepare(LabSpec().highest_port)
    env = {**os.environ, VERSIONS_ENV: ",".join(options.versions)}
    given = list(options.pytest_args)
    if any(Path(argument.partition("::")[0]).exists() for argument in given):
        return _pytest(given, env)
    here = Path(__file__).resolve().parent
    # Deployments are one at a time; exercises need none, and each version is a group of its own. They mostly
    # wait, so that more of them run at once than there are cores.
    runs = ([str(here)], [str(here.parent / "exercise"), "-n", "4", "--dist", "loadgroup"])
    codes = [_pytest([*given, *more], env) for more in runs]
    return max((code for code in codes if code != _NOTHING_SELECTED), default=_NOTHING_SELECTED)


def _pytest(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", "-m", "lab and not bench", "-v", *arguments]
    # A group of its own: pytest then gets one interrupt from us, not a second one from the terminal.
    tests = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=terminate_with_parent,  # noqa: PLW1509
    )
    try:
        return tests.wait()
    except KeyboardInterrupt:
        tests.send_signal(signal.SIGINT)
        tests.wait()
        raise


def _up(options: argparse.Namespace) -> int:
    with running(_spec(options)) as lab:
        path = lab.write_cluster_yaml()
        for engine in lab.engines:
            to_stderr(f"{engine.role} {engine.url} {_where(engine.server)}")
        if lab.router:
            to_stderr(f"router {lab.router.kind} {lab.router.url} {_where(lab.router.server)}")
        to_stderr(f"cluster file: {path}")
        to_stderr(f"beside it: {netns.enter_hint(os.getpid())}")
        to_stderr("Ctrl-C stops it")
        while all(server.exit_code is None for server in lab.servers):
            time.sleep(1)
        to_stderr("a server ended by itself")
        return 1


def _where(server: Server) -> str:
    return f"{server.name} pid {server.pid} log {server.log}"


def _spec(options: argparse.Namespace) -> LabSpec:
    def role(name: str) -> RoleSpec:
        pool, flags, env = (getattr(options, f"{name}_{what}") for what in ("pool", "flag", "env"))
        return RoleSpec(pool, options.context, tuple(flags), tuple(env))

    return LabSpec(
        version=options.version,
        prefill=role("prefill"),
        decode=role("decode"),
        prefills=options.prefills,
        decodes=options.decodes,
        backend=options.backend,
        router=options.router,
        waiting_timeout=options.waiting_timeout or None,
        engine_root=options.engine_root,
    )


def _needed(options: argparse.Namespace) -> list[LabSpec]:
    if options.action == "up":
        return [_spec(options)]
    versions = sorted({*options.versions, *ALWAYS_SET_UP})
    return [*(pair(version, router="smg") for version in versions), pair(versions[0], backend="nixl")]


def _with_default_action(arguments: list[str]) -> list[str]:
    own = [_INSIDE] if _INSIDE in arguments else []
    rest = [argument for argument in arguments if argument != _INSIDE]
    named = rest and rest[0] in ("test", "up", "setup", "-h", "--help")
    return [*own, *(rest if named else ["test", *rest])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.run", description=__doc__)
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    actions = parser.add_subparsers(dest="action", required=True)

    setup = actions.add_parser("setup", help="only download and install")
    test = actions.add_parser("test", help="run the tests marked lab (the default)")
    for sub in (setup, test):
        sub.add_argument("--versions", type=_versions, default=versions_from_env(), help="e.g. 0.5.20,0.5.22")
    test.add_argument("pytest_args", nargs="*", help="test files and, after --, options for pytest")

    up = actions.add_parser("up", help="run one deployment until Ctrl-C")
    up.add_argument("--version", choices=VERSIONS, default="0.5.22")
    up.add_argument("--router", choices=("sglang-router", "smg", "none"), default="sglang-router")
    up.add_argument("--backend", choices=("mooncake", "nixl"), default="mooncake")
    up.add_argument("--context", type=int, default=4096)
    up.add_argument("--waiting-timeout", type=float, default=8, help="seconds; 0 leaves SGLang's 300")
    up.add_argument("--engine-root", type=Path, help="import sglang from this folder instead")
    for role in ("prefill", "decode"):
        up.add_argument(f"--{role}s", type=int, default=1, help=f"number of {role} engines")
        up.add_argument(f"--{role}-pool", type=int, default=4096, help="max_total_num_tokens")
        up.add_argument(f"--{role}-flag", action="append", default=[], help="one more engine argument")
        up.add_argument(f"--{role}-env", action="append", default=[], type=_variable, help="NAME=VALUE")
    for sub in (setup, test, up):
        sub.add_argument("--cache", help=f"cache folder (default: ${CACHE_ENV}, or below the user's cache)")
    return parser


def _versions(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    if not names or not set(names) <= set(VERSIONS):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(VERSIONS)}")
    return names


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    return name, value


def _interrupt(_signum: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
