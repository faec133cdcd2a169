"""Code goes exactly where the seam says, or nothing is edited at all."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdguard.fingerprint.notice import notice
from pdguard.harden.edits import edit
from pdguard.harden.model import PAYLOAD_PACKAGE, PUTS, Backport, Refusal, Seam

TOOL = "tool 1"
NOTICE = notice(TOOL, ["1"])
FILE = "a.py"


def seam(put: Any, code: str = "h()", find: str | dict[str, Any] | None = "g($X)", path: str = "f") -> Seam:
    rule = {"pattern": find} if isinstance(find, str) else find
    return Seam("the seam", FILE, path, rule, put, code)


def edited(text: str, *seams: Seam) -> str:
    done, refused = edit({FILE: text}, [Backport("1", "0.5.19", seams)], TOOL)
    assert refused == ()
    (one,) = done
    assert (one.file, one.before, one.fixes) == (FILE, text, ("1",))
    return one.after


def refused(text: str, *seams: Seam) -> Refusal:
    done, told = edit({FILE: text}, [Backport("1", "0.5.19", seams)], TOOL)
    assert done == ()
    return told[0]


def body(*lines: str) -> str:
    """A file with these lines in its function."""
    return "import os\ndef f(a):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("put", "lines"),
    [
        ("before", ["a = 1", "h()", "g(2)  # why", "b()"]),
        ("after", ["a = 1", "g(2)  # why", "h()", "b()"]),
        ("instead", ["a = 1", "h()", "b()"]),
    ],
)
def test_beside_or_in_place_of_a_statement(put: str, lines: list[str]) -> None:
    assert edited(body("a = 1", "g(2)  # why", "b()"), seam(put)) == NOTICE + body(*lines)


def test_first_and_last_in_a_body() -> None:
    text = body('"""Say."""', "a = 1", "return a")
    assert edited(text, seam("first", find=None)) == NOTICE + body('"""Say."""', "h()", "a = 1", "return a")
    assert edited(text, seam("last", find=None)) == NOTICE + body('"""Say."""', "a = 1", "return a", "h()")
    assert edited(body("a = 1"), seam("first", find=None)) == NOTICE + body("h()", "a = 1")
    only = body('"""Say."""')
    assert edited(only, seam("first", find=None)) == NOTICE + body('"""Say."""', "h()")


def test_first_in_a_body_of_several_lines_of_signature_and_docstring() -> None:
    text = 'import os\nasync def f(\n    a,\n) -> None:\n    """Say.\n\n    More.\n    """\n    b()\n'
    new = text.replace("    b()\n", "    h()\n    b()\n")
    assert edited(text, seam("first", find=None)) == NOTICE + new


def test_the_whole_place_is_the_node_without_a_rule() -> None:
    text = "import os\nclass C:\n    a = 1\n\n    def f(self):\n        pass\n"
    new = text.replace("    def f", "    b = 2\n    def f")
    assert edited(text, seam("before", "b = 2", None, "C.f")) == NOTICE + new
    gone = "import os\nclass C:\n    a = 1\n\n"
    assert edited(text, seam("instead", "", None, "C.f")) == NOTICE + gone


def test_before_a_decorated_definition_by_a_rule_on_its_class() -> None:
    text = "import os\nclass C:\n    @staticmethod\n    def f(self):\n        pass\n"
    rule = {
        "kind": "decorated_definition",
        "has": {"field": "definition", "has": {"field": "name", "regex": "^f$"}},
    }
    assert edited(text, seam("before", "b = 2", rule, "C")) == NOTICE + text.replace(
        "    @", "    b = 2\n    @"
    )
    assert (
        refused(text, seam("before", "b = 2", None, "C.f")).reason == "what was found does not begin its line"
    )


def test_captured_text_goes_into_the_code() -> None:
    text = body("if q.bad(r[0]):", "    g(1)")
    find = {"kind": "if_statement", "has": {"field": "condition", "pattern": "q.bad($WHO)"}}
    new = body("if h($WHO, '$5'): return".replace("$WHO", "r[0]"), "if q.bad(r[0]):", "    g(1)")
    assert edited(text, seam("before", "if h($WHO, '$5'): return", find)) == NOTICE + new


def test_a_part_of_a_line_is_replaced_in_place() -> None:
    assert edited(body("x = g(1) + 2; y()"), seam("instead", "h($X)")) == NOTICE + body("x = h(1) + 2; y()")
    text = body("if (", "    one", "    and g(1)", "):", "    pass")
    assert edited(text, seam("instead", "(a and g($X))")) == NOTICE + text.replace("g(1)", "(a and g(1))")


def test_code_of_several_lines_keeps_its_own_shape_below_the_indentation_of_the_place() -> None:
    text = "import os\ndef f():\n\tg(1)\n"
    code = "    if a:\n        b()\n\n    c()\n"
    assert edited(text, seam("before", code)) == NOTICE + text.replace(
        "\tg", "\tif a:\n\t    b()\n\n\tc()\n\tg"
    )


def test_line_ends_of_the_file_are_kept() -> None:
    text = body("a()", "g(1)").replace("\n", "\r\n")
    new = (NOTICE + body("a()", "if h():", "    return", "g(1)")).replace("\n", "\r\n")
    assert edited(text, seam("before", "if h():\n    return")) == new


def test_text_that_is_not_ascii_moves_no_seam() -> None:
    text = body("s = 'é 😀 中'  # ∀", "x = ('😀', g('é'))")
    assert edited(text, seam("instead", "h($X)")) == NOTICE + text.replace("g('é')", "h('é')")


@pytest.mark.parametrize(
    "head",
    [
        "",
        "\ufeff",
        "#!/usr/bin/python\n",
        "# -*- coding: utf-8 -*-\n",
        "#!/usr/bin/python\n# vim: set fileencoding=utf-8 :\n",
        "# A licence.\n# coding: utf-8\n",
        "\n# coding: utf-8\n",
        "\ufeff#!/usr/bin/python\n",
    ],
)
def test_the_notice_comes_first_but_for_what_has_to(head: str) -> None:
    text = '"""Doc."""\n' + body("g(1)")
    assert edited(head + text, seam("before")) == head + NOTICE + text.replace("    g", "    h()\n    g")


def test_a_licence_stays_below_the_notice() -> None:
    text = "# A licence.\n# More.\n# coding: utf-8\n" + body("g(1)")
    assert edited(text, seam("before")).startswith(NOTICE + "# A licence.\n")


IMPORT = f"from {PAYLOAD_PACKAGE} import doors as pdguard_doors\n"


@pytest.mark.parametrize(
    ("top", "rest"),
    [
        ("import os\n", ""),
        ("import os; import re  # both\n", "\n"),
        ('"""Doc."""\nfrom __future__ import annotations\n', "\n"),
        ("import os\nif TYPE_CHECKING:\n    import b\nfrom c import (\n    d,\n    e,\n)\n", "x = 1\n"),
        ("import os\n", "if TYPE_CHECKING:\n    import b\n"),
        ("import os\n", "try:\n    import b\nexcept ImportError:\n    b = None\n"),
        ("import os\nx = 1\nimport re\n", "\n@deco\nclass C:\n    pass\nimport late\n"),
    ],
)
def test_the_payload_is_imported_behind_the_last_import_before_the_first_definition(
    top: str, rest: str
) -> None:
    text = top + rest + "def f():\n    g(1)\n"
    new = top + IMPORT + rest + "def f():\n    pdguard_doors.go()\n    g(1)\n"
    assert edited(text, seam("before", "pdguard_doors.go()")) == NOTICE + new


def test_every_payload_module_is_imported_once() -> None:
    code = "pdguard_doors.go(); pdguard_a.b()\npdguard_doors.go()"
    lines = edited(body("g(1)", "k()"), seam("before", code), seam("after", "pdguard_a.b()", "k()")).split(
        "\n"
    )
    assert [line for line in lines if line.startswith("from")] == [
        f"from {PAYLOAD_PACKAGE} import a as pdguard_a",
        IMPORT.strip(),
    ]


def test_several_fixes_share_a_file_and_its_notice() -> None:
    text = body("g(1)", "k()")
    backports = [
        Backport("2", "0", (seam("after", "one()"),)),
        Backport("1", "0", (seam("before", "two()", "k()"), seam("instead", "g(9)"))),
    ]
    done, told = edit({FILE: text}, backports, TOOL)
    assert told == ()
    assert done[0].fixes == ("2", "1")
    assert done[0].after == NOTICE.replace("fixes 1", "fixes 2, 1") + body("g(9)", "one()", "two()", "k()")


def test_one_edit_may_lie_inside_the_statement_that_another_goes_before() -> None:
    new = NOTICE + body("a()", "k(h(1))")
    assert edited(body("k(g(1))"), seam("before", "a()", "k($X)"), seam("instead", "h($X)")) == new


@pytest.mark.parametrize(
    "seams",
    [
        (seam("instead", "a()", "k($X)"), seam("instead", "b()")),
        (seam("instead", "a()", "k($X)"), seam("instead", "b()", "k($X)")),
    ],
)
def test_edits_that_meet_are_refused(seams: tuple[Seam, ...]) -> None:
    assert refused(body("k(g(1))"), *seams).reason == "two edits of the chosen set meet here"


def test_a_seam_that_is_not_there_is_refused_with_what_comes_nearest() -> None:
    told = refused(body("a = 1", "gg(1, 2)", "b = 2"), seam("before"))
    assert told.reason == "its code is not there as it is known here"
    assert told.nearest == "line 4, `gg(1, 2)`"
    assert str(told).startswith("1, seam 'the seam' in a.py f: its code is not there")
    other = refused(body("g(1)"), seam("before", path="ff"))
    assert (other.reason, other.nearest) == ("there is no ff", "`f`")


def test_a_seam_that_is_there_twice_is_refused_with_the_lines() -> None:
    assert refused(body("g(1)", "a()", "g(2)"), seam("before")).reason.endswith("2 times, in lines 3, 5")


def test_one_seam_that_is_lost_keeps_every_file_as_it_is() -> None:
    other = Seam("other", "missing.py", "f", None, "first", "h()")
    done, told = edit({FILE: body("g(1)")}, [Backport("1", "0", (seam("before"), other))], TOOL)
    assert done == ()
    assert [one.reason for one in told] == ["there is no such file"]


@pytest.mark.parametrize(
    ("text", "made", "reason"),
    [
        (body("if a: g(1)"), seam("before"), "does not begin its line"),
        (body("x = [", "    g(1),", "]"), seam("before"), "does not begin its line"),
        (body("x = \\", "g(1)"), seam("before"), "does not begin its line"),
        (body("g(1); b()"), seam("after"), "does not end its line"),
        (body("g(1) \\", "    + 2"), seam("after"), "does not end its line"),
        (body("x = [", "    g(1)", "]"), seam("after"), "does not end its line"),
        ("import os\ndef f(): g(1)\n", seam("first", find=None), "no body of its own lines"),
        ("import os\ndef f(\n  a): g(1)\n", seam("first", find=None), "no body of its own lines"),
        (body("g(1)"), seam("first"), "is no function"),
        (body("g(1)"), seam("instead", ""), "would not be Python"),
        (body("g(1)"), seam("before", "if :"), "would not be Python"),
        (body("g(1)"), seam("before", "h($Y)"), "names $Y, which the rule does not"),
        ("def f():\n    g(1)\n", seam("before", "pdguard_doors.go()"), "has no import"),
        (
            "import os\rimport re\ndef f():\n    g(1)\n",
            seam("before", "pdguard_a.b()"),
            "is not counted alike",
        ),
        ("import os\n@vendor\ndef f():\n    g(1)\n", seam("before"), "decorator that is not known"),
        (
            "import os\nif x:\n    def f():\n        g(1)\nelse:\n    def f():\n        g(1)\n",
            seam("before"),
            "several",
        ),
        ("import os\ndef f(:\n", seam("before"), "not Python"),
    ],
)
def test_what_is_not_certain_is_refused(text: str, made: Seam, reason: str) -> None:
    assert reason in refused(text, made).reason


def test_a_clause_can_be_put_before_another() -> None:
    text = body("if a:", "    g(1)", "elif b:", "    c()")
    new = body("if a:", "    g(1)", "elif h():", "    pass", "elif b:", "    c()")
    assert edited(text, seam("before", "elif h():\n    pass", {"kind": "elif_clause"})) == NOTICE + new


_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x00\f'\\", exclude_categories=("Cs", "Cc"))
)
_LINES = st.lists(
    st.one_of(
        _TEXT.map(lambda text: f"# {text}"),
        _TEXT.map(lambda text: f"s = 'x{text}'"),
        st.just(""),
        st.just("if a:\n{0}{0}b = [\n1,\n{0}2]"),
        _TEXT.map(lambda text: f"t = '''{text}\n  {text}'''"),
        st.just("async def inner(a, *b):\n{0}{0}return a"),
    ),
    max_size=6,
)


@given(
    head=st.sampled_from(["", "\ufeff", "#!x\n", "# coding: utf-8\n", "'''doc'''\n"]),
    above=_LINES,
    below=_LINES,
    indent=st.sampled_from(["    ", "\t", "  "]),
    end=st.sampled_from(["\n", "\r\n"]),
    put=st.sampled_from(PUTS),
)
def test_nothing_but_the_seam_changes(
    head: str, above: list[str], below: list[str], indent: str, end: str, put: str
) -> None:
    def made(*middle: str) -> str:
        """The file, with the function's statements between `above` and `below`."""
        lines = [line.replace("{0}", indent) for line in (*above, *middle, *below)]
        return "import os\ndef f(a):\n" + "".join(f"{indent}{line}\n" for line in ("a = 0", *lines, "b = 0"))

    def written(text: str) -> str:
        return (head + text).replace("\n", end)

    text = written(made("target(1)"))
    code = "pdguard_x.y()"
    after = edited(text, seam(put, code, None if put in ("first", "last") else "target($X)"))
    compile(after.removeprefix("\ufeff"), FILE, "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    notice = NOTICE.replace("\n", end)
    imported = f"from {PAYLOAD_PACKAGE} import x as pdguard_x{end}"
    assert after.count(notice) == after.count(imported) == 1
    plain = after.replace(notice, "").replace(imported, "")
    target, line = f"{indent}target(1){end}", f"{indent}{code}{end}"
    if put == "instead":
        assert plain == text.replace(target, line)
        return
    assert plain.count(line) == 1
    assert plain.replace(line, "") == text
    begins, ends = f"def f(a):{end}", f"{indent}b = 0{end}"
    beside = {
        "before": line + target,
        "after": target + line,
        "first": begins + line,
        "last": ends + line,
    }
    assert beside[put] in plain
