from __future__ import annotations

import argparse
import io
from contextlib import redirect_stderr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.facts.argv import launch_flags, merge_config, parse_argv
from pdguard.node import argline
from pdguard.node.names import FLAG_ROWS, OPTIONS


def test_both_spellings_and_the_last_wins() -> None:
    flags = parse_argv(
        ["--context-length", "4096", "--tp-size=2", "--context-length=8192", "--enable-metrics"]
    )
    assert dict(flags.values) == {"tp_size": 2, "context_length": 8192, "enable_metrics": True}
    assert flags.repeated == ("context_length",)


def test_secrets_are_counted_and_never_kept() -> None:
    args = ["--api-key", "sk-1", "--admin-api-key=sk-2", "--served-model-name", "x", "--page-size", "64"]
    flags = parse_argv(args)
    assert flags.shown() == ("--page-size 64", "+3 others not shown")
    assert "sk-" not in repr(flags)


def test_values_of_the_wrong_type_are_not_kept() -> None:
    flags = parse_argv(["--context-length", "sk-secret", "--kv-canary", "sk-secret", "--page-size", "$?"])
    assert dict(flags.values) == {}
    assert flags.unread == ("context_length", "kv_canary", "page_size")
    assert flags.shown() == ("+3 others not shown",)


def test_a_later_unreadable_value_takes_the_earlier_one_away() -> None:
    assert "page_size" not in parse_argv(["--page-size", "1", "--page-size", "$P"]).values


def test_abbreviations_as_argparse() -> None:
    assert parse_argv(["--tp", "4", "--context", "10"]).values == {"tp_size": 4, "context_length": 10}
    # --optimistic-prefill-retries was another option once: an abbreviation cannot be told apart
    assert not parse_argv(["--optimistic-prefill", "1"]).values
    assert parse_argv(["--context_length", "10"]).values == {}
    assert parse_argv(["--enable-metrics"]).values == {"enable_metrics": True}


def test_negative_numbers_and_the_end_of_options() -> None:
    assert parse_argv(["--chunked-prefill-size", "-1"]).values == {"chunked_prefill_size": -1}
    assert parse_argv(["--page-size", "--", "64"]).values == {}
    assert parse_argv(["--", "--page-size", "64"]).values == {}


def test_launch_command_is_joined_without_quotes() -> None:
    text = "--model-path m --context-length 4096 --api-key it's --enable-metrics"
    assert launch_flags(text) == ("--context-length 4096", "--enable-metrics", "+2 others not shown")


def test_config_comes_first_so_that_the_command_line_wins() -> None:
    rows = [("context-length", "1"), ("enable-metrics", "false"), ("allow-auto-truncate", "yes"), ("?", "?")]
    merged = merge_config(["--config", "c.yaml", "--context-length", "2"], rows)
    assert parse_argv(merged).values == {"context_length": 2, "allow_auto_truncate": True}
    assert parse_argv(merged).others == 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    for name, kind, options, words in FLAG_ROWS:
        if kind == "bool":
            parser.add_argument(*options, dest=name, action="store_true", default=None)
        else:
            type_ = {"int": int, "float": float, "word": str}[kind]
            parser.add_argument(*options, dest=name, type=type_, choices=words or None)
    parser.add_argument("--api-key")
    parser.add_argument("--config")
    parser.add_argument("--served-model-name")
    return parser


TOKENS = st.one_of(
    st.sampled_from(sorted(OPTIONS)),
    st.sampled_from(sorted(OPTIONS)).map(lambda o: o + "=2"),
    st.sampled_from(
        ["1", "-1", "2.5", "prefill", "null", "log", "--", "--api-key", "sk-planted", "--tp", "-x", ""]
    ),
    st.sampled_from(["--api-key=sk-planted", "--context=7", "--page-size 4", "a b", "-", "--config", "-1e3"]),
)


@given(st.lists(TOKENS, max_size=12))
def test_same_as_argparse_wherever_argparse_accepts(args: list[str]) -> None:
    try:
        with redirect_stderr(io.StringIO()):
            theirs = vars(_parser().parse_args(args))
    except SystemExit:
        parse_argv(args)
        return
    ours = parse_argv(args)
    for name in OPTIONS.values():
        if name not in ours.unread:
            assert ours.values.get(name) == theirs[name]


@given(st.lists(st.one_of(TOKENS, st.text(max_size=20)), max_size=12))
def test_masking_changes_nothing_and_hides_everything_else(args: list[str]) -> None:
    planted = [a.replace("sk-planted", "sk-planted-9") for a in args]
    masked = argline.mask(planted)
    assert len(masked) == len(planted)
    assert "sk-planted" not in repr(masked)
    plain, hidden = parse_argv(planted), parse_argv(masked)
    assert hidden.values == plain.values
    assert hidden.others == plain.others


@pytest.mark.parametrize("row", FLAG_ROWS, ids=lambda row: str(row[0]))
def test_every_flag_survives_the_mask(row: tuple[str, str, tuple[str, ...], tuple[str, ...]]) -> None:
    name, kind, options, words = row
    for option in options:
        args = [option] if kind == "bool" else [option, words[-1] if words else "2"]
        assert name in parse_argv(argline.mask(args)).values
