"""Reads the YAML files of the catalogues; every fault becomes a Problem with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from pdguard.errors import Problem

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Model = TypeVar("_Model", bound=BaseModel)


def read_tree(file: Path, problems: list[Problem]) -> tuple[Any, Any] | None:
    """(syntax node, data) of a file, or None with the problem that it has."""
    try:
        text = file.read_text("utf-8")
        # The safe loader, in C where there is one.
        return yaml.compose(text, Loader=_Loader), yaml.load(text, Loader=_Loader)  # noqa: S506
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        problems.append(_problem(file, error, "the file cannot be read"))
        return None


def read_model(file: Path, model: type[_Model], problems: list[Problem]) -> _Model | None:
    """The content of a file as `model`, or None with every problem that it has, by the path of its key."""
    try:
        return model.model_validate(yaml.load(file.read_text("utf-8"), Loader=_Loader))  # noqa: S506
    except yaml.YAMLError as error:
        problems.append(_problem(file, error, "not YAML"))
    except ValidationError as error:
        for one in error.errors():
            where = ".".join(map(str, one["loc"]))
            problems.append(Problem(str(file), 0, 0, f"{where}: {one['msg']}"))
    return None


def _problem(file: Path, error: Exception, otherwise: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    return Problem(str(file), line, column, str(getattr(error, "problem", None) or otherwise))
