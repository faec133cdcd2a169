"""Diffs against the place a setting comes from, and what they must never show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard._bundle import bundled
from pdguard.facts.interface import Collected, Grade, Subject, Value
from pdguard.facts.process import EngineProcess
from pdguard.harden.settings import (
    Launch,
    Proposal,
    describe,
    launch_of,
    load_settings,
    propose,
    read_local,
    render_diff,
)
from pdguard.node import names
from tests.node.tree import Tree

SETTINGS = load_settings(bundled("remediations") / "settings")
SECRET = "sk-live-4711"
HOLD = names.HOLD
LONG = "--context-length"


def proposed(setting: str, engine: str = "p0", launch: Launch | None = None, **facts: Value) -> Proposal:
    """The one proposal for `engine`, of a pair whose context is too long and whose hold is off."""
    collected = Collected(Subject("cluster", "c"))
    shared: dict[str, Value] = {
        **{"dp_size": 1, "context_length": 4096, "reserved_decode_tokens": 16, "metrics_on": False},
        **{"hold_support": "yes", "hold_setting": False, "hold_misread": "no", "version": "0.5.20"},
        **{"backend": "mooncake", "auto_truncate": False},
    }
    sizes: dict[str, dict[str, Value]] = {
        "p0": {"role": "prefill", "admission_limit": 1018, "pool": 1024},
        "d0": {"role": "decode", "admission_limit": 4090, "pool": 4096, "hold_scope": "decode aborts"},
    }
    for name, own in sizes.items():
        subject = Subject("engine", name)
        for fact, value in {**shared, **own, **(facts if name == engine else {})}.items():
            subject.facts.add(fact, value, Grade.CONFIGURED, "process", fact)
        collected.engines.append(subject)
    launches = {} if launch is None else {engine: launch}
    found = [p for p in propose(collected, SETTINGS, launches) if (p.setting, p.engine) == (setting, engine)]
    assert len(found) == 1
    return found[0]


def changed(proposal: Proposal) -> list[str]:
    lines = render_diff(proposal).splitlines()
    assert lines[0].startswith("--- ")
    assert lines[1].startswith("+++ ")
    return [line for line in lines[2:] if line[0] in "+-"]


ARGS = ("--model-path", "/models/x", "--api-key", SECRET, LONG, "4096", "--port", "30000")


def test_the_launch_command_has_an_argument_a_line_and_no_secret() -> None:
    proposal = proposed("context-length", launch=Launch("sglang.launch_server", ARGS, pid=20))
    assert (proposal.current, proposal.current_from) == ("4096", "launch command")
    assert proposal.place == "launch command of p0"
    assert proposal.before == (
        "sglang.launch_server",
        "--?",
        "?",
        "--?",
        "?",
        LONG,
        "4096",
        "--port",
        "30000",
    )
    assert changed(proposal) == ["-4096", "+1018"]
    assert describe(proposal) == "p0: --context-length 1018 (now 4096, by launch command)"


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (("--port", "1", f"{LONG}=4096"), [f"-{LONG}=4096", f"+{LONG}=1018"]),
        ((LONG, "8192", LONG, "4096"), ["-4096", "+1018"]),
        (("--context-len", "4096"), ["-4096", "+1018"]),
        (("--port", "1"), [f"+{LONG}", "+1018"]),
        (("--port", "1", "--", "x"), [f"+{LONG}", "+1018"]),
        ((), [f"+{LONG}", "+1018"]),
        ((LONG,), [f"+{LONG}", "+1018"]),
    ],
)
def test_the_last_occurrence_is_edited_or_the_option_added(args: tuple[str, ...], lines: list[str]) -> None:
    proposal = proposed("context-length", launch=Launch("sglang serve", args))
    assert changed(proposal) == lines
    if "--" in args:
        assert proposal.after.index(LONG) < proposal.after.index("--")


def test_a_switch_is_added_once() -> None:
    proposal = proposed("metrics", launch=Launch("sglang serve", ("--port", "1")))
    assert (proposal.current, proposal.current_from, proposal.new) == ("off", "default", "on")
    assert changed(proposal) == ["+--enable-metrics"]


CONFIG_TEXT = f"""# written by {SECRET}
model-path: /models/x
api-key: {SECRET}
context-length: 4096  # {SECRET}
enable-metrics: false
extra:
  - {SECRET}
