"""Places in source files, their normal form, rules over them, and the loader of the catalogue."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.errors import InputError
from pdguard.fingerprint import source
from pdguard.fingerprint.loader import load_fixes
from pdguard.fingerprint.match import Matcher
from pdguard.fingerprint.model import Fix, Part, PartFinding, Place, Rule, Spot, State
from pdguard.fingerprint.source import SourceFile

FILE = "srt/a.py"
DRAINS: Rule = {"pattern": "self.drain($$$)"}
FREES: Rule = {"pattern": "self.free($$$)"}


def normal(text: str, path: str) -> str | None:
    found = SourceFile(text).normal(path)
    return None if found is None else str(found.root.text())


def line_of(text: str, path: str, pattern: str) -> int:
    found = SourceFile(text).normal(path)
    assert found is not None
    match = found.root.find(pattern=pattern)
    assert match is not None, found.root.text()
    return found.original_line(match.range().start.line + 1)


def place(
    path: str = "C.f", file: str = FILE, fixed: Rule | None = DRAINS, bad: Rule | None = FREES
) -> Place:
    return Place(file, path, fixed, bad)


def one_part(*places: Place, **more: Any) -> Part:
    return Part("part", places or (place(),), **more)


def fix(*parts: Part, **more: Any) -> Fix:
    return Fix("00001", "title", "summary", (), "both", parts, **more)


def find(files: dict[str, str], *parts: Part, **more: Any) -> Any:
    def read(file: str) -> tuple[str, str] | None:
        text = files.get(file)
        return None if text is None else (hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), text)

    return Matcher([fix(*parts, **more)]).find(read)[0]


def judged(text: str, *parts: Part) -> PartFinding:
    found = find({FILE: text}, *(parts or (one_part(),))).parts[0]
    assert isinstance(found, PartFinding)
    return found


def method(body: str, head: str = "") -> str:
    return f"import os\n\n\nclass C:\n{head}    def f(self, room):\n        {body}\n"


# --- places --------------------------------------------------------------------------------------------


def test_a_place_is_found_in_nested_blocks() -> None:
    text = (
        "try:\n    import x\nexcept ImportError:\n    if 1:\n        class C:\n"
        "            with open('f') as g:\n                def f(self): return 1\n"
        "finally:\n    def g(): return 2\n"
        "for i in range(3):\n    def h(): return 3\n"
        "while 0:\n    def w(): return 4\n"
        "else:\n    LIMIT = 5\n"
    )
    assert normal(text, "C.f") == "def f(self):\n    return 1"
    assert normal(text, "g") == "def g():\n    return 2"
    assert normal(text, "h") == "def h():\n    return 3"
    assert normal(text, "w") == "def w():\n    return 4"
    assert normal(text, "LIMIT") == "LIMIT = 5"
    assert normal(text, "C.nothing") is None
    assert normal(text, "f") is None, "a method is no function of the module"


def test_inner_functions_are_places_too() -> None:
    text = "class C:\n    def f(self):\n        def g():\n            def h():\n                return 1\n"
    assert normal(text, "C.f.g.h") == "def h():\n    return 1"
    assert normal(text, "C.g") is None


def test_decorated_and_async_definitions_are_found() -> None:
    text = (
        "class C:\n    @property\n    @functools.lru_cache(\n        1,\n        2,\n    )\n"
        "    def f(self): return 1\n"
        "    @wraps(h)\n    async def g(self): await x()\n@dataclass\nclass D:\n    limit: int = 3\n"
    )
    assert normal(text, "C.f") == "def f(self):\n    return 1"
    assert normal(text, "C.g") == "async def g(self):\n    await x()"
    assert normal(text, "D.limit") == "limit = 3"


def test_assignments_are_places() -> None:
    text = (
        "A = EnvBool(False)\nclass E:\n    B: int = EnvInt(\n        0)\n"
        "    C: int\n    d.e = 1\n    F = G = 2\n"
    )
    assert normal(text, "A") == "A = EnvBool(False)"
    assert normal(text, "E.B") == "B = EnvInt(0)"
    assert normal(text, "E.F") == "F = G = 2"


def test_the_last_of_several_definitions_counts() -> None:
    text = "class C:\n    @overload\n    def f(self): ...\n    def f(self): return 2\n    x = 1\n    x = 3\n"
    assert normal(text, "C.f") == "def f(self):\n    return 2"
    assert normal(text, "C.x") == "x = 3"


def test_definitions_that_hang_on_a_condition_are_unknown() -> None:
    drains, frees = "def f(self): self.drain()", "def f(self): self.free()"
    text = f"class C:\n    if fast:\n        {drains}\n    else:\n        {frees}\n"
    found = judged(text)
    assert found.state is State.UNKNOWN
    assert "several ways" in found.why


# --- the normal form ------------------------------------------------------------------------------------


def test_comments_docstrings_annotations_quotes_and_layout_are_gone() -> None:
    text = (
        'class C:\n    """Doc."""\n    n: int\n    m: "int" = 3\n'
        '    def f(self, a: int, *b: str, c: "X" = 1) -> None:\n        "Doc."\n'
        '        # note\n        x: dict[str, int] = {"a":1,}\n'
        '        return (a if "q" == c else\n            x)\n'
        '    def g(self):\n        """Only this."""\n'
    )
    assert normal(text, "C") == (
        "class C:\n    m = 3\n\n    def f(self, a, *b, c=1):\n        x = {'a': 1}\n"
        "        return a if 'q' == c else x\n\n    def g(self):\n        pass"
    )


def test_strings_over_several_lines_keep_their_text() -> None:
    text = "class C:\n    def f(self):\n        return '''one\n  two\n        three'''\n"
    assert normal(text, "C.f") == "def f(self):\n    return 'one\\n  two\\n        three'"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_do_not_matter(end: str) -> None:
    text = method("self.drain(\n            room,\n        )").replace("\n", end)
    assert normal(text, "C.f") == "def f(self, room):\n    self.drain(room)"
    found = judged(text)
    assert (found.state, found.spot) == (State.PRESENT, Spot(FILE, 6))


def test_tabs_are_indents_too() -> None:
    text = (
        "class C:\n\tclass D:\n\t\tif 1:\n\t\t\tdef f(self):\n"
        "\t\t\t\tif x:\n\t\t\t\t\tself.drain()\n\t\t\t\treturn 1\n"
    )
    assert normal(text, "C.D.f") == "def f(self):\n    if x:\n        self.drain()\n    return 1"
    assert line_of(text, "C.D.f", "self.drain()") == 6


def test_lines_lead_back_to_the_file() -> None:
    text = (
        "# licence\n\n\nclass C:\n    @functools.lru_cache(\n        1,\n    )\n    @staticmethod\n"
        "    def f(\n        self,\n"
        "        room,\n    ):\n        '''Two\n        lines.'''\n        # note\n        x = call(\n"
        "            1,\n            2,\n        )\n\n        @wraps(\n            3,\n        )\n"
        "        def g():\n            self.free(\n                room,\n            )\n"
        "        if (\n            room\n            and x\n        ):\n            self.drain(room)\n"
        "        return x\n"
    )
    lines = text.split("\n")
    for pattern, begins in (
        ("x = call($$$)", "x = call("),
        ("self.free($$$)", "self.free("),
        ("self.drain($$$)", "self.drain(room)"),
        ("return x", "return x"),
    ):
        assert lines[line_of(text, "C.f", pattern) - 1].strip() == begins
    assert line_of(text, "C.f.g", "self.free($$$)") == lines.index("            self.free(") + 1


def test_a_place_with_columns_of_wide_letters_before_it_is_found() -> None:
    text = "Ω = '→→→'\nclass C:\n    ü = 'é'; x = 1\n    def f(self):\n        self.drain('ß→')\n"
    assert normal(text, "C.f") == "def f(self):\n    self.drain('ß→')"
    assert line_of(text, "C.f", "self.drain($$$)") == 5


def test_warnings_of_the_parser_are_not_shown() -> None:
    assert judged(method(r"self.drain('\d+', 1 is 1)")).state is State.PRESENT


# --- files that are no Python ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "self.drain(",
        "return return",
        "x = ]",
        "self.drain()\n        \x00",
        "if x:\nself.drain()",
        "é = '\ud800'",
    ],
)
def test_a_broken_place_is_unknown_or_missing(body: str) -> None:
    assert judged(method(body)).state is State.UNKNOWN


def test_a_file_that_python_would_not_take_is_unknown() -> None:
    found = judged(method("self.drain()") + "\n\ndef broken(:\n    pass\n")
    assert found.state is State.UNKNOWN
    assert "not Python" in found.why


def test_very_deep_code_is_unknown() -> None:
    assert judged(method("return " + "(" * 2000 + "1" + ")" * 2000)).state is State.UNKNOWN
    assert judged(method("return " + "-" * 50_000 + "1")).state in (State.UNKNOWN,)


def test_a_file_that_is_too_long_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = method("self.drain()")
    monkeypatch.setattr(source, "MAX_LENGTH", len(text) - 1)
    found = judged(text)
    assert found.state is State.UNKNOWN
    assert "too long" in found.why


def test_a_large_file_is_judged() -> None:
    filler = "".join(f"def filler_{i}(a, b):\n    return a + b * {i}\n\n\n" for i in range(30_000))
    assert judged(filler + method("self.drain()")).state is State.PRESENT


names = st.sampled_from(["C", "f", "C.f", "x", "a.b.c", "C.f.g"])
words = st.sampled_from(
    [
        *(
            "class C:\n",
            "    def f(self):\n",
            "        return 1\n",
            "    @x\n",
            "\t",
            "    ",
            "\n",
            "\r\n",
            "(",
            ")",
        ),
        *(
            '"""',
            "'",
            "# é\n",
            "x = 1\n",
            "if x:\n",
            "else:\n",
            "async ",
            "\x0c",
            "\x00",
            "\\\n",
            "f'{",
            "}",
            "\ud800",
        ),
    ]
)


