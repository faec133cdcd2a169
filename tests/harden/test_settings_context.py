"""The one context length, against the engine's own arithmetic."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdguard.facts.interface import Collected, FactSet, Subject
from pdguard.facts.windows import derive_windows
from pdguard.harden.settings.values import fitting_context
from tests.facts.build import sized
from tests.wheels import wheel_file


class Half:
    """One engine's two gates, as every release from 0.5.19 to 0.5.23 has them."""

    def __init__(self, role: str, pool: int, context: int, reserve: int, kept: int = 0) -> None:
        self.role, self.pool, self.context, self.reserve, self.kept = role, pool, context, reserve, kept

    def tokenizer_refuses(self, n: int, context: int | None = None) -> bool:
        return n + self.reserve >= (context or self.context)

    def scheduler_rejects(self, n: int, context: int | None = None) -> bool:
        return n >= min((context or self.context) - 1, self.pool - 1) - 5

    def pool_rejects(self, n: int) -> bool:
        return n >= self.pool - 1 - 5

    def never_places(self, n: int) -> bool:
        return self.role == "decode" and n + self.kept > self.pool

    def subject(self, name: str, context: int | None = None) -> Subject:
        facts: dict[str, Any] = {"reserved_tokens": self.reserve, "reserved_decode_tokens": self.kept}
        return sized(self.role, self.pool, context=context or self.context, name=name, **facts)


def computed(halves: Sequence[Half], context: int | None = None) -> int | None:
    found = fitting_context([h.subject(f"e{i}", context) for i, h in enumerate(halves)])
    return int(found.value) if found.value else None


def lengths(halves: Sequence[Half], context: int) -> list[int]:
    """Every length at which an answer may change."""
    marks = {context, *(h.pool for h in halves), *(h.context for h in halves)}
    marks |= {h.pool - h.kept for h in halves}
    return sorted({n for m in marks for n in range(m - 60, m + 61) if n > 0})


@st.composite
def clusters(draw: st.DrawFn) -> list[Half]:
    pools, contexts = st.integers(600, 4000), st.integers(600, 4000)
    reserve = draw(st.sampled_from([0, 0, 1, 4, 6, 9, 40]))
    same = draw(st.booleans())

    def half(role: str) -> Half:
        own = reserve if same else draw(st.sampled_from([0, 3, 8, 40]))
        return Half(role, draw(pools), draw(contexts), own, draw(st.sampled_from([0, 16, 512])))

    return [
        half(r) for r in ["prefill", "decode", *draw(st.lists(st.sampled_from(["prefill", "decode"])))[:3]]
    ]


LAB = [Half("prefill", 1024, 4096, 0), Half("decode", 4096, 4096, 0, 16)]
INCIDENT = [Half("prefill", 681_280, 1_048_576, 0), Half("decode", 2_040_064, 1_048_576, 0, 512)]


@given(clusters())
@example(LAB)
@example(INCIDENT)
@example([Half("prefill", 4096, 4096, 0), Half("decode", 4099, 4096, 0, 0)])
@settings(deadline=None)
def test_the_tokenizers_refuse_all_that_a_pool_rejects_and_nothing_else(halves: list[Half]) -> None:
    context = computed(halves)
    assert context is not None
    assert context <= min(h.context for h in halves)
    for n in lengths(halves, context):
        refused = [h.tokenizer_refuses(n, context) for h in halves]
        if any(h.pool_rejects(n) for h in halves):
            assert all(refused), n
        # What the context itself admits on every half is not refused for a pool's sake.
        if all(n + h.reserve < context and n < context - 6 for h in halves):
            assert not any(refused), n
            assert not any(h.scheduler_rejects(n, context) or h.never_places(n) for h in halves), n
        assert len({h.scheduler_rejects(n, context) for h in halves}) == 1, n


@given(clusters())
@example(LAB)
@example(INCIDENT)
@settings(deadline=None)
def test_it_is_the_longest_such_context(halves: list[Half]) -> None:
    context = computed(halves)
    assert context is not None
    longer = context + 1
    slips = any(
        h.pool_rejects(n) and not all(o.tokenizer_refuses(n, longer) for o in halves)
        for n in lengths(halves, longer)
        for h in halves
    )
    above_a_context = longer > min(h.context for h in halves)
    above_a_pool = longer > min(h.pool for h in halves)
    unplaced = any(h.never_places(longer - 7) for h in halves)
    assert slips or above_a_context or above_a_pool or unplaced


@given(clusters())
@settings(deadline=None)
def test_with_it_no_window_is_left_and_nothing_more_is_asked_for(halves: list[Half]) -> None:
    context = computed(halves)
    assert context is not None
    assert computed(halves, context) == context
    after = [h.subject(f"e{i}", context) for i, h in enumerate(halves)]
    for p in (s for s in after if s.facts.text("role") == "prefill"):
        for d in (s for s in after if s.facts.text("role") == "decode"):
            facts = FactSet()
            derive_windows(facts, p.facts, d.facts)
            for name in ("over_read_lengths", "mirror_lengths", "never_admitted_lengths", "exposed_lengths"):
                assert facts.integer(name) == 0, name


