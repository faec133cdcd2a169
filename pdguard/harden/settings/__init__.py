"""Settings as remediations: what to set on which engine, from where it is set now, and what that closes.

Nothing here changes anything. `propose` reads the facts of an audit and answers with frozen proposals, each
with a diff against the place that the setting comes from: the launch command, the configuration file, or the
environment. `pdguard harden` shows them, and the operator sets them.
"""

from pdguard.harden.settings.diffs import describe, render_diff
from pdguard.harden.settings.loader import load_settings
from pdguard.harden.settings.model import Proposal, Setting, SettingsPlan, Skipped
from pdguard.harden.settings.places import Launch, launch_of, read_local
from pdguard.harden.settings.propose import plan_settings, propose

__all__ = [
    "Launch",
    "Proposal",
    "Setting",
    "SettingsPlan",
    "Skipped",
    "describe",
    "launch_of",
    "load_settings",
    "plan_settings",
    "propose",
    "read_local",
    "render_diff",
]