@given(st.one_of(st.text(), st.lists(words, max_size=30).map("".join)), names)
def test_any_text_gives_a_state(text: str, path: str) -> None:
    found = judged(text, one_part(place(path)))
    assert found.state in set(State)
    assert found.spot is None or 1 <= found.spot.line <= text.count("\n") + text.count("\r") + 1


# --- rules and states ------------------------------------------------------------------------------------


def test_one_form_decides_and_none_or_both_do_not() -> None:
    assert judged(method("self.drain()")).state is State.PRESENT
    assert judged(method("self.free()")).state is State.ABSENT
    neither, both = judged(method("pass")), judged(method("self.free(); self.drain()"))
    assert (neither.state, both.state) == (State.UNKNOWN, State.UNKNOWN)
    assert "neither" in neither.why
    assert "both" in both.why
    assert neither.spot == Spot(FILE, 5)


def test_rules_may_have_helpers() -> None:
    rule = {"rule": {"kind": "call", "matches": "one"}, "utils": {"one": {"pattern": "self.drain($$$)"}}}
    assert judged(method("self.drain()"), one_part(place(fixed=rule))).state is State.PRESENT


def test_the_first_place_that_exists_decides() -> None:
    new, old = place("C.new"), place("C.f", fixed=None)
    assert judged(method("self.free()"), one_part(new, old)).state is State.ABSENT
    text = method("self.free()") + "\n    def new(self):\n        self.drain()\n"
    assert judged(text, one_part(new, old)).state is State.PRESENT
    assert judged(method("self.drain()"), one_part(new, old)).state is State.UNKNOWN