def test_no_length_without_every_engine_or_without_room() -> None:
    known = LAB[0].subject("p0")
    assert fitting_context([]).value == ""
    untold = sized("decode", 4096, name="d0", admission_limit=None)
    assert fitting_context([known, untold]).why.startswith("d0: ")
    full = Half("decode", 512, 4096, 0, 512).subject("d0")
    assert "no prompt would be left" in fitting_context([known, full]).why


def test_engines_in_no_pair_do_not_count() -> None:
    from pdguard._bundle import bundled
    from pdguard.harden.settings import load_settings, propose

    alone = sized("prefill", 700, name="p9", in_pair=False)
    engines = [*(h.subject(n) for h, n in zip(LAB, ("p0", "d0"), strict=True)), alone]
    found = propose(
        Collected(Subject("cluster", "c"), engines),
        [s for s in load_settings(bundled("remediations") / "settings") if s.id == "context-length"],
    )
    assert [(p.engine, p.new) for p in found] == [("p0", "1018"), ("d0", "1018")]
    assert found[0].together == ("p0", "d0")
    assert found[0].closes_admission_alone


# The engines themselves: their functions, cut out of the wheels and run.


def function(version: str, file: str, name: str) -> ast.FunctionDef:
    tree = ast.parse(wheel_file(version, f"sglang/srt/managers/{file}"))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[-1]


class Anything(SimpleNamespace):
    """A bare stand-in: what was not given is empty."""

    def __getattr__(self, name: str) -> Any:
        return None


def run(definition: ast.FunctionDef, names: Mapping[str, Any]) -> Any:
    definition.decorator_list = []
    definition.returns = None
    for argument in definition.args.args:
        argument.annotation = None
    space: dict[str, Any] = dict(names)
    module = ast.fix_missing_locations(ast.Module([definition], []))
    exec(compile(module, definition.name, "exec"), space)  # noqa: S102 - a released wheel's own function
    return space[definition.name]


def tokenizer(version: str, context: int, reserve: int) -> Any:
    """Whether the tokenizer of a release refuses a prompt of that many tokens, by its length check alone."""
    definition = function(version, "tokenizer_manager.py", "_validate_one_request")
    at = next(
        i
        for i, s in enumerate(definition.body)
        if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "_max_req_len"
    )
    end = next(i for i, s in enumerate(definition.body) if i > at and "max_new_tokens" in ast.unparse(s))
    definition.body = definition.body[at:end]
    check = run(definition, {})
    manager = Anything(context_len=context, num_reserved_tokens=reserve, allow_auto_truncate=False)

    def refuses(n: int) -> bool:
        try:
            check(manager, None, [0] * n)
        except ValueError:
            return True
        return False

    return refuses


def limit(version: str, context: int, pool: int) -> int:
    """max_req_input_len as the worker of a release computes it."""
    definition = function(version, "tp_worker.py", "get_worker_info")
    returned = next(s for s in definition.body if isinstance(s, ast.Return))
    assert isinstance(returned.value, ast.Tuple)
    texts = [ast.unparse(e) for e in returned.value.elts]
    at = next(i for i, t in enumerate(texts) if t in ("max_req_len - 5", "max_req_input_len"))
    wanted = ("max_req_len", "max_req_input_len")
    body = [s for s in definition.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) in wanted]
    definition.body = [*body, ast.Return(returned.value.elts[at])]
    ranks = Anything(attn_dcp_size=1)
    runner = Anything(effective_max_total_num_tokens=pool)
    worker = Anything(model_config=Anything(context_len=context), model_runner=runner, ps=ranks)
    found: int = run(definition, {"kv_capacity": pool})(worker)
    return found


@pytest.mark.wheels
@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
@pytest.mark.parametrize("halves", [LAB, [Half("prefill", 1024, 4096, 4), Half("decode", 900, 4096, 9, 16)]])
def test_the_arithmetic_is_that_of_the_releases(version: str, halves: list[Half]) -> None:
    context = computed(halves)
    assert context is not None
    gates = [tokenizer(version, context, h.reserve) for h in halves]
    stock = [tokenizer(version, h.context, h.reserve) for h in halves]
    for h, refuses, before in zip(halves, gates, stock, strict=True):
        for n in lengths(halves, context):
            assert before(n) == h.tokenizer_refuses(n)
            assert refuses(n) == h.tokenizer_refuses(n, context)
        assert limit(version, h.context, h.pool) == min(h.context, h.pool) - 6
        assert limit(version, context, h.pool) == context - 6
    smallest = min(limit(version, h.context, h.pool) for h in halves)
    assert all(refuses(n) for refuses in gates for n in range(smallest, smallest + 3000))
    assert not any(refuses(context - 7 - max(h.reserve for h in halves)) for refuses in gates)
