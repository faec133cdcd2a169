"""`pdguard harden` in this process, so that catalogues are read once."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from pdguard.cli.app import app
from pdguard.errors import PdguardError


class Done:
    """Exit code and both outputs of one call."""

    def __init__(self, *arguments: str) -> None:
        result = CliRunner().invoke(app, ["harden", *arguments])
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        if isinstance(result.exception, PdguardError):
            self.code, self.err = result.exception.exit_code, str(result.exception)
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception

    @property
    def json(self) -> Any:
        return json.loads(self.out)