def test_what_is_missing_has_the_state_that_the_catalogue_says() -> None:
    part = one_part(without_file=State.NOT_APPLICABLE, without_place=State.ABSENT)
    assert find({}, part).parts[0].state is State.NOT_APPLICABLE
    assert find({FILE: "x = 1"}, part).parts[0].state is State.ABSENT
    assert find({}, one_part()).parts[0].state is State.UNKNOWN
    assert find({FILE: "x = 1"}, one_part()).parts[0].why == f"{FILE} has no C.f"


def test_a_part_counts_only_when_it_should() -> None:
    when = place("C.g", fixed={"pattern": "offload"}, bad={"pattern": "plain"})
    part = one_part(when=(when,))
    for word, state in (("offload", "present"), ("plain", "not-applicable"), ("odd", "unknown")):
        text = method("self.drain()") + f"\n    def g(self):\n        return {word}\n"
        assert find({FILE: text}, part).state.value == state


def test_an_aside_is_told_and_does_not_count() -> None:
    other = Part("other", (place("C.g"),), backends=("ascend",), aside=True)
    text = method("self.drain()") + "\n    def g(self):\n        self.free()\n"
    found = find({FILE: text}, one_part(backends=("mooncake",)), other)
    assert found.state is State.PRESENT
    assert dict(found.backends) == {"mooncake": State.PRESENT}
    assert [(p.part, p.state, p.aside) for p in found.parts] == [
        ("part", State.PRESENT, False),
        ("other", State.ABSENT, True),
    ]
    assert found.spots == (Spot(FILE, 6),)