"""


def test_the_configuration_file_is_edited_where_it_sets_the_option() -> None:
    launch = Launch(
        "sglang serve", ("--config", "/etc/p.yaml"), config_path="/etc/p.yaml", config_text=CONFIG_TEXT
    )
    proposal = proposed("context-length", launch=launch)
    assert (proposal.current, proposal.current_from) == ("4096", "configuration file")
    assert proposal.place == "configuration file /etc/p.yaml"
    assert changed(proposal) == ["-context-length: 4096", "+context-length: 1018"]
    assert changed(proposed("metrics", launch=launch)) == ["-enable-metrics: false", "+enable-metrics: true"]


def test_the_command_wins_over_the_file_and_an_ignored_file_counts_for_nothing() -> None:
    both = Launch("sglang serve", ("--config", "/c", LONG, "4096"), config_text="context-length: 8192\n")
    assert proposed("context-length", launch=both).place == "launch command of p0"
    ignored = Launch("sglang serve", ("--config=/c",), config_text="context-length: 4096\n")
    assert changed(proposed("context-length", launch=ignored)) == [f"+{LONG}", "+1018"]


def test_rows_of_a_file_that_only_the_node_read() -> None:
    process = EngineProcess.model_validate(
        {
            "pid": 20,
            "argv": {"state": "read", "program": "sglang serve", "args": ["--config", "?"]},
            "config": {"how": "read", "rows": [["?", "?"], ["context-length", "4096"]]},
            "env": {"state": "read", "values": {HOLD: "on"}},
        }
    )
    proposal = proposed("context-length", launch=launch_of(process))
    assert proposal.place == "configuration file of p0"
    assert proposal.notes == ("the path of the file was not read",)
    assert changed(proposal) == ["-context-length: 4096", "+context-length: 1018"]
    hold = proposed("hold", launch=launch_of(process), hold_misread="said on, is off")
    assert (hold.current, hold.current_from) == ("on, which is read as off", "environment")
    assert hold.place == "environment of p0 (pid 20)"
    assert changed(hold) == [f"-{HOLD}=on", f"+{HOLD}=1"]


def test_a_process_whose_arguments_and_environment_were_not_read() -> None:
    process = EngineProcess.model_validate({"pid": 20})
    launch = launch_of(process)
    assert launch.args is None
    assert launch.environment is None
    proposal = proposed("context-length", launch=launch)
    assert proposal.place == ""
    assert render_diff(proposal) == ""
    assert describe(proposal).endswith("(now 4096; where it is set is not known)")


def test_variables_off_the_allow_list_and_strange_values_are_not_shown() -> None:
    env = {"HF_TOKEN": SECRET, names.T_HOLD: SECRET, names.WAITING_TIMEOUT: "300"}
    proposal = proposed("hold", launch=Launch(environment=env))
    assert (proposal.current, proposal.current_from) == ("off", "default")
    assert proposal.before == (f"{names.T_HOLD}=?", f"{names.WAITING_TIMEOUT}=300")
    assert changed(proposal) == [f"+{HOLD}=1"]


def test_a_twin_that_overrides_is_taken_out() -> None:
    old = names.twin(HOLD)
    proposal = proposed("hold", launch=Launch(environment={HOLD: "1", old: "0"}))
    assert proposal.current == "0"
    assert changed(proposal) == [f"-{old}=0"]
    assert proposal.notes == (f"{old} overrides {HOLD} and is taken out",)


def test_a_variable_in_front_of_the_command_is_edited_there() -> None:
    launch = Launch("sglang serve", ("--port", "1"), {HOLD: "0"}, environment={HOLD: "0"})
    proposal = proposed("hold", launch=launch)
    assert (proposal.place, proposal.current_from) == ("launch command of p0", "launch command")
    assert proposal.after == (f"{HOLD}=1", "sglang serve", "--port", "1")


def test_facts_alone() -> None:
    flags = (f"{LONG} 4096", "--enable-hierarchical-cache", "+3 others not shown")
    proposal = proposed("context-length", process_flags=flags, config_file="none")
    assert (proposal.place, proposal.notes) == ("launch command of p0 of the process", ())
    assert changed(proposal) == ["-4096", "+1018"]
    merged = proposed("context-length", process_flags=flags, config_file="read")
    assert merged.current_from == "launch command or configuration file"
    assert merged.notes
    added = proposed("metrics", process_flags=flags, config_file="none")
    assert added.after[-2:] == ("--enable-metrics", "+3 others not shown")


@pytest.mark.parametrize(
    ("raw", "lines", "origin"),
    [
        ("unset", [f"+{HOLD}=1"], "default"),
        ("off", [f"-{HOLD}=off", f"+{HOLD}=1"], "environment"),
        ("empty", [f"-{HOLD}=", f"+{HOLD}=1"], "environment"),
        ("1 in quotes", [f"-{HOLD}=?", f"+{HOLD}=1"], "environment"),
    ],
)
def test_the_environment_from_facts(raw: str, lines: list[str], origin: str) -> None:
    proposal = proposed("hold", env_read=True, hold_raw=raw)
    assert changed(proposal) == lines
    assert proposal.current_from == origin


def test_t_hold_from_facts_is_shown_where_it_is_not_the_default() -> None:
    known: dict[str, Any] = {"env_read": True, "t_hold_kind": "finite", "t_hold": 30.0}
    assert changed(proposed("t-hold", "d0", **known)) == [f"+{names.T_HOLD}=60"]
    known["t_hold"] = 5.0
    assert changed(proposed("t-hold", "d0", **known)) == [f"-{names.T_HOLD}=5", f"+{names.T_HOLD}=60"]
    zero = proposed("t-hold", "d0", env_read=True, t_hold_kind="infinite")
    assert changed(zero) == [f"-{names.T_HOLD}=?", f"+{names.T_HOLD}=60"]
    twin = proposed("t-hold", "d0", env_overridden=(names.T_HOLD,), **known)
    assert twin.notes == (f"{names.twin(names.T_HOLD)} overrides {names.T_HOLD}: take it out",)


# A process of this machine


def test_a_process_is_read_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "root/work").mkdir(parents=True)
    (tmp_path / "root/work/c.yaml").write_text(CONFIG_TEXT, "utf-8")
    tree = Tree(tmp_path / "proc")
    script = f"{HOLD}=0 exec python3 -m sglang.launch_server --config c.yaml --api-key {SECRET}"
    tree.add(20, 1, ["sh", "-c", script], {"HF_TOKEN": SECRET}, root=tmp_path / "root")
    launch = read_local(20, str(tmp_path / "proc"))
    assert (launch.program, launch.config_path) == ("sglang.launch_server", "c.yaml")
    assert launch.environment == {HOLD: "0"}
    hold = proposed("hold", launch=launch)
    assert hold.before == (f"{HOLD}=0", "sglang.launch_server", "--config", "?", "--?", "?")
    assert changed(hold) == [f"-{HOLD}=0", f"+{HOLD}=1"]
    context = proposed("context-length", launch=launch)
    assert context.place == "configuration file c.yaml"
    assert SECRET not in repr((hold, context, render_diff(hold), render_diff(context)))


@pytest.mark.parametrize("argv", [["sglang::scheduler"], ["nginx"], b"\0" * 40])
def test_a_process_that_does_not_tell(tmp_path: Path, argv: list[str] | bytes) -> None:
    tree = Tree(tmp_path)
    tree.add(20, 1, argv, b"\0" * 9)
    assert read_local(20, str(tmp_path)) == Launch(pid=20)
    assert read_local(21, str(tmp_path)) == Launch(pid=21)


def test_a_shell_that_may_set_anything_leaves_the_environment_unknown(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    script = ". /etc/env; exec python3 -m sglang.launch_server --config gone.yaml"
    tree.add(20, 1, ["sh", "-c", script], {HOLD: "0"})
    launch = read_local(20, str(tmp_path))
    assert launch.args == ("--config", "gone.yaml")
    assert launch.environment is None
    assert launch.config_text is None


WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@given(st.lists(st.one_of(st.sampled_from([*names.OPTIONS, "--config", "--api-key", "--", "="]), WORD)), WORD)
def test_no_word_that_is_not_known_ever_shows(words: list[str], text: str) -> None:
    marked = [w if w in names.OPTIONS or w in ("--config", "--") else f"{w}-{SECRET}" for w in words]
    lines = "\n".join(f"{w}: {text}{SECRET}\n{text}{SECRET}" for w in words)
    launch = Launch("sglang serve", tuple(marked), {HOLD: f"1{SECRET}"}, "", lines, (), {HOLD: SECRET})
    for one in (launch, replace(launch, args=("--config", "c"), assigned={})):
        for setting in ("context-length", "hold"):
            proposal = proposed(setting, launch=one)
            assert SECRET not in repr(replace(proposal, why=""))
