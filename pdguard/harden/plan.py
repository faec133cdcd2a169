"""What would change on one engine package: computed here, before anything is touched."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdguard import __version__
from pdguard.fingerprint.match import Matcher, Reader
from pdguard.fingerprint.model import FixFinding, State
from pdguard.harden.answers import Change
from pdguard.harden.edits import edit
from pdguard.harden.model import PAYLOAD_FOLDER, Backport, Edited, Refusal
from pdguard.harden.selection import Choice, base_of, choose

TOOL = f"pdguard {__version__}"


@dataclass(frozen=True, slots=True)
class Tree:
    """One engine package as it is, and as it was before pdguard ever changed it.

    `current` is the sha256 of every file of interest, None where there is none; `originals` the bytes that
    the package came with, for the files that exist.
    """

    root: str
    version: str
    current: Mapping[str, str | None]
    originals: Mapping[str, bytes]
    hardened: tuple[str, ...] = ()
    """The fixes that an earlier run put in."""
    written: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each file that an earlier run wrote, by path."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What harden would do to one package, or why it would not."""

    root: str
    version: str
    base: str
    choices: tuple[Choice, ...]
    edited: tuple[Edited, ...]
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]
    before: tuple[FixFinding, ...]
    after: tuple[FixFinding, ...]
    payload: Mapping[str, str] = field(default_factory=dict)
    hardened: tuple[str, ...] = ()
    restored: frozenset[str] = frozenset()
    """Files that an earlier run changed and this one does not: they go back."""

    @property
    def pending(self) -> tuple[Change, ...]:
        """The files that are not yet as they are to be; `changes` has the others of the set as well."""
        return tuple(c for c in self.changes if c.before != after_sha(c))

    @property
    def id(self) -> str:
        """Names the set and its content: the same for the same bytes."""
        told = "".join(f"{c.path} {after_sha(c)}\n" for c in self.changes)
        return f"{self.base}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    @property
    def fixes(self) -> tuple[str, ...]:
        """The fixes that pdguard's own edits bring."""
        return tuple(c.fix.id for c in self.choices if c.action == "apply")

    @property
    def fresh(self) -> tuple[Change, ...]:
        """The same set for a package that nobody has changed yet."""
        mine = {one.file: hashlib.sha256(one.before.encode()).hexdigest() for one in self.edited}
        return tuple(
            Change(c.path, mine.get(c.path), c.after) for c in self.changes if c.path not in self.restored
        )

    @property
    def taken_out(self) -> tuple[str, ...]:
        """The fixes of an earlier run that this one takes away again."""
        return tuple(name for name in self.hardened if name not in self.fixes)

    @property
    def refused(self) -> bool:
        """Whether nothing may be changed."""
        return bool(self.refusals)

    @property
    def modules(self) -> tuple[str, ...]:
        """Every module that gets a seam, by its name for an import."""
        return tuple("sglang." + one.file.removesuffix(".py").replace("/", ".") for one in self.edited)

    def diff(self) -> str:
        """A unified diff for `patch -p1`, beside the package's folder."""
        lines: list[str] = []
        for one in self.edited:
            lines += _diff(one.file, one.before, one.after)
        for name, text in self.payload.items():
            lines += _diff(f"{PAYLOAD_FOLDER}/{name}", None, text)
        return "".join(lines)


def after_sha(change: Change) -> str | None:
    """sha256 of the new content, or None where the file goes."""
    return None if change.after is None else hashlib.sha256(change.after).hexdigest()


def interesting(backports: Sequence[Backport], matcher: Matcher, payload: Collection[str]) -> tuple[str, ...]:
    """Every file whose hash a plan needs, by its path below the package."""
    seams = {seam.file for backport in backports for seam in backport.seams}
    return tuple(sorted({*seams, *matcher.watched(), *(f"{PAYLOAD_FOLDER}/{name}" for name in payload)}))