def test_states_of_parts_make_the_state_of_the_fix_and_of_backends() -> None:
    text = method("self.drain()") + "\n    def g(self):\n        self.free()\n    def h(self): pass\n"
    good, bad = one_part(backends=("mooncake",)), one_part(place("C.g"), backends=("nixl",))
    none = one_part(place(file="srt/no.py"), backends=("mori",), without_file=State.NOT_APPLICABLE)
    odd = one_part(place("C.h"), backends=("mori",))
    found = find({FILE: text}, good, bad, none)
    assert found.state is State.PARTIAL
    assert dict(found.backends) == {
        "mooncake": State.PRESENT,
        "nixl": State.ABSENT,
        "mori": State.NOT_APPLICABLE,
    }
    assert find({FILE: text}, good, none).state is State.PRESENT
    assert find({FILE: text}, good, odd).state is State.UNKNOWN
    assert find({FILE: text}, none).state is State.NOT_APPLICABLE


def test_a_file_that_cannot_be_read_is_unknown_with_the_reason() -> None:
    for error, why in ((LookupError("not fetched"), "not fetched"), (LookupError(), "could not be read")):

        def read(file: str, error: LookupError = error) -> None:
            raise error

        found = Matcher([fix(one_part())]).find(read)[0]
        assert found.state is State.UNKNOWN
        assert why in found.parts[0].why


def test_a_content_is_looked_at_once() -> None:
    reads = []
    matcher = Matcher([fix(one_part())])

    def read(file: str) -> tuple[str, str]:
        reads.append(file)
        return "same", method("self.drain()") if len(reads) == 1 else "broken("

    assert [matcher.find(read)[0].state for _ in range(3)] == [State.PRESENT] * 3


def test_watched_files_are_all_that_places_name() -> None:
    part = one_part(place(file="srt/b.py"), when=(place(file="srt/c.py"),))
    assert Matcher([fix(part, one_part())]).watched() == ("srt/a.py", "srt/b.py", "srt/c.py")


# --- the loader ------------------------------------------------------------------------------------------

GOOD = """
id: "00001"
title: One
summary: >-
  Two
  lines.
side: prefill
gate: lifetime
severity: high
backends: [nixl, mooncake]
parts:
  - name: door
    at:
      - {file: srt/a.py, path: C.f, fixed: {pattern: a}, vulnerable: {pattern: b}}
"""


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).mkdir()
        (folder / name / "fix.yaml").write_text(text, "utf-8")
    return folder


def problems(folder: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_fixes(folder)
    return [str(problem) for problem in caught.value.problems]


def test_a_fix_is_loaded(tmp_path: Path) -> None:
    written(tmp_path, **{"00001": GOOD, "X1": GOOD.replace('"00001"', "X1") + "requires: ['00001']\n"})
    first, second = load_fixes(tmp_path)
    assert (first.id, first.summary, first.backends, first.merged) == (
        "00001",
        "Two lines.",
        ("mooncake", "nixl"),
        True,
    )
    assert second.requires == ("00001",)
    assert first.parts[0].places == (Place("srt/a.py", "C.f", {"pattern": "a"}, {"pattern": "b"}),)


def test_every_fault_of_every_file_is_told_at_once(tmp_path: Path) -> None:
    written(
        tmp_path,
        **{
            "00001": GOOD.replace("side: prefill", "side: left"),
            "00002": GOOD,
            "00003": GOOD.replace("00001", "00003") + "requires: ['99999']\n",
            "00004": "id: [\n",
            "00005": GOOD.replace("00001", "00005").replace("srt/a.py", "../a.py") + "odd: 1\n",
            "00006": "- a list\n",
        },
    )
    text = "\n".join(problems(tmp_path))
    for word in ("side", "bears its id", "99999, which is no fix", "00004", "file", "odd", "00006"):
        assert word in text, (word, text)


@given(st.text(max_size=80))
def test_any_text_is_refused_as_bad_input(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "00001").mkdir()
        (Path(folder) / "00001" / "fix.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(InputError):
            load_fixes(Path(folder))
