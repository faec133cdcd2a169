"""Our reading of the environment against the engine's own code, run as it is in each wheel."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from pdguard.facts import _env_tables as tables
from pdguard.facts.environment import parse_environment
from pdguard.facts.versions import parse_version
from pdguard.node import names
from tests.wheels import wheel_file

pytestmark = pytest.mark.wheels

BOOLS = [
    *["1", "true", "TRUE", "True", "yes", "Yes", "Y", "y", "0", "false", "FALSE", "no", "NO", "n", "N"],
    *["on", "ON", "off", "enabled", "disabled", "t", "f", "2", "None", "null", "-1", "01"],
    *["", " 1", "1 ", "'1'", '"1"', "１", "true\n"],
]
NUMBERS = [
    *[
        "30",
        "30.0",
        "nan",
        "NaN",
        "inf",
        "-inf",
        "0",
        "-1",
        "1e3",
        "30s",
        "1_000",
        "-5",
        "1024.0",
        "1k",
        "0x10",
    ],
    *[
        "+7",
        "٣",
        "1e999",
        "-0",
        "--1",
        "infinity",
        "010",
        "60.5",
        "",
        " 30",
        "30 ",
        "\t30",
        "9" * 400,
        "9" * 5000,
    ],
]

PROGRAM = """
import json, os, sys, warnings, contextlib
warnings.simplefilter("ignore")
source, cases = json.loads(sys.stdin.read())
code = compile(source, "environ", "exec")
found = []
for env in cases:
    os.environ.clear()
    os.environ.update(env)
    space = {"__name__": "environ"}
    exec(code, space)
    row = {}
    for name in %r:
        field = getattr(space["envs"], name, None)
        value = None if field is None else field.get()
        row[name] = repr(value)
    found.append(row)