def make_plan(
    tree: Tree,
    backports: Sequence[Backport],
    payload: Mapping[str, str],
    matcher: Matcher,
    wanted: str,
    *,
    auto: bool = False,
    only: Collection[str] = (),
    excluded: Collection[str] = (),
) -> Plan:
    """The plan for one package.

    `wanted` is the base that the operator believes is installed; with `auto` another one is taken where the
    package is of another release. Raises SelectionError for names that make no sense.
    """
    texts = {path: text for path, data in tree.originals.items() if (text := _text(data)) is not None}
    before = find_fixes(matcher, tree.originals)
    base, reason = _base(tree.version, wanted, auto, backports, before)
    own = [b for b in backports if b.base == base]
    if reason:
        refusal = Refusal("", "version", "", "", reason)
        return Plan(tree.root, tree.version, base, (), (), (), (refusal,), before, before, {}, tree.hardened)
    choices = choose(own, before, only, excluded)
    by_id = {b.fix: b for b in own}
    applied = [by_id[c.fix.id] for c in choices if c.action == "apply"]
    edited, lost = edit(texts, applied, TOOL)
    refusals = tuple(_told(r, tree, texts) for r in lost)
    refusals = (
        *(Refusal(c.fix.id, "requirements", "", "", c.why) for c in choices if c.action == "refused"),
        *refusals,
    )
    contents = {**tree.originals}
    contents.update({one.file: one.after.encode("utf-8") for one in edited})
    modules = dict(payload) if edited else {}
    contents.update({f"{PAYLOAD_FOLDER}/{name}": text.encode("utf-8") for name, text in modules.items()})
    after = find_fixes(matcher, contents) if not refusals else before
    refusals = refusals or _not_found_again(applied, after)
    changes = () if refusals else _changes(tree, edited, modules, contents)
    return Plan(
        *(tree.root, tree.version, base, choices, edited, changes, refusals, before, after),
        modules,
        tree.hardened,
        frozenset(tree.written) - {one.file for one in edited} - {f"{PAYLOAD_FOLDER}/{n}" for n in modules},
    )


def _base(
    version: str, wanted: str, auto: bool, backports: Sequence[Backport], found: Sequence[FixFinding]
) -> tuple[str, str]:
    """The base to take, and why there is none."""
    known = {b.base for b in backports}
    installed, listed = base_of(version), ", ".join(sorted(known))
    if auto:
        base = installed or _by_structure(known, backports, found)
        if base in known:
            return base, ""
        why = (
            f"the package is {version}"
            if installed
            else "the package tells no release, nor does what it holds"
        )
        return base or wanted, f"{why}; there are backports only for {listed}"
    if wanted not in known:
        return wanted, f"there are no backports for {wanted}, only for {listed}"
    if installed == wanted:
        return wanted, ""
    todo = f"say --backport v{installed}" if installed in known else f"there are backports only for {listed}"
    todo = todo if installed else "--auto looks at what it holds"
    return wanted, f"the package is {version or 'of no known version'}, not {wanted}; {todo}"


def _by_structure(known: Collection[str], backports: Sequence[Backport], found: Sequence[FixFinding]) -> str:
    """The newest base whose own fixes are all there: the backports of older bases tell which those are."""
    ids = {b.fix for b in backports}
    states = {f.fix.id: f for f in found if f.fix.id in ids and f.fix.first_release}
    good = (State.PRESENT, State.NOT_APPLICABLE)
    fits = ""
    for base in sorted(known, key=_numbers):
        due = [f for f in states.values() if _numbers(f.fix.first_release) <= _numbers(base)]
        if all(f.state in good for f in due):
            fits = base
    return fits


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _told(refusal: Refusal, tree: Tree, texts: Mapping[str, str]) -> Refusal:
    """A file that is there and no text is no missing file."""
    if refusal.file in tree.originals and refusal.file not in texts:
        return replace(refusal, reason="the file is no UTF-8 text", nearest="")
    return refusal


def _not_found_again(applied: Sequence[Backport], after: Sequence[FixFinding]) -> tuple[Refusal, ...]:
    """Fixes that would go in and that the catalogue would not recognise."""
    states = {f.fix.id: f for f in after}
    refusals = []
    for backport in applied:
        found = states[backport.fix]
        if not backport.is_in(found.state):
            odd = next((p for p in found.parts if p.state is not State.PRESENT and not p.aside), None)
            place = odd.why or odd.part if odd else ""
            refusals.append(
                Refusal(backport.fix, "result", "", "", f"the result would be {found.state.value}", place)
            )
    return tuple(refusals)


def _changes(
    tree: Tree, edited: Sequence[Edited], modules: Mapping[str, str], contents: Mapping[str, bytes]
) -> tuple[Change, ...]:
    """Every file of the set, and those that only an earlier set wrote, which go back."""
    paths = {*(one.file for one in edited), *(f"{PAYLOAD_FOLDER}/{name}" for name in modules), *tree.written}
    return tuple(Change(path, tree.current.get(path), contents.get(path)) for path in sorted(paths))


def find_fixes(matcher: Matcher, contents: Mapping[str, bytes]) -> tuple[FixFinding, ...]:
    """The state of every fix in a package that consists of these files."""
    return tuple(matcher.find(_reader(contents)))


def _reader(contents: Mapping[str, bytes]) -> Reader:
    def read(path: str) -> tuple[str, str] | None:
        data = contents.get(path)
        if data is None:
            return None
        text = _text(data)
        if text is None:
            raise LookupError("the file is no text")
        return hashlib.sha256(data).hexdigest(), text

    return read


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _diff(path: str, before: str | None, after: str) -> list[str]:
    old = f"a/sglang/{path}" if before is not None else "/dev/null"
    lines = difflib.unified_diff(
        [] if before is None else before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        old,
        f"b/sglang/{path}",
    )
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
