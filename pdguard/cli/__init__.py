"""The command line: one small module a command, wired together in `app`."""