print(json.dumps(found))
"""


def engine_reads(version: str, cases: list[dict[str, str]]) -> list[dict[str, str]]:
    source = wheel_file(version, "sglang/srt/environ.py").decode()
    source = source.replace("import sglang.srt.debug_utils.cuda_coredump", "pass")
    found = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM % (tuple(names.SETTINGS),)],
        input=json.dumps([source, cases]),
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    rows: list[dict[str, str]] = json.loads(found.stdout)
    return rows


def we_read(version: str, env: dict[str, str]) -> dict[str, object]:
    reading = parse_environment(env, parse_version(version))
    values: dict[str, object] = {**dict.fromkeys(reading.missing), **reading.facts}
    return values


def cases() -> list[dict[str, str]]:
    found: list[dict[str, str]] = [{}]
    for name, variable in tables.SETTINGS.items():
        texts = BOOLS if variable.kind == "bool" else NUMBERS
        if variable.kind == "text":
            texts = ["python", "rust", "Rust", "", "cpp"]
        for text in texts:
            found.append({name: text})
            found.append({names.twin(name): text})
            found.append({name: text, names.twin(name): "1"})
    return found


@pytest.mark.parametrize(
    "version",
    ["0.5.10", "0.5.12", "0.5.13", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"],
)
def test_same_as_the_engine(version: str) -> None:
    all_cases = cases()
    for env, theirs in zip(all_cases, engine_reads(version, all_cases), strict=True):
        ours = we_read(version, env)
        hold = theirs[names.HOLD]
        assert repr(ours["hold_setting"]) == ("False" if hold == "None" else hold), (version, env)
        t_hold = theirs[names.T_HOLD]
        if t_hold == "None":
            assert ours["t_hold"] is None
            assert ours["t_hold_kind"] is None
        else:
            number = float(t_hold)
            assert ours["t_hold"] == (number if math.isfinite(number) else None), (version, env)
            kinds = {"nan": math.isnan(number), "infinite": number == math.inf, "zero": number == 0}
            kinds |= {"negative": number < 0, "finite": math.isfinite(number) and number > 0}
            assert kinds[str(ours["t_hold_kind"])], (version, env)
        for name, fact, absent in (
            (names.BATCH_CAP, "batch_cap", "0"),
            (names.MORI_TIMEOUT, "mori_timeout_ms", "0"),
            (names.RUST_SERVER, "rust_server", "False"),
        ):
            assert repr(ours[fact]) == (absent if theirs[name] == "None" else theirs[name]), (
                version,
                env,
                name,
            )
        for name, fact in (
            (names.BOOTSTRAP_TIMEOUT, "bootstrap_timeout"),
            (names.WAITING_TIMEOUT, "waiting_timeout"),
        ):
            whole = int(theirs[name])
            assert ours[fact] == (None if whole.bit_length() > 1023 else float(whole)), (version, env)
        core = theirs[names.TREE_CORE].strip("'")
        assert ours["tree_core"] == (
            core if core in ("python", "rust") else "python" if core == "None" else "other"
        )


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_surface_table(version: str) -> None:
    """The table in SURFACE section 4, word for word, run in the engine."""
    on_by_default = version >= "0.5.21"
    table = dict.fromkeys(("1", "true", "TRUE", "yes", "Y"), True)
    table |= dict.fromkeys(("0", "false", "no", "n"), False)
    table |= dict.fromkeys(("on", "enabled", "t", "2", " 1", "'1'", "", "off", "None"), on_by_default)
    rows = engine_reads(version, [{names.HOLD: text} for text in table])
    for (text, expected), theirs in zip(table.items(), rows, strict=True):
        assert theirs[names.HOLD] == repr(expected)
        ours = we_read(version, {names.HOLD: text})
        assert ours["hold_setting"] is expected
        said_on = text.strip(" '").lower() in ("1", "true", "yes", "y", "on", "enabled", "t", "2")
        right = said_on is expected
        word = "on" if said_on else "off"
        assert ours["hold_misread"] == ("no" if right else f"said {word}, is {'on' if expected else 'off'}")


@pytest.mark.parametrize("version", ["0.5.10", "0.5.13", "0.5.18", "0.5.19", "0.5.21", "0.5.23"])
def test_the_tables_know_every_variable_of_the_version(version: str) -> None:
    source = wheel_file(version, "sglang/srt/environ.py").decode()
    release = tuple(int(n) for n in version.split("."))
    for name, variable in tables.ALL.items():
        assert (f"    {name} = Env" in source) is (release >= variable.since), name


@pytest.mark.parametrize("version", ["0.5.10", "0.5.19", "0.5.23"])
def test_config_equals_file_is_ignored(version: str) -> None:
    """`--config` counts only as an argument of its own: the engine asks for exactly that."""
    source = wheel_file(version, "sglang/srt/server_args.py").decode()
    assert source.count('if "--config" in argv:') == 1


@pytest.mark.parametrize("version", ["0.5.10", "0.5.19", "0.5.22", "0.5.23"])
def test_config_merge_as_in_the_engine(version: str, tmp_path: Path) -> None:
    from pdguard.facts.argv import merge_config, parse_argv
    from pdguard.node.process import config_rows

    place = "sglang/srt/server_args_config_parser.py"
    if version not in ("0.5.10",):
        place = "sglang/srt/utils/server_args_config_parser.py"
    text = (
        "# comment\ncontext-length: 4096\nenable-metrics: true\nallow-auto-truncate: no\nkv-canary: 'log'\n"
        "api-key: sk-secret\nmem-fraction-static: 0.90 # here\npage-size: 64\n"
    )
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    space: dict[str, object] = {"__name__": "parser"}
    exec(compile(wheel_file(version, place), place, "exec"), space)  # noqa: S102
    merger = space["ConfigArgumentMerger"](boolean_actions=["enable_metrics", "allow_auto_truncate"])  # type: ignore[operator]
    args = ["--model-path", "m", "--page-size", "1", "--config", str(file), "--tp-size=2"]
    theirs = parse_argv(merger.merge_config_with_args(args))
    rows = config_rows(text.encode())
    assert rows is not None
    ours = parse_argv(merge_config(args, [(a, b) for a, b in rows]))
    assert dict(ours.values) == dict(theirs.values)
    assert ours.values["page_size"] == 1
    assert ours.others == theirs.others == 2
